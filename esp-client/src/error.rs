//! Errors of this crate.
//!
//! The stream types return [`std::io::Error`], as those of std and tokio do. [`EspError::of`]
//! returns the [`EspError`] inside. Each text names the peer or resource, the cause, and a remedy.

use std::io;
use std::path::PathBuf;

use esp_proto::MacAddr;

use crate::control;
use crate::io::DecodeError;

/// Error of an ESP call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EspError {
    /// The daemon's socket could not be connected to.
    #[error("cannot reach the ESP daemon at {}: {}", socket.display(), reach_advice(*kind))]
    Unreachable {
        /// The socket tried.
        socket: PathBuf,
        /// Error kind of the failed system call.
        kind: io::ErrorKind,
    },
    /// The daemon closed the control socket or died. All streams and sockets of this program at it
    /// are closed.
    #[error(
        "the ESP daemon at {} has gone away ({why}); its connections are lost: open them again when it is back",
        socket.display()
    )]
    DaemonGone {
        /// Its socket.
        socket: PathBuf,
        /// The event that showed it.
        why: String,
    },
    /// The daemon does not answer on its control socket.
    #[error("the ESP daemon at {} does not answer ({waiting_for}); see its log, or restart it", socket.display())]
    DaemonSilent {
        /// Its socket.
        socket: PathBuf,
        /// The step that was not answered.
        waiting_for: &'static str,
    },
    /// The daemon sent something that is not a control message.
    #[error("what answers at {} is not an ESP daemon of this version: {source}", socket.display())]
    BadControl {
        /// Its socket.
        socket: PathBuf,
        /// What was wrong.
        source: DecodeError,
    },
    /// The daemon refused the request.
    #[error("{message}")]
    Denied {
        /// Its reason.
        kind: control::ErrorKind,
        /// Its text.
        message: String,
    },
    /// No program listens on that port of the peer.
    #[error(
        "{peer} refused the connection: no program listens on that port; is the other program running?"
    )]
    Refused {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The listener has another job key.
    #[error(
        "{peer} refused the connection: its job key differs; both programs must be of the same job"
    )]
    BadKey {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer's node speaks another version of the set-up.
    #[error(
        "{peer} speaks ESP set-up version {version}, this node does not; install the same version on both"
    )]
    PeerVersion {
        /// Peer address and port.
        peer: PeerName,
        /// The version it speaks.
        version: u8,
    },
    /// The peer's program ended the connection on purpose, without closing it in order.
    #[error(
        "{peer} ended the connection (its program aborted it or closed it without reading everything)"
    )]
    Aborted {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer's program died.
    #[error(
        "the program at {peer} ended without closing the connection; look for its crash report"
    )]
    PeerDied {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer's node is at a limit.
    #[error(
        "the node of {peer} ended the connection: a limit there is reached (connections, memory or link MTU)"
    )]
    PeerLimit {
        /// Peer address and port.
        peer: PeerName,
    },
    /// One side found the other breaking the protocol.
    #[error(
        "the connection with {peer} was ended: a frame broke the protocol; are both nodes of the same version?"
    )]
    Protocol {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer has been silent for too long while it owed an answer.
    #[error(
        "{peer} has not answered for too long; the node or the link to it is down (esping can tell)"
    )]
    TimedOut {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The connection request was not answered.
    #[error(
        "no answer from {peer}: no such node on this segment, or no esp-daemon runs there (esping can tell)"
    )]
    ConnectTimedOut {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer's node does not know this connection any more.
    #[error(
        "the node of {peer} does not know this connection any more; its daemon was restarted: connect again"
    )]
    Forgotten {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The peer's daemon was stopped.
    #[error("the daemon on the node of {peer} was stopped; connect again when it is back")]
    PeerShutdown {
        /// Peer address and port.
        peer: PeerName,
    },
    /// Reset for a reason this version does not know.
    #[error("{peer} ended the connection for reason {reason}, which this version does not know")]
    ResetOther {
        /// Peer address and port.
        peer: PeerName,
        /// The number.
        reason: u8,
    },
    /// This program ended the connection with `abort`.
    #[error("the connection with {peer} was aborted by this program")]
    AbortedHere {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The connection ended here, by this node's daemon.
    #[error("this node's daemon ended the connection with {peer}: {what}")]
    EndedHere {
        /// Peer address and port.
        peer: PeerName,
        /// Why.
        what: &'static str,
    },
    /// Written to after the sending side was finished.
    #[error(
        "nothing more can be written to {peer}: this side was shut down or the connection is over"
    )]
    WriteAfterEnd {
        /// Peer address and port.
        peer: PeerName,
    },
    /// The time given to this call is over.
    #[error(
        "{what} took longer than the time allowed for it; the connection is unharmed, the call may be repeated"
    )]
    CallTimedOut {
        /// Which call.
        what: &'static str,
    },
    /// `connect_timeout` is over; the attempt was withdrawn.
    #[error("{peer} did not answer within the time allowed for connecting")]
    ConnectCallTimedOut {
        /// Peer address and port.
        peer: PeerName,
    },
    /// An environment variable has an invalid value.
    #[error("invalid {variable}={value:?}: expected {expected}")]
    BadVariable {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// None of several interfaces leads to the peer.
    #[error(
        "no interface reaches {peer}: {tried}; check the link, or name the interface (TARGET%IF:PORT)"
    )]
    NoPath {
        /// Peer address.
        peer: MacAddr,
        /// What was tried and what came of it.
        tried: String,
    },
    /// The text is not an ESP address.
    #[error(
        "{text:?} is not an ESP address: {why} (like 02:00:00:00:00:01:5000 or node1%eth0:5000)"
    )]
    BadAddress {
        /// The text.
        text: String,
        /// The mistake.
        why: &'static str,
    },
    /// No such name.
    #[error("the name {name:?} is not known: {why}")]
    UnknownName {
        /// The name.
        name: String,
        /// Which file was looked at, and what is wrong.
        why: String,
    },
    /// The shared memory the daemon handed over cannot be used.
    #[error(
        "the shared memory of the ESP daemon cannot be used: {what}; daemon and program must be of the same version"
    )]
    Memory {
        /// What is wrong.
        what: String,
    },
    /// An argument is out of range.
    #[error("{0}")]
    BadArgument(&'static str),
    /// A datagram is longer than a frame of the interface carries.
    #[error("a datagram of {len} bytes does not fit: at most {max} on {interface}")]
    TooLong {
        /// Its length.
        len: usize,
        /// The most possible.
        max: usize,
        /// The interface.
        interface: String,
    },
    /// This process was forked from the one that opened the connection to the daemon.
    #[error(
        "this ESP object belongs to the parent process; open a new one after fork (Client::connect)"
    )]
    Forked,
}

