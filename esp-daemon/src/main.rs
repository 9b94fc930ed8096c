//! The per-node ESP service.

use std::process::ExitCode;

fn main() -> ExitCode {
    esp_daemon::main()
}
