//! The config file: its keys, defaults and checks.
//!
//! `esp-daemon.toml.example` lists every option with its default; a test compares the two.

mod check;
mod limits;
mod values;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::DeTable;

pub use limits::{Limits, NodeLimits, Resource};
pub use values::{Engines, Listen, Memory, Mode, Network, RingSize, Span, Uid};

/// Config file used when the command line names none.
pub const DEFAULT_FILE: &str = "/etc/esp/esp-daemon.toml";
/// Maximum size of the config file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Declares tables of the file: each key with its type and default.
macro_rules! tables {
    ($(
        $(#[$table_doc:meta])*
        $table:ident { $($(#[$doc:meta])* $key:ident: $type:ty = $default:expr,)* }
    )*) => {$(
        $(#[$table_doc])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table {
            $($(#[$doc])* pub $key: $type,)*
        }

        impl Default for $table {
            fn default() -> $table {
                $table { $($key: $default,)* }
            }
        }
    )*};
}
use tables;

tables! {
    /// The config file.
    Config {
        /// Interfaces to use. Default: none; the command line must name one.
        interfaces: Vec<String> = Vec::new(),
        /// Networks of ESP in UDP: the node's addresses in them are served, and packets from
        /// elsewhere are dropped. Default: none.
        udp: Vec<Network> = Vec::new(),
        /// UDP port of this and the other nodes.
        udp_port: u16 = esp_proto::UDP_PORT,
        /// Name reported to other stations (`esping --discover`), at most 64 bytes. Default: the
        /// host name.
        node_name: Option<String> = None,
        /// Checksum of each packet, which detects damage and authenticates nothing.
        checksum: Checksum = Checksum::Off,
        /// Pcap file for every frame sent and received. Default: off.
        pcap: Option<PathBuf> = None,
        /// Number of engines, each with a thread, among which the programs are divided.
        engines: Engines = Engines(1),
        /// The Unix socket of the control protocol.
        socket: SocketOptions = SocketOptions::default(),
        /// EtherTypes.
        ethertypes: Ethertypes = Ethertypes::default(),
        /// Limits of users.
        limits: Limits = Limits::default(),
        /// Sizes of the rings in shared memory.
        rings: RingOptions = RingOptions::default(),
        /// Timers of the protocol.
        timers: Timers = Timers::default(),
        /// Behaviour of the idle engine.
        idle: Idle = Idle::default(),
        /// Prometheus endpoint.
        metrics: Metrics = Metrics::default(),
        /// Authentication of packets.
        auth: Auth = Auth::default(),
        /// Leases: packet sockets for programs.
        lease: LeaseOptions = LeaseOptions::default(),
    }

    /// `[socket]`
    SocketOptions {
        /// Path of the socket. `--socket` and `ESP_SOCKET` take precedence.
        path: PathBuf = "/run/esp/esp.sock".into(),
        /// Permission bits: write permission allows use of the service.
        mode: Mode = Mode(0o666),
        /// Group of the socket, by name or number. Default: the daemon's.
        group: Option<String> = None,
    }

    /// `[ethertypes]`
    Ethertypes {
        /// Streams.
        esp: u16 = 0x88B5,
        /// Datagrams.
        edp: u16 = 0x88B6,
    }

    /// `[rings]`
    RingOptions {
        /// Size of a ring for which the program does not choose one.
        default: RingSize = RingSize(1 << 20),
        /// Maximum size of a ring.
        max: RingSize = RingSize(16 << 20),
    }

    /// `[timers]`
    Timers {
        /// Time after which an unanswered connect fails.
        connect_timeout: Span = Span::millis(5000),
        /// Time after which a peer that owes an answer and stays silent is considered dead.
        peer_timeout: Span = Span::millis(30_000),
        /// Idle time after which a connection is probed.
        keepalive: Span = Span::millis(2000),
        /// Lower bound of the retransmission timeout.
        min_rto: Span = Span::millis(2),
        /// Upper bound of the retransmission timeout.
        max_rto: Span = Span::millis(200),
    }

    /// `[idle]`
    Idle {
        /// Time to spin after the last work. Pays only with a dedicated core.
        spin: Span = Span::millis(0),
        /// CPU to which the engine's thread is pinned; those of further engines are pinned to the
        /// next ones. Default: none.
        core: Option<u32> = None,
    }

    /// `[lease]`: policy of leases.
    LeaseOptions {
        /// Base policy; with `off` and `all`, the lists below have no effect.
        allow: LeaseAllow = LeaseAllow::Root,
        /// Additional users, by number.
        users: Vec<u32> = Vec::new(),
        /// Additional groups, by name or number. A group that does not exist has no members.
        groups: Vec<String> = vec!["esp-lease".into()],
        /// Time after its start for which the daemon reserves the ports of earlier leases for
        /// their programs.
        grace: Span = Span::millis(3000),
    }

    /// `[auth]`
    Auth {
        /// Files with a key each, shared by the nodes of the cluster. The first is used for new
        /// sessions, all are accepted. Default: none, no authentication.
        key_files: Vec<PathBuf> = Vec::new(),
        /// Protection of packets.
        mode: AuthMode = AuthMode::Encrypt,
        /// Refuses packets without protection.
        require: bool = true,
    }

    /// `[metrics]`
    Metrics {
        /// Unix socket, or address and port, of the HTTP endpoint. Default: off.
        listen: Option<Listen> = None,
        /// File with a token that requests must bear. Default: none.
        token_file: Option<PathBuf> = None,
    }
}

/// Base policy of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAllow {
    /// No user.
    Off,
    /// The superuser of the daemon's user namespace, and the listed users and groups.
    Root,
    /// Every user.
    All,
}

/// Protection of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMode {
    /// A tag for each packet; the content can be read.
    Integrity,
    /// Encryption, and a tag.
    Encrypt,
}

/// Use of a checksum for each packet, between daemons without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    /// None.
    Off,
    /// With peers that offer it, too.
    Offer,
    /// With all peers; packets without a checksum are dropped.
    Require,
}

/// An error in a config file, in one line: `FILE:LINE: KEY: description`, without unknown parts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// Describes the error at the byte `offset` of `text`.
    fn at(file: &Path, text: &str, offset: Option<usize>, what: &str) -> ConfigError {
        let mut place = file.display().to_string();
        if let Some(offset) = offset {
            let line = text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count()
                + 1;
            place += &format!(":{line}");
            let table = DeTable::parse(text).ok();
            if let Some(key) = table.and_then(|table| key_at(table.get_ref(), offset)) {
                place += &format!(": {key}");
            }
        }
        ConfigError(format!("{place}: {what}"))
    }
}

/// Returns the full name of the key whose name or value includes the byte at `offset`.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let inner = value
            .get_ref()
            .as_table()
            .and_then(|inner| key_at(inner, offset));
        let here = || key.span().contains(&offset) || value.span().contains(&offset);
        match inner {
            Some(inner) => Some(format!("{}.{inner}", key.get_ref())),
            None => here().then(|| key.get_ref().to_string()),
        }
    })
}

