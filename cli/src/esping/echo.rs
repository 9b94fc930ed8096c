//! Echo requests at an interval, their answers, and a summary.

use std::collections::BTreeMap;
use std::time::Duration;

use super::flags::Target;
use super::report::{Reply, Report, Rtt, Summary};
use super::wire::{Answer, Arrival, Wire};
use crate::out::{Doing, Failure, Verdict};
use crate::signal::Interrupt;

/// Number of requests remembered, to recognize late and duplicate answers.
const REMEMBERED: usize = 1 << 16;
/// Length of the request number at the start of the body, in bytes.
const TAG: usize = 8;
/// Interval between two checks for Ctrl-C, in nanoseconds.
const CHECK: u64 = 50_000_000;

/// Parameters of echo requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) count: Option<u64>,
    pub(super) interval: Duration,
    pub(super) size: usize,
    pub(super) deadline: Option<Duration>,
    pub(super) wait: Duration,
}

/// Sends requests until the count, the deadline or Ctrl-C.
pub(super) fn run(
    wire: &mut impl Wire,
    target: &Target,
    echo: &Echo,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<Verdict, Failure> {
    if echo.size > wire.max_body() {
        let max = wire.max_body();
        return Err(Failure::new(format!(
            "invalid size {} for -s: an echo request on {} has at most {max} bytes of data, one less \
             than the payload that --mtu shows, because a byte of it is the type",
            echo.size,
            wire.interface()
        )));
    }
    report.start(&target.text, target.addr, wire.interface(), echo.size)?;
    let mut run = Run {
        target,
        echo,
        asked: BTreeMap::new(),
        next: 1,
        times: Times::default(),
        summary: Summary::default(),
    };
    let start = wire.now();
    let end = echo.deadline.map(|d| start.saturating_add(nanos(d)));
    let past = |now: u64| end.is_some_and(|end| now >= end);
    let mut due = start;
    loop {
        let now = wire.now();
        if interrupt.is_set() || past(now) {
            break;
        }
        let more = echo.count.is_none_or(|count| run.summary.sent < count);
        if more && now >= due {
            run.ask(wire)?;
            due = run.next_due(due, wire.now());
            continue;
        }
        let last_chance = run.last_asked().saturating_add(nanos(echo.wait));
        if !more && (run.open() == 0 || now >= last_chance) {
            break;
        }
        let until = if more { due } else { last_chance }.min(end.unwrap_or(u64::MAX));
        let patience = Duration::from_nanos(until.saturating_sub(now).clamp(1, CHECK));
        if let Some(arrival) = wire.receive(patience).doing("receiving")? {
            let expected = run.take(arrival, report)?;
            if expected && echo.interval.is_zero() {
                due = wire.now();
            }
        }
    }
    let summary = run.finish(wire.now().saturating_sub(start), wire.interface());
    report.show(&summary)?;
    let fine = summary.received == summary.sent && summary.corrupt == 0 && summary.sent > 0;
    Ok(if fine { Verdict::Done } else { Verdict::Partly })
}

struct Run<'a> {
    target: &'a Target,
    echo: &'a Echo,
    /// Requests by number: time, and true if answered.
    asked: BTreeMap<u64, (u64, bool)>,
    /// Number of the next request, from 1.
    next: u64,
    times: Times,
    summary: Summary,
}

