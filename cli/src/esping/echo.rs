//! Echo requests at an interval, their answers, and a summary.

mod run;
#[cfg(test)]
mod tests;
mod times;

use std::time::Duration;

use super::flags::Target;
use super::report::{Ignored, Report, Streams};
use super::survey::{self, Doubled};
use super::wire::{Answer, Arrival, STREAM_WAIT, Wire};
use crate::out::{Context, Failure, Verdict};
use crate::signal::Interrupt;
use run::Run;
pub(crate) use run::body;

/// Interval between two checks for Ctrl-C, in nanoseconds.
const CHECK: u64 = 50_000_000;
/// Maximum wait on one wire while others must be polled, too, in nanoseconds.
const POLL: u64 = 1_000_000;

/// Parameters of echo requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) count: Option<u64>,
    pub(super) pace: Pace,
    pub(super) size: usize,
    pub(super) deadline: Option<Duration>,
    pub(super) wait: Duration,
    /// Report a request without an answer before the next one is sent.
    pub(super) outstanding: bool,
    /// Report answers that match no request of this run.
    pub(super) verbose: bool,
}

/// Times of the requests to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Time between two requests.
    pub(super) interval: Duration,
    /// Send the next request when one is answered, but not earlier than this time after it; without
    /// an answer, after `interval`.
    pub(super) after_answer: Option<Duration>,
}

/// A target, and the index of the wire that reaches it.
pub(super) type Route = (Target, usize);

/// Sends requests to all targets until the count, the deadline or Ctrl-C.
pub(super) fn run(
    wires: &mut [impl Wire],
    routes: &[Route],
    echo: &Echo,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    let now = |wires: &[_]| wires.first().map_or(0, Wire::now);
    let start = now(wires);
    let mut runs = Vec::new();
    for (target, index) in routes {
        let wire = wires.get(*index);
        let wire = wire.ok_or_else(|| Failure::new("a target has no interface"))?;
        check_size(wire, echo.size)?;
        report.start(&target.text, target.addr, wire.interface(), echo.size)?;
        runs.push((Run::new(target, echo, start), *index));
    }
    let end = echo.deadline.map(|d| start.saturating_add(nanos(d)));
    let end = end.unwrap_or(u64::MAX);
    let ended = exchange(wires, &mut runs, end, echo, interrupt, report);
    // The results are shown even if the daemon has gone away.
    let took = now(wires).saturating_sub(start);
    let mut fine = true;
    for (run, index) in runs {
        let Some(wire) = wires.get_mut(index) else {
            continue;
        };
        let target = run.target;
        let summary = run.finish(took, wire.interface());
        report.show(&summary)?;
        fine &= summary.received == summary.sent && summary.corrupt == 0 && summary.sent > 0;
        let answers = summary.received > 0;
        if ended.is_ok() && summary.sent > 0 && (answers || !interrupt.is_set()) {
            fine &= streams(wire, target, answers, report)?;
        }
    }
    ended?;
    Ok(if fine { Verdict::Done } else { Verdict::Partly })
}

/// Searches for other nodes with the target's address, tests packets of streams, and reports
/// faults. Returns true if there are none.
pub(super) fn streams(
    wire: &mut impl Wire,
    target: &Target,
    datagrams: bool,
    report: &mut Report,
) -> Result<bool, Failure> {
    let neighbours = survey::neighbours(wire, datagrams);
    if let Some(doubled) = Doubled::of(target, &neighbours) {
        report.show(&doubled)?;
    }
    // A node that has not answered at all is probably not there.
    let wait = if datagrams {
        STREAM_WAIT
    } else {
        STREAM_WAIT / 4
    };
    let streams = wire.streams(target.addr, wait);
    let silent = !datagrams && streams != Some(true);
    let found = Streams {
        target: target.text.clone(),
        mac: target.addr.to_string(),
        interface: wire.interface().to_owned(),
        datagrams,
        streams,
        silence: silent.then(|| survey::silence(wire, target, &neighbours)),
    };
    Ok(report.streams(&found)?)
}

/// Sends requests and receives answers until the end.
fn exchange(
    wires: &mut [impl Wire],
    runs: &mut [(Run<'_>, usize)],
    end: u64,
    echo: &Echo,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<(), Failure> {
    let now = |wires: &[_]| wires.first().map_or(0, Wire::now);
    while !interrupt.is_set() && now(wires) < end {
        for (run, index) in runs.iter_mut() {
            if let Some(wire) = wires.get_mut(*index)
                && run.is_due(wire.now())
            {
                run.ask(wire, report)?;
            }
        }
        let at = now(wires);
        let Some(until) = runs.iter().filter_map(|(run, _)| run.wakes(at)).min() else {
            break;
        };
        let longest = if wires.len() > 1 { POLL } else { CHECK };
        let patience = until.min(end).saturating_sub(at).clamp(1, longest);
        for (index, wire) in wires.iter_mut().enumerate() {
            let arrival = wire.receive(Duration::from_nanos(patience));
            if let Some(arrival) = arrival.doing("receiving")? {
                let runs = runs.iter_mut().filter(|(_, wire)| *wire == index);
                take(runs.map(|(run, _)| run), &arrival, wire.now(), echo, report)?;
            }
        }
    }
    Ok(())
}

fn check_size(wire: &impl Wire, size: usize) -> Result<(), Failure> {
    let max = wire.max_body();
    if size <= max {
        return Ok(());
    }
    Err(Failure::new(format!(
        "invalid size {size} for -s: an echo request on {} has at most {max} bytes of data, one less \
         than the payload that --mtu shows, because a byte of it is the type",
        wire.interface()
    )))
}

/// Passes an answer to the run of its sender.
fn take<'a, 'b: 'a>(
    mut runs: impl Iterator<Item = &'a mut Run<'b>>,
    arrival: &Arrival,
    now: u64,
    echo: &Echo,
    report: &mut Report,
) -> Result<(), Failure> {
    let Arrival {
        src,
        at,
        answer: Answer::Echo(bytes),
    } = arrival
    else {
        return Ok(());
    };
    let run = runs.find(|run| run.target.addr == *src);
    let taken = match run {
        Some(run) => run.take(bytes, *at, now, report)?,
        None => false,
    };
    if !taken && echo.verbose {
        report.event(&Ignored {
            mac: src.to_string(),
            bytes: bytes.len(),
        })?;
    }
    Ok(())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
