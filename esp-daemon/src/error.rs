//! Errors that end the daemon.

use std::io;
use std::path::PathBuf;

use crate::config::ConfigError;

/// The daemon could not start: exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No interface was given.
    #[error(
        "no interface configured: name one with --interface, or in `interfaces` of {}; existing: {}",
        .config.display(), .existing.join(", ")
    )]
    NoInterface {
        /// The config file that could name one.
        config: PathBuf,
        /// The machine's Ethernet interfaces.
        existing: Vec<String>,
    },
    /// An interface is missing or unusable.
    #[error(transparent)]
    Interface(#[from] netif::InterfaceError),
    /// No address of this node is in a configured network.
    #[error(
        "udp: no address of this node is in {network}; it has {}", .existing.join(", ")
    )]
    NoAddress {
        /// The network.
        network: String,
        /// The node's addresses.
        existing: Vec<String>,
    },
    /// Another daemon serves the interface.
    #[error(
        "another esp-daemon ({holder}) serves {interface} for EtherType {ethertype:#06x}: stop that \
         one, or name another interface"
    )]
    InterfaceTaken {
        /// The interface.
        interface: String,
        /// The EtherType.
        ethertype: u16,
        /// Process and user of the holder, as far as known.
        holder: String,
    },
    /// Another daemon serves the socket.
    #[error("another esp-daemon ({holder}) serves {}: stop that one, or choose another --socket", .path.display())]
    SocketTaken {
        /// The socket.
        path: PathBuf,
        /// Process of the holder, as far as known.
        holder: String,
    },
    /// Something else exists at the socket's path.
    #[error("{} exists and is not a socket: remove it, or choose another --socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket's group does not exist.
    #[error("socket.group: no group `{group}`: create it (groupadd {group}), or give its number")]
    NoGroup {
        /// Its name.
        group: String,
    },
    /// A system call on the socket failed.
    #[error("cannot {what} {}: {source}; check the permissions, or choose another --socket", .path.display())]
    Socket {
        /// The attempted operation.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The engine could not start.
    #[error(transparent)]
    Engine(#[from] esp_engine::EngineError),
    /// The metrics endpoint could not be opened.
    #[error("cannot serve metrics on {listen}: {what}; change metrics.listen")]
    Metrics {
        /// The address.
        listen: std::net::SocketAddr,
        /// Error of the system or library.
        what: String,
    },
    /// The log filter is malformed.
    #[error(
        "--log {filter:?} is not a log filter ({what}): write error, warn, info, debug or trace"
    )]
    Log {
        /// The given filter.
        filter: String,
        /// Description of the error.
        what: String,
    },
    /// Any other system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl StartError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
        move |source| StartError::System { what, source }
    }
}

/// The daemon failed while running: exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine's thread ended unexpectedly.
    #[error(
        "the engine stopped unexpectedly and its connections are lost: restart esp-daemon, and report \
         the log before this message"
    )]
    EngineStopped,
    /// The engine did not answer during shutdown.
    #[error("the engine did not stop in time; the peers of its connections are not notified")]
    EngineStuck,
}

/// Any error that ends the daemon.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Failure {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(_) => 2,
            Failure::Run(_) => 1,
        }
    }
}