/// Address and port of a peer, as error texts show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerName {
    /// Address.
    pub mac: MacAddr,
    /// Port.
    pub port: u16,
}

impl std::fmt::Display for PeerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {}", self.mac, self.port)
    }
}

fn reach_advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => {
            "no such socket; start esp-daemon on this node, or set ESP_SOCKET to where its socket is"
        }
        io::ErrorKind::ConnectionRefused => {
            "nobody serves this socket; esp-daemon is not running: start it"
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ask for access to the socket (its group and mode are set in the daemon's configuration)"
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "it takes no more connections at present; the daemon hangs or is overloaded: see its log"
        }
        io::ErrorKind::InvalidInput => "the path is too long for a Unix socket",
        _ => "the connection failed; is esp-daemon running on this node?",
    }
}

impl EspError {
    /// Returns the `EspError` inside an error that a call of this crate returned.
    pub fn of(error: &io::Error) -> Option<&EspError> {
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<InIoError>())
            .map(|inner| &inner.0)
    }

    /// Returns the [`io::ErrorKind`] that this error has as an [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind as K;
        match self {
            EspError::Unreachable { kind, .. } => *kind,
            EspError::DaemonGone { .. } => K::NotConnected,
            EspError::DaemonSilent { .. } => K::TimedOut,
            EspError::BadControl { .. } | EspError::Memory { .. } => K::InvalidData,
            EspError::Denied { kind, .. } => denied_kind(*kind),
            EspError::Refused { .. } | EspError::BadKey { .. } | EspError::PeerVersion { .. } => {
                K::ConnectionRefused
            }
            EspError::Aborted { .. }
            | EspError::PeerDied { .. }
            | EspError::PeerLimit { .. }
            | EspError::Protocol { .. }
            | EspError::Forgotten { .. }
            | EspError::PeerShutdown { .. }
            | EspError::ResetOther { .. } => K::ConnectionReset,
            EspError::AbortedHere { .. } | EspError::EndedHere { .. } => K::ConnectionAborted,
            EspError::WriteAfterEnd { .. } => K::BrokenPipe,
            EspError::TimedOut { .. }
            | EspError::ConnectTimedOut { .. }
            | EspError::CallTimedOut { .. }
            | EspError::ConnectCallTimedOut { .. } => K::TimedOut,
            EspError::NoPath { .. } => K::HostUnreachable,
            EspError::UnknownName { .. } => K::NotFound,
            EspError::BadAddress { .. }
            | EspError::BadArgument(_)
            | EspError::BadVariable { .. }
            | EspError::TooLong { .. } => K::InvalidInput,
            EspError::Forked => K::Unsupported,
        }
    }
}

