//! `esping`: EDP echo with the command line of ping(8).
//!
//! `flags` is the command line; `echo`, `mtu` and `discover` run it over a `wire` (a datagram
//! socket, or a fake in tests); `report` prints.

mod discover;
mod echo;
mod flags;
mod mtu;
mod report;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};

use crate::names::Names;
use crate::out::{self, Doing, Failure, Verdict};
use crate::signal::Interrupt;
use echo::Echo;
use flags::Flags;
use wire::Datagrams;

/// Runs esping.
pub fn main() -> ExitCode {
    out::finish("esping", run(&Flags::parse()))
}

/// Returns the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let or = |time: Option<Duration>, ms| time.unwrap_or(Duration::from_millis(ms));
    let target = if flags.discover {
        None
    } else {
        Some(flags.target()?)
    };
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let mut report = report::Report::new(flags.json, flags.quiet, Names::load());
    let Some(target) = target else {
        let mut wires = Datagrams::everywhere(flags.interface.as_deref())?;
        let (interval, wait) = (or(flags.interval, 200), or(flags.wait, 1000));
        let requests = flags.count.unwrap_or(3);
        return discover::run(
            &mut wires,
            requests,
            interval,
            wait,
            &interrupt,
            &mut report,
        );
    };
    let mut wire = Datagrams::towards(&target)?;
    if flags.mtu {
        let tries = flags.count.unwrap_or(5);
        let wait = or(flags.wait, 200);
        return mtu::run(&mut wire, &target, tries, wait, &interrupt, &mut report);
    }
    let echo = Echo {
        count: flags.count,
        interval: or(flags.interval, 1000),
        size: flags.size.unwrap_or(56),
        deadline: flags.deadline,
        wait: or(flags.wait, 1000),
    };
    echo::run(&mut wire, &target, &echo, &interrupt, &mut report)
}
