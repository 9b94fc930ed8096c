//! Command line of esprun.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

/// Run a program whose sockets of the family AF_ENET are ESP and EDP, or whose TCP uses ESP
///
/// Exit code: that of the program; 126 or 127 if it cannot be started, 2 if esprun could not run.
#[derive(Debug, Parser)]
#[command(name = "esprun", version = cli::version::version())]
pub(crate) struct Flags {
    /// Carry TCP connections over ESP in UDP if the peer's program also runs under esprun --tcp;
    /// all others stay TCP
    #[arg(long)]
    pub(crate) tcp: bool,
    /// With --tcp: file of rules that select the ports and hosts whose TCP uses ESP
    /// (docs/sockets.md)
    #[arg(long, value_name = "FILE", requires = "tcp")]
    pub(crate) rules: Option<PathBuf>,
    /// Print why a call on a socket failed
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Program to run, and its arguments
    #[arg(required_unless_present = "broker_of", value_name = "PROGRAM")]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) program: Vec<OsString>,
    /// Start the broker of this process
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) broker_of: Option<u32>,
    /// Serve as the broker in this process
    #[arg(long, hide = true, requires = "broker_of")]
    pub(crate) serve: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn options_behind_the_program_are_the_programs() {
        let flags = Flags::try_parse_from(["esprun", "--tcp", "prog", "--tcp", "-v"]);
        let flags = flags.expect("a command line");
        assert!(flags.tcp && !flags.verbose);
        assert_eq!(flags.program, ["prog", "--tcp", "-v"]);
    }
}
