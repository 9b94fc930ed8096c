//! `esping`: EDP echo with the command line of ping(8).
//!
//! `flags` is the command line; `echo`, `mtu`, `discover` and `ethers` run it over a `wire` (a
//! datagram socket, or a fake in tests); `report` prints.

pub(crate) mod discover;
pub(crate) mod echo;
mod ethers;
mod flags;
pub(crate) mod mtu;
mod report;
pub(crate) mod wire;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::names::Names;
use crate::out::{self, Doing, Failure, Verdict};
use crate::signal::Interrupt;
use discover::Ask;
use echo::Echo;
use flags::Flags;
use wire::Datagrams;

/// Runs esping.
pub fn main() -> ExitCode {
    out::finish("esping", run(&Flags::parse()))
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
        let ask = Ask {
            requests: flags.count.unwrap_or(3),
            interval: or(flags.interval, 200),
            wait: or(flags.wait, 1000),
            own: flags.ethers,
        };
        if flags.ethers {
            return ethers::run(&mut wires, &ask, &interrupt, flags.write.as_deref());
        }
        return discover::run(&mut wires, &ask, &interrupt, &mut report);
    };
    let mut wire = Datagrams::towards(target.addr, target.interface.as_deref())?;
    if flags.mtu {
        let tries = mtu::Tries {
            tries: flags.count.unwrap_or(5),
            wait: or(flags.wait, 200),
        };
        return mtu::run(&mut wire, &target, tries, &interrupt, &mut report);
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
