//! `--discover`: finds the nodes that answer a broadcast.

use std::collections::BTreeSet;
use std::time::Duration;

use esp_client::{MacAddr, NodeAddr, NodeInfo};

use super::report::{Found, Report};
use super::wire::{Answer, Wire};
use crate::out::{self, Context, Failure, Verdict, printable};
use crate::signal::Interrupt;

/// Maximum wait on one interface while others must be polled, too.
const POLL: Duration = Duration::from_millis(1);
/// Maximum number of different answers.
const MAX_ANSWERS: usize = 1 << 14;

/// Number and times of the requests of a search for nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// Number of requests on every wire.
    pub(crate) requests: u64,
    /// Wait after each request.
    pub(crate) interval: Duration,
    /// Wait after the last one.
    pub(crate) wait: Duration,
    /// Send requests to this node's own interfaces, too, which a broadcast does not reach.
    pub(crate) own: bool,
}

/// Answer of a node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Interface that received it.
    pub(crate) interface: String,
    pub(crate) addr: NodeAddr,
    pub(crate) info: NodeInfo,
    pub(crate) rtt_us: f64,
}

/// Sends requests on every wire and prints each node once.
pub(super) fn run(
    wires: &mut [impl Wire],
    ask: &Ask,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    let mut answered = false;
    find(wires, ask, interrupt, |node| {
        answered = true;
        report.show(&Found {
            mac: node.addr.to_string(),
            name: report.name_of(node.addr),
            node_name: printable(&node.info.name),
            interface: node.interface,
            version: node.info.version,
            max_payload: node.info.max_payload,
            incarnation: node.info.incarnation,
            rtt_us: node.rtt_us,
        })
    })?;
    Ok(if answered {
        Verdict::Done
    } else {
        Verdict::Partly
    })
}

/// Sends requests on every wire; calls `found` for each daemon, by address, name and incarnation,
/// that answers on it.
pub(crate) fn find(
    wires: &mut [impl Wire],
    ask: &Ask,
    interrupt: &Interrupt,
    mut found: impl FnMut(Node) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut known = BTreeSet::new();
    for request in 0..ask.requests {
        let sequence = (request & 0xffff) as u16;
        let mut asked = Vec::new();
        for wire in wires.iter_mut() {
            asked.push(wire.now());
            let all = MacAddr::BROADCAST.into();
            let own = ask.own.then(|| wire.addr());
            for dst in std::iter::once(all).chain(own) {
                wire.info(dst, sequence)
                    .doing(format_args!("sending on {}", wire.interface()))?;
            }
        }
        let time = if request + 1 == ask.requests {
            ask.wait
        } else {
            ask.interval
        };
        listen(wires, &asked, time, interrupt, |node| {
            // Two daemons may have the same address.
            let info = (node.info.name.clone(), node.info.incarnation);
            let key = (node.interface.clone(), node.addr, info);
            if known.len() < MAX_ANSWERS && known.insert(key) {
                found(node)?;
            }
            Ok(())
        })?;
        if interrupt.is_set() {
            break;
        }
    }
    if known.len() == MAX_ANSWERS {
        out::note(format_args!(
            "esping: more than {MAX_ANSWERS} different answers; ignoring the rest"
        ));
    }
    Ok(())
}

/// Receives answers for this time. `asked` contains the time of the last request on each wire.
fn listen(
    wires: &mut [impl Wire],
    asked: &[u64],
    time: Duration,
    interrupt: &Interrupt,
    mut found: impl FnMut(Node) -> std::io::Result<()>,
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
            found(Node {
                interface: wire.interface().to_owned(),
                addr: arrival.src,
                info,
                rtt_us: arrival.at.saturating_sub(asked) as f64 / 1000.0,
            })?;
        }
        if over {
            return Ok(());
        }
    }
}

/// Returns the names that nodes announce, with their addresses.
pub(super) fn names(
    wires: &mut [impl Wire],
    wait: Duration,
) -> Result<Vec<(String, NodeAddr)>, Failure> {
    let ask = Ask {
        requests: 1,
        interval: wait,
        wait,
        own: false,
    };
    let mut names = Vec::new();
    find(wires, &ask, &Interrupt::default(), |node| {
        names.push((printable(&node.info.name), node.addr));
        Ok(())
    })?;
    Ok(names)
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
        let ask = Ask {
            requests: 3,
            interval: time,
            wait: time,
            own: false,
        };
        let verdict = run(&mut wires, &ask, &Interrupt::default(), &mut report)?;
        let sent = wires[0].broadcasts;
        Ok((verdict, report.lines.unwrap_or_default(), sent))
    }

    #[test]
    fn each_node_is_listed_once() -> Result<(), Failure> {
        let wire = Fake::new(1488, |dst, number, _| {
            assert_eq!(dst, MacAddr::BROADCAST);
            // The second node answers only the last request.
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
