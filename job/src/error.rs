//! Why a job could not be joined or left.

use std::path::PathBuf;

use boot::BootError;

/// One message that names the place and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The launcher.
    #[error("node {node}: {source}")]
    Boot {
        /// This process's node.
        node: String,
        /// What the launcher said.
        source: BootError,
    },
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
    /// The file of thresholds.
    #[error("{}: {what} (`esplab tune` writes it anew; ESP_TUNE names another file, and ESP_TUNE= none)", file.display())]
    Tune {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// This process could not start, and has told the others.
    #[error("rank {rank} on node {node}: {what}")]
    Here {
        /// This process.
        rank: u32,
        /// Its node.
        node: String,
        /// What was in the way.
        what: String,
    },
    /// Another process could not start.
    #[error("the job cannot start: rank {rank} on node {node}: {what}")]
    Elsewhere {
        /// Which one (the first of them).
        rank: u32,
        /// Its node.
        node: String,
        /// Its own words.
        what: String,
    },
}

/// Leaving was not in order.
#[derive(Debug, thiserror::Error)]
pub enum FinalizeError {
    /// What was sent last.
    #[error("leaving the job: {0}")]
    P2p(#[from] p2p::Error),
    /// The launcher.
    #[error("leaving the job: {0}")]
    Boot(#[from] BootError),
}

/// Text of others, made printable and bounded; line ends stay.
pub(crate) fn printable(text: &str, limit: usize) -> String {
    let shown = text.chars().filter(|&c| c == '\n' || !c.is_control());
    let mut out: String = shown.take(limit).collect();
    if text.chars().nth(limit).is_some() {
        out.push('…');
    }
    out
}
