//! The node's ESP connections by rate, live.

fn main() -> std::process::ExitCode {
    cli::esptop::main()
}
