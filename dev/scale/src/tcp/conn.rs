//! One connection of the TCP model: sequence numbers, acknowledgements, repair of losses.

use std::collections::VecDeque;

use super::control::{Control, Window};
use super::{SACKS, Segment};

/// Minimum retransmission timeout (`TCP_RTO_MIN` of Linux).
const RTO_MIN: u64 = 200_000_000;
/// Maximum retransmission timeout.
const RTO_MAX: u64 = 120_000_000_000;
/// Retransmission timeout before the first measurement.
const RTO_FIRST: u64 = 1_000_000_000;
/// Delay of an acknowledgement (`TCP_DELACK_MIN` of Linux).
const DELAY: u64 = 40_000_000;
/// Addition to a tail-loss probe's two round trips (`TCP_TIMEOUT_MIN` of Linux with 1000 Hz).
const PROBE: u64 = 2_000_000;
/// Segments that are acknowledged one by one after the start (`TCP_MAX_QUICKACKS` of Linux).
const QUICK: u32 = 16;
/// Segments above a missing one after which it is lost.
const DUPLICATES: u32 = 3;

/// State of the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// SYN sent, or to be sent.
    Opening,
    /// SYN received, SYN+ACK sent or to be sent.
    Answering,
    /// Both are acknowledged.
    Open,
}

/// The delivered segment that was sent last (`RACK.xmit_ts`, `end_seq` and `rtt` of RFC 8985).
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    at: u64,
    end: u64,
    rtt: u64,
}

/// A segment that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u64,
    len: u16,
    at: u64,
    sacked: bool,
    lost: bool,
    again: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) peer: u32,
    pub(super) state: State,
    mss: u16,
    syn_due: bool,
    // sender
    written: u64,
    una: u64,
    next: u64,
    sent: VecDeque<Sent>,
    /// Segments in flight.
    pipe: u32,
    sacked: u32,
    lost: u32,
    window: Window,
    limited: bool,
    recover: Option<u64>,
    /// The recovery began with a timeout: slow start continues during it.
    after_timeout: bool,
    latest: Latest,
    srtt: u64,
    rttvar: u64,
    min_rtt: u64,
    backoff: u32,
    probed: bool,
    rto_at: Option<u64>,
    probe_at: Option<u64>,
    /// Time at which segments count as lost that until then may only be late.
    reorder_at: Option<u64>,
    pub(super) retransmits: u64,
    pub(super) timeouts: u64,
    // receiver
    pub(super) expected: u64,
    early: Vec<(u64, u64)>,
    unacked: u32,
    quick: u32,
    /// Arrival of the last segment with data.
    last_data: u64,
    ack_now: bool,
    ack_at: Option<u64>,
    echo: u64,
    ce: bool,
    /// The mark of segments that wait for an acknowledgement, where it changed.
    ece_before: Option<(u64, bool)>,
}

impl Conn {
    pub(super) fn new(peer: u32, state: State, control: Control, mss: u16) -> Conn {
        Conn {
            peer,
            state,
            mss,
            syn_due: true,
            written: 0,
            una: 0,
            next: 0,
            sent: VecDeque::new(),
            pipe: 0,
            sacked: 0,
            lost: 0,
            window: Window::new(control),
            limited: false,
            recover: None,
            after_timeout: false,
            latest: Latest::default(),
            srtt: 0,
            rttvar: 0,
            min_rtt: u64::MAX,
            backoff: 0,
            probed: false,
            rto_at: None,
            probe_at: None,
            reorder_at: None,
            retransmits: 0,
            timeouts: 0,
            expected: 0,
            early: Vec::new(),
            unacked: 0,
            quick: QUICK,
            last_data: 0,
            ack_now: false,
            ack_at: None,
            echo: 0,
            ce: false,
            ece_before: None,
        }
    }

