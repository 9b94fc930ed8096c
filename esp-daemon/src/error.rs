//! Errors that end the daemon. Their text says what happened, where, and what to do.

use std::fmt::Display;
use std::io;

/// The daemon could not start: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

impl StartError {
    pub(crate) fn new(what: impl Display) -> StartError {
        StartError(what.to_string())
    }

    /// Returns the conversion of a failed system call that was to do `what`.
    pub(crate) fn system(what: impl Display) -> impl FnOnce(io::Error) -> StartError {
        move |source| StartError(format!("cannot {what}: {source}"))
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
            Failure::Start(_) => 2,
            Failure::Run(_) => 1,
        }
    }
}
