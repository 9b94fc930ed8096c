//! `esperf`: throughput of streams with the command line and the reports of iperf3(1).
//!
//! `flags` is the command line; `client` and `server` agree on a test by messages of `control`;
//! `measure` reports while `streams` or `datagrams` send or receive; `report` prints.

mod client;
mod control;
mod datagrams;
mod flags;
mod measure;
mod report;
mod server;
mod streams;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use flags::Flags;

/// Runs esperf.
pub fn main() -> ExitCode {
    out::finish("esperf", run(&Flags::parse()))
}

/// Returns the command line, for its manual page and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    match &flags.client {
        Some(node) => client::run(flags, node, &interrupt),
        None => server::run(flags, &interrupt),
    }
}