    pub(super) fn write(&mut self, total: u64) {
        self.written = self.written.max(total);
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Option<u64> {
        [self.rto_at, self.probe_at, self.reorder_at, self.ack_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Processes a segment. Returns true when the connection became established.
    pub(super) fn receive(&mut self, now: u64, segment: &Segment, ce: bool) -> bool {
        let mut opened = false;
        match (segment.syn, self.state) {
            (true, State::Opening) => {
                self.state = State::Open;
                self.backoff = 0;
                self.measure(now.saturating_sub(segment.echo));
                self.rto_at = None;
                self.echo = segment.at;
                self.ack_now = true;
                return true;
            }
            (true, _) => {
                self.syn_due = self.state == State::Answering;
                self.ack_now = self.state == State::Open;
                self.echo = segment.at;
                return false;
            }
            (false, State::Answering) => {
                self.state = State::Open;
                self.backoff = 0;
                self.measure(now.saturating_sub(segment.echo));
                self.rto_at = None;
                opened = true;
            }
            (false, State::Opening) => return false,
            (false, State::Open) => {}
        }
        self.acknowledge(now, segment);
        if segment.len > 0 {
            self.take(now, segment, ce);
        }
        opened
    }

    fn take(&mut self, now: u64, segment: &Segment, ce: bool) {
        if ce != self.ce && self.unacked > 0 {
            // RFC 8257, 3.2: acknowledge what came before the change, with its mark.
            self.ece_before = Some((self.expected, self.ce));
        }
        self.ce = ce;
        let end = segment.seq + u64::from(segment.len);
        if segment.seq <= self.expected && end > self.expected {
            self.echo = segment.at;
            self.expected = end;
            self.ack_now |= !self.early.is_empty();
            while let Some(place) = self.early.iter().position(|(a, _)| *a <= self.expected) {
                self.expected = self.expected.max(self.early.swap_remove(place).1);
            }
        } else {
            self.ack_now = true;
            if segment.seq > self.expected {
                self.keep(segment.seq, end);
            }
        }
        self.unacked += 1;
        // After a pause, as Linux does: the peer may be repeating after a timeout.
        if now.saturating_sub(self.last_data) > self.rto() {
            self.quick = QUICK;
        }
        self.last_data = now;
        if self.quick > 0 {
            self.quick -= 1;
            self.ack_now = true;
        }
        self.ack_now |= self.unacked >= 2;
        if !self.ack_now && self.ack_at.is_none() {
            self.ack_at = Some(now + DELAY);
        }
    }

    /// Adds a range that arrived early; the latest is the first.
    fn keep(&mut self, mut from: u64, mut to: u64) {
        self.early.retain(|(a, b)| {
            let touches = *a <= to && *b >= from;
            if touches {
                (from, to) = (from.min(*a), to.max(*b));
            }
            !touches
        });
        self.early.insert(0, (from, to));
    }

    fn measure(&mut self, rtt: u64) {
        self.min_rtt = self.min_rtt.min(rtt);
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (rtt, rtt / 2);
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (7 * self.srtt + rtt) / 8;
        }
    }

    fn rto(&self) -> u64 {
        let base = match self.srtt {
            0 => RTO_FIRST,
            srtt => srtt + (4 * self.rttvar).max(RTO_MIN),
        };
        (base << self.backoff.min(16)).min(RTO_MAX)
    }

    fn acknowledge(&mut self, now: u64, segment: &Segment) {
        let advanced = segment.ack.saturating_sub(self.una);
        let mut delivered = 0;
        while let Some(first) = self.sent.front().copied() {
            if first.seq + u64::from(first.len) > segment.ack {
                break;
            }
            self.sent.pop_front();
            self.leave(first);
            if !first.sacked {
                delivered += 1;
                self.note(now, first);
            }
        }
        self.una = self.una.max(segment.ack);
        for (from, to) in segment.sacks.into_iter().filter(|(a, b)| a < b) {
            let start = self.sent.partition_point(|s| s.seq < from);
            for place in start..self.sent.len() {
                let sent = self.sent[place];
                if sent.seq + u64::from(sent.len) > to {
                    break;
                }
                if !sent.sacked {
                    self.leave(sent);
                    self.sent[place].sacked = true;
                    self.sent[place].lost = false;
                    self.sacked += 1;
                    delivered += 1;
                    self.note(now, sent);
                }
            }
        }
        if delivered == 0 {
            return;
        }
        if segment.echo > 0 && advanced > 0 {
            self.measure(now - segment.echo);
        }
        if self.recover.is_some_and(|until| self.una >= until) {
            self.recover = None;
            self.after_timeout = false;
        }
        self.find_losses(now);
        let window = &mut self.window;
        window.on_feedback(advanced, segment.ece, self.una, self.next);
        if (self.recover.is_none() || self.after_timeout) && !segment.ece {
            window.on_ack(now, f64::from(delivered), self.srtt, self.limited);
        }
        self.backoff = 0;
        self.probed = false;
        self.plan(now);
    }

    /// Notes a delivered segment, unless the acknowledgement may be for an earlier transmission of
    /// it (RFC 8985, 6.2, step 2).
    fn note(&mut self, now: u64, sent: Sent) {
        let (rtt, end) = (now - sent.at, sent.seq + u64::from(sent.len));
        let is_earlier = sent.again && rtt < self.min_rtt;
        if !is_earlier && (sent.at, end) > (self.latest.at, self.latest.end) {
            let at = sent.at;
            self.latest = Latest { at, end, rtt };
        }
    }

    /// Takes a delivered segment out of the counts.
    fn leave(&mut self, sent: Sent) {
        match sent {
            Sent { sacked: true, .. } => self.sacked -= 1,
            Sent { lost: true, .. } => self.lost -= 1,
            _ => self.pipe -= 1,
        }
    }

    /// Marks segments lost that were sent before a delivered one, and for longer than its round
    /// trip and the reordering window (RFC 8985, 6.2, step 5). Of segments sent at one time, the
    /// lower number was sent first.
    fn find_losses(&mut self, now: u64) {
        self.reorder_at = None;
        if self.sacked == 0 && self.recover.is_none() {
            return;
        }
        let window = if self.sacked >= DUPLICATES || self.recover.is_some() {
            0
        } else {
            self.min_rtt / 4
        };
        let Latest { at, end, rtt } = self.latest;
        let mut found = false;
        for sent in &mut self.sent {
            let is_before = (sent.at, sent.seq + u64::from(sent.len)) < (at, end);
            if sent.sacked || sent.lost || !is_before {
                continue;
            }
            let due = sent.at + rtt + window;
            if due <= now {
                sent.lost = true;
                self.pipe -= 1;
                self.lost += 1;
                found = true;
            } else {
                self.reorder_at = self.reorder_at.max(Some(due));
            }
        }
        if found && self.recover.is_none() {
            self.recover = Some(self.next);
            self.window.on_loss();
        }
    }

    /// Sets the timers after a change of the segments in flight.
    fn plan(&mut self, now: u64) {
        let waiting = self.pipe + self.lost > 0;
        self.rto_at = waiting.then(|| now + self.rto());
        let may_probe = waiting && !self.probed && self.recover.is_none() && self.sacked == 0;
        let more = if self.pipe == 1 { RTO_MIN } else { PROBE };
        self.probe_at = (may_probe && self.srtt > 0 && self.backoff == 0)
            .then(|| now + 2 * self.srtt + more)
            .filter(|at| self.rto_at.is_some_and(|rto| *at < rto));
    }

    /// Processes expired timers.
    pub(super) fn timeout(&mut self, now: u64) {
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_now = true;
            self.ack_at = None;
        }
        if self.reorder_at.is_some_and(|at| at <= now) {
            self.find_losses(now);
            self.plan(now);
        }
        if self.rto_at.is_some_and(|at| at <= now) {
            self.expire(now);
        } else if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.probed = true;
            if let Some(last) = self.sent.back_mut().filter(|last| !last.lost) {
                last.lost = true;
                self.pipe -= 1;
                self.lost += 1;
            }
        }
    }

