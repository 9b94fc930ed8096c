//! Errors of a virtual cluster.

use std::io::ErrorKind;
use std::path::PathBuf;

/// An error in one line: the event, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An option is out of range.
    #[error("{0}")]
    BadOption(String),
    /// A lab of the name exists.
    #[error(
        "lab `{name}` exists already (end it with `esplab down --name {name}`, or choose another --name)"
    )]
    Exists {
        /// Name.
        name: String,
    },
    /// No such lab.
    #[error("no lab `{name}` here (`esplab list` shows them; `esplab up --nodes 2` makes one)")]
    NotFound {
        /// Requested name.
        name: String,
    },
    /// The labs of this folder belong to another user.
    #[error(
        "lab `{name}`: no permission to read {}, which belongs to another user: run esplab as that \
         user (`sudo esplab …` for root's labs), or make a lab of this user: `esplab up --nodes 2`",
        dir.display()
    )]
    OtherUser {
        /// Requested name.
        name: String,
        /// Folder of the labs.
        dir: PathBuf,
    },
    /// This user has no such lab, but root has labs.
    #[error(
        "no lab `{name}` of this user; root has labs: `sudo esplab …` uses them, `esplab up --nodes 2` \
         makes one of this user"
    )]
    RootsLab {
        /// Requested name.
        name: String,
    },
    /// Another process is creating the lab.
    #[error("lab `{name}` is being set up by process {pid}; wait for it or end that process")]
    Busy {
        /// Name.
        name: String,
        /// Process that creates it.
        pid: i32,
    },
    /// Another process has locked a folder of the lab for too long.
    #[error(
        "{} has been in use by another esplab for more than a minute; wait for that process or end \
         it (`fuser {}` shows it)",
        dir.display(),
        dir.display()
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// No such node.
    #[error("lab `{name}` has no node {node} (its nodes are 0 to {last})")]
    NoNode {
        /// Name of the lab.
        name: String,
        /// Requested node.
        node: usize,
        /// Highest node.
        last: usize,
    },
    /// The holder process of a node has ended, and its namespace with it.
    #[error(
        "lab `{name}` is broken: {what} has ended (run `esplab down --name {name}`, then `esplab up`)"
    )]
    Broken {
        /// Name of the lab.
        name: String,
        /// Missing part.
        what: String,
    },
    /// A tool of the system is not installed.
    #[error(
        "`{tool}` is not installed: apt install {debian} (Debian, Ubuntu) or dnf install {fedora} (Fedora)"
    )]
    NoTool {
        /// The program.
        tool: &'static str,
        /// Package of Debian.
        debian: &'static str,
        /// Package of Fedora.
        fedora: &'static str,
    },
    /// A program of this workspace was not found.
    #[error("`{program}` is not in {} (build it: cargo build -p {package})", dir.display())]
    NoProgram {
        /// Name.
        program: &'static str,
        /// Crate of the program.
        package: &'static str,
        /// Folder that was searched.
        dir: PathBuf,
    },
    /// The kernel refuses namespaces to this user.
    #[error("{0}")]
    Forbidden(String),
    /// A tool failed.
    #[error("{what}: `{tool}` failed: {text}")]
    Tool {
        /// Purpose.
        what: String,
        /// Name of the tool.
        tool: &'static str,
        /// Its output, in one line.
        text: String,
    },
    /// A node's daemon did not start.
    #[error("esp-daemon of node {node} {how}; its log ended with: {log}")]
    Daemon {
        /// Number of the node.
        node: usize,
        /// Fate of the process.
        how: String,
        /// Last lines of its log, joined.
        log: String,
    },
    /// A command cannot be executed.
    #[error("running `{command}`: {source}")]
    Command {
        /// The command.
        command: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Action that failed.
        what: String,
        /// Cause.
        source: std::io::Error,
    },
}

/// Adds the action to an error of the system.
pub(crate) trait Context<T> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, LabError>;
}

impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
    fn at(self, what: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|e| LabError::Io {
            what: what(),
            source: e.into(),
        })
    }
}

impl From<LabError> for cli::out::Failure {
    fn from(error: LabError) -> cli::out::Failure {
        let text = error.to_string();
        match error {
            LabError::Command { source, .. } if source.kind() == ErrorKind::NotFound => {
                cli::out::Failure::Command(127, text)
            }
            LabError::Command { .. } => cli::out::Failure::Command(126, text),
            _ => cli::out::Failure::Text(text),
        }
    }
}
