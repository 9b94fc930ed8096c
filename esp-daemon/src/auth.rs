//! Keys of authenticated packets, from files.

use std::path::PathBuf;

use esp_proto::secure::{Key, SecureConfig, Suite};

use crate::config::{Auth, AuthMode, Config};
use crate::error::StartError;

/// Reads the keys and returns the protection of packets, if configured.
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
        return Ok(None);
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
}
