//! A virtual cluster on this machine, its demonstration and its benchmarks.

fn main() -> std::process::ExitCode {
    esplab::main()
}
