//! `--discover`: lists the nodes that answer a broadcast.

use std::collections::BTreeSet;
use std::time::Duration;

use esp_client::{MacAddr, NodeAddr, NodeInfo};

use super::report::{Found, Report};
use super::wire::{Answer, Wire};
use crate::out::{Doing, Failure, Verdict};
use crate::signal::Interrupt;

/// Maximum wait on one interface while others are polled, too.
const POLL: Duration = Duration::from_millis(1);

/// How nodes are asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) requests: u64,
    /// Time between two requests.
    pub(crate) interval: Duration,
    /// Time for answers to the last one.
    pub(crate) wait: Duration,
}

/// An answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) interface: String,
    pub(crate) addr: NodeAddr,
    pub(crate) info: NodeInfo,
    /// Time since the last request, in nanoseconds.
    pub(crate) after: u64,
}

/// Sends requests on every wire and prints each node once.
pub(super) fn run(
    wires: &mut [impl Wire],
    asking: Asking,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    let mut found = BTreeSet::new();
    ask(wires, asking, interrupt, |heard| {
        if !found.insert((heard.interface.clone(), heard.addr)) {
            return Ok(());
        }
        report.show(&Found {
            mac: heard.addr.to_string(),
            name: report.name_of(heard.addr),
            node_name: printable(&heard.info.name),
            interface: heard.interface,
            version: heard.info.version,
            max_payload: heard.info.max_payload,
            incarnation: heard.info.incarnation,
            rtt_us: heard.after as f64 / 1000.0,
        })?;
        Ok(())
    })?;
    Ok(if found.is_empty() {
        Verdict::Partly
    } else {
        Verdict::Done
    })
}

/// Broadcasts requests on every wire, and calls `each` with every answer.
pub(crate) fn ask(
    wires: &mut [impl Wire],
    asking: Asking,
    interrupt: &Interrupt,
    mut each: impl FnMut(Heard) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for request in 0..asking.requests {
        let sequence = (request & 0xffff) as u16;
        let mut asked = Vec::new();
        for wire in wires.iter_mut() {
            asked.push(wire.now());
            wire.info(MacAddr::BROADCAST.into(), sequence)
                .doing(format_args!("asking on {}", wire.interface()))?;
        }
        let time = if request + 1 == asking.requests {
            asking.wait
        } else {
            asking.interval
        };
        listen(wires, &asked, time, interrupt, &mut each)?;
        if interrupt.is_set() {
            break;
        }
    }
    Ok(())
}

/// Receives answers for this long. `asked` contains the time of the last request on each wire.
fn listen(
    wires: &mut [impl Wire],
    asked: &[u64],
    time: Duration,
    interrupt: &Interrupt,
    each: &mut impl FnMut(Heard) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let mut over = true;
        for (wire, &asked) in wires.iter_mut().zip(asked) {
            let left = asked.saturating_add(time).saturating_sub(wire.now());
            if left == 0 || interrupt.is_set() {
                continue;
            }
            over = false;
            let Some(arrival) = wire
                .receive(POLL.min(Duration::from_nanos(left)))
                .doing("receiving")?
            else {
                continue;
            };
            let Answer::Info(info) = arrival.answer else {
                continue;
            };
            each(Heard {
                interface: wire.interface().to_owned(),
                addr: arrival.src,
                info,
                after: arrival.at.saturating_sub(asked),
            })?;
        }
        if over {
            return Ok(());
        }
    }
}

/// Replaces control characters in a name from the wire, which could confuse a terminal.
pub(crate) fn printable(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::wire::Arrival;
    use super::super::wire::fake::Fake;
    use super::*;
    use crate::names::Names;

    fn node(last: u8, name: &str) -> Arrival {
        let info = NodeInfo {
            version: 1,
            max_payload: 1489,
            features: 0,
            incarnation: 7,
            name: name.into(),
        };
        Arrival {
            src: MacAddr([2, 0, 0, 0, 0, last]).into(),
            at: 0,
            answer: Answer::Info(info),
        }
    }

    fn discover(wire: Fake) -> Result<(Verdict, Vec<String>, u64), Failure> {
        let mut report = Report::new(false, false, Names::default());
        report.lines = Some(Vec::new());
        let mut wires = [wire];
        let time = Duration::from_millis(20);
        let asking = Asking {
            requests: 3,
            interval: time,
            wait: time,
        };
        let verdict = run(&mut wires, asking, &Interrupt::default(), &mut report)?;
        Ok((verdict, report.lines.unwrap_or_default(), wires[0].sent))
    }

    #[test]
    fn each_node_is_listed_once() -> Result<(), Failure> {
        let wire = Fake::new(1488, |dst, number, _| {
            assert_eq!(dst, MacAddr::BROADCAST);
            // The second node answers the last request only.
            let answers = if number == 3 { 2 } else { 1 };
            [(30, node(1, "a\x1b[2J")), (40, node(2, "b"))]
                .into_iter()
                .take(answers)
                .collect()
        });
        let (verdict, lines, sent) = discover(wire)?;
        assert_eq!((verdict, lines.len(), sent), (Verdict::Done, 2, 3));
        assert!(
            lines[0].starts_with("02:00:00:00:00:01") && lines[0].ends_with("30.0 µs  a?[2J"),
            "{lines:?}"
        );
        assert!(lines[1].contains("40.0 µs"), "{lines:?}");
        Ok(())
    }

    #[test]
    fn no_answer_is_partial_success() -> Result<(), Failure> {
        let (verdict, lines, _) = discover(Fake::new(1488, |_, _, _| vec![]))?;
        assert_eq!((verdict, lines.len()), (Verdict::Partly, 0));
        Ok(())
    }
}
