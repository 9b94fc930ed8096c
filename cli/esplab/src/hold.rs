//! `esplab hold`: keeps a namespace alive; started by the lab only.

use std::path::PathBuf;

use clap::Args;

use cli::out::{Doing, Failure, Verdict};
use lab::{ProcessRef, UserNs, Watch};

#[derive(Debug, Args)]
pub(super) struct Flags {
    #[arg(long, conflicts_with = "user_of")]
    new_user: bool,
    #[arg(long, value_name = "PID:START", value_parser = parse_process)]
    user_of: Option<ProcessRef>,
    #[arg(long, value_name = "DIR", conflicts_with = "switch")]
    lab: Option<PathBuf>,
    #[arg(long, value_name = "PID:START", value_parser = parse_process)]
    switch: Option<ProcessRef>,
}

/// Parses a process as `PID:START`.
pub(super) fn parse_process(text: &str) -> Result<ProcessRef, String> {
    let parse = || {
        let (pid, start) = text.split_once(':')?;
        Some(ProcessRef {
            pid: pid.parse().ok()?,
            start: start.parse().ok()?,
        })
    };
    parse().ok_or_else(|| format!("`{text}` is not PID:START"))
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let user = match flags.user_of {
        Some(holder) => UserNs::Of(holder),
        None if flags.new_user => UserNs::New,
        None => UserNs::Same,
    };
    let watch = match (flags.lab, flags.switch) {
        (Some(dir), _) => Watch::Lab(dir),
        (None, Some(switch)) => Watch::Switch(switch),
        (None, None) => return Err(Failure::new("hold: neither --lab nor --switch was given")),
    };
    lab::hold(user, &watch).doing("holding a namespace")?;
    Ok(Verdict::Done)
}
