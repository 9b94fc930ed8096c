//! `esping`: EDP echo with the command line of ping(8).
//!
//! `flags` is the command line; `echo`, `mtu`, `discover` and `ethers` run it over a `wire` (a
//! datagram socket, or a fake in tests); `survey` diagnoses targets; `report` prints; `hint` helps
//! with misspelt names.

pub(crate) mod discover;
pub(crate) mod echo;
mod ethers;
mod flags;
pub(crate) mod hint;
pub(crate) mod mtu;
mod report;
mod survey;
pub(crate) mod wire;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use nix::unistd::geteuid;

use crate::names::Names;
use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use discover::Ask;
use echo::{Echo, Route};
use flags::{DEFAULT_WAIT, Flags, Target};
use report::{Report, Style};
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
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let names = Names::load();
    let targets = flags.targets(|name| hint::of(name, &names))?;
    let style = Style {
        json: flags.json,
        quiet: flags.quiet,
        flood: flags.flood,
        timestamps: flags.timestamps,
    };
    let shown = if flags.numeric {
        Names::default()
    } else {
        names
    };
    let mut report = Report::new(style, shown);
    if flags.discover {
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
    }
    if flags.mtu {
        let tries = mtu::Tries {
            tries: flags.count.unwrap_or(5),
            wait: or(flags.wait, 200),
        };
        let mut verdict = Verdict::Done;
        for target in &targets {
            let mut wire = Datagrams::towards(target.addr, target.interface.as_deref())?;
            let one = mtu::run(&mut wire, target, tries, &interrupt, &mut report)?;
            if one != Verdict::Done {
                verdict = one;
            }
        }
        return Ok(verdict);
    }
    let echo = Echo {
        count: flags.count,
        pace: flags.pace(geteuid().is_root())?,
        // A size that does not fit is refused later, with the interface's maximum.
        size: flags
            .size
            .map_or(56, |size| usize::try_from(size).unwrap_or(usize::MAX)),
        deadline: flags.deadline,
        wait: flags.wait.unwrap_or(DEFAULT_WAIT),
        outstanding: flags.outstanding,
        verbose: flags.verbose,
    };
    let (mut wires, routes) = routes(targets)?;
    echo::run(&mut wires, &routes, &echo, &interrupt, &mut report)
}

/// Opens a wire for each interface that reaches one of the targets.
fn routes(targets: Vec<Target>) -> Result<(Vec<Datagrams>, Vec<Route>), Failure> {
    let mut wires: Vec<Datagrams> = Vec::new();
    let mut routes = Vec::new();
    for target in targets {
        let (client, interface) = wire::route(target.addr, target.interface.as_deref())?;
        let is_same = |wire: &Datagrams| wire.reaches(target.addr, &interface);
        let index = match wires.iter().position(is_same) {
            Some(index) => index,
            None => {
                wires.push(Datagrams::on(&client, &interface)?);
                wires.len() - 1
            }
        };
        routes.push((target, index));
    }
    Ok((wires, routes))
}