fn denied_kind(kind: control::ErrorKind) -> io::ErrorKind {
    use control::ErrorKind as E;
    match kind {
        E::BadRequest | E::BadArgument => io::ErrorKind::InvalidInput,
        E::Version => io::ErrorKind::Unsupported,
        E::Permission => io::ErrorKind::PermissionDenied,
        E::InUse => io::ErrorKind::AddrInUse,
        E::NotFound => io::ErrorKind::NotFound,
        E::Limit => io::ErrorKind::QuotaExceeded,
        E::LinkDown => io::ErrorKind::NetworkDown,
        // Not `Interrupted`, which callers take as an invitation to try again.
        E::Cancelled => io::ErrorKind::ConnectionAborted,
        E::Unavailable => io::ErrorKind::NotConnected,
    }
}

/// An [`EspError`] inside an [`io::Error`]. Its `Debug` output is the sentence, because that is
/// what a program prints whose `main` returns the error.
#[derive(thiserror::Error)]
#[error(transparent)]
struct InIoError(EspError);

impl std::fmt::Debug for InIoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl From<EspError> for io::Error {
    fn from(error: EspError) -> io::Error {
        io::Error::new(error.kind(), InIoError(error))
    }
}

impl From<control::ErrorReply> for EspError {
    fn from(reply: control::ErrorReply) -> EspError {
        EspError::Denied {
            kind: reply.kind,
            message: reply.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_keep_the_typed_error() {
        let peer = PeerName {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            port: 5000,
        };
        let error = io::Error::from(EspError::Refused { peer });
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(EspError::of(&error), Some(&EspError::Refused { peer }));
        assert!(
            error
                .to_string()
                .starts_with("02:00:00:00:00:01 port 5000 refused")
        );
    }

    #[test]
    fn io_errors_print_the_sentence() {
        let error = EspError::BadVariable {
            variable: "ESP_PATH",
            value: "nonsense".into(),
            expected: "auto, lease or daemon",
        };
        let sentence = error.to_string();
        let printed = format!("{:?}", io::Error::from(error));
        assert!(printed.contains(&sentence), "{printed}");
    }

    #[test]
    fn a_missing_socket_says_what_to_do() {
        let error = EspError::Unreachable {
            socket: "/run/esp/esp.sock".into(),
            kind: io::ErrorKind::NotFound,
        };
        let text = error.to_string();
        assert!(
            text.contains("/run/esp/esp.sock") && text.contains("start esp-daemon"),
            "{text}"
        );
    }
}