impl Run<'_> {
    fn ask(&mut self, wire: &mut impl Wire) -> Result<(), Failure> {
        let body = body(self.next, self.echo.size);
        let now = wire.now();
        wire.echo(self.target.addr, (self.next & 0xffff) as u16, &body)
            .doing("sending")?;
        self.asked.insert(self.next, (now, false));
        if self.asked.len() > REMEMBERED {
            self.asked.pop_first();
        }
        self.next += 1;
        self.summary.sent += 1;
        Ok(())
    }

    /// Returns the time of the next request. Missed ones are skipped.
    fn next_due(&self, due: u64, now: u64) -> u64 {
        if self.echo.interval.is_zero() {
            return now.saturating_add(nanos(self.echo.wait));
        }
        let interval = nanos(self.echo.interval);
        due.saturating_add(interval)
            .max(now.saturating_sub(interval))
    }

    fn last_asked(&self) -> u64 {
        self.asked.last_key_value().map_or(0, |(_, (at, _))| *at)
    }

    /// Number of requests without an answer.
    fn open(&self) -> u64 {
        self.summary.sent - self.summary.received
    }

    /// Handles an answer; returns true if it is the first one to a known request.
    fn take(&mut self, arrival: Arrival, report: &mut Report) -> Result<bool, Failure> {
        let Arrival {
            src,
            at,
            answer: Answer::Echo(bytes),
        } = arrival
        else {
            return Ok(false);
        };
        if src != self.target.addr {
            return Ok(false);
        }
        let Some((number, sent, answered)) = self.find(&bytes) else {
            return Ok(false);
        };
        let rtt = at.saturating_sub(sent);
        let corrupt = bytes != body(number, self.echo.size);
        let reply = Reply {
            target: self.target.text.clone(),
            mac: self.target.addr.to_string(),
            seq: number,
            bytes: bytes.len(),
            rtt_us: rtt as f64 / 1000.0,
            duplicate: answered,
            corrupt,
        };
        if !report.quiet {
            report.show(&reply)?;
        }
        if corrupt {
            self.summary.corrupt += 1;
        }
        if answered {
            self.summary.duplicates += 1;
            return Ok(false);
        }
        self.asked.insert(number, (sent, true));
        self.summary.received += 1;
        self.times.add(rtt);
        Ok(true)
    }

    /// Finds the latest request that matches the body: number, time, answered. A body shorter than
    /// the tag holds the low bytes of the number; an empty one matches the last request.
    fn find(&self, body: &[u8]) -> Option<(u64, u64, bool)> {
        let mut tag = [0u8; TAG];
        let known = body.len().min(TAG);
        tag[..known].copy_from_slice(&body[..known]);
        let (tag, last) = (u64::from_le_bytes(tag), self.next.checked_sub(1)?);
        let number = match 1u64.checked_shl(8 * known as u32) {
            Some(modulus) => last.checked_sub(last.wrapping_sub(tag) % modulus)?,
            None => tag,
        };
        self.asked
            .get(&number)
            .map(|&(sent, answered)| (number, sent, answered))
    }

    fn finish(mut self, took: u64, interface: &str) -> Summary {
        let lost = self.open() as f64;
        self.summary.loss_percent = if self.summary.sent == 0 {
            0.0
        } else {
            lost * 100.0 / self.summary.sent as f64
        };
        self.summary.time_ms = took as f64 / 1e6;
        self.summary.rtt = self.times.rtt();
        self.summary.target.clone_from(&self.target.text);
        self.summary.mac = self.target.addr.to_string();
        self.summary.interface = interface.to_owned();
        self.summary
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the body of a request: its number, then a pattern that depends on the number.
pub(crate) fn body(number: u64, size: usize) -> Vec<u8> {
    let mut body: Vec<u8> = number.to_le_bytes().into_iter().take(size).collect();
    body.extend((TAG..size).map(|i| {
        (i as u64)
            .wrapping_mul(7)
            .wrapping_add(number.wrapping_mul(31)) as u8
    }));
    body
}

/// Running minimum, maximum, mean and deviation.
#[derive(Default)]
struct Times {
    count: u64,
    min: f64,
    max: f64,
    sum: f64,
    squares: f64,
}

impl Times {
    fn add(&mut self, nanos: u64) {
        let us = nanos as f64 / 1000.0;
        self.min = if self.count == 0 {
            us
        } else {
            self.min.min(us)
        };
        self.max = self.max.max(us);
        self.count += 1;
        self.sum += us;
        self.squares += us * us;
    }

    fn rtt(&self) -> Option<Rtt> {
        let n = (self.count > 0).then_some(self.count as f64)?;
        let avg = self.sum / n;
        let mdev = (self.squares / n - avg * avg).max(0.0).sqrt();
        Some(Rtt {
            min_us: self.min,
            avg_us: avg,
            max_us: self.max,
            mdev_us: mdev,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::fake::{self, Fake};
    use super::*;
    use crate::names::Names;
    use esp_client::{MacAddr, NodeAddr};

    const PEER: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 9]));

    fn target() -> Target {
        Target {
            text: "peer".into(),
            addr: PEER,
            interface: None,
        }
    }

    fn echo(count: u64) -> Echo {
        Echo {
            count: Some(count),
            interval: Duration::from_millis(10),
            size: 20,
            deadline: None,
            wait: Duration::from_millis(100),
        }
    }

    fn ping(wire: &mut Fake, echo: &Echo) -> Result<(Verdict, Vec<String>), Failure> {
        let mut report = Report::new(false, false, Names::default());
        report.lines = Some(Vec::new());
        let verdict = run(wire, &target(), echo, &Interrupt::default(), &mut report)?;
        Ok((verdict, report.lines.unwrap_or_default()))
    }

    #[test]
    fn all_answered() -> Result<(), Failure> {
        let mut wire = Fake::new(100, |_, _, body| {
            vec![(50, fake::echo(PEER, body.unwrap_or_default()))]
        });
        let (verdict, lines) = ping(&mut wire, &echo(3))?;
        assert_eq!(verdict, Verdict::Done);
        assert_eq!(
            lines[0],
            "ESPING peer (02:00:00:00:00:09) via fake0: 20 bytes of data"
        );
        assert_eq!(
            lines[1],
            "20 bytes from peer (02:00:00:00:00:09): seq=1 time=50.0 µs"
        );
        assert_eq!(
            lines[lines.len() - 2],
            "3 packets transmitted, 3 received, 0% packet loss, time 20 ms"
        );
        assert_eq!(
            lines[lines.len() - 1],
            "rtt min/avg/max/mdev = 50.0/50.0/50.0/0.0 µs"
        );
        Ok(())
    }

    #[test]
    fn losses_duplicates_other_senders_and_corruption_are_counted() -> Result<(), Failure> {
        let mut wire = Fake::new(100, |_, number, body| {
            let good = fake::echo(PEER, body.unwrap_or_default());
            match number {
                1 => vec![],
                2 => vec![(10, good.clone()), (20, good)],
                3 => vec![(
                    10,
                    fake::echo(PEER, &[&body.unwrap_or_default()[..19], b"x"].concat()),
                )],
                4 => vec![
                    (5, fake::echo(MacAddr([2; 6]).into(), b"")),
                    (6, fake::echo(PEER, &[77; 20])),
                    (90_000, good),
                ],
                _ => vec![(200_000, good)],
            }
        });
        let (verdict, lines) = ping(&mut wire, &echo(5))?;
        assert_eq!(verdict, Verdict::Partly);
        let text = lines.join("\n");
        assert!(text.contains("seq=2 time=20.0 µs (DUP!)"), "{text}");
        assert!(
            text.contains("seq=3 time=10.0 µs (CORRUPT: the bytes differ"),
            "{text}"
        );
        assert!(
            text.contains(
                "5 packets transmitted, 3 received, +1 duplicates, +1 corrupt, 40% packet loss"
            ),
            "{text}"
        );
        Ok(())
    }

    #[test]
    fn answers_are_distinguished_beyond_any_sequence() -> Result<(), Failure> {
        for size in [0, 1, 20] {
            let mut wire = Fake::new(100, |_, _, body| {
                vec![(3, fake::echo(PEER, body.unwrap_or_default()))]
            });
            let (verdict, lines) = ping(
                &mut wire,
                &Echo {
                    interval: Duration::ZERO,
                    size,
                    ..echo(140_000)
                },
            )?;
            assert_eq!(verdict, Verdict::Done);
            let summary = &lines[lines.len() - 2];
            assert!(
                summary.starts_with("140000 packets transmitted, 140000 received, 0% packet loss"),
                "{size}: {summary}"
            );
        }
        Ok(())
    }

    #[test]
    fn the_deadline_ends_the_run() -> Result<(), Failure> {
        let mut wire = Fake::new(100, |_, _, _| vec![]);
        let (verdict, lines) = ping(
            &mut wire,
            &Echo {
                count: None,
                deadline: Some(Duration::from_millis(95)),
                ..echo(0)
            },
        )?;
        assert_eq!((verdict, wire.sent), (Verdict::Partly, 10));
        assert_eq!(
            lines.last().map(String::as_str),
            Some("10 packets transmitted, 0 received, 100% packet loss, time 95 ms")
        );
        Ok(())
    }

    #[test]
    fn a_size_that_does_not_fit_is_refused() {
        let mut wire = Fake::new(10, |_, _, _| vec![]);
        let text = ping(&mut wire, &echo(1))
            .map_err(|e| e.to_string())
            .expect_err("20 bytes do not fit into 10");
        assert!(
            text.contains("at most 10") && text.contains("--mtu"),
            "{text}"
        );
    }
}
