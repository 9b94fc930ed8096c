//! Error codes.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use esp_client::EspError;
use esp_client::control::ErrorKind;

/// `ESP_ERR_…` of esp.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    State = 1,
    Join = 2,
    Pointer = 3,
    Count = 4,
    Rank = 5,
    Tag = 6,
    Comm = 7,
    Request = 8,
    Type = 9,
    Op = 10,
    Truncate = 11,
    Peer = 12,
    Cancelled = 13,
    InStatus = 14,
    Launcher = 15,
    System = 16,
    Message = 17,
    Arg = 18,
    Internal = 19,
    Stream = 20,
    Again = 21,
    Timeout = 22,
    Daemon = 23,
    Address = 24,
    Unreachable = 25,
    Refused = 26,
    Reset = 27,
    Closed = 28,
    InUse = 29,
    Denied = 30,
    Limit = 31,
}

/// An error: its code and its details.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) text: String,
    /// Status of the message, if known.
    pub(crate) about: Option<p2p::Status>,
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Fault {
        Fault {
            code,
            text: text.into(),
            about: None,
        }
    }
}

impl From<p2p::Error> for Fault {
    fn from(error: p2p::Error) -> Fault {
        use p2p::Error;
        let code = match error {
            Error::InvalidRank { .. } => Code::Rank,
            Error::InvalidTag { .. } => Code::Tag,
            Error::InvalidContext { .. } => Code::Comm,
            // Ranks have no accesses to be refused.
            Error::InvalidArgument(_) | Error::Refused(_) => Code::Arg,
            Error::Truncated { .. } => Code::Truncate,
            Error::PeerFailed { .. } | Error::Unflushed(_) => Code::Peer,
            Error::UnknownRequest => Code::Request,
            Error::Cancelled => Code::Cancelled,
            Error::Closed => Code::State,
        };
        let mut fault = Fault::new(code, error.to_string());
        if let Error::Truncated {
            source_rank: source,
            tag,
            length,
            ..
        } = error
        {
            fault.about = Some(p2p::Status {
                source,
                tag,
                length,
            });
        }
        fault
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        let code = match (EspError::of(&error), error.kind()) {
            (Some(inner), _) => of_client(inner),
            (None, io::ErrorKind::WouldBlock) => Code::Again,
            (None, io::ErrorKind::InvalidInput) => Code::Arg,
            (None, _) => Code::System,
        };
        Fault::new(code, error.to_string())
    }
}

impl From<EspError> for Fault {
    fn from(error: EspError) -> Fault {
        Fault::new(of_client(&error), error.to_string())
    }
}

/// Returns the code of an error of streams.
fn of_client(error: &EspError) -> Code {
    use EspError as E;
    match error {
        E::Unreachable { .. } | E::DaemonGone { .. } | E::DaemonAbsent { .. } => Code::Daemon,
        E::DaemonSilent { .. } => Code::Daemon,
        E::BadControl { .. } | E::Memory { .. } => Code::Daemon,
        E::Denied { kind, .. } => match kind {
            ErrorKind::BadRequest | ErrorKind::BadArgument | ErrorKind::NotFound => Code::Arg,
            ErrorKind::Version | ErrorKind::Unavailable => Code::Daemon,
            ErrorKind::Permission => Code::Denied,
            ErrorKind::InUse => Code::InUse,
            ErrorKind::Limit => Code::Limit,
            ErrorKind::LinkDown => Code::Unreachable,
            ErrorKind::Cancelled => Code::Cancelled,
        },
        E::Refused(_) | E::BadKey(_) | E::PeerVersion { .. } => Code::Refused,
        E::Aborted(_) | E::PeerDied(_) | E::PeerLimit(_) | E::Forgotten(_) => Code::Reset,
        E::PeerShutdown(_) | E::ResetOther { .. } | E::EndedHere { .. } => Code::Reset,
        E::TimedOut(_) | E::ConnectTimedOut(_) | E::NoPath { .. } => Code::Unreachable,
        E::WriteAfterEnd(_) => Code::Closed,
        E::CallTimedOut { .. } | E::ConnectCallTimedOut(_) => Code::Timeout,
        E::UnknownName { .. } | E::AmbiguousName { .. } => Code::Address,
        E::BadArgument(_) | E::TooLong { .. } => Code::Arg,
        E::Forked => Code::State,
        // Resources of this process; variants may be added.
        _ => Code::System,
    }
}

/// Returns the text of a code.
pub(crate) fn text_of(code: c_int) -> &'static CStr {
    const WORDS: [&CStr; 32] = [
        c"success",
        c"not initialized, or finalized already",
        c"the job could not be joined",
        c"a null pointer, or one that is not aligned",
        c"a length or count that is negative or too large",
        c"no such rank in the communicator",
        c"no such tag",
        c"no such communicator",
        c"no such request",
        c"no such type",
        c"no such operation",
        c"the message was longer than the buffer",
        c"another process of the job failed",
        c"cancelled",
        c"some requests failed: see their statuses",
        c"the launcher is gone",
        c"the system refused an operation",
        c"no such message",
        c"arguments that do not fit together",
        c"a bug in the library",
        c"no such stream, listener or poller",
        c"the call would have to wait",
        c"the time limit of the call has passed",
        c"this node's esp-daemon does not run, has ended, or has another version",
        c"no such node name, or several nodes have it",
        c"the peer's node does not respond, or a link is down",
        c"the connection was refused",
        c"the connection was reset",
        c"the sending direction has ended",
        c"the port is in use",
        c"not permitted to this user",
        c"a limit of this node's daemon is reached",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|code| WORDS.get(code).copied())
        .unwrap_or(c"not an error code of this library")
}

thread_local! {
    /// Details of this thread's last error.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the details of an error.
pub(crate) fn set_last_error(text: &str) {
    let text = CString::new(text.replace('\0', "")).unwrap_or_default();
    // The storage of an ending thread may be gone.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Returns the details, valid until the next [`set_last_error`] of this thread.
pub(crate) fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_text_and_other_numbers_do_not_crash() {
        for code in 0..=Code::Limit as c_int {
            assert_ne!(
                text_of(code),
                c"not an error code of this library",
                "{code}"
            );
        }
        for code in [-1, 32, c_int::MAX, c_int::MIN] {
            assert_eq!(text_of(code), c"not an error code of this library");
        }
    }
}
