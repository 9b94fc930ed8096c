//! The programs that have a manual page and completions.

use clap::{Command, CommandFactory};

/// A program that is installed.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Its command line.
    pub(crate) command: Command,
    /// Section of the manual: 1 for users, 8 for administrators.
    pub(crate) section: &'static str,
}

/// Returns all programs.
pub(crate) fn all() -> Vec<Program> {
    let program = |name, section, command| Program {
        name,
        command,
        section,
    };
    vec![
        program("esp", "1", cli::esp::command()),
        program("esping", "1", cli::esping::command()),
        program("espstat", "1", cli::espstat::command()),
        program("esptop", "1", cli::esptop::command()),
        program("espcat", "1", cli::espcat::command()),
        program("esperf", "1", cli::esperf::command()),
        program("esprun", "1", esprun::command()),
        program("esplab", "1", esplab::command()),
        program("esp-daemon", "8", esp_daemon::args::Args::command()),
    ]
}