/// Returns the byte at which the key of this full name begins.
fn offset_of(table: &DeTable<'_>, name: &str) -> Option<usize> {
    let (first, rest) = match name.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (name, None),
    };
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match rest {
        Some(rest) => offset_of(value.get_ref().as_table()?, rest),
        None => Some(key.span().start),
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Contains file, line and key. A missing file is an error, too.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let failed = |what: &str| ConfigError::at(file, "", None, what);
        let unreadable = |e| failed(&format!("cannot read the file: {e}"));
        let found = std::fs::metadata(file).map_err(unreadable)?;
        if !found.is_file() || found.len() > MAX_FILE {
            return Err(failed(
                "not a config file: expected a regular file of at most 1 MiB",
            ));
        }
        Config::parse(&std::fs::read_to_string(file).map_err(unreadable)?, file)
    }

    /// Parses and checks the text of a file; `file` is for the errors.
    ///
    /// # Errors
    /// Contains file, line and key.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let what = error.message().trim().replace('\n', "; ");
            let what = what.replace("unknown field", "unknown key");
            ConfigError::at(file, text, error.span().map(|span| span.start), &what)
        })?;
        config.check().map_err(|(key, what)| {
            let table = DeTable::parse(text).ok();
            let offset = table.and_then(|table| offset_of(table.get_ref(), &key));
            ConfigError::at(file, text, offset, &what)
        })?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
