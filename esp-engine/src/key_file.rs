//! Keys of protected packets, from files.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esp_proto::secure::Key;

/// Number of hexadecimal digits of a key.
const DIGITS: usize = 64;
/// Maximum length of a key file in bytes.
const MAX_FILE: u64 = 4096;

/// Reason why a key file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct KeyFileError {
    file: PathBuf,
    why: String,
}

/// Reads a key from a file.
///
/// # Errors
/// The file cannot be read, other users have access to it, or it holds no key.
pub fn read_key(file: &Path) -> Result<Key, KeyFileError> {
    read(file).map_err(|why| KeyFileError {
        file: file.to_owned(),
        why,
    })
}

fn read(file: &Path) -> Result<Key, String> {
    let found = std::fs::metadata(file).map_err(|e| e.to_string())?;
    if !found.is_file() || found.len() > MAX_FILE {
        return Err("expected a regular file of at most 4096 bytes".into());
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err("other users have access to it; run chmod 600".into());
    }
    let own = rustix::process::geteuid().as_raw();
    if ![0, own].contains(&found.uid()) {
        return Err("it belongs to another user; run chown".into());
    }
    let text = std::fs::read(file).map_err(|e| e.to_string())?;
    let key = parse(text.trim_ascii())
        .ok_or("expected 64 hexadecimal digits, such as `openssl rand -hex 32` prints")?;
    if key == Key::CHECKSUM {
        return Err(
            "it is the public key of checksums; create another one with `openssl rand -hex 32`"
                .into(),
        );
    }
    Ok(key)
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

    const KEY: &str = "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> TempDir {
            let name = format!("esp-key-{name}-{}", std::process::id());
            let dir = TempDir(std::env::temp_dir().join(name));
            std::fs::create_dir(&dir.0).unwrap();
            dir
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn loaded(dir: &TempDir, text: &str, mode: u32) -> Result<Key, String> {
        let file = dir.0.join("key");
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        read_key(&file).map_err(|e| e.to_string())
    }

    #[test]
    fn a_key_is_64_digits_in_a_private_file() {
        let dir = TempDir::new("digits");
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
    fn the_public_key_of_checksums_is_refused() {
        let dir = TempDir::new("public");
        let digits = b"esp checksum, no authentication.".iter();
        let text: String = digits.map(|byte| format!("{byte:02x}")).collect();
        let error = loaded(&dir, &text, 0o600).unwrap_err();
        assert!(error.contains("the public key of checksums"), "{error}");
    }

    #[test]
    fn only_regular_files_are_read() {
        let dir = TempDir::new("none");
        for path in [dir.0.clone(), dir.0.join("missing")] {
            let error = read_key(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
