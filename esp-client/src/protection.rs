//! Protection of the packets of clients that need no daemon: by keys, or by a checksum.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use esp_engine::{hardware_suite, key_id, read_key};
use esp_proto::EndpointConfig;
use esp_proto::secure::{Key, KeyId, SecureConfig, Suite};

use crate::error::EspError;

/// Environment variable with the paths of key files, separated by colons, for
/// [`Client::udp`](crate::Client::udp).
pub const KEY_VARIABLE: &str = "ESP_KEY_FILE";

/// Environment variable with the use of keys; see [`Auth`].
pub const AUTH_VARIABLE: &str = "ESP_AUTH";

/// Environment variable that is 1 to give packets of [`Client::udp`](crate::Client::udp) a
/// checksum, which detects damage and authenticates nothing.
pub const CHECKSUM_VARIABLE: &str = "ESP_CHECKSUM";

/// Maximum number of keys of a program.
pub const MAX_KEYS: usize = 4;

/// Use of a program's keys, as `ESP_AUTH` names it: `encrypt`, `integrity` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Every packet has a tag, and its content is encrypted.
    Encrypt,
    /// Every packet has a tag. Its content can be read.
    Integrity,
    /// Keys are not used.
    Off,
}

impl FromStr for Auth {
    type Err = String;

    fn from_str(text: &str) -> Result<Auth, String> {
        match text {
            "encrypt" => Ok(Auth::Encrypt),
            "integrity" => Ok(Auth::Integrity),
            "off" => Ok(Auth::Off),
            _ => Err("expected encrypt, integrity or off".into()),
        }
    }
}

/// Protection of the packets that a program sends and receives by UDP sockets of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// None.
    #[default]
    None,
    /// Every packet has a checksum, which detects damage and authenticates nothing. Packets without
    /// one are dropped.
    Checksum,
    /// Every packet has a tag. Packets without one, or by another key, are dropped.
    Keys {
        /// At most [`MAX_KEYS`]. New sessions use the first one; all are accepted.
        keys: Vec<Key>,
        /// Contents are encrypted. They are in any case if the peer requires it.
        encrypt: bool,
    },
}

