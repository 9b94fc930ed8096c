//! How connections end, as errors.

use esp_proto::{CloseReason, ResetReason};

use crate::error::{EspError, PeerName};

/// What the end of a connection means to its program; `None`: it ended in order.
pub(super) fn close_error(reason: CloseReason, peer: PeerName) -> Option<EspError> {
    Some(match reason {
        CloseReason::Finished => return None,
        CloseReason::TimedOut => EspError::TimedOut { peer },
        CloseReason::ConnectTimedOut => EspError::ConnectTimedOut { peer },
        CloseReason::Reset(reset) => match reset {
            ResetReason::Refused => EspError::Refused { peer },
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::BadKey => EspError::BadKey { peer },
            ResetReason::Aborted => EspError::Aborted { peer },
            ResetReason::ProgramDied => EspError::PeerDied { peer },
            ResetReason::Resources => EspError::PeerLimit { peer },
            ResetReason::Protocol => EspError::Protocol { peer },
            ResetReason::TimedOut => EspError::TimedOut { peer },
            ResetReason::Unknown => EspError::Forgotten { peer },
            ResetReason::Shutdown => EspError::PeerShutdown { peer },
            ResetReason::Other(reason) => EspError::ResetOther { peer, reason },
        },
        CloseReason::Aborted(reset) => match reset {
            ResetReason::Aborted => EspError::AbortedHere { peer },
            ResetReason::TimedOut => EspError::TimedOut { peer },
            ResetReason::Version(version) => EspError::PeerVersion { peer, version },
            ResetReason::Protocol => EspError::EndedHere {
                peer,
                what: "a rule of the protocol was broken",
            },
            ResetReason::Resources => EspError::EndedHere {
                peer,
                what: "a limit was reached, or the link's MTU became smaller",
            },
            ResetReason::Shutdown => EspError::EndedHere {
                peer,
                what: "it is being stopped, or did not adopt this program's lease when it was started again",
            },
            ResetReason::ProgramDied => EspError::EndedHere {
                peer,
                what: "it took this program for dead",
            },
            ResetReason::Refused
            | ResetReason::BadKey
            | ResetReason::Unknown
            | ResetReason::Other(_) => EspError::EndedHere {
                peer,
                what: "its log says why",
            },
        },
    })
}
