//! Exit codes, failures and output of the programs.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use esp_client::control::Owner;
use serde::Serialize;

/// Result of a program that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was done or answered: exit code 0.
    Done,
    /// Part of it failed (loss, mismatch): exit code 1.
    Partly,
    /// Exit code of a command that was run for the user.
    Code(u8),
}

/// Reason why the program could not run: printed as one line, with exit code 2 unless stated
/// otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A text that names the event, the place and the remedy.
    #[error("{0}")]
    Text(String),
    /// A command cannot be run: exit code 126 or 127, like a shell's.
    #[error("{1}")]
    Command(u8, String),
    /// The task failed midway: exit code 1.
    #[error("{0}")]
    Broken(String),
    /// Writing the output failed; a closed pipe ends the program cleanly.
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Creates a failure with this text.
    pub fn new(text: impl Display) -> Failure {
        Failure::Text(text.to_string())
    }

    /// Creates a failure of a task that failed midway.
    pub fn broken(text: impl Display) -> Failure {
        Failure::Broken(text.to_string())
    }
}

/// Adds context to an error.
pub trait Context<T> {
    /// Converts the error to a [`Failure`] that begins with `what`.
    fn doing(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|e| Failure::Text(format!("{what}: {e}")))
    }
}

/// Converts the result of a program to its exit code, and prints the line of a failure.
pub fn finish(program: &str, result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::Partly) => ExitCode::from(1),
        Ok(Verdict::Code(code)) => ExitCode::from(code),
        // The reader of the output closed it early (`| head`).
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{program}: {failure}");
            match failure {
                Failure::Command(code, _) => ExitCode::from(code),
                Failure::Broken(_) => ExitCode::from(1),
                Failure::Text(_) | Failure::Output(_) => ExitCode::from(2),
            }
        }
    }
}

/// Writes one line to standard output and flushes it.
pub fn line(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes one JSON object as one line.
pub fn json(value: &impl Serialize) -> io::Result<()> {
    line(serde_json::to_string(value).map_err(io::Error::other)?)
}

/// Writes a remark to standard error and ignores errors.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Replaces control characters in an untrusted text, which could confuse a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Formats the name of a program and its process ID, if known: `name[pid]`. Programs choose their
/// own name.
pub fn program(owner: &Owner) -> String {
    let mut text = printable(owner.program.as_deref().unwrap_or("-"));
    if let Some(pid) = owner.pid {
        text += &format!("[{pid}]");
    }
    text
}

/// Returns the seconds since 1970.
pub fn clock() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// Creates a progress bar, which indicatif hides unless standard error is a terminal.
pub fn progress(len: u64, template: &str) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(len);
    if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
