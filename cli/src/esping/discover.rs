//! `--discover`: lists the nodes that answer a broadcast.

use std::collections::BTreeSet;
use std::time::Duration;

use esp_client::{MacAddr, NodeAddr, NodeInfo};

use super::report::{Found, Report};
use super::wire::{Answer, Wire};
use crate::out::{Doing, Failure, Verdict, printable};
use crate::signal::Interrupt;

/// Maximum wait on one interface while others are polled, too.
const POLL: Duration = Duration::from_millis(1);

/// Sends `requests` requests on every wire and prints each node once.
pub(super) fn run(
    wires: &mut [impl Wire],
    requests: u64,
    interval: Duration,
    wait: Duration,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    let mut found = BTreeSet::new();
    let mut show = |interface: &str, src: NodeAddr, info: NodeInfo, rtt: u64| {
        if !found.insert((interface.to_owned(), src)) {
            return Ok(());
        }
        Ok(report.show(&Found {
            mac: src.to_string(),
            name: report.name_of(src),
            node_name: printable(&info.name),
            interface: interface.to_owned(),
            version: info.version,
            max_payload: info.max_payload,
            incarnation: info.incarnation,
            rtt_us: rtt as f64 / 1000.0,
        })?)
    };
    for request in 0..requests {
        let asked = ask(wires, (request & 0xffff) as u16)?;
        let time = if request + 1 == requests {
            wait
        } else {
            interval
        };
        listen(wires, &asked, time, interrupt, &mut show)?;
        if interrupt.is_set() {
            break;
        }
    }
    Ok(if found.is_empty() {
        Verdict::Partly
    } else {
        Verdict::Done
    })
}

/// Returns the names that nodes report, with their addresses.
pub(super) fn names(
    wires: &mut [impl Wire],
    wait: Duration,
) -> Result<Vec<(String, NodeAddr)>, Failure> {
    let mut found = Vec::new();
    let asked = ask(wires, 0)?;
    listen(
        wires,
        &asked,
        wait,
        &Interrupt::default(),
        &mut |_, src, info, _| {
            found.push((printable(&info.name), src));
            Ok(())
        },
    )?;
    Ok(found)
}

/// Sends a request on every wire; returns the times.
fn ask(wires: &mut [impl Wire], sequence: u16) -> Result<Vec<u64>, Failure> {
    let mut asked = Vec::new();
    for wire in wires {
        asked.push(wire.now());
        wire.info(MacAddr::BROADCAST.into(), sequence)
            .doing(format_args!("asking on {}", wire.interface()))?;
    }
    Ok(asked)
}

/// Receives answers for this long, and hands on each: interface, node, round trip in nanoseconds.
/// `asked` contains the time of the last request on each wire.
fn listen(
    wires: &mut [impl Wire],
    asked: &[u64],
    time: Duration,
    interrupt: &Interrupt,
    show: &mut impl FnMut(&str, NodeAddr, NodeInfo, u64) -> Result<(), Failure>,
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
            if let Answer::Info(info) = arrival.answer {
                let rtt = arrival.at.saturating_sub(asked);
                show(wire.interface(), arrival.src, info, rtt)?;
            }
        }
        if over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Style;
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
        let mut report = Report::new(Style::default(), Names::default());
        report.lines = Some(Vec::new());
        let mut wires = [wire];
        let time = Duration::from_millis(20);
        let verdict = run(
            &mut wires,
            3,
            time,
            time,
            &Interrupt::default(),
            &mut report,
        )?;
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
