//! `esplab down`.

use clap::Args;

use super::Name;

use cli::out::{self, Failure, Verdict};

/// End a lab, and all processes in its nodes
#[derive(Debug, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    name: Name,
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let name = flags.name.resolve();
    let mut left = lab::down(&name)?;
    // If this process runs in a node, it ends now.
    left.retain(|process| u32::try_from(process.pid) != Ok(std::process::id()));
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(|process| process.pid.to_string()).collect();
        out::note(format_args!(
            "esplab: process {} still runs in a node, which exists until it ends",
            pids.join(", ")
        ));
    }
    out::line(format_args!("lab `{name}` is down"))?;
    Ok(Verdict::Done)
}
