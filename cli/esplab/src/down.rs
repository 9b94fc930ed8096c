//! `esplab down`.

use clap::Args;

use super::Name;

use cli::out::{self, Failure, Verdict};

/// End a lab
#[derive(Debug, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    name: Name,
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let name = flags.name.resolve();
    let left = lab::down(&name)?;
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(ToString::to_string).collect();
        out::note(format_args!(
            "esplab: process {} still runs in a node, which exists until it ends",
            pids.join(", ")
        ));
    }
    out::line(format_args!("lab `{name}` is down"))?;
    Ok(Verdict::Done)
}
