//! `esp`: tools for ESP networks, each a subcommand.

mod doctor;
mod dump;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::out;

/// Tools for networks that carry ESP, the Ethernet Streaming Protocol (not IPsec's ESP)
///
/// Exit code: 0 if the tool did its work, 2 if it could not run; that of doctor shows what it
/// found.
#[derive(Debug, Parser)]
#[command(name = "esp", version = crate::version::version())]
struct Flags {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    Doctor(doctor::Flags),
    Dump(dump::Flags),
}

/// Runs the tool that the command line names.
pub fn main() -> ExitCode {
    match Flags::parse().tool {
        Tool::Doctor(flags) => out::finish("esp doctor", doctor::run(&flags)),
        Tool::Dump(flags) => out::finish("esp dump", dump::run(&flags)),
    }
}

/// Returns the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }
}
