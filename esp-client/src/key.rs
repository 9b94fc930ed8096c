//! Protection of clients that need no daemon: by a key, or by a checksum.

use std::ffi::OsStr;
use std::path::Path;

use esp_engine::{hardware_suite, read_key};
use esp_proto::EndpointConfig;
use esp_proto::secure::{Key, SecureConfig, Suite};

use crate::error::EspError;

/// Environment variable with the path of a key file, for [`Client::udp`](crate::Client::udp).
pub const KEY_VARIABLE: &str = "ESP_KEY_FILE";

/// Environment variable that is 1 if packets of [`Client::udp`](crate::Client::udp) are to have a
/// checksum, which detects damage and authenticates nothing.
pub const CHECKSUM_VARIABLE: &str = "ESP_CHECKSUM";

/// Returns the key in the file that the environment names, if it names one; otherwise
/// [`Key::CHECKSUM`] if the environment demands checksums.
pub(crate) fn from_environment() -> Result<Option<Key>, EspError> {
    match std::env::var_os(KEY_VARIABLE).filter(|file| !file.is_empty()) {
        Some(file) => of_file(Path::new(&file)).map(Some),
        None => of_checksum(std::env::var_os(CHECKSUM_VARIABLE).as_deref()),
    }
}

fn of_checksum(value: Option<&OsStr>) -> Result<Option<Key>, EspError> {
    match value.map(OsStr::as_encoded_bytes) {
        None | Some(b"" | b"0") => Ok(None),
        Some(b"1") => Ok(Some(Key::CHECKSUM)),
        Some(_) => Err(EspError::BadArgument(format!(
            "{CHECKSUM_VARIABLE}: expected 1 or 0"
        ))),
    }
}

fn of_file(file: &Path) -> Result<Key, EspError> {
    read_key(file).map_err(|error| EspError::BadArgument(format!("{KEY_VARIABLE}: {error}")))
}

/// Returns the protection by a key: all packets are encrypted, or have a checksum in the case of
/// [`Key::CHECKSUM`], and others are refused.
pub(crate) fn protection(key: Key) -> SecureConfig {
    let edp_ethertype = EndpointConfig::default().edp_ethertype;
    if key == Key::CHECKSUM {
        return SecureConfig::checksum(true, edp_ethertype);
    }
    SecureConfig {
        keys: vec![key],
        require: true,
        suite: Suite::ENCRYPT.union(hardware_suite()),
        edp_ethertype,
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

    #[test]
    fn a_checksum_is_demanded_by_1() {
        let of = |text: &str| of_checksum(Some(OsStr::new(text)));
        assert!(of_checksum(None).unwrap().is_none());
        for off in ["", "0"] {
            assert!(of(off).unwrap().is_none(), "{off:?}");
        }
        let key = of("1").unwrap().unwrap();
        assert_eq!(protection(key).suite, Suite::CHECKSUM);
        assert_ne!(protection(Key::new([1; 32])).suite, Suite::CHECKSUM);
        let error = of("yes").unwrap_err().to_string();
        assert!(
            error.starts_with("ESP_CHECKSUM: expected 1 or 0"),
            "{error}"
        );
    }
}
