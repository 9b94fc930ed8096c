//! `--mtu`: finds the maximum payload that passes by bisection, and verifies every byte.

use std::time::Duration;

use esp_client::NodeAddr;

use super::echo::{body, streams};
use super::flags::Target;
use super::report::{Mtu, Report};
use super::wire::{Answer, Wire};
use crate::out::{Context, Failure, Verdict};
use crate::signal::Interrupt;

/// Length of the type before an echo's body, in bytes.
const TYPE: usize = 1;

/// Parameters of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tries {
    /// Number of unanswered requests after which a size counts as not passing.
    pub(crate) tries: u64,
    /// Maximum wait for each answer.
    pub(crate) wait: Duration,
}

/// Result of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Maximum payload that was echoed, in bytes; `None` if there was no answer.
    pub(crate) payload: Option<usize>,
    /// Maximum payload that the peer reports.
    pub(crate) peer_payload: Option<u16>,
    /// Number of requests that were sent.
    sent: u64,
}

/// Searches for the maximum payload and prints it.
pub(super) fn run(
    wire: &mut impl Wire,
    target: &Target,
    tries: Tries,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    let measured = measure(wire, target.addr, tries, interrupt)?;
    let payload = measured.payload;
    let mtu = Mtu {
        target: target.text.clone(),
        mac: target.addr.to_string(),
        interface: wire.interface().to_owned(),
        payload,
        mtu: payload.and_then(|payload| Some(payload + wire.overhead()?)),
        local_payload: wire.max_body() + TYPE,
        peer_payload: measured.peer_payload,
        sent: measured.sent,
    };
    report.show(&mtu)?;
    let fine = interrupt.is_set() || streams(wire, target, payload.is_some(), report)?;
    Ok(if mtu.payload.is_none() || mtu.is_narrow() || !fine {
        Verdict::Partly
    } else {
        Verdict::Done
    })
}

/// Searches for the maximum payload that this node echoes.
pub(crate) fn measure(
    wire: &mut impl Wire,
    addr: NodeAddr,
    tries: Tries,
    interrupt: &Interrupt,
) -> Result<Measured, Failure> {
    let mut search = Search {
        wire,
        addr,
        tries,
        interrupt,
        sent: 0,
    };
    let peer_payload = search.peer_payload()?;
    let body = search.largest(peer_payload)?;
    Ok(Measured {
        payload: body.map(|body| body + TYPE),
        peer_payload,
        sent: search.sent,
    })
}

struct Search<'a, W> {
    wire: &'a mut W,
    addr: NodeAddr,
    tries: Tries,
    interrupt: &'a Interrupt,
    sent: u64,
}

