//! Tools for ESP networks, each a subcommand.

fn main() -> std::process::ExitCode {
    cli::esp::main()
}
