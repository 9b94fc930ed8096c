//! Configuration of the transport, and the errors of making it.

use std::path::PathBuf;

use btl::{MAX_HEADER, Rank};
use esp_client::{Client, EspError, Path};

use crate::limits::choose_interfaces;

/// Carrier of the packets of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Raw Ethernet, by the node's daemon and its leases.
    Raw,
    /// UDP, by sockets of this program. Needs neither a daemon nor a privilege, and passes routers.
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
    /// Carrier of the packets. Default: raw Ethernet.
    pub carrier: Carrier,
    /// Socket of the node's daemon, for raw Ethernet. Default: `ESP_SOCKET`, else the daemon's
    /// default.
    pub socket: PathBuf,
    /// Names of interfaces to use; `eth*` is a prefix. Default: empty, which selects all interfaces
    /// of the daemon, or over UDP those of the node.
    pub include: Vec<String>,
    /// Names of interfaces not to use, also with prefixes. Overrides `include`.
    pub exclude: Vec<String>,
    /// Path of messages through this node. Default: `ESP_PATH`, else [`Path::Auto`].
    pub path: Path,
    /// Size of each of a stream's two rings in bytes: a power of two from 8 KiB to 64 MiB. Each
    /// connection takes twice this on both nodes. Default: 1 MiB. The daemon may grant less.
    pub rings: u32,
    /// Maximum length of a message, header and body, in bytes. Default: a header and 64 KiB. At
    /// most a quarter of a ring is used, so that several messages fit.
    pub max_send: usize,
    /// See [`btl::PeerInfo::eager`]; at most `max_send`. Default: a header and 64 KiB, up to which
    /// a rendezvous takes longer than the copy.
    pub eager: usize,
    /// Value of [`btl::PeerInfo::bandwidth`] in MB/s. It is not measured, because a probe that is
    /// long enough would disturb a starting job. Default: 1000, about that of a 10 Gbit/s link.
    pub bandwidth: u32,
    /// Maximum number of further attempts to set up a connection. Default: 4.
    pub retries: u32,
}

impl EthConfig {
    /// Returns a configuration with the defaults.
    pub fn new(rank: Rank, size: u32, job: impl Into<Vec<u8>>) -> EthConfig {
        EthConfig {
            rank,
            size,
            job: job.into(),
            carrier: Carrier::Raw,
            socket: esp_client::socket_path(),
            include: Vec::new(),
            exclude: Vec::new(),
            // A wrong value is refused when the transport opens its client.
            path: Path::from_environment().unwrap_or_default(),
            rings: 1 << 20,
            max_send: DEFAULT_MESSAGE,
            eager: DEFAULT_MESSAGE,
            bandwidth: RAW_BANDWIDTH,
            retries: 4,
        }
    }

    /// Sets the carrier, and the bandwidth that is its default.
    pub fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
        self.bandwidth = match carrier {
            Carrier::Raw => RAW_BANDWIDTH,
            Carrier::Udp => UDP_BANDWIDTH,
        };
    }

    /// Returns the names of the interfaces that a transport would use, for owners that make one
    /// transport for each.
    ///
    /// # Errors
    /// See [`EthError`].
    pub fn interfaces(&self) -> Result<Vec<String>, EthError> {
        self.check()?;
        if self.carrier == Carrier::Udp {
            let all = esp_client::udp_interfaces();
            return Ok(all.into_iter().filter(|name| self.wants(name)).collect());
        }
        let client = Client::connect(&self.socket)?;
        Ok(choose_interfaces(self, client.interfaces())?
            .into_iter()
            .map(|info| info.name)
            .collect())
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
}

/// Default of [`EthConfig::max_send`] and [`EthConfig::eager`]: programs send powers of two, to
/// which the layer above adds its header.
const DEFAULT_MESSAGE: usize = (64 << 10) + MAX_HEADER;
/// Default of [`EthConfig::bandwidth`] for raw Ethernet, in MB/s.
const RAW_BANDWIDTH: u32 = 1000;
/// Default of [`EthConfig::bandwidth`] for UDP, in MB/s: the device cuts the segments, so the
/// kernel is passed once for 64 KiB.
const UDP_BANDWIDTH: u32 = 4000;

/// Minimum of [`btl::PeerInfo::max_send`] by the contract.
pub(crate) const MIN_MAX_SEND: usize = 1024 + MAX_HEADER;

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// Error of making the transport.
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
    /// The granted rings are too small for a message.
    #[error(
        "no Ethernet transport: the daemon grants rings of {granted} bytes, {needed} are needed: raise max in the [rings] of its configuration"
    )]
    Rings {
        /// Size of the smaller ring.
        granted: usize,
        /// Minimum size.
        needed: usize,
    },
    /// The system's random numbers are not available.
    #[error("no Ethernet transport: {0}")]
    Random(getrandom::Error),
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
