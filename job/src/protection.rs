//! Secrets of a job, and the protection of its packets over UDP: rank 0 decides, and publishes them
//! through the launcher.
//!
//! | bytes | field |
//! |---|---|
//! | 16 | name of the job |
//! | 1 | protection: 0 none, 1 a checksum, 2 the key that follows, 3 the keys of `ESP_KEY_FILE` |
//! | 1 | flags: 1 encrypt, 2 the user of rank 0 demands keys, 4 ranks of other nodes are reached on use |
//! | 32 | random key, if that is the protection |

use boot::{BootError, Bootstrap};
use esp_client::control::CounterStatus;
use esp_client::{Auth, Client, KEY_VARIABLE, PacketKey, Protection};

use crate::{Options, Transport};

/// Key of the bootstrap under which rank 0 publishes the secrets.
const SECRET: &str = "secret";
/// Lengths in bytes.
const NAME: usize = 16;
const KEY: usize = 32;
/// Flags.
const ENCRYPT: u8 = 1;
const DEMANDED: u8 = 2;
const LAZY: u8 = 4;

/// Protection of the packets over UDP of a job, as rank 0 has chosen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    None,
    /// A checksum, which authenticates nothing.
    Checksum,
    /// A random key of the job.
    Key {
        encrypt: bool,
    },
    /// The keys in each process's own files.
    Files,
}

/// Random numbers that only the processes of this job know. (The launcher's name of the job may be
/// reused or guessed.)
pub(crate) struct Secret {
    name: [u8; NAME],
    plan: Plan,
    /// Transports that keys do not protect are excluded.
    demanded: bool,
    /// Ranks of other nodes are reached when they are used.
    lazy: bool,
    /// Random key. Only the launcher distributes it, unlike the name, which peers send to each
    /// other.
    key: [u8; KEY],
}

impl Secret {
    /// Chooses the secret, for rank 0.
    fn choose(options: &Options, size: u32) -> Result<Secret, String> {
        let (mut name, mut key) = ([0; NAME], [0; KEY]);
        for bytes in [&mut name[..], &mut key] {
            getrandom::fill(bytes).map_err(|error| format!("no random numbers: {error}"))?;
        }
        let plan = match size {
            1 => Plan::None,
            _ => choose(options, of_daemon),
        };
        Ok(Secret {
            name,
            plan,
            demanded: options.demands_keys().is_some(),
            lazy: size >= options.lazy_from && !has_rdma(options),
            key,
        })
    }

    /// Agrees on the secret of the job: rank 0 publishes it, all others read it.
    pub(crate) fn agree(boot: &mut Bootstrap, options: &Options) -> Result<Secret, BootError> {
        let wrong = |what: String| BootError::Protocol(format!("job: {what}"));
        if boot.rank() == 0 {
            let secret = Secret::choose(options, boot.size()).map_err(wrong)?;
            boot.put(SECRET, &secret.encode())?;
        }
        boot.fence()?;
        let bytes = boot.get(0, SECRET)?.unwrap_or_default();
        let secret = Secret::decode(&bytes);
        secret.ok_or_else(|| wrong("rank 0 did not publish the secret of the job".into()))
    }

