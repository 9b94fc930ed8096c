//! `esplab offload`: segmentation offload of the node it runs in; used by the lab only.

use clap::{Args, ValueEnum};

use cli::out::{Doing, Failure, Verdict};

#[derive(Debug, Args)]
pub(super) struct Flags {
    state: Switch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    lab::set_segmentation_offload("eth0", matches!(flags.state, Switch::On)).doing("eth0")?;
    Ok(Verdict::Done)
}
