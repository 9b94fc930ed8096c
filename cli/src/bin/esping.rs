//! EDP echo: reachability, round-trip times and the largest frame.

fn main() -> std::process::ExitCode {
    cli::esping::main()
}
