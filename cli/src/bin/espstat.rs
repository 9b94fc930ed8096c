//! The node's ESP connections and listeners.

fn main() -> std::process::ExitCode {
    cli::espstat::main()
}
