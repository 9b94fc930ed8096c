//! The result of a gate or a command.

use std::fmt;
use std::process::ExitCode;

/// The reason something did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Something is wrong with the project.
    Failed(String),
    /// A tool or a permission is missing on this machine. The text says what to do.
    CannotRun(String),
}

/// Passed, with a few words on what was checked; or not.
pub(crate) type Outcome = Result<String, Failure>;

impl Failure {
    /// Returns 1 for a failure and 2 if something could not run, as the project's other programs
    /// do.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Failed(_) => ExitCode::from(1),
            Failure::CannotRun(_) => ExitCode::from(2),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(text) => f.write_str(text),
            Failure::CannotRun(text) => write!(f, "could not run: {text}"),
        }
    }
}

pub(crate) fn failed<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Failed(text.into()))
}

pub(crate) fn cannot_run<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::CannotRun(text.into()))
}

/// Makes a gate's result from the problems it found. `checked`: the number of things it checked.
pub(crate) fn verdict(problems: &[String], checked: String) -> Outcome {
    if problems.is_empty() {
        return Ok(checked);
    }
    let mut text = format!("{} problem(s); checked {checked}", problems.len());
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.replace('\n', "\n    "));
    }
    failed(text)
}
