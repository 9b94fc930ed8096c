//! Errors between a process and its launcher.

use std::time::Duration;

/// Error of joining a job. The text is one line with the failure and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A variable of the environment is missing or has an invalid value.
    #[error("{0}")]
    Environment(String),
    /// The library for PMIx is missing or damaged. Holds the loader's error for each path.
    #[error(
        "this job's launcher speaks PMIx, but its library cannot be loaded ({0}). Install it \
         (Debian, Ubuntu: apt install libpmix2; Fedora: dnf install pmix), or set its path: \
         ESP_PMIX_LIB=/path/libpmix.so.2"
    )]
    NoPmix(String),
    /// The launcher closed its connection: it has ended, or it is ending this job. Holds the
    /// operation.
    #[error(
        "pmi1: the launcher closed its connection ({0}); did it end, or did another process of the job fail?"
    )]
    Closed(&'static str),
    /// The launcher did not answer in time.
    #[error(
        "{what}: no answer within {} s; is a process of the job missing? (ESP_BOOT_TIMEOUT=seconds waits longer)",
        limit.as_secs_f64()
    )]
    Timeout {
        /// The expected answer.
        what: String,
        /// The time waited.
        limit: Duration,
    },
    /// The launcher, or a value of a peer, violates the protocol, or a call of the PMIx library
    /// failed.
    #[error("{0}")]
    Protocol(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A call has an invalid argument: a key, a value or a rank.
    #[error("{0}")]
    Argument(String),
    /// A process has ended the job.
    #[error("rank {rank} aborted the job with code {code}: {why}")]
    Aborted {
        /// Rank of that process.
        rank: u32,
        /// Its exit code.
        code: i32,
        /// Its message, made printable.
        why: String,
    },
    /// The call came after [`finalize`](crate::Bootstrap::finalize).
    #[error("this process has already left the launcher (finalize)")]
    Finalized,
}

/// Makes external text printable: one line of at most 200 characters without control characters.
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

/// Adds the operation to a system error.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, BootError>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, BootError> {
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
    fn external_text_becomes_one_short_line() {
        assert_eq!(printable("a\u{1b}[2J\r\nb"), "a [2J  b");
        let long = printable(&"x".repeat(1000));
        assert_eq!(long.chars().count(), 201);
    }
}
