//! EDP echo: reachability, round-trip times and maximum payload.

fn main() -> std::process::ExitCode {
    cli::esping::main()
}
