//! Configuration of the transport, and errors of its creation.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use btl::{MAX_HEADER, Rank};
use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpSocket, EspError, KEY_VARIABLE, NodeAddr, Path, Protection};

use crate::channel::RESERVE;
use crate::record::HEAD;

/// Environment variable with the maximum number of connections of a process, above which it ends
/// one.
pub const CONNECTIONS_VARIABLE: &str = "ESP_CONNECTIONS";
const DEFAULT_CONNECTIONS: usize = 256;

/// Carrier of the packets of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Raw Ethernet, through the node's daemon and its leases.
    Raw,
    /// UDP, through sockets of this program. Needs neither a daemon nor a privilege, and passes
    /// routers.
    Udp,
}

/// Configuration of an [`EthBtl`](crate::EthBtl). [`EthConfig::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct EthConfig {
    /// Rank of this process.
    pub rank: Rank,
    /// Number of ranks in the job.
    pub size: u32,
    /// Key of the job. Peers with another key are refused.
    pub job: Vec<u8>,
    /// Identity of an open transport ([`btl::PendingPeers`]), by which peers know it instead of by
    /// a rank; `job` is then the key shared by all transports that may reach each other. Default:
    /// none.
    pub identity: Option<u64>,
    /// Carrier of the packets. Default: raw Ethernet.
    pub carrier: Carrier,
    /// Protection of packets over UDP; peers need a key in common. Packets over raw Ethernet have
    /// the protection of the daemon, so a transport over it cannot have keys. Default, `None`:
    /// [`Protection::from_environment`].
    pub protection: Option<Protection>,
    /// Socket of the node's daemon, for raw Ethernet. Default: `ESP_SOCKET`, else the daemon's
    /// default.
    pub socket: PathBuf,
    /// Names of interfaces to use; `eth*` is a prefix. Default: empty, which selects all interfaces
    /// of the daemon, or over UDP those of the node.
    pub include: Vec<String>,
    /// Names of interfaces not to use, or prefixes as in `include`, which this overrides.
    pub exclude: Vec<String>,
    /// Path of messages through this node. Default: `ESP_PATH`, else [`Path::Auto`].
    pub path: Path,
    /// Size of each of a stream's two rings in bytes: a power of two from 8 KiB to 64 MiB. Each
    /// connection takes twice this on both nodes. Default: 1 MiB. The daemon may grant less.
    pub rings: u32,
    /// Maximum length of a message, header and body, in bytes. Default: a header and 64 KiB. At
    /// most a quarter of a ring is used, so that several messages fit.
    pub max_send: usize,
    /// Number of connections above which the least recently used one is ended, at least 1. Default,
    /// `None`: `ESP_CONNECTIONS`, else 256.
    pub max_connections: Option<usize>,
}

impl EthConfig {
    /// Returns a configuration with the defaults.
    pub fn new(rank: Rank, size: u32, job: impl Into<Vec<u8>>) -> EthConfig {
        EthConfig {
            rank,
            size,
            job: job.into(),
            identity: None,
            carrier: Carrier::Raw,
            protection: None,
            socket: esp_client::socket_path(),
            include: Vec::new(),
            exclude: Vec::new(),
            // A wrong value is refused when the transport opens its client.
            path: Path::from_environment().unwrap_or_default(),
            rings: 1 << 20,
            max_send: EAGER,
            max_connections: None,
        }
    }

    /// Returns the configuration of an open transport with the defaults. Its own number is 0.
    pub fn open(identity: u64, key: impl Into<Vec<u8>>) -> EthConfig {
        EthConfig {
            identity: Some(identity),
            ..EthConfig::new(0, MAX_PEERS, key)
        }
    }

