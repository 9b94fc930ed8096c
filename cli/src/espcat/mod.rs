//! `espcat`: streams and datagrams with the command line of nc(1).
//!
//! `flags` is the command line; `stream` and `datagrams` copy between a connection, or a datagram
//! port, and standard input and output; `traffic` counts the bytes and measures the time without
//! any.

mod datagrams;
mod flags;
mod stream;
mod traffic;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::out::{self, Failure, Verdict};
use flags::{Flags, Job};

/// Runs espcat.
pub fn main() -> ExitCode {
    out::finish("espcat", run(&Flags::parse()))
}

/// Returns the command line, for its manual page and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    match (flags.job()?, flags.datagrams) {
        (Job::Listen(port), false) => stream::listen(flags, port),
        (Job::Connect(node, port), false) => stream::connect(flags, &node, port),
        (Job::Listen(port), true) => datagrams::listen(flags, port),
        (Job::Connect(node, port), true) => datagrams::connect(flags, &node, port),
    }
}
