//! Protection of packets: by keys from files, or by a checksum.

use std::path::PathBuf;

use esp_proto::secure::{Key, SecureConfig, Suite};

use crate::config::{Auth, AuthMode, Checksum, Config};
use crate::error::StartError;

/// Reads the keys and returns the protection of packets, if configured. A config has keys or a
/// checksum, not both.
///
/// # Errors
/// A key file cannot be read, others can read it, or it holds no key.
pub(crate) fn load(config: &Config) -> Result<Option<SecureConfig>, StartError> {
    let Auth {
        key_files,
        mode,
        require,
    } = &config.auth;
    if key_files.is_empty() {
        let require = match config.checksum {
            Checksum::Off => return Ok(None),
            Checksum::Offer => false,
            Checksum::Require => true,
        };
        return Ok(Some(SecureConfig::checksum(require, config.ethertypes.edp)));
    }
    let wanted = match mode {
        AuthMode::Integrity => Suite::INTEGRITY,
        AuthMode::Encrypt => Suite::ENCRYPT,
    };
    Ok(Some(SecureConfig {
        keys: load_keys(key_files)?,
        require: *require,
        suite: wanted.union(esp_engine::hardware_suite()),
        edp_ethertype: config.ethertypes.edp,
    }))
}

/// Reads the keys in these files.
pub(crate) fn load_keys(files: &[PathBuf]) -> Result<Vec<Key>, StartError> {
    let keys = files.iter().map(|file| esp_engine::read_key(file));
    keys.map(|key| key.map_err(|error| StartError::new(format_args!("auth.key_files: {error}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_files_there_is_no_protection() {
        assert!(load(&Config::default()).unwrap().is_none());
    }

    #[test]
    fn checksums_are_offered_or_required() {
        for (checksum, require) in [(Checksum::Offer, false), (Checksum::Require, true)] {
            let mut config = Config {
                checksum,
                ..Config::default()
            };
            config.ethertypes.edp = 0x1234;
            let secure = load(&config).unwrap().unwrap();
            assert_eq!((secure.require, secure.edp_ethertype), (require, 0x1234));
            assert_eq!(secure.suite, Suite::CHECKSUM);
        }
    }
}