    /// Returns the names of the interfaces that a transport would use, for owners that create one
    /// transport for each.
    ///
    /// # Errors
    /// See [`EthError`].
    pub fn interfaces(&self) -> Result<Vec<String>, EthError> {
        self.check()?;
        self.protection()?;
        if self.carrier == Carrier::Udp {
            let all = esp_client::udp_interfaces();
            return Ok(all.into_iter().filter(|name| self.wants(name)).collect());
        }
        let client = Client::connect(&self.socket)?;
        let chosen = self.choose(&client)?;
        Ok(chosen.into_iter().map(|info| info.name).collect())
    }

    /// Returns the protection of packets over UDP.
    pub(crate) fn protection(&self) -> Result<Protection, EthError> {
        let protection = match &self.protection {
            Some(protection) => protection.clone(),
            None => Protection::from_environment()?,
        };
        if self.carrier == Carrier::Raw && protection.has_keys() {
            return Err(EthError::Unprotected);
        }
        Ok(protection)
    }

    /// Returns the limit of connections.
    pub(crate) fn connections(&self) -> Result<usize, EthError> {
        match self.max_connections {
            Some(limit) => Ok(limit.max(1)),
            None => connections(std::env::var_os(CONNECTIONS_VARIABLE).as_deref()),
        }
    }

    pub(crate) fn check(&self) -> Result<(), EthError> {
        let bad = |what: String| Err(EthError::BadConfig(what));
        if self.rank >= self.size {
            return bad(format!(
                "invalid rank {} of a job of {} ranks",
                self.rank, self.size
            ));
        }
        if !self.rings.is_power_of_two() || !(8 << 10..=64 << 20).contains(&self.rings) {
            return bad(format!(
                "invalid rings of {} bytes: use a power of two from 8 KiB to 64 MiB",
                self.rings
            ));
        }
        if self.max_send < MIN_MAX_SEND {
            return bad(format!(
                "invalid max_send {}: use at least {MIN_MAX_SEND}",
                self.max_send
            ));
        }
        Ok(())
    }

    /// Returns whether an interface is selected.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|pattern| matches(pattern, name));
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }

    /// Returns the daemon's interfaces that are selected and up. UDP through the daemon is omitted
    /// if raw Ethernet is leased: because of its bandwidth, it would carry the long messages,
    /// although UDP without the daemon ([`Carrier::Udp`]) is faster.
    pub(crate) fn choose(&self, client: &Client) -> Result<Vec<InterfaceInfo>, EthError> {
        let mut chosen = self.selected(&client.interfaces())?;
        let is_raw = |info: &InterfaceInfo| matches!(info.addr, NodeAddr::Mac(_));
        if client.may_lease(self.path) && chosen.iter().any(is_raw) {
            chosen.retain(is_raw);
        }
        Ok(chosen)
    }

    /// Returns the interfaces of `all` that are selected and up.
    fn selected(&self, all: &[InterfaceInfo]) -> Result<Vec<InterfaceInfo>, EthError> {
        let (mut chosen, is_wanted) = (all.to_vec(), |info: &InterfaceInfo| self.wants(&info.name));
        chosen.retain(is_wanted);
        let names = |list: &[InterfaceInfo]| {
            let names: Vec<_> = list.iter().map(|info| info.name.as_str()).collect();
            names.join(", ")
        };
        if chosen.is_empty() {
            let (all, include, exclude) = (names(all), &self.include, &self.exclude);
            return Err(EthError::NoInterface(format!(
                "none of the daemon's interfaces ({all}) is selected (include: {include:?}, \
                 exclude: {exclude:?})"
            )));
        }
        let wanted = names(&chosen);
        chosen.retain(|info| info.up);
        if chosen.is_empty() {
            let what = format!("{wanted}: the link is down: check `ip link`");
            return Err(EthError::NoInterface(what));
        }
        Ok(chosen)
    }

    /// Returns the maximum length of a message for the rings that the daemon grants. A datagram
    /// socket is granted the rings of a stream.
    pub(crate) fn granted_send(
        &self,
        client: &Client,
        interface: &InterfaceInfo,
    ) -> Result<usize, EthError> {
        let trial: EdpSocket = EdpSocket::builder()
            .interface(&interface.name)
            .rings(self.rings, self.rings)
            .bind_at(client, 0)?;
        let (tx, rx) = trial.ring_sizes();
        let granted = tx.min(rx);
        let max_send = self.max_send.min(granted / 4);
        if max_send < MIN_MAX_SEND || granted < HEAD + max_send + RESERVE {
            let needed = 4 * MIN_MAX_SEND;
            return Err(EthError::Rings(granted, needed));
        }
        Ok(max_send)
    }
}

