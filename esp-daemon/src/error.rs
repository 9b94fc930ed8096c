//! Why the daemon ends other than on request.

use std::io;
use std::path::PathBuf;

use crate::config::ConfigError;

/// The daemon could not start: exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The config file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No interface was named.
    #[error(
        "no interface to speak on: name one with --interface, or in `interfaces` of {}; this machine has: {}",
        .config.display(), .existing.join(", ")
    )]
    NoInterface {
        /// Where it can be configured.
        config: PathBuf,
        /// The machine's Ethernet interfaces.
        existing: Vec<String>,
    },
    /// An interface is missing or of no use.
    #[error(transparent)]
    Interface(#[from] netif::InterfaceError),
    /// Another daemon serves the interface.
    #[error(
        "{interface} is served already for packet type {ethertype:#06x} by {holder}; an interface has one esp-daemon: stop \
         that one, or name another interface"
    )]
    InterfaceTaken {
        /// Which.
        interface: String,
        /// For which packet type.
        ethertype: u16,
        /// Process and user, as far as known.
        holder: String,
    },
    /// Another daemon serves the socket.
    #[error("another esp-daemon ({holder}) serves {}; stop that one, or give this one another --socket", .path.display())]
    SocketTaken {
        /// The socket.
        path: PathBuf,
        /// Process, as far as known.
        holder: String,
    },
    /// Something else has the socket's name.
    #[error("{} exists and is not a socket; remove it, or give another --socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket's group does not exist.
    #[error(
        "socket.group: no group `{group}` in /etc/group; create it (groupadd {group}), or give its number"
    )]
    NoGroup {
        /// Its name.
        group: String,
    },
    /// The system refused something about the socket.
    #[error("cannot {what} {}: {source}; run as a user who may, or give another --socket", .path.display())]
    Socket {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's answer.
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
        /// What the system or library says.
        what: String,
    },
    /// The log filter is malformed.
    #[error("--log {filter:?} is no log filter ({what}); write error, warn, info, debug or trace")]
    Log {
        /// What was given.
        filter: String,
        /// What is wrong.
        what: String,
    },
    /// Anything else the system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl StartError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
        move |source| StartError::System { what, source }
    }
}

/// The daemon failed while it ran: exit code 1.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine's thread ended by itself.
    #[error(
        "the engine stopped by itself; its connections are lost. Restart esp-daemon, and report what the log says before this"
    )]
    EngineStopped,
    /// The engine did not answer while the daemon was being stopped.
    #[error("the engine did not stop in time; its connections end without a word to their peers")]
    EngineStuck,
}

/// Either.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(_) => 2,
            Failure::Run(_) => 1,
        }
    }
}
