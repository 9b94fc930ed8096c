//! Errors of closed connections.

use esp_proto::{CloseReason, ResetReason};

use crate::error::{EspError, PeerName};

/// Returns the error for a close reason; `None` if both sides closed the connection.
pub(super) fn close_error(reason: CloseReason, peer: PeerName) -> Option<EspError> {
    Some(match reason {
        CloseReason::Finished => return None,
        CloseReason::TimedOut => EspError::TimedOut(peer),
        CloseReason::ConnectTimedOut => EspError::ConnectTimedOut(peer),
        CloseReason::Reset(reset) => match reset {
            ResetReason::Refused => EspError::Refused(peer),
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::BadKey => EspError::BadKey(peer),
            ResetReason::Aborted => EspError::Aborted(peer),
            ResetReason::ProgramDied => EspError::PeerDied(peer),
            ResetReason::Resources => EspError::PeerLimit(peer),
            ResetReason::Protocol => EspError::Protocol(peer),
            ResetReason::TimedOut => EspError::TimedOut(peer),
            ResetReason::Unknown => EspError::Forgotten(peer),
            ResetReason::Shutdown => EspError::PeerShutdown(peer),
            ResetReason::Other(reason) => EspError::ResetOther { peer, reason },
        },
        CloseReason::Aborted(reset) => match reset {
            ResetReason::Aborted => EspError::AbortedHere(peer),
            ResetReason::TimedOut => EspError::TimedOut(peer),
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::Protocol => EspError::EndedHere {
                peer,
                what: "a frame violated the protocol",
            },
            ResetReason::Resources => EspError::EndedHere {
                peer,
                what: "a limit was reached, or the link's MTU became smaller",
            },
            ResetReason::Shutdown => EspError::EndedHere {
                peer,
                what: "it is stopping, or did not adopt this program's lease after a restart",
            },
            ResetReason::ProgramDied => EspError::EndedHere {
                peer,
                what: "it considered this program dead",
            },
            ResetReason::Refused
            | ResetReason::BadKey
            | ResetReason::Unknown
            | ResetReason::Other(_) => EspError::EndedHere {
                peer,
                what: "see its log",
            },
        },
    })
}