impl Protection {
    /// Returns the protection that the environment of this process demands: by the keys in the
    /// files of `ESP_KEY_FILE`, used as `ESP_AUTH` says, else by a checksum if `ESP_CHECKSUM` is 1.
    ///
    /// # Errors
    /// A variable is invalid, a key file is not usable, or `ESP_AUTH` demands a key and there is
    /// none.
    pub fn from_environment() -> Result<Protection, EspError> {
        Protection::from(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Protection, EspError> {
        let auth = env(AUTH_VARIABLE).map(|value| {
            let parsed = value.to_str().unwrap_or_default().parse::<Auth>();
            parsed.map_err(|want| EspError::BadArgument(format!("{AUTH_VARIABLE}: {want}")))
        });
        let checksum = match env(CHECKSUM_VARIABLE)
            .as_deref()
            .map(OsStr::as_encoded_bytes)
        {
            None | Some(b"0") => false,
            Some(b"1") => true,
            Some(_) => {
                let text = format!("{CHECKSUM_VARIABLE}: expected 1 or 0");
                return Err(EspError::BadArgument(text));
            }
        };
        let files = env(KEY_VARIABLE).map_or_else(Vec::new, |list| key_files(&list));
        Protection::chosen(&files, auth.transpose()?, checksum)
    }

    /// Returns the protection by the keys in these files, used as `auth` says (`None`:
    /// [`Auth::Encrypt`]); without files by a checksum, if `checksum` is set.
    ///
    /// # Errors
    /// As [`Protection::from_environment`].
    pub fn chosen(
        files: &[PathBuf],
        auth: Option<Auth>,
        checksum: bool,
    ) -> Result<Protection, EspError> {
        let encrypt = match (auth, files) {
            (Some(Auth::Off), _) | (None, []) if checksum => return Ok(Protection::Checksum),
            (Some(Auth::Off), _) | (None, []) => return Ok(Protection::None),
            (Some(Auth::Encrypt | Auth::Integrity), []) => {
                return Err(EspError::BadArgument(format!(
                    "{AUTH_VARIABLE} demands a key, and there is none: name its file in \
                     {KEY_VARIABLE}, or unset {AUTH_VARIABLE}"
                )));
            }
            (auth, _) => auth != Some(Auth::Integrity),
        };
        if files.len() > MAX_KEYS {
            let text = format!("{KEY_VARIABLE}: at most {MAX_KEYS} files");
            return Err(EspError::BadArgument(text));
        }
        let keys = files
            .iter()
            .map(|file| key_of(file))
            .collect::<Result<_, _>>()?;
        Ok(Protection::Keys { keys, encrypt })
    }

    /// Returns true if packets are protected by keys.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        matches!(self, Protection::Keys { .. })
    }

    /// Returns the public names of the keys or, for a checksum, that of the public key of
    /// checksums. Programs reach each other if they have one in common, or both have none.
    #[must_use]
    pub fn key_ids(&self) -> Vec<KeyId> {
        match self {
            Protection::None => Vec::new(),
            Protection::Checksum => vec![key_id(&Key::CHECKSUM)],
            Protection::Keys { keys, .. } => keys.iter().map(key_id).collect(),
        }
    }

    /// Returns the configuration of a layer that requires this protection.
    pub(crate) fn config(&self) -> Option<SecureConfig> {
        let edp_ethertype = EndpointConfig::default().edp_ethertype;
        match self {
            Protection::None => None,
            Protection::Checksum => Some(SecureConfig::checksum(true, edp_ethertype)),
            Protection::Keys { keys, encrypt } => {
                let suite = match encrypt {
                    true => Suite::ENCRYPT,
                    false => Suite::INTEGRITY,
                };
                Some(SecureConfig {
                    keys: keys.clone(),
                    require: true,
                    suite: suite.union(hardware_suite()),
                    edp_ethertype,
                })
            }
        }
    }
}

/// Splits a list of key files, as `ESP_KEY_FILE` has it.
#[must_use]
pub fn key_files(list: &OsStr) -> Vec<PathBuf> {
    let files = std::env::split_paths(list);
    files.filter(|file| !file.as_os_str().is_empty()).collect()
}

fn key_of(file: &Path) -> Result<Key, EspError> {
    read_key(file).map_err(|error| EspError::BadArgument(format!("{KEY_VARIABLE}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Removes its folder on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            let name = format!("esp-protection-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            fs::create_dir(&folder.0).unwrap();
            folder
        }

        fn key(&self, byte: u8, mode: u32) -> String {
            let file = self.0.join(format!("{byte}-{mode:o}"));
            fs::write(&file, format!("{byte:02x}").repeat(32)).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            file.to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn of(variables: &[(&str, &str)]) -> Result<Protection, String> {
        let env = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Protection::from(&env).map_err(|error| error.to_string())
    }

    fn keys(bytes: &[u8], encrypt: bool) -> Protection {
        Protection::Keys {
            keys: bytes.iter().map(|&byte| Key::new([byte; 32])).collect(),
            encrypt,
        }
    }

    #[test]
    fn keys_are_those_of_the_files_in_their_order() {
        let folder = Folder::new();
        let (first, second) = (folder.key(1, 0o600), folder.key(2, 0o400));
        let both = format!("{first}:{second}");
        let found = |files: &str, auth: Option<&str>| {
            let auth = auth.map(|auth| (AUTH_VARIABLE, auth));
            let files = [(KEY_VARIABLE, files)];
            of(&files.into_iter().chain(auth).collect::<Vec<_>>())
        };
        assert_eq!(found(&first, None), Ok(keys(&[1], true)));
        assert_eq!(found(&both, Some("encrypt")), Ok(keys(&[1, 2], true)));
        assert_eq!(found(&both, Some("integrity")), Ok(keys(&[1, 2], false)));
        assert_eq!(found(&both, Some("off")), Ok(Protection::None));
        let five = [&*first; 5].join(":");
        assert!(found(&five, None).unwrap_err().contains("at most 4 files"));

        let open = folder.key(3, 0o640);
        let error = found(&format!("{first}:{open}"), None).unwrap_err();
        assert!(
            error.starts_with(&format!("ESP_KEY_FILE: {open}: ")),
            "{error}"
        );
        assert!(error.contains("chmod 600"), "{error}");
        let error = found("/nowhere/key", None).unwrap_err();
        assert!(error.starts_with("ESP_KEY_FILE: /nowhere/key: "), "{error}");
    }

    #[test]
    fn a_demanded_key_must_be_there() {
        for auth in ["encrypt", "integrity"] {
            let error = of(&[(AUTH_VARIABLE, auth), (CHECKSUM_VARIABLE, "1")]).unwrap_err();
            assert!(error.contains("name its file in ESP_KEY_FILE"), "{error}");
        }
        let error = of(&[(AUTH_VARIABLE, "yes")]).unwrap_err();
        assert_eq!(error, "ESP_AUTH: expected encrypt, integrity or off");
    }

    #[test]
    fn a_checksum_is_demanded_by_1() {
        assert_eq!(of(&[]), Ok(Protection::None));
        assert_eq!(of(&[(CHECKSUM_VARIABLE, "0")]), Ok(Protection::None));
        let on = (CHECKSUM_VARIABLE, "1");
        for variables in [&[on][..], &[on, (AUTH_VARIABLE, "off")]] {
            assert_eq!(of(variables), Ok(Protection::Checksum));
        }
        let error = of(&[(CHECKSUM_VARIABLE, "yes")]).unwrap_err();
        assert_eq!(error, "ESP_CHECKSUM: expected 1 or 0");
    }

    #[test]
    fn the_suite_is_that_of_the_protection() {
        let suite = |protection: Protection| protection.config().map(|config| config.suite);
        assert_eq!(suite(Protection::None), None);
        assert_eq!(suite(Protection::Checksum), Some(Suite::CHECKSUM));
        let encrypts = |encrypt| suite(keys(&[1], encrypt)).unwrap().contains(Suite::ENCRYPT);
        assert_eq!([encrypts(true), encrypts(false)], [true, false]);
        let ids = [Protection::Checksum, keys(&[1, 2], true)].map(|some| some.key_ids());
        assert_eq!(ids.each_ref().map(Vec::len), [1, 2]);
        assert!(!ids[1].contains(&ids[0][0]));
        assert!(Protection::None.key_ids().is_empty());
    }
}
