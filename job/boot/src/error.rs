//! What can go wrong between a process and its launcher.

use std::time::Duration;

/// One line that says what happened and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A variable of the environment makes no sense.
    #[error("the environment says {variable}={value}: {want}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it says, made printable.
        value: String,
        /// What it should say.
        want: String,
    },
    /// A variable is missing beside others that ask for it.
    #[error("{variable} is not set, which {because} needs: {remedy}")]
    Missing {
        /// Its name.
        variable: &'static str,
        /// Which way of starting.
        because: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The launcher speaks PMIx, but the library for it is not there.
    #[error(
        "this job's launcher speaks PMIx, but its library cannot be loaded ({why}). Install it (Debian, Ubuntu: apt install \
         libpmix2; Fedora: dnf install pmix), or say where it is: ESP_PMIX_LIB=/path/libpmix.so.2"
    )]
    NoPmix {
        /// What the loader said about each place.
        why: String,
    },
    /// A call of the PMIx library failed.
    #[error("PMIx: {what}: {text} ({status})")]
    Pmix {
        /// What it was for.
        what: &'static str,
        /// The library's words.
        text: String,
        /// The library's number.
        status: i32,
    },
    /// The launcher closed its connection: it has ended, or it is ending this job.
    #[error(
        "{launcher}: the launcher closed its connection ({what}); did it end, or another process of the job fail?"
    )]
    Closed {
        /// Which kind.
        launcher: &'static str,
        /// What was going on.
        what: &'static str,
    },
    /// No answer.
    #[error(
        "{launcher}: {what}: nothing came for {} s; is a process of the job missing? (ESP_BOOT_TIMEOUT=seconds waits longer)",
        limit.as_secs_f64()
    )]
    Timeout {
        /// Which kind.
        launcher: &'static str,
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// The launcher (or a peer's note) says something that cannot be.
    #[error("{launcher}: {what}")]
    Protocol {
        /// Which kind.
        launcher: &'static str,
        /// What, made printable.
        what: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Not a key.
    #[error("`{0}` is no key: 1 to {max} letters, digits, - and _", max = crate::MAX_KEY)]
    BadKey(String),
    /// Put twice.
    #[error("the key `{0}` was put already, and a note cannot be changed")]
    KeyTwice(String),
    /// Too long a value.
    #[error("a note of {0} bytes; {max} are possible", max = crate::MAX_VALUE)]
    TooLong(usize),
    /// No such process.
    #[error("there is no rank {rank} in a job of {size}")]
    NoRank {
        /// Asked for.
        rank: u32,
        /// Processes there are.
        size: u32,
    },
    /// The job is being ended.
    #[error("rank {rank} aborted the job with code {code}: {why}")]
    Aborted {
        /// Who said so.
        rank: u32,
        /// The exit code it wants.
        code: i32,
        /// Its words, made printable.
        why: String,
    },
    /// After [`finalize`](crate::Bootstrap::finalize).
    #[error("this process has said goodbye to its launcher already")]
    Finalized,
}

/// Text of others in one line of at most 200 characters, without control characters.
pub(crate) fn printable(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(200)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>();
    if text.chars().nth(200).is_some() {
        out.push('…');
    }
    out.trim().to_owned()
}

/// Names what was being done when the system refused it.
pub(crate) trait At<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, BootError>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, BootError> {
        self.map_err(|e| BootError::Io {
            what: what(),
            source: e.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_others_is_one_short_line() {
        assert_eq!(printable("a\u{1b}[2J\r\nb"), "a [2J  b");
        let long = printable(&"x".repeat(1000));
        assert_eq!(long.chars().count(), 201);
    }
}
