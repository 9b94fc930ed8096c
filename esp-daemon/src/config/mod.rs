//! The config file: its keys, defaults and checks.
//!
//! `esp-daemon.toml.example` lists every option with its default; a test compares the two.

mod locate;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use values::{Bytes, Memory, Mode, Network, Span, Uid};

/// Config file used when the command line names none.
pub const DEFAULT_FILE: &str = "/etc/esp/esp-daemon.toml";
/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/esp/esp.sock";
/// Maximum size of the config file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The config file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Interfaces to use. Default: none; the command line must name one.
    pub interfaces: Vec<String>,
    /// Networks of ESP in UDP: the node's addresses in them are served, and packets from elsewhere
    /// are dropped. Default: none.
    pub udp: Vec<Network>,
    /// UDP port of this and the other nodes.
    pub udp_port: u16,
    /// Name reported to other stations (`esping --discover`), at most 64 bytes. Default: the host
    /// name.
    pub node_name: Option<String>,
    /// Pcap file for every frame sent and received. Default: off.
    pub pcap: Option<PathBuf>,
    /// The Unix socket of the control protocol.
    pub socket: SocketOptions,
    /// EtherTypes.
    pub ethertypes: Ethertypes,
    /// Limits of users.
    pub limits: LimitOptions,
    /// Sizes of the rings in shared memory.
    pub rings: RingOptions,
    /// Timers of the protocol.
    pub timers: Timers,
    /// Sizes of the protocol.
    pub protocol: Protocol,
    /// Behaviour of the idle engine.
    pub idle: Idle,
    /// Timeouts and limits of the control protocol.
    pub control: Control,
    /// Prometheus endpoint.
    pub metrics: Metrics,
    /// Leases: packet sockets for programs.
    pub lease: LeaseOptions,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            interfaces: Vec::new(),
            udp: Vec::new(),
            udp_port: esp_proto::UDP_PORT,
            node_name: None,
            pcap: None,
            socket: SocketOptions::default(),
            ethertypes: Ethertypes::default(),
            limits: LimitOptions::default(),
            rings: RingOptions::default(),
            timers: Timers::default(),
            protocol: Protocol::default(),
            idle: Idle::default(),
            control: Control::default(),
            metrics: Metrics::default(),
            lease: LeaseOptions::default(),
        }
    }
}

/// `[socket]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketOptions {
    /// Path of the socket. `--socket` and `ESP_SOCKET` take precedence.
    pub path: PathBuf,
    /// Permission bits: write permission allows use of the service.
    pub mode: Mode,
    /// Group of the socket, by name or number. Default: the daemon's.
    pub group: Option<String>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            path: DEFAULT_SOCKET.into(),
            mode: Mode(0o666),
            group: None,
        }
    }
}

/// `[ethertypes]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ethertypes {
    /// Streams.
    pub esp: u16,
    /// Datagrams.
    pub edp: u16,
}

impl Default for Ethertypes {
    fn default() -> Self {
        Ethertypes {
            esp: 0x88B5,
            edp: 0x88B6,
        }
    }
}

/// `[limits]`: limits of each user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitOptions {
    /// Programs connected to the daemon.
    pub programs: u32,
    /// Streams.
    pub streams: u32,
    /// Listeners.
    pub listeners: u32,
    /// Bound datagram sockets.
    pub edp_sockets: u32,
    /// All rings together.
    pub ring_bytes: Memory,
    /// Requests per second of all programs together; further ones wait.
    pub requests_per_second: u32,
    /// `[limits.uid.N]`: other limits for one user.
    pub uid: BTreeMap<Uid, LimitOverride>,
    /// `[limits.node]`: limits of all users together.
    pub node: NodeLimitOptions,
}

impl Default for LimitOptions {
    fn default() -> Self {
        LimitOptions {
            programs: 1024,
            streams: 8192,
            listeners: 1024,
            edp_sockets: 1024,
            ring_bytes: Memory::Percent(25),
            requests_per_second: 20_000,
            uid: BTreeMap::new(),
            node: NodeLimitOptions::default(),
        }
    }
}