    fn expire(&mut self, now: u64) {
        self.timeouts += 1;
        if self.state != State::Open {
            self.syn_due = true;
        } else {
            self.window.on_timeout(self.backoff == 0);
            for sent in self
                .sent
                .iter_mut()
                .filter(|sent| !sent.sacked && !sent.lost)
            {
                sent.lost = true;
                self.pipe -= 1;
                self.lost += 1;
            }
            self.recover = Some(self.next);
            self.after_timeout = true;
        }
        self.backoff += 1;
        (self.probe_at, self.reorder_at) = (None, None);
        self.rto_at = Some(now + self.rto());
    }

    /// Returns the next segment to send.
    pub(super) fn poll(&mut self, now: u64) -> Option<Segment> {
        if self.state != State::Open {
            if !std::mem::take(&mut self.syn_due) {
                return None;
            }
            self.rto_at = Some(now + self.rto());
            return Some(Segment {
                syn: true,
                ..self.segment(now, 0, 0)
            });
        }
        if let Some((ack, ece)) = self.ece_before.take() {
            let segment = self.segment(now, self.next, 0);
            self.ack_now = true;
            return Some(Segment {
                ack,
                ece,
                ..segment
            });
        }
        let room = f64::from(self.pipe) < self.window.size.floor().max(1.0);
        if room && self.lost > 0 {
            return self.repeat(now);
        }
        let left = self.written - self.next;
        if left > 0 && room {
            let len = left.min(u64::from(self.mss)) as u16;
            let seq = self.next;
            self.next += u64::from(len);
            let first = self.sent.is_empty();
            self.enter(now, seq, len);
            if first || self.probe_at.is_none() {
                self.plan(now);
            }
            self.check_use();
            return Some(self.segment(now, seq, len));
        }
        if self.ack_now {
            return Some(self.segment(now, self.next, 0));
        }
        None
    }

    /// Notes whether the window limits the rate: one of which less than half is used does not grow
    /// in slow start. Segments that are lost or selectively acknowledged count, as in Linux.
    fn check_use(&mut self) {
        self.limited = self.sent.len() as f64 * 2.0 > self.window.size;
    }

    fn enter(&mut self, at: u64, seq: u64, len: u16) {
        self.pipe += 1;
        self.sent.push_back(Sent {
            seq,
            len,
            at,
            sacked: false,
            lost: false,
            again: false,
        });
    }

    fn repeat(&mut self, now: u64) -> Option<Segment> {
        let sent = self.sent.iter_mut().find(|sent| sent.lost)?;
        sent.lost = false;
        sent.again = true;
        sent.at = now;
        let (seq, len) = (sent.seq, sent.len);
        self.lost -= 1;
        self.pipe += 1;
        self.retransmits += 1;
        self.check_use();
        Some(self.segment(now, seq, len))
    }

    /// Builds a segment, which acknowledges everything received.
    fn segment(&mut self, now: u64, seq: u64, len: u16) -> Segment {
        self.ack_now = false;
        self.unacked = 0;
        self.ack_at = None;
        let mut sacks = [(0, 0); SACKS];
        for (place, range) in sacks.iter_mut().zip(&self.early) {
            *place = *range;
        }
        Segment {
            syn: false,
            seq,
            len,
            ack: self.expected,
            sacks,
            ece: self.ce,
            at: now,
            echo: self.echo,
        }
    }
}

#[cfg(test)]
mod tests;
