//! Runs a program whose sockets use ESP.

fn main() -> std::process::ExitCode {
    esprun::main()
}
