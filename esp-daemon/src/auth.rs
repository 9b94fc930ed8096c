//! Keys of authenticated packets, from files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esp_proto::secure::{Key, SecureConfig, Suite};

use crate::config::{Auth, AuthMode, Config};
use crate::error::StartError;

/// Number of hexadecimal digits of a key.
const DIGITS: usize = 64;
/// Longest key file in bytes.
const MAX_FILE: u64 = 4096;

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
    files.iter().map(|file| load_key(file)).collect()
}

fn load_key(file: &Path) -> Result<Key, StartError> {
    let failed =
        |what: &str| StartError::new(format_args!("auth.key_files: {}: {what}", file.display()));
    let found = std::fs::metadata(file).map_err(|e| failed(&e.to_string()))?;
    if !found.is_file() || found.len() > MAX_FILE {
        return Err(failed("expected a regular file of at most 4096 bytes"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(failed("other users have access to it: chmod 600"));
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) {
        return Err(failed("it belongs to another user: chown root"));
    }
    let text = std::fs::read(file).map_err(|e| failed(&e.to_string()))?;
    let key = parse(text.trim_ascii());
    key.ok_or_else(|| {
        failed("expected 64 hexadecimal digits, such as `openssl rand -hex 32` prints")
    })
}

fn parse(text: &[u8]) -> Option<Key> {
    if text.len() != DIGITS {
        return None;
    }
    let mut key = [0; DIGITS / 2];
    for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(Key::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    const KEY: &str = "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn loaded(dir: &TempDir, text: &str, mode: u32) -> Result<Key, String> {
        let file = dir.path().join("key");
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        load_key(&file).map_err(|e| e.to_string())
    }

    #[test]
    fn a_key_is_64_digits_in_a_private_file() {
        let dir = TempDir::new();
        let expected = Key::new(std::array::from_fn(|at| at as u8));
        assert!(loaded(&dir, KEY, 0o600) == Ok(expected.clone()));
        assert!(loaded(&dir, &format!("{KEY}\n"), 0o400) == Ok(expected));
        for mode in [0o640, 0o604, 0o620] {
            let error = loaded(&dir, KEY, mode).unwrap_err();
            assert!(error.contains("chmod 600"), "{mode:o}: {error}");
        }
        let long = format!("{KEY}00");
        let other = KEY.replace('f', "g");
        for text in ["", "password", &KEY[1..], &long, &other] {
            let error = loaded(&dir, text, 0o600).unwrap_err();
            assert!(error.contains("openssl rand -hex 32"), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = TempDir::new();
        for path in [dir.path().to_owned(), dir.path().join("missing")] {
            let error = load_key(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn without_files_there_is_no_protection() {
        assert!(load(&Config::default()).unwrap().is_none());
    }
}