    fn encode(&self) -> Vec<u8> {
        let (plan, encrypt) = match self.plan {
            Plan::None => (0, false),
            Plan::Checksum => (1, false),
            Plan::Key { encrypt } => (2, encrypt),
            Plan::Files => (3, false),
        };
        let flags = (u8::from(encrypt) * ENCRYPT)
            | (u8::from(self.demanded) * DEMANDED)
            | (u8::from(self.lazy) * LAZY);
        let mut bytes = [&self.name[..], &[plan, flags]].concat();
        if let Plan::Key { .. } = self.plan {
            bytes.extend(self.key);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Secret> {
        let (name, rest) = bytes.split_first_chunk::<NAME>()?;
        let (&[plan, flags], key) = rest.split_first_chunk::<2>()?;
        let plan = match plan {
            0 => Plan::None,
            1 => Plan::Checksum,
            2 => Plan::Key {
                encrypt: flags & ENCRYPT != 0,
            },
            3 => Plan::Files,
            _ => return None,
        };
        let key = match plan {
            Plan::Key { .. } => key.try_into().ok()?,
            _ => [0; KEY],
        };
        Some(Secret {
            name: *name,
            plan,
            demanded: flags & DEMANDED != 0,
            lazy: flags & LAZY != 0,
            key,
        })
    }

    /// Returns the name of the job.
    pub(crate) fn name(&self) -> String {
        self.name.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns whether ranks of other nodes are reached when they are used.
    pub(crate) fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// Returns the protection of this process's packets over UDP, or why it cannot use UDP.
    pub(crate) fn protection(&self, options: &Options) -> Result<Protection, String> {
        let demands = options.demands_keys();
        let has_files = demands == Some(KEY_VARIABLE);
        match (self.plan, demands) {
            (Plan::Files, _) if has_files => {
                let chosen = Protection::chosen(&options.key_files, options.auth, false);
                chosen.map_err(|error| error.to_string())
            }
            (Plan::Files, _) => Err(format!(
                "rank 0 uses the keys of {KEY_VARIABLE}, and this process has none: set it for all \
                 processes"
            )),
            (Plan::None | Plan::Checksum, Some(variable)) => Err(not_for_all(variable)),
            (Plan::Key { .. }, _) if has_files => Err(not_for_all(KEY_VARIABLE)),
            (Plan::None, None) => Ok(Protection::None),
            (Plan::Checksum, None) => Ok(Protection::Checksum),
            (Plan::Key { encrypt }, _) => Ok(Protection::Keys {
                keys: vec![PacketKey::new(self.key)],
                encrypt: encrypt || options.auth == Some(Auth::Encrypt),
            }),
        }
    }

    /// Returns the reason why transports that keys do not protect are excluded; `None` if they are
    /// not.
    pub(crate) fn excludes(&self, options: &Options) -> Option<String> {
        let why = match options.demands_keys() {
            Some(variable) => format!("{variable} is set"),
            None if self.demanded => "rank 0 demands that keys protect all packets".into(),
            None => return None,
        };
        Some(format!(
            "{why}, and its packets are not protected by these keys"
        ))
    }

    /// Describes a protection for the report; `None` if there is none.
    pub(crate) fn describe(&self, protection: &Protection) -> Option<String> {
        let by = match self.plan {
            Plan::Files => format!("the keys of {KEY_VARIABLE}"),
            _ => "a key of the job".into(),
        };
        match protection {
            Protection::None => None,
            Protection::Checksum => Some("have a checksum (no authentication)".into()),
            Protection::Keys { encrypt: true, .. } => Some(format!("are encrypted by {by}")),
            Protection::Keys { .. } => Some(format!("are authenticated by {by}, and readable")),
        }
    }
}

/// Returns whether this process has RDMA. Jobs that use it reach all ranks at the start, where both
/// sides set up each connection.
fn has_rdma(options: &Options) -> bool {
    let wanted = options.transports.contains(&Transport::Ib);
    wanted && ib_btl::ports().is_ok_and(|ports| !ports.is_empty())
}

fn not_for_all(variable: &str) -> String {
    format!("{variable} is set for this process and not for rank 0: set it for all processes")
}

/// Returns the protection that a job is to have: that of the options, otherwise that of the daemon
/// of this node.
fn choose(options: &Options, daemon: impl FnOnce() -> OfDaemon) -> Plan {
    match options.auth {
        Some(Auth::Off) => {}
        _ if !options.key_files.is_empty() => return Plan::Files,
        Some(auth) => {
            return Plan::Key {
                encrypt: auth == Auth::Encrypt,
            };
        }
        None => {}
    }
    if options.auth.is_some() && options.checksum.is_some() {
        return match options.checksum {
            Some(true) => Plan::Checksum,
            _ => Plan::None,
        };
    }
    match (daemon(), options.auth, options.checksum) {
        (OfDaemon::Key, None, _) => Plan::Key { encrypt: true },
        (_, _, Some(true)) | (OfDaemon::Checksum, _, None) => Plan::Checksum,
        _ => Plan::None,
    }
}

/// Protection of the packets of this node's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfDaemon {
    None,
    Checksum,
    Key,
}

fn of_daemon() -> OfDaemon {
    let status = Client::connect(esp_client::socket_path()).and_then(|client| client.status());
    status.map_or(OfDaemon::None, |status| by_counters(&status.counters))
}

fn by_counters(counters: &[CounterStatus]) -> OfDaemon {
    let has = |name| counters.iter().any(|counter| counter.name == name);
    if has("auth_sealed") {
        OfDaemon::Key
    } else if has("checksum_sent") {
        OfDaemon::Checksum
    } else {
        OfDaemon::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(auth: Option<Auth>, checksum: Option<bool>, files: &[&str]) -> Options {
        Options {
            auth,
            checksum,
            key_files: files.iter().map(Into::into).collect(),
            ..Options::default()
        }
    }

    const ENCRYPTED: Plan = Plan::Key { encrypt: true };
    const FILES: &[&str] = &["/nowhere/key"];

    #[test]
    fn protection_is_that_of_the_options_or_the_daemon() {
        use OfDaemon::{Checksum, Key, None as Nothing};
        let (on, off) = (Some(Auth::Encrypt), Some(Auth::Off));
        let (yes, no) = (Some(true), Some(false));
        for (auth, checksum, files, daemon, expected) in [
            (None, None, &[][..], Nothing, Plan::None),
            (None, None, &[], Checksum, Plan::Checksum),
            (None, None, &[], Key, ENCRYPTED),
            (on, yes, &[], Checksum, ENCRYPTED),
            (
                Some(Auth::Integrity),
                None,
                &[],
                Key,
                Plan::Key { encrypt: false },
            ),
            (off, None, &[], Key, Plan::None),
            (off, None, &[], Checksum, Plan::Checksum),
            (off, no, &[], Checksum, Plan::None),
            (off, yes, FILES, Nothing, Plan::Checksum),
            (None, yes, &[], Nothing, Plan::Checksum),
            (None, yes, &[], Key, ENCRYPTED),
            (None, no, &[], Checksum, Plan::None),
            (None, None, FILES, Key, Plan::Files),
            (on, None, FILES, Nothing, Plan::Files),
            (off, None, FILES, Nothing, Plan::None),
        ] {
            let found = choose(&options(auth, checksum, files), || daemon);
            assert_eq!(
                found, expected,
                "{auth:?} {checksum:?} {files:?} {daemon:?}"
            );
        }
        let named = |name: &str| CounterStatus {
            interface: "eth0".into(),
            name: name.into(),
            help: String::new(),
            value: 0,
        };
        assert_eq!(by_counters(&[named("rx_frames")]), Nothing);
        assert_eq!(by_counters(&[named("checksum_sent")]), Checksum);
        assert_eq!(by_counters(&[named("auth_sealed")]), Key);
    }

    fn secret(plan: Plan) -> Secret {
        Secret {
            name: [1; NAME],
            plan,
            demanded: plan == Plan::Files,
            lazy: plan == Plan::Checksum,
            key: [7; KEY],
        }
    }

    #[test]
    fn secrets_round_trip() {
        let plans = [Plan::None, Plan::Checksum, Plan::Files, ENCRYPTED];
        for plan in plans.into_iter().chain([Plan::Key { encrypt: false }]) {
            let bytes = secret(plan).encode();
            let found = Secret::decode(&bytes).unwrap();
            assert_eq!((found.plan, found.demanded), (plan, plan == Plan::Files));
            assert_eq!(found.is_lazy(), plan == Plan::Checksum);
            let has_key = matches!(plan, Plan::Key { .. });
            assert_eq!(found.key == [7; KEY], has_key, "{plan:?}");
            let least = if has_key { bytes.len() } else { NAME + 2 };
            for end in 0..least {
                assert!(Secret::decode(&bytes[..end]).is_none(), "{plan:?}: {end}");
            }
        }
        let mut other = secret(Plan::None).encode();
        other[NAME] = 4;
        assert!(Secret::decode(&other).is_none());
    }

    #[test]
    fn a_process_that_demands_keys_sends_nothing_without() {
        let none = options(None, None, &[]);
        let encrypt = options(Some(Auth::Encrypt), None, &[]);
        let files = options(None, None, FILES);
        for (plan, options, part) in [
            (
                Plan::None,
                &encrypt,
                "ESP_AUTH is set for this process and not for rank 0",
            ),
            (
                Plan::Checksum,
                &files,
                "ESP_KEY_FILE is set for this process and not for rank 0",
            ),
            (
                ENCRYPTED,
                &files,
                "ESP_KEY_FILE is set for this process and not for rank 0",
            ),
            (Plan::Files, &none, "rank 0 uses the keys of ESP_KEY_FILE"),
            (
                Plan::Files,
                &encrypt,
                "rank 0 uses the keys of ESP_KEY_FILE",
            ),
            (Plan::Files, &files, "ESP_KEY_FILE: /nowhere/key: "),
        ] {
            let error = secret(plan).protection(options).unwrap_err();
            assert!(error.contains(part), "{plan:?}: {error}");
        }
        let protection = secret(ENCRYPTED).protection(&none).unwrap();
        let expected = Protection::Keys {
            keys: vec![PacketKey::new([7; KEY])],
            encrypt: true,
        };
        assert_eq!(protection, expected);
        let integrity = Plan::Key { encrypt: false };
        // The stronger demand prevails.
        assert_eq!(
            secret(integrity).protection(&encrypt),
            Ok(protection.clone())
        );
        assert_ne!(secret(integrity).protection(&none), Ok(protection));

        let excludes = |plan, options| secret(plan).excludes(options).unwrap_or_default();
        assert_eq!(excludes(ENCRYPTED, &none), "");
        assert!(excludes(ENCRYPTED, &encrypt).starts_with("ESP_AUTH is set, and its packets"));
        assert!(excludes(Plan::Files, &files).starts_with("ESP_KEY_FILE is set, and its"));
        assert!(excludes(Plan::Files, &none).starts_with("rank 0 demands"));
    }
}
