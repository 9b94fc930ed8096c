//! `esping`: EDP echo with the command line of ping(8).
//!
//! `flags` is the command line, `plan` the checked request; `echo`, `mtu` and `discover` run it
//! over a `wire` (the daemon, or a fake in tests); `report` prints.

mod discover;
mod echo;
mod flags;
mod mtu;
mod plan;
mod report;
mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::names::Names;
use crate::out::{self, Doing, Failure, Verdict};
use crate::signal::Interrupt;
use flags::Flags;
use plan::{Mode, Plan};

/// Runs esping.
pub fn main() -> ExitCode {
    out::finish("esping", run(Flags::parse()))
}

fn run(flags: Flags) -> Result<Verdict, Failure> {
    let plan = Plan::of(flags)?;
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let names = Names::load();
    let mut report = report::Report::new(plan.json, plan.quiet, names);
    match &plan.mode {
        Mode::Echo { target, echo } => {
            let mut wire = wire::Datagrams::towards(target)?;
            echo::run(&mut wire, target, echo, &interrupt, &mut report)
        }
        Mode::Mtu {
            target,
            tries,
            wait,
        } => {
            let mut wire = wire::Datagrams::towards(target)?;
            mtu::run(&mut wire, target, *tries, *wait, &interrupt, &mut report)
        }
        Mode::Discover {
            interface,
            requests,
            interval,
            wait,
        } => {
            let mut wires = wire::Datagrams::everywhere(interface.as_deref())?;
            discover::run(
                &mut wires,
                *requests,
                *interval,
                *wait,
                &interrupt,
                &mut report,
            )
        }
    }
}
