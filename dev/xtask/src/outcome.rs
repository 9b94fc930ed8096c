//! What a command ends with.

use std::fmt;
use std::process::ExitCode;

/// Why something did not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It ran, and something is wrong with the project.
    Failed(String),
    /// It could not run on this machine: a tool or a permission is missing. The text says what to do.
    CannotRun(String),
}

/// Passed, with a few words on what was looked at; or not.
pub(crate) type Outcome = Result<String, Failure>;

impl Failure {
    /// As the project's other programs: 1 ran and failed, 2 could not run.
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

/// A gate's answer from the list of what it found wrong.
pub(crate) fn verdict(problems: &[String], looked_at: String) -> Outcome {
    if problems.is_empty() {
        return Ok(looked_at);
    }
    let mut text = format!("{} problem(s); looked at {looked_at}", problems.len());
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.replace('\n', "\n    "));
    }
    failed(text)
}