impl<W: Wire> Search<'_, W> {
    /// Asks the peer for its maximum payload.
    fn peer_payload(&mut self) -> Result<Option<u16>, Failure> {
        for _ in 0..self.tries.tries {
            let sequence = self.next_sequence();
            self.wire.info(self.addr, sequence).doing("sending")?;
            let payload = |answer| {
                if let Answer::Info(info) = answer {
                    Some(info.max_payload)
                } else {
                    None
                }
            };
            if let Some(payload) = self.await_answer(payload)? {
                return Ok(Some(payload));
            }
        }
        Ok(None)
    }

    /// Finds the maximum length of a body that is echoed. The limit of both ends is tried first,
    /// because it usually passes.
    fn largest(&mut self, peer_payload: Option<u16>) -> Result<Option<usize>, Failure> {
        let local = self.wire.max_body();
        let ends = peer_payload.map_or(local, |peer| {
            local.min(usize::from(peer).saturating_sub(TYPE))
        });
        if self.passes(ends)? {
            return Ok(Some(ends));
        }
        if !self.passes(0)? {
            return Ok(None);
        }
        let (mut fine, mut too_long) = (0, ends);
        while too_long - fine > 1 {
            let middle = fine.midpoint(too_long);
            *if self.passes(middle)? {
                &mut fine
            } else {
                &mut too_long
            } = middle;
        }
        Ok(Some(fine))
    }

    fn passes(&mut self, size: usize) -> Result<bool, Failure> {
        for _ in 0..self.tries.tries {
            let sequence = self.next_sequence();
            let body = body(self.sent, size);
            self.wire
                .echo(self.addr, sequence, &body)
                .doing("sending")?;
            // Answers to earlier requests have other bodies.
            let same = |answer| (answer == Answer::Echo(body.clone())).then_some(());
            if self.await_answer(same)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_sequence(&mut self) -> u16 {
        self.sent += 1;
        (self.sent & 0xffff) as u16
    }

    /// Returns the first answer that `wanted` accepts, as converted by it; `None` after the time
    /// limit.
    fn await_answer<T>(
        &mut self,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let wait = u64::try_from(self.tries.wait.as_nanos()).unwrap_or(u64::MAX);
        let end = self.wire.now().saturating_add(wait);
        loop {
            if self.interrupt.is_set() {
                return Err(Failure::new("interrupted"));
            }
            let left = end.saturating_sub(self.wire.now());
            if left == 0 {
                return Ok(None);
            }
            let arrival = self
                .wire
                .receive(Duration::from_nanos(left.min(50_000_000)))
                .doing("receiving")?;
            let answer = arrival
                .filter(|a| a.src == self.addr)
                .and_then(|a| wanted(a.answer));
            if answer.is_some() {
                return Ok(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Style;
    use super::super::wire::Arrival;
    use super::super::wire::fake::{self, Fake};
    use super::*;
    use crate::names::Names;
    use esp_client::{MacAddr, NodeInfo};

    const PEER: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 9]));

    fn search(
        limit: usize,
        announced: u16,
        lossy: impl FnMut(u64) -> bool + 'static,
    ) -> Result<(Verdict, Vec<String>), Failure> {
        search_with(Some(11), limit, announced, lossy)
    }

    fn search_with(
        overhead: Option<usize>,
        limit: usize,
        announced: u16,
        mut lossy: impl FnMut(u64) -> bool + 'static,
    ) -> Result<(Verdict, Vec<String>), Failure> {
        let mut wire = Fake::new(8988, move |_, number, body| {
            if lossy(number) {
                return vec![];
            }
            match body {
                Some(body) if body.len() > limit => vec![],
                Some(body) => vec![(30, fake::echo(PEER, body))],
                None => {
                    let info = NodeInfo {
                        version: 1,
                        max_payload: announced,
                        features: 0,
                        incarnation: 1,
                        name: "peer".into(),
                    };
                    vec![(
                        30,
                        Arrival {
                            src: PEER,
                            at: 0,
                            answer: Answer::Info(info),
                        },
                    )]
                }
            }
        });
        wire.overhead = overhead;
        let mut report = Report::new(Style::default(), Names::default());
        report.lines = Some(Vec::new());
        let target = Target {
            text: "peer".into(),
            addr: PEER,
            interface: None,
        };
        let verdict = run(
            &mut wire,
            &target,
            Tries {
                tries: 5,
                wait: Duration::from_millis(100),
            },
            &Interrupt::default(),
            &mut report,
        )?;
        Ok((verdict, report.lines.unwrap_or_default()))
    }

    #[test]
    fn the_limit_of_the_ends_is_found() -> Result<(), Failure> {
        let (verdict, lines) = search(8988, 8989, |_| false)?;
        assert_eq!(verdict, Verdict::Done);
        assert_eq!(
            lines,
            ["peer (02:00:00:00:00:09): largest payload 8989 bytes (MTU 9000) via fake0, verified"]
        );
        Ok(())
    }

    #[test]
    fn the_mtu_includes_what_udp_and_protection_add() -> Result<(), Failure> {
        let (_, lines) = search_with(Some(11 + 28 + 26), 8988, 8989, |_| false)?;
        assert!(lines[0].contains("8989 bytes (MTU 9054)"), "{lines:?}");
        let (verdict, lines) = search_with(None, 8988, 8989, |_| false)?;
        assert_eq!(verdict, Verdict::Done);
        assert_eq!(
            lines,
            ["peer (02:00:00:00:00:09): largest payload 8989 bytes via fake0, verified"]
        );
        Ok(())
    }

    #[test]
    fn a_narrow_path_is_found_despite_losses() -> Result<(), Failure> {
        let (verdict, lines) = search(1488, 8989, |n| n % 3 == 0)?;
        assert_eq!(verdict, Verdict::Partly);
        assert!(
            lines[0].contains("largest payload 1489 bytes (MTU 1500)"),
            "{lines:?}"
        );
        assert!(
            lines[1].contains("can send 8989, the peer can receive 8989"),
            "{lines:?}"
        );
        Ok(())
    }

    #[test]
    fn a_smaller_mtu_of_the_peer_is_no_error() -> Result<(), Failure> {
        let (verdict, lines) = search(1488, 1489, |_| false)?;
        assert_eq!((verdict, lines.len()), (Verdict::Done, 1));
        Ok(())
    }

    #[test]
    fn no_answer_is_reported() -> Result<(), Failure> {
        let (verdict, lines) = search(0, 0, |_| true)?;
        assert_eq!(verdict, Verdict::Partly);
        let silent = "peer (02:00:00:00:00:09) does not answer via fake0";
        assert_eq!((lines[0].as_str(), lines.len()), (silent, 3));
        assert!(lines[1].contains("no other node"), "{lines:?}");
        assert!(lines[2].contains("esp doctor"), "{lines:?}");
        Ok(())
    }
}
