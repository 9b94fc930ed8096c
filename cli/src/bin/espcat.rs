//! Copies streams and datagrams from standard input and to standard output.

fn main() -> std::process::ExitCode {
    cli::espcat::main()
}
