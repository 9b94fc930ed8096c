//! Keys of clients that need no daemon.

use std::path::Path;

use esp_engine::{hardware_suite, read_key};
use esp_proto::EndpointConfig;
use esp_proto::secure::{Key, SecureConfig, Suite};

use crate::error::EspError;

/// Environment variable with the path of a key file, for [`Client::udp`](crate::Client::udp).
pub const KEY_VARIABLE: &str = "ESP_KEY_FILE";

/// Returns the key in the file that the environment names, if it names one.
pub(crate) fn from_environment() -> Result<Option<Key>, EspError> {
    match std::env::var_os(KEY_VARIABLE).filter(|file| !file.is_empty()) {
        Some(file) => of_file(Path::new(&file)).map(Some),
        None => Ok(None),
    }
}

fn of_file(file: &Path) -> Result<Key, EspError> {
    read_key(file).map_err(|error| EspError::BadArgument(format!("{KEY_VARIABLE}: {error}")))
}

/// Returns the protection by a key: all packets are encrypted, and others are refused.
pub(crate) fn protection(key: Key) -> SecureConfig {
    SecureConfig {
        keys: vec![key],
        require: true,
        suite: Suite::ENCRYPT.union(hardware_suite()),
        edp_ethertype: EndpointConfig::default().edp_ethertype,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_file_is_an_error_that_names_the_variable() {
        let error = of_file(Path::new("/nowhere/key")).unwrap_err().to_string();
        assert!(error.starts_with("ESP_KEY_FILE: /nowhere/key: "), "{error}");
    }
}
