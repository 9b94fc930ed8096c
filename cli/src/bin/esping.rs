//! EDP echo: is a node there, how far, how large may frames be.

fn main() -> std::process::ExitCode {
    cli::esping::main()
}
