//! Errors that end the daemon. Their text says what happened, where, and what to do.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// The daemon could not start: exit code 2, or 1 if the cause may disappear by itself, so that the
/// service manager tries again.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct StartError {
    what: String,
    passes: bool,
}

impl StartError {
    /// Creates an error whose cause remains until it is removed.
    pub(crate) fn new(what: impl Display) -> StartError {
        StartError {
            what: what.to_string(),
            passes: false,
        }
    }

    /// Creates an error whose cause may disappear by itself.
    pub(crate) fn passing(what: impl Display) -> StartError {
        StartError {
            passes: true,
            ..StartError::new(what)
        }
    }

    /// Returns a function that converts the error of a system call for the operation `what`. A lack
    /// of memory, descriptors or threads may disappear by itself.
    pub(crate) fn system(what: impl Display) -> impl FnOnce(io::Error) -> StartError {
        move |source| {
            let passes = [
                Errno::AGAIN,
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOBUFS,
                Errno::NOMEM,
            ];
            let passes = Errno::from_io_error(&source).is_some_and(|errno| passes.contains(&errno));
            StartError {
                what: format!("cannot {what}: {source}"),
                passes,
            }
        }
    }
}

/// Any error that ends the daemon.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The daemon could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The daemon failed while running: exit code 1.
    #[error("{0}")]
    Run(&'static str),
}

impl Failure {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Start(error) if error.passes => 1,
            Failure::Start(_) => 2,
            Failure::Run(_) => 1,
        }
    }
}
