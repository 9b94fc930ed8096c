//! Errors of joining and leaving a job.

use boot::BootError;

/// Error of joining a job: one message with the place of the failure and its remedy.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The launcher failed.
    #[error("node {node}: {source}")]
    Boot {
        /// Name of this process's node.
        node: String,
        /// Error of the bootstrap.
        source: BootError,
    },
    /// A variable of the environment is invalid.
    #[error("invalid environment variable {0}")]
    Environment(String),
    /// The file of thresholds is invalid. Holds its path and the fault.
    #[error(
        "{0} (`esplab tune` rewrites it; ESP_TUNE names another file, and an empty ESP_TUNE= none)"
    )]
    Tune(String),
    /// This process could not start and has reported it to the others.
    #[error("rank {rank} on node {node}: {what}")]
    Here {
        /// Rank of this process.
        rank: u32,
        /// Name of its node.
        node: String,
        /// Reason.
        what: String,
    },
    /// Another process could not start.
    #[error("the job cannot start: rank {rank} on node {node}: {what}")]
    Elsewhere {
        /// Lowest rank that could not start.
        rank: u32,
        /// Name of its node.
        node: String,
        /// Reason reported by that process.
        what: String,
    },
}

/// Error of leaving a job.
#[derive(Debug, thiserror::Error)]
pub enum FinalizeError {
    /// Messages could not be delivered.
    #[error("leaving the job: {0}")]
    P2p(#[from] p2p::Error),
    /// The launcher failed.
    #[error("leaving the job: {0}")]
    Boot(#[from] BootError),
}

/// Removes control characters except line ends, and cuts the text at `limit` characters.
pub(crate) fn printable(text: &str, limit: usize) -> String {
    let shown = text.chars().filter(|&c| c == '\n' || !c.is_control());
    let mut out: String = shown.take(limit).collect();
    if text.chars().nth(limit).is_some() {
        out.push('…');
    }
    out
}
