//! Errors of this crate.
//!
//! The stream types return [`std::io::Error`], as those of std and tokio do. [`EspError::of`]
//! returns the [`EspError`] inside. Each text names the peer or resource, the cause, and a remedy.

use std::io;
use std::path::{Path, PathBuf};

use esp_engine::shm::RegionError;
use esp_proto::{CloseReason, NodeAddr, ResetReason};

use crate::control;
use crate::control::codec::DecodeError;

/// End of the text of an error about descriptors that belong to a reply.
pub(crate) const MISSING_DESCRIPTORS: &str =
    "did not arrive (is this process at its limit of open files?)";

/// Error of an ESP call.
///
/// Fields: `socket` is the path of the daemon's socket, `peer` (or the only field) address and port
/// of the peer, `what` the failed operation or the cause, `why` the cause; lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // fields: see above
pub enum EspError {
    /// The daemon's socket could not be connected to.
    #[error("cannot reach the ESP daemon at {}: {}", socket.display(), reach_advice(*kind))]
    Unreachable {
        socket: PathBuf,
        kind: io::ErrorKind,
    },
    /// The daemon closed the control socket or died, and no other one continued in time
    /// ([`Client::set_daemon_wait`](crate::Client::set_daemon_wait)), or the next one could not
    /// resume the socket. Streams and sockets of this program that used the daemon are closed.
    #[error(
        "lost the connection to the ESP daemon at {}: {why}; open new streams and sockets when it runs",
        socket.display()
    )]
    DaemonGone { socket: PathBuf, why: String },
    /// No daemon runs, and this program waits for the next one
    /// ([`Client::set_daemon_wait`](crate::Client::set_daemon_wait)).
    #[error(
        "no ESP daemon runs at {} now; this program waits for the next one, which resumes its streams",
        socket.display()
    )]
    DaemonAbsent { socket: PathBuf },
    /// The daemon does not answer on its control socket.
    #[error("the ESP daemon at {} does not respond ({waiting_for}); see its log, or restart it", socket.display())]
    DaemonSilent {
        socket: PathBuf,
        waiting_for: &'static str,
    },
    /// The daemon sent an invalid control message.
    #[error("the server at {} is not an ESP daemon of this version: {source}", socket.display())]
    BadControl {
        socket: PathBuf,
        source: DecodeError,
    },
    /// The daemon refused the request.
    #[error("{message}")]
    Denied {
        kind: control::ErrorKind,
        message: String,
    },
    /// No program listens on that port of the peer.
    #[error(
        "{0} refused the connection: no program listens on that port; is the other program running?"
    )]
    Refused(PeerName),
    /// The listener has another job key.
    #[error(
        "{0} refused the connection: its job key differs; both programs must belong to the same job"
    )]
    BadKey(PeerName),
    /// The peer's node speaks another version of the set-up protocol.
    #[error(
        "{peer} speaks ESP set-up version {version}, this node does not; install the same version on both"
    )]
    PeerVersion { peer: PeerName, version: u8 },
    /// The peer's program reset the connection.
    #[error("{0} reset the connection: its program aborted it, or closed it with bytes unread")]
    Aborted(PeerName),
    /// The peer's program died.
    #[error("the program at {0} ended without closing the connection; look for its crash report")]
    PeerDied(PeerName),
    /// A limit of the peer's node is reached.
    #[error(
        "the node of {0} reset the connection: a limit there is reached (connections, memory or link MTU)"
    )]
    PeerLimit(PeerName),
    /// The peer has not acknowledged anything for too long.
    #[error("{0} does not respond; the node or the link to it is down (check with esping)")]
    TimedOut(PeerName),
    /// The connection request was not answered.
    #[error("no answer from {0}: {why} (check with esping)", why = silence(.0))]
    ConnectTimedOut(PeerName),
    /// The peer's node no longer has this connection.
    #[error(
        "the node of {0} no longer has this connection; its daemon was restarted: connect again"
    )]
    Forgotten(PeerName),
    /// The peer's daemon was stopped.
    #[error("the daemon on the node of {0} was stopped; connect again when it runs again")]
    PeerShutdown(PeerName),
    /// The peer reset the connection for another reason.
    #[error("{peer} reset the connection: {why}")]
    ResetOther { peer: PeerName, why: String },
    /// This node ended the connection.
    #[error("this node ended the connection with {peer}: {what}")]
    EndedHere { peer: PeerName, what: &'static str },
    /// The sending direction has ended.
    #[error("cannot write to {0}: the sending direction or the connection has ended")]
    WriteAfterEnd(PeerName),
    /// A call timed out.
    #[error("{what} timed out; the connection is intact, and the call may be repeated")]
    CallTimedOut { what: &'static str },
    /// Connecting timed out; the attempt was withdrawn.
    #[error("{0} did not answer within the time-out of the call: {why}", why = silence(.0))]
    ConnectCallTimedOut(PeerName),
    /// None of several interfaces leads to the peer.
    #[error(
        "no interface reaches {peer}: {tried}; check the link, or name the interface (TARGET%IF:PORT)"
    )]
    NoPath { peer: NodeAddr, tried: String },
    /// The name is unknown.
    #[error("unknown name {name:?}: {why}")]
    UnknownName { name: String, why: String },
    /// Several nodes announce the name.
    #[error(
        "ambiguous name {name:?}: it is announced by {}; use an address, or change `node_name` in the config of all but one of these nodes",
        listed(nodes)
    )]
    AmbiguousName { name: String, nodes: Vec<NodeAddr> },
    /// Shared memory or a socket of the daemon is not usable.
    #[error(
        "cannot use the shared memory of the ESP daemon: {what}; daemon and program must be of the same version"
    )]
    Memory { what: String },
    /// A thread, a descriptor or memory could not be created in this process.
    #[error("cannot {what}: {why}")]
    Resource { what: &'static str, why: String },
    /// An argument, an address or an environment variable is invalid.
    #[error("{0}")]
    BadArgument(String),
    /// A datagram does not fit into a frame of the interface.
    #[error("a datagram of {len} bytes is too long: {interface} carries at most {max}")]
    TooLong {
        len: usize,
        max: usize,
        interface: String,
    },
    /// This process was forked from the one that opened the connection to the daemon.
    #[error(
        "this ESP object belongs to the parent process; open a new one after fork (Client::connect)"
    )]
    Forked,
}

