//! `esprun`: runs an unmodified program whose sockets use ESP (`docs/sockets.md`).
//!
//! `flags` is the command line; `launch` starts the broker and becomes the program; `broker` is a
//! separate process that holds the other ends of the program's sockets.
//!
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod broker;
mod flags;
mod launch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cli::out;
use flags::Flags;
pub use launch::ignores_pipe;

/// Runs esprun. `ignores_pipe`: the program will ignore SIGPIPE.
pub fn main(ignores_pipe: bool) -> ExitCode {
    let flags = Flags::parse();
    let ran = match flags.broker_of {
        Some(program) if flags.serve => broker::run(program, flags.rules.as_deref()),
        Some(program) => launch::detach(program, flags.rules.as_deref()),
        None => launch::run(&flags, ignores_pipe),
    };
    out::finish("esprun", ran)
}

/// Returns the command line, for its manual page and completions.
pub fn command() -> clap::Command {
    Flags::command()
}