/// `[limits.uid.N]`; omitted keys are as in `[limits]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // the fields are those of LimitOptions
pub struct LimitOverride {
    pub programs: Option<u32>,
    pub streams: Option<u32>,
    pub listeners: Option<u32>,
    pub edp_sockets: Option<u32>,
    pub ring_bytes: Option<Memory>,
    pub requests_per_second: Option<u32>,
}

/// `[limits.node]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeLimitOptions {
    /// Programs; each uses three descriptors of the daemon.
    pub programs: u32,
    /// Streams and datagram sockets; each uses three of the 65530 mappings that Linux allows a
    /// process.
    pub sockets: u32,
    /// All rings together.
    pub ring_bytes: Memory,
}

impl Default for NodeLimitOptions {
    fn default() -> Self {
        NodeLimitOptions {
            programs: 4096,
            sockets: 16384,
            ring_bytes: Memory::Percent(50),
        }
    }
}

/// `[rings]`: powers of two, 4 KiB to 64 MiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RingOptions {
    /// Send ring of a program that does not choose a size.
    pub default_tx: Bytes,
    /// Receive ring of a program that does not choose a size.
    pub default_rx: Bytes,
    /// Largest send ring granted.
    pub max_tx: Bytes,
    /// Largest receive ring granted.
    pub max_rx: Bytes,
}

impl Default for RingOptions {
    fn default() -> Self {
        let (default, max) = (Bytes(1 << 20), Bytes(16 << 20));
        RingOptions {
            default_tx: default,
            default_rx: default,
            max_tx: max,
            max_rx: max,
        }
    }
}

/// `[timers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timers {
    /// Time after which an unanswered connect fails.
    pub connect_timeout: Span,
    /// Time after which a peer that owes an answer and stays silent is considered dead.
    pub peer_timeout: Span,
    /// Idle time after which a connection is probed.
    pub keepalive: Span,
    /// Longest delay of an acknowledgement that waits for data to carry it.
    pub max_ack_delay: Span,
    /// Lower bound of the retransmission timeout.
    pub min_rto: Span,
    /// Upper bound of the retransmission timeout.
    pub max_rto: Span,
    /// Time for which a closed connection is remembered.
    pub time_wait: Span,
}

impl Default for Timers {
    fn default() -> Self {
        Timers {
            connect_timeout: Span::secs(5),
            peer_timeout: Span::secs(10),
            keepalive: Span::secs(2),
            max_ack_delay: Span::micros(200),
            min_rto: Span::millis(2),
            max_rto: Span::millis(200),
            time_wait: Span::millis(100),
        }
    }
}

/// `[protocol]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocol {
    /// Maximum number of connections of one interface, including half-open ones.
    pub max_connections: u32,
    /// Maximum number of outstanding packets of one connection, at most 4096.
    pub max_window: u16,
}

impl Default for Protocol {
    fn default() -> Self {
        Protocol {
            max_connections: 65536,
            max_window: 1024,
        }
    }
}

/// `[idle]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// Time to spin after the last work. Pays only with a dedicated core.
    pub spin: Span,
    /// Time to yield the core and poll again after spinning.
    pub yield_for: Span,
    /// CPU to which the engine's thread is pinned. Default: none.
    pub core: Option<u32>,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            spin: Span::micros(0),
            yield_for: Span::micros(50),
            core: None,
        }
    }
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Time within which a program must send Hello.
    pub hello_timeout: Span,
    /// Time within which a started message must be complete.
    pub message_timeout: Span,
    /// Time within which a program must read a reply.
    pub reply_timeout: Span,
    /// Maximum number of waiting accepts of a program.
    pub max_pending_accepts: u32,
}

impl Default for Control {
    fn default() -> Self {
        let patience = Span::secs(5);
        Control {
            hello_timeout: patience,
            message_timeout: patience,
            reply_timeout: patience,
            max_pending_accepts: 256,
        }
    }
}