/// Address and port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct PeerName {
    pub addr: NodeAddr,
    pub port: u16,
}

impl std::fmt::Display for PeerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {}", self.addr, self.port)
    }
}

fn listed(nodes: &[NodeAddr]) -> String {
    let texts: Vec<_> = nodes.iter().map(NodeAddr::to_string).collect();
    texts.join(" and ")
}

/// Returns possible reasons why a peer does not answer.
fn silence(peer: &PeerName) -> &'static str {
    if peer.addr.is_udp() {
        "no such node, nothing there uses ESP in UDP, or the two sides have no key in common (ESP_KEY_FILE)"
    } else {
        "no such node on this segment, or no esp-daemon runs there"
    }
}

fn reach_advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::NotFound => {
            "no such socket; start esp-daemon on this node, or set ESP_SOCKET to the path of its socket"
        }
        io::ErrorKind::ConnectionRefused => {
            "no esp-daemon is listening on this socket; start esp-daemon"
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ask for access to the socket (its group and mode are set in the daemon's configuration)"
        }
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "it accepts no connections; the daemon hangs or is overloaded: see its log"
        }
        io::ErrorKind::InvalidInput => "the path is too long for a Unix socket",
        _ => "the connection failed; is esp-daemon running on this node?",
    }
}

impl EspError {
    /// Returns the error for a resource of this process: `what` is the failed operation.
    pub(crate) fn resource<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> EspError {
        move |why| EspError::Resource {
            what,
            why: why.to_string(),
        }
    }

    /// Returns a refusal by this crate itself.
    pub(crate) fn denied(kind: control::ErrorKind, message: impl Into<String>) -> EspError {
        EspError::Denied {
            kind,
            message: message.into(),
        }
    }

    pub(crate) fn gone(socket: &Path, why: impl Into<String>) -> EspError {
        EspError::DaemonGone {
            socket: socket.to_owned(),
            why: why.into(),
        }
    }

    pub(crate) fn silent(socket: &Path, waiting_for: &'static str) -> EspError {
        EspError::DaemonSilent {
            socket: socket.to_owned(),
            waiting_for,
        }
    }

    pub(crate) fn bad_control(socket: &Path, source: DecodeError) -> EspError {
        EspError::BadControl {
            socket: socket.to_owned(),
            source,
        }
    }