/// Maximum length of eager messages, and default of [`EthConfig::max_send`]: programs send powers
/// of two, to which the layer above adds its header. A rendezvous takes longer than the copy.
pub(crate) const EAGER: usize = (64 << 10) + MAX_HEADER;
/// Maximum number of peers of an open transport.
const MAX_PEERS: u32 = 1 << 20;
/// Minimum of [`btl::PeerInfo::max_send`] that the contract requires.
pub(crate) const MIN_MAX_SEND: usize = 1024 + MAX_HEADER;

/// Returns the limit of connections that the environment sets.
fn connections(value: Option<&OsStr>) -> Result<usize, EthError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(DEFAULT_CONNECTIONS);
    };
    let number = value.to_str().and_then(|value| value.parse().ok());
    number.filter(|number| *number > 0).ok_or_else(|| {
        EthError::BadConfig(format!(
            "{CONNECTIONS_VARIABLE}={}: expected a number of connections of at least 1",
            value.display()
        ))
    })
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// Error of creating the transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EthError {
    /// A value is out of range.
    #[error("{0}")]
    BadConfig(String),
    /// The daemon was not reachable, or refused.
    #[error("no Ethernet transport: {0}")]
    Daemon(#[from] EspError),
    /// No interface is selected and up.
    #[error("no Ethernet transport: {0}")]
    NoInterface(String),
    /// The program has keys, which do not protect raw Ethernet.
    #[error(
        "no raw Ethernet: the key of this program ({KEY_VARIABLE}) does not protect its packets: \
         use UDP, or unset {KEY_VARIABLE}"
    )]
    Unprotected,
    /// The granted rings (first size) are smaller than a message needs (second size).
    #[error(
        "no Ethernet transport: the daemon grants rings of {0} bytes, {1} are needed: raise max in \
         the [rings] of its configuration"
    )]
    Rings(usize, usize),
    /// The listener could not be created, or the system has no random numbers.
    #[error("no Ethernet transport: {0}")]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_selected_by_name() {
        let mut config = EthConfig::new(0, 1, "job");
        assert!(config.wants("eth0"));
        config.exclude = vec!["ib*".into(), "eth7".into()];
        assert!(
            config.wants("eth0")
                && !config.wants("ib0")
                && !config.wants("eth7")
                && config.wants("eth71")
        );
        config.include = vec!["eth*".into()];
        assert!(config.wants("eth0") && !config.wants("eth7") && !config.wants("enp3s0"));
    }

    #[test]
    fn the_limit_of_connections_is_a_number() {
        let parsed = |value: &str| connections(Some(OsStr::new(value)));
        assert_eq!(parsed("").unwrap(), DEFAULT_CONNECTIONS);
        assert_eq!(parsed("1").unwrap(), 1);
        for bad in ["0", "-1", "1.5", "many"] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("ESP_CONNECTIONS={bad}")), "{error}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        let made = |change: fn(&mut EthConfig)| {
            let mut config = EthConfig::new(1, 2, "job");
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(made(|_| ()), Ok(()));
        assert!(
            made(|c| c.rank = 2)
                .unwrap_err()
                .contains("rank 2 of a job of 2")
        );
        assert!(
            made(|c| c.rings = 5000)
                .unwrap_err()
                .contains("power of two")
        );
        assert!(
            made(|c| c.max_send = 1000)
                .unwrap_err()
                .contains("at least 1088")
        );
    }
}