/// `[lease]`: policy of leases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseOptions {
    /// Base policy; with `off` and `all`, the lists below have no effect.
    pub allow: LeaseAllow,
    /// Additional users, by number.
    pub users: Vec<u32>,
    /// Additional groups, by name or number. A group that does not exist has no members.
    pub groups: Vec<String>,
    /// Maximum number of leases of a user.
    pub per_user: u32,
    /// Time after its start for which the daemon reserves the ports of earlier leases for their
    /// programs.
    pub grace: Span,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        LeaseOptions {
            allow: LeaseAllow::Root,
            users: Vec::new(),
            groups: vec!["esp-lease".into()],
            per_user: 256,
            grace: Span::secs(3),
        }
    }
}

/// Base policy of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAllow {
    /// No user.
    Off,
    /// The superuser of the daemon's user namespace, and the listed users and groups.
    Root,
    /// Every user.
    All,
}

/// `[metrics]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address and port of the HTTP endpoint. Default: off.
    pub listen: Option<SocketAddr>,
    /// Interval of fetching values from the engine.
    pub interval: Span,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            listen: None,
            interval: Span::secs(1),
        }
    }
}

/// An error in a config file, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1, if known.
    pub line: Option<usize>,
    /// The key with the names of its tables, if known.
    pub key: Option<String>,
    /// Description of the error, and the expected value.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Contains file, line and key. A missing file is an error, too.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let unreadable = |what| ConfigError {
            file: file.into(),
            line: None,
            key: None,
            what,
        };
        let size = std::fs::metadata(file)
            .map_err(|e| unreadable(format!("cannot read the file: {e}")))?;
        if !size.is_file() || size.len() > MAX_FILE {
            return Err(unreadable(format!(
                "not a config file: expected a regular file of at most {MAX_FILE} bytes"
            )));
        }
        let text = std::fs::read_to_string(file)
            .map_err(|e| unreadable(format!("cannot read the file: {e}")))?;
        Config::parse(&text, file)
    }

    /// Parses and checks the text of a file; `file` is for the errors.
    ///
    /// # Errors
    /// Contains file, line and key.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let (line, key) = match error.span() {
                Some(span) => locate::at(text, span.start),
                None => (None, None),
            };
            let what = error.message().trim().replace('\n', "; ");
            ConfigError {
                file: file.into(),
                line,
                key,
                what: what.replace("unknown field", "unknown key"),
            }
        })?;
        config.check().map_err(|(key, what)| ConfigError {
            file: file.into(),
            line: locate::key(text, key),
            key: Some(key.to_owned()),
            what,
        })?;
        Ok(config)
    }

    /// Checks the conditions that the types do not express. An error is (key, description).
    fn check(&self) -> Result<(), (&'static str, String)> {
        self.check_names()?;
        self.check_ethertypes()?;
        self.check_rings()?;
        self.check_ranges()?;
        if self.lease.allow != LeaseAllow::Root && !self.lease.users.is_empty() {
            let what = "no effect unless lease.allow is \"root\": remove one of the two keys";
            return Err(("lease.users", what.into()));
        }
        let rates = self
            .limits
            .uid
            .values()
            .filter_map(|user| user.requests_per_second);
        if rates
            .chain([self.limits.requests_per_second])
            .any(|rate| rate == 0)
        {
            return Err((
                "limits.requests_per_second",
                "0 would block all programs: expected at least 1".into(),
            ));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), (&'static str, String)> {
        if self.udp_port == 0 {
            return Err(("udp_port", "invalid UDP port 0: expected 1 to 65535".into()));
        }
        for (at, name) in self.interfaces.iter().enumerate() {
            if name.is_empty() || name.len() > 15 {
                return Err((
                    "interfaces",
                    format!(
                        "invalid interface name `{name}`: expected 1 to 15 bytes, such as \"eth0\""
                    ),
                ));
            }
            if self.interfaces.iter().take(at).any(|other| other == name) {
                return Err(("interfaces", format!("duplicate interface `{name}`")));
            }
        }
        if self.node_name.as_ref().is_some_and(|name| name.len() > 64) {
            return Err(("node_name", "too long: expected at most 64 bytes".into()));
        }
        if self.socket.path.as_os_str().is_empty() {
            return Err(("socket.path", "empty: expected a path".into()));
        }
        Ok(())
    }

    fn check_ethertypes(&self) -> Result<(), (&'static str, String)> {
        /// IPv4, ARP, VLAN tags, IPv6, LLDP: using them would cut the node off.
        const TAKEN: [u16; 6] = [0x0800, 0x0806, 0x8100, 0x88A8, 0x86DD, 0x88CC];
        for (key, value) in [
            ("ethertypes.esp", self.ethertypes.esp),
            ("ethertypes.edp", self.ethertypes.edp),
        ] {
            if value < 0x0600 || TAKEN.contains(&value) {
                return Err((
                    key,
                    format!(
                        "invalid EtherType {value:#06x}: expected at least 0x0600, and not that of another \
                         protocol"
                    ),
                ));
            }
        }
        if self.ethertypes.esp == self.ethertypes.edp {
            return Err((
                "ethertypes.edp",
                "equal to ethertypes.esp: expected another EtherType".into(),
            ));
        }
        Ok(())
    }

    fn check_rings(&self) -> Result<(), (&'static str, String)> {
        let rings = &self.rings;
        let keys = [
            ("rings.default_tx", rings.default_tx),
            ("rings.default_rx", rings.default_rx),
            ("rings.max_tx", rings.max_tx),
            ("rings.max_rx", rings.max_rx),
        ];
        for (key, Bytes(value)) in keys {
            if !value.is_power_of_two() || !(4096..=64 << 20).contains(&value) {
                return Err((
                    key,
                    format!(
                        "invalid ring size {value}: expected a power of two from 4KiB to 64MiB"
                    ),
                ));
            }
        }
        if rings.default_tx > rings.max_tx {
            return Err(("rings.default_tx", "larger than rings.max_tx".into()));
        }
        if rings.default_rx > rings.max_rx {
            return Err(("rings.default_rx", "larger than rings.max_rx".into()));
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), (&'static str, String)> {
        /// Checks `section.key` against its least and greatest value.
        macro_rules! check_ranges {
            ($($section:ident.$key:ident: $least:expr, $most:expr;)*) => {$(
                let (value, least, most) = (self.$section.$key, $least, $most);
                if value < least || value > most {
                    let key = concat!(stringify!($section), ".", stringify!($key));
                    let what = format!("{value} is out of range: expected {least} to {most}");
                    return Err((key, what));
                }
            )*};
        }
        let (us, ms, s) = (Span::micros, Span::millis, Span::secs);
        check_ranges! {
            timers.connect_timeout: ms(1), s(3600);
            timers.peer_timeout: ms(10), s(3600);
            timers.keepalive: ms(1), s(86400);
            timers.max_ack_delay: us(0), us(65535); // 16 bits in the set-up block
            timers.min_rto: us(100), s(60);
            timers.max_rto: us(100), s(60);
            timers.time_wait: us(0), s(60);
            idle.spin: us(0), s(1);
            idle.yield_for: us(0), s(1);
            control.hello_timeout: ms(10), s(60);
            control.message_timeout: ms(10), s(60);
            control.reply_timeout: ms(10), s(60);
            lease.grace: us(0), s(60);
            metrics.interval: ms(100), s(3600);
            protocol.max_window: 1, 4096;
            protocol.max_connections: 1, 1 << 20;
            control.max_pending_accepts: 1, 4096;
        }
        let timers = &self.timers;
        if timers.min_rto > timers.max_rto {
            return Err(("timers.min_rto", "larger than timers.max_rto".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
