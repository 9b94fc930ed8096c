//! The virtual cluster, its demonstration and its benchmarks.

fn main() -> std::process::ExitCode {
    cli::esplab::main()
}
