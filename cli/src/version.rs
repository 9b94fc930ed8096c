//! Version of the programs, for `--version`.

use std::sync::LazyLock;

use esp_client::control;

/// Version of the package and of the control protocol, which must be that of the daemon.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (control protocol {})",
        env!("CARGO_PKG_VERSION"),
        control::VERSION
    )
});

/// Returns the version of the package and of the control protocol.
pub fn version() -> &'static str {
    &VERSION
}
