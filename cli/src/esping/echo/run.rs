//! Requests to one target, and their answers.

use std::collections::BTreeMap;

use super::times::Times;
use super::{Echo, nanos};
use crate::esping::flags::Target;
use crate::esping::report::{Outstanding, Reply, Report, Summary};
use crate::esping::wire::Wire;
use crate::out::{Context, Failure};

/// Maximum number of remembered requests, by which late and duplicate answers are recognized.
const REMEMBERED: usize = 1 << 16;
/// Length of the request number at the start of the body, in bytes.
const TAG: usize = 8;

/// Requests to one target.
pub(super) struct Run<'a> {
    pub(super) target: &'a Target,
    echo: &'a Echo,
    /// Requests by number: their time, and whether they were answered.
    asked: BTreeMap<u64, (u64, bool)>,
    /// Number of the next request, starting at 1.
    next: u64,
    /// Time of the next request.
    due: u64,
    times: Times,
    summary: Summary,
}

impl<'a> Run<'a> {
    /// Creates a run that begins at this time.
    pub(super) fn new(target: &'a Target, echo: &'a Echo, start: u64) -> Run<'a> {
        Run {
            target,
            echo,
            asked: BTreeMap::new(),
            next: 1,
            due: start,
            times: Times::default(),
            summary: Summary::default(),
        }
    }

    /// Returns true if further requests have to be sent.
    fn has_more(&self) -> bool {
        self.echo
            .count
            .is_none_or(|count| self.summary.sent < count)
    }

    /// Returns true if a request has to be sent now.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.has_more() && now >= self.due
    }

    /// Returns the time until which the run only has to receive; `None` if all requests were
    /// answered or have timed out.
    pub(super) fn wakes(&self, now: u64) -> Option<u64> {
        if self.has_more() {
            return Some(self.due);
        }
        let last_asked = self.asked.last_key_value().map_or(0, |(_, (at, _))| *at);
        let last_chance = last_asked.saturating_add(nanos(self.echo.wait));
        (self.open() > 0 && now < last_chance).then_some(last_chance)
    }

    /// Sends a request.
    pub(super) fn ask(&mut self, wire: &mut impl Wire, report: &mut Report) -> Result<(), Failure> {
        if self.echo.outstanding && self.asked.last_key_value().is_some_and(|(_, (_, ok))| !ok) {
            report.event(&Outstanding {
                target: self.target.text.clone(),
                mac: self.target.addr.to_string(),
                seq: self.next - 1,
            })?;
        }
        let body = body(self.next, self.echo.size);
        let now = wire.now();
        wire.echo(self.target.addr, (self.next & 0xffff) as u16, &body)
            .doing("sending")?;
        report.sent()?;
        self.asked.insert(self.next, (now, false));
        if self.asked.len() > REMEMBERED {
            self.asked.pop_first();
        }
        self.next += 1;
        self.summary.sent += 1;
        self.due = self.next_due(wire.now());
        Ok(())
    }

    /// Returns the time of the next request. Missed ones are skipped.
    fn next_due(&self, now: u64) -> u64 {
        let interval = nanos(self.echo.pace.interval);
        if self.echo.pace.after_answer.is_some() {
            return now.saturating_add(interval);
        }
        self.due
            .saturating_add(interval)
            .max(now.saturating_sub(interval))
    }

    /// Returns the number of requests without an answer.
    fn open(&self) -> u64 {
        self.summary.sent - self.summary.received
    }

    /// Handles the body of an answer that arrived at `at`; returns false if it answers no request.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        at: u64,
        now: u64,
        report: &mut Report,
    ) -> Result<bool, Failure> {
        let Some((number, sent, answered)) = self.find(bytes) else {
            return Ok(false);
        };
        let rtt = at.saturating_sub(sent);
        let corrupt = bytes != body(number, self.echo.size);
        report.reply(&Reply {
            target: self.target.text.clone(),
            mac: self.target.addr.to_string(),
            seq: number,
            bytes: bytes.len(),
            rtt_us: rtt as f64 / 1000.0,
            duplicate: answered,
            corrupt,
        })?;
        if corrupt {
            self.summary.corrupt += 1;
        }
        if answered {
            self.summary.duplicates += 1;
            return Ok(true);
        }
        self.asked.insert(number, (sent, true));
        self.summary.received += 1;
        self.times.add(rtt);
        if let Some(pause) = self.echo.pace.after_answer {
            self.due = now.max(sent.saturating_add(nanos(pause)));
        }
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

    /// Ends the run, which took this time.
    pub(super) fn finish(mut self, took: u64, interface: &str) -> Summary {
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
