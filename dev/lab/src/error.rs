//! What can go wrong with a virtual cluster.

use std::path::PathBuf;

/// One line that says what happened, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An option is out of range.
    #[error("{0}")]
    BadOption(String),
    /// A lab of that name exists.
    #[error(
        "lab `{name}` exists already (end it with `esplab down --name {name}`, or choose another --name)"
    )]
    Exists {
        /// Its name.
        name: String,
    },
    /// No such lab.
    #[error("no lab `{name}` here (`esplab list` shows them; `esplab up --nodes 2` makes one)")]
    NotFound {
        /// The name asked for.
        name: String,
    },
    /// Somebody is still making it.
    #[error("lab `{name}` is being set up by process {pid}; wait for it or end that process")]
    Busy {
        /// Its name.
        name: String,
        /// Who makes it.
        pid: i32,
    },
    /// No such node.
    #[error("lab `{name}` has no node {node} (its nodes are 0 to {last})")]
    NoNode {
        /// The lab.
        name: String,
        /// The node asked for.
        node: usize,
        /// The highest one there is.
        last: usize,
    },
    /// A node's holder process is gone, and its namespace with it.
    #[error(
        "lab `{name}` is broken: {what} is gone (make it anew: `esplab down --name {name}`, then `esplab up`)"
    )]
    Broken {
        /// The lab.
        name: String,
        /// What is missing.
        what: String,
    },
    /// A tool of the system is not installed.
    #[error(
        "`{tool}` is not installed: it comes with the package `{debian}` (Debian, Ubuntu: apt install {debian}) or `{fedora}` (Fedora: dnf install {fedora})"
    )]
    NoTool {
        /// The program.
        tool: &'static str,
        /// Debian's package.
        debian: &'static str,
        /// Fedora's package.
        fedora: &'static str,
    },
    /// A program of this workspace is not where it should be.
    #[error("`{program}` is not in {} (build it: cargo build -p {package})", dir.display())]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// The crate it comes from.
        package: &'static str,
        /// Where it was expected.
        dir: PathBuf,
    },
    /// The kernel does not let this user make namespaces.
    #[error("{0}")]
    Forbidden(String),
    /// A tool failed.
    #[error("{what}: `{tool}` failed: {text}")]
    Tool {
        /// What it was for.
        what: String,
        /// Which.
        tool: &'static str,
        /// What it printed, in one line.
        text: String,
    },
    /// A node's daemon did not start.
    #[error("esp-daemon of node {node} {how}; its log ended with: {log}")]
    Daemon {
        /// Which node.
        node: usize,
        /// What became of it.
        how: String,
        /// Its last lines, joined.
        log: String,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Names what was being done when the system refused it.
pub(crate) trait At<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> At<T> for Result<T, E> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|e| LabError::Io {
            what: what(),
            source: e.into(),
        })
    }
}

impl From<LabError> for cli::out::Failure {
    fn from(error: LabError) -> cli::out::Failure {
        cli::out::Failure::Text(error.to_string())
    }
}
