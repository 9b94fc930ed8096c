//! The config file: its keys, defaults and checks.
//!
//! `esp-daemon.toml.example` lists every option with its default; a test compares the two.

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

/// A mistake in the file: key, description.
type Mistake = (String, String);

/// Returns a [`Mistake`] unless the condition is true.
macro_rules! ensure {
    ($condition:expr, $key:expr, $($what:tt)*) => {
        if !$condition {
            return Err(($key.into(), format!($($what)*)));
        }
    };
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

    /// Checks that the other options allow the number of engines.
    ///
    /// # Errors
    /// Description of the option that allows only one.
    pub fn check_engines(&self) -> Result<(), String> {
        let conflicts = [
            (!self.udp.is_empty(), "ESP in UDP (`udp`)"),
            (!self.auth.key_files.is_empty(), "keys (`auth.key_files`)"),
            (self.checksum != Checksum::Off, "checksums (`checksum`)"),
            (self.pcap.is_some(), "a pcap file (`pcap`)"),
        ];
        match conflicts.iter().find(|(is_set, _)| *is_set) {
            Some((_, what)) if self.engines.0 > 1 => Err(format!(
                "several engines cannot be combined with {what}: set `engines` to 1"
            )),
            _ => Ok(()),
        }
    }

    /// Checks the conditions that the types do not express.
    fn check(&self) -> Result<(), Mistake> {
        ensure!(
            self.udp_port != 0,
            "udp_port",
            "invalid UDP port 0: expected 1 to 65535"
        );
        self.check_interfaces()?;
        let node_name = self.node_name.as_deref().unwrap_or_default();
        ensure!(
            node_name.len() <= 64,
            "node_name",
            "too long: expected at most 64 bytes"
        );
        let has_path = !self.socket.path.as_os_str().is_empty();
        ensure!(has_path, "socket.path", "empty: expected a path");
        self.ethertypes.check()?;
        let RingOptions { default, max } = self.rings;
        ensure!(default <= max, "rings.default", "larger than rings.max");
        self.check_times()?;
        self.check_exclusions()?;
        ensure!(
            self.metrics.listen.is_some() || self.metrics.token_file.is_none(),
            "metrics.token_file",
            "no effect without metrics.listen: add that key, or remove this one"
        );
        self.limits.check()
    }

    /// Checks that the interfaces have names of Linux, each once.
    fn check_interfaces(&self) -> Result<(), Mistake> {
        for (at, name) in self.interfaces.iter().enumerate() {
            ensure!(
                (1..=15).contains(&name.len()),
                "interfaces",
                "invalid interface name `{name}`: expected 1 to 15 bytes, such as \"eth0\""
            );
            let earlier = self.interfaces.get(..at).unwrap_or_default();
            ensure!(
                !earlier.contains(name),
                "interfaces",
                "duplicate interface `{name}`"
            );
        }
        Ok(())
    }

    /// Checks that each time is in its range.
    fn check_times(&self) -> Result<(), Mistake> {
        let timers = &self.timers;
        for (key, Span(value), Span(least), Span(most)) in [
            (
                "timers.connect_timeout",
                timers.connect_timeout,
                Span::millis(1),
                Span::HOUR,
            ),
            (
                "timers.peer_timeout",
                timers.peer_timeout,
                Span::millis(10),
                Span::HOUR,
            ),
            (
                "timers.keepalive",
                timers.keepalive,
                Span::millis(1),
                Span::HOUR,
            ),
            (
                "timers.min_rto",
                timers.min_rto,
                Span::micros(100),
                timers.max_rto,
            ),
            (
                "timers.max_rto",
                timers.max_rto,
                Span::micros(100),
                Span::millis(60_000),
            ),
            (
                "idle.spin",
                self.idle.spin,
                Span::micros(0),
                Span::millis(1000),
            ),
            (
                "lease.grace",
                self.lease.grace,
                Span::micros(0),
                Span::millis(60_000),
            ),
        ] {
            ensure!(
                (least..=most).contains(&value),
                key,
                "{value:?} is out of range: expected {least:?} to {most:?}"
            );
        }
        Ok(())
    }

    /// Checks the options that exclude each other: engines, leases, keys and checksums.
    fn check_exclusions(&self) -> Result<(), Mistake> {
        let has_keys = !self.auth.key_files.is_empty();
        let has_checksum = self.checksum != Checksum::Off;
        let leases_to_all = self.lease.allow == LeaseAllow::All;
        self.check_engines()
            .map_err(|what| ("engines".into(), what))?;
        ensure!(
            self.lease.allow == LeaseAllow::Root || self.lease.users.is_empty(),
            "lease.users",
            "no effect unless lease.allow is \"root\": remove one of the two keys"
        );
        ensure!(
            has_keys || self.auth == Auth::default(),
            "auth",
            "no effect without auth.key_files: add that key, or remove the table"
        );
        ensure!(
            !(has_keys && leases_to_all),
            "lease.allow",
            "programs with leases cannot authenticate their packets: remove this key or auth.key_files"
        );
        ensure!(
            !(has_keys && has_checksum),
            "checksum",
            "no effect with auth.key_files, whose tags detect damage, too: remove one of the two keys"
        );
        ensure!(
            !(has_checksum && leases_to_all),
            "lease.allow",
            "programs with leases send no checksums: remove this key or checksum"
        );
        Ok(())
    }
}

impl Ethertypes {
    fn check(&self) -> Result<(), Mistake> {
        /// IPv4, ARP, VLAN tags, IPv6, LLDP: using them would cut the node off.
        const TAKEN: [u16; 6] = [0x0800, 0x0806, 0x8100, 0x88A8, 0x86DD, 0x88CC];
        let Ethertypes { esp, edp } = *self;
        for (key, value) in [("ethertypes.esp", esp), ("ethertypes.edp", edp)] {
            ensure!(
                value >= 0x0600 && !TAKEN.contains(&value),
                key,
                "invalid EtherType {value:#06x}: expected at least 0x0600, and not that of another protocol"
            );
        }
        ensure!(
            esp != edp,
            "ethertypes.edp",
            "equal to ethertypes.esp: expected another EtherType"
        );
        Ok(())
    }
}

impl Limits {
    fn check(&self) -> Result<(), Mistake> {
        ensure!(
            self.requests_per_second != 0,
            "limits.requests_per_second",
            "0 would block all programs: expected at least 1"
        );
        for (uid, own) in &self.uid {
            ensure!(
                own.requests_per_second != Some(0),
                format!("limits.uid.{}.requests_per_second", uid.0),
                "0 would block the programs of this user: expected at least 1"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