    /// Returns the error for a close reason; `None` if both sides closed the connection.
    pub(crate) fn of_close(reason: CloseReason, peer: PeerName) -> Option<EspError> {
        let ended = |what| EspError::EndedHere { peer, what };
        let reset = |why: String| EspError::ResetOther { peer, why };
        Some(match reason {
            CloseReason::Finished => return None,
            CloseReason::ConnectTimedOut => EspError::ConnectTimedOut(peer),
            CloseReason::TimedOut
            | CloseReason::Reset(ResetReason::TimedOut)
            | CloseReason::Aborted(ResetReason::TimedOut) => EspError::TimedOut(peer),
            CloseReason::Reset(ResetReason::Version(version))
            | CloseReason::Aborted(ResetReason::Version(version)) => {
                EspError::PeerVersion { peer, version }
            }
            CloseReason::Reset(reason) => match reason {
                ResetReason::Refused => EspError::Refused(peer),
                ResetReason::BadKey => EspError::BadKey(peer),
                ResetReason::Aborted => EspError::Aborted(peer),
                ResetReason::ProgramDied => EspError::PeerDied(peer),
                ResetReason::Resources => EspError::PeerLimit(peer),
                ResetReason::Unknown => EspError::Forgotten(peer),
                ResetReason::Shutdown => EspError::PeerShutdown(peer),
                ResetReason::Protocol => reset(
                    "a frame violated the protocol; do both nodes run the same version?".into(),
                ),
                other => reset(format!("unknown reason {other:?}")),
            },
            CloseReason::Aborted(reason) => ended(match reason {
                ResetReason::Aborted => "this program aborted it",
                ResetReason::Protocol => "a frame violated the protocol",
                // No other limit ends a connection that a program holds (W-30).
                ResetReason::Resources => {
                    "the MTU of its interface became smaller than its packets; connect again"
                }
                ResetReason::Shutdown => {
                    "its daemon is stopping, or did not adopt this program's lease after a restart"
                }
                ResetReason::ProgramDied => "its daemon considered this program dead",
                _ => "see the log of its daemon",
            }),
        })
    }

    /// Returns the `EspError` inside an error that a call of this crate returned.
    pub fn of(error: &io::Error) -> Option<&EspError> {
        error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<InIoError>())
            .map(|inner| &inner.0)
    }

    /// Returns the [`io::ErrorKind`] that this error has as an [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use EspError as E;
        use io::ErrorKind as K;
        match self {
            E::Unreachable { kind, .. } => *kind,
            E::DaemonGone { .. } | E::DaemonAbsent { .. } => K::NotConnected,
            E::BadControl { .. } | E::Memory { .. } => K::InvalidData,
            E::Resource { .. } => K::Other,
            E::Denied { kind, .. } => denied_kind(*kind),
            E::Refused(_) | E::BadKey(_) | E::PeerVersion { .. } => K::ConnectionRefused,
            E::Aborted(_) | E::PeerDied(_) | E::PeerLimit(_) => K::ConnectionReset,
            E::Forgotten(_) | E::PeerShutdown(_) | E::ResetOther { .. } => K::ConnectionReset,
            E::EndedHere { .. } => K::ConnectionAborted,
            E::WriteAfterEnd(_) => K::BrokenPipe,
            E::DaemonSilent { .. } | E::CallTimedOut { .. } => K::TimedOut,
            E::TimedOut(_) | E::ConnectTimedOut(_) | E::ConnectCallTimedOut(_) => K::TimedOut,
            E::NoPath { .. } => K::HostUnreachable,
            E::UnknownName { .. } => K::NotFound,
            E::AmbiguousName { .. } => K::InvalidInput,
            E::BadArgument(_) | E::TooLong { .. } => K::InvalidInput,
            E::Forked => K::Unsupported,
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
        // Not `Interrupted`, after which callers repeat the call.
        E::Cancelled => io::ErrorKind::ConnectionAborted,
        E::Unavailable => io::ErrorKind::NotConnected,
    }
}

/// An [`EspError`] inside an [`io::Error`]. Its `Debug` output is the text, so that the `Debug`
/// output of the [`io::Error`] contains the text.
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

impl From<RegionError> for EspError {
    fn from(error: RegionError) -> EspError {
        EspError::Memory {
            what: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_keep_the_typed_error() {
        let peer = PeerName {
            addr: esp_proto::MacAddr([2, 0, 0, 0, 0, 1]).into(),
            port: 5000,
        };
        let error = io::Error::from(EspError::Refused(peer));
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(EspError::of(&error), Some(&EspError::Refused(peer)));
        assert!(
            error
                .to_string()
                .starts_with("02:00:00:00:00:01 port 5000 refused")
        );
    }

    #[test]
    fn a_lowered_mtu_is_the_only_cause_in_its_message() {
        let peer = PeerName {
            addr: esp_proto::MacAddr([2, 0, 0, 0, 0, 1]).into(),
            port: 5000,
        };
        let reason = CloseReason::Aborted(ResetReason::Resources);
        let text = EspError::of_close(reason, peer).unwrap().to_string();
        assert!(
            text.contains("MTU") && text.contains("connect again"),
            "{text}"
        );
        assert!(!text.contains(" or "), "{text}");
    }

    #[test]
    fn io_errors_print_the_sentence() {
        let error = EspError::BadArgument("invalid ESP_PATH=\"nonsense\"".into());
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
