//! Refusals of requests.

use std::fmt;

use esp_client::control::{ErrorKind, ErrorReply};
use esp_proto::{ConnectError, ListenError};

use crate::accounts::OverLimit;

/// Kind and text of an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(kind: ErrorKind, message: impl fmt::Display) -> Refusal {
        Refusal {
            kind,
            message: message.to_string(),
        }
    }

    pub(crate) fn bad_argument(message: impl fmt::Display) -> Refusal {
        Refusal::new(ErrorKind::BadArgument, message)
    }

    /// Creates the refusal for an engine that has ended.
    pub(crate) fn unavailable() -> Refusal {
        Refusal::new(
            ErrorKind::Unavailable,
            "esp-daemon is stopping: retry when it runs again",
        )
    }

    /// Creates the refusal for a failed system call of the daemon.
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Refusal {
        Refusal::new(
            ErrorKind::Limit,
            format!(
                "esp-daemon cannot {what}: {error}; the node is short of memory or descriptors"
            ),
        )
    }
}

impl From<OverLimit> for Refusal {
    fn from(limit: OverLimit) -> Refusal {
        Refusal::new(ErrorKind::Limit, limit)
    }
}

impl From<ConnectError> for Refusal {
    fn from(error: ConnectError) -> Refusal {
        let kind = match error {
            ConnectError::InUse => ErrorKind::InUse,
            ConnectError::BadAddress | ConnectError::BadKey | ConnectError::BadCapacity => {
                ErrorKind::BadArgument
            }
            ConnectError::TooMany => ErrorKind::Limit,
        };
        Refusal::new(kind, error)
    }
}

impl From<ListenError> for Refusal {
    fn from(error: ListenError) -> Refusal {
        let kind = match error {
            ListenError::InUse => ErrorKind::InUse,
            ListenError::BadPort | ListenError::BadKey => ErrorKind::BadArgument,
        };
        Refusal::new(kind, error)
    }
}

impl From<Refusal> for ErrorReply {
    fn from(refusal: Refusal) -> ErrorReply {
        ErrorReply {
            kind: refusal.kind,
            message: refusal.message,
        }
    }
}
