//! Throughput of streams between two nodes.

fn main() -> std::process::ExitCode {
    cli::esperf::main()
}
