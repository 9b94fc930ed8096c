//! `esplab enter`: runs a tool in the namespaces of a holder; used by the lab only.

use std::ffi::OsString;

use clap::Args;

use super::hold::parse_process;
use cli::out::{Failure, Verdict};
use lab::ProcessRef;

#[derive(Debug, Args)]
pub(super) struct Flags {
    #[arg(value_parser = parse_process)]
    holder: ProcessRef,
    #[arg(long)]
    user: bool,
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    Err(lab::enter_holder(flags.holder, flags.user, &flags.command).into())
}
