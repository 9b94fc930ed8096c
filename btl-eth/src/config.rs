//! How to make the transport, and why it cannot be made.

use std::path::PathBuf;

use btl::{MAX_HEADER, Rank};
use esp_client::{Client, EspError, Path};

use crate::make::choose;

/// How to make an [`EthBtl`](crate::EthBtl). [`EthConfig::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct EthConfig {
    /// The own rank.
    pub rank: Rank,
    /// Ranks of the job.
    pub size: u32,
    /// Any bytes that only this job has; who has others is refused.
    pub job: Vec<u8>,
    /// Socket of the node's daemon. Default: `ESP_SOCKET`, else the usual place.
    pub socket: PathBuf,
    /// Interfaces to use, by name; `eth*` means all that begin so. Empty, the default: all that the daemon serves.
    pub include: Vec<String>,
    /// Interfaces not to use, likewise; stronger than `include`.
    pub exclude: Vec<String>,
    /// Which way messages go through the own node. Default: what `ESP_PATH` says, else [`Path::Auto`].
    pub path: Path,
    /// Bytes of each stream's two rings: a power of two, 4 KiB to 64 MiB. Each peer that was talked to costs twice this, here
    /// and there. Default 1 MiB. The daemon may give less.
    pub rings: u32,
    /// Longest message, header and body. Default 64 KiB; never more than a quarter of a ring, so that a message lies in it in
    /// one piece beside others.
    pub max_send: usize,
    /// See [`btl::PeerInfo::eager`]; at most `max_send`. Default 64 KiB: below that, asking first costs more than the copy.
    pub eager: usize,
    /// What [`btl::PeerInfo::bandwidth`] says, MB/s. It is not measured: a probe long enough to tell would disturb a job that starts.
    /// Default 1000, about what a link of 10 Gbit/s carries.
    pub bandwidth: u32,
    /// Times that setting up a connection is begun again when nothing was delivered yet. Default 4.
    pub retries: u32,
}

impl EthConfig {
    /// With all defaults.
    pub fn new(rank: Rank, size: u32, job: impl Into<Vec<u8>>) -> EthConfig {
        EthConfig {
            rank,
            size,
            job: job.into(),
            socket: esp_client::socket_path(),
            include: Vec::new(),
            exclude: Vec::new(),
            path: Path::from_environment(),
            rings: 1 << 20,
            max_send: 64 << 10,
            eager: 64 << 10,
            bandwidth: 1000,
            retries: 4,
        }
    }

    /// The interfaces that a transport would use, by name. For owners that make one for each.
    ///
    /// # Errors
    /// See [`EthError`].
    pub fn interfaces(&self) -> Result<Vec<String>, EthError> {
        self.check()?;
        let client = Client::connect(&self.socket)?;
        Ok(choose(self, client.interfaces())?
            .into_iter()
            .map(|info| info.name)
            .collect())
    }

    pub(crate) fn check(&self) -> Result<(), EthError> {
        let bad = |what: String| Err(EthError::BadConfig(what));
        if self.rank >= self.size {
            return bad(format!(
                "rank {} of a job of {} ranks",
                self.rank, self.size
            ));
        }
        if !self.rings.is_power_of_two() || !(8 << 10..=64 << 20).contains(&self.rings) {
            return bad(format!(
                "rings of {} bytes: a power of two from 8 KiB to 64 MiB is possible",
                self.rings
            ));
        }
        if self.max_send < LEAST_MESSAGE {
            return bad(format!(
                "max_send {}: at least {LEAST_MESSAGE} is needed",
                self.max_send
            ));
        }
        Ok(())
    }

    /// Is this interface to be used?
    pub(crate) fn wants(&self, name: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|pattern| matches(pattern, name));
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }
}

/// What the contract demands of [`btl::PeerInfo::max_send`].
pub(crate) const LEAST_MESSAGE: usize = 1024 + MAX_HEADER;

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// Why there is no Ethernet transport in this process. Each text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EthError {
    /// A value is out of range.
    #[error("{0}")]
    BadConfig(String),
    /// No daemon, or it refused.
    #[error("no Ethernet transport: {0}")]
    Daemon(#[from] EspError),
    /// Nothing to send through.
    #[error("no Ethernet transport: {0}")]
    NoInterface(String),
    /// Rings that hold no message.
    #[error(
        "no Ethernet transport: the daemon gives rings of {given} bytes only, {needed} are needed; raise max_tx and max_rx in the [rings] of its configuration"
    )]
    Rings {
        /// The smaller one.
        given: usize,
        /// For the shortest message that must be possible.
        needed: usize,
    },
    /// The system has no randomness.
    #[error("no Ethernet transport: {0}")]
    Random(getrandom::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_chosen_by_name() {
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
    fn impossible_values_are_refused() {
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
