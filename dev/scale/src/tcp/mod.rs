//! Models of TCP with the congestion controls Reno, CUBIC and DCTCP, as Linux runs them.
//!
//! Modelled are the set-up, windows, selective acknowledgements, the detection of losses by time
//! (RACK), tail-loss probes, retransmission timeouts with the bounds of Linux, delayed and quick
//! acknowledgements, and timestamps. Not modelled are segmentation offload, pacing, HyStart,
//! proportional rate reduction, recognition of spurious timeouts, and limits of the receive
//! window: the program reads at once, and Nagle's algorithm is off.

mod conn;
mod control;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use esp_sim::rng::mix;
use hashbrown::HashMap;

use crate::packet::{Head, Packet, Stop, wire_bytes};
use crate::stack::{Counts, Notice, Stack};
use conn::{Conn, State};
pub use control::Control;

/// Number of ranges of a selective acknowledgement that fit in addition to a timestamp.
const SACKS: usize = 3;
/// Bytes of the headers of IP and TCP with timestamps.
const HEADERS: u32 = 20 + 32;
/// Segments that a connection may send before the next one does: those of one offload.
const QUANTUM: u32 = 44;

/// Parameters of TCP.
#[derive(Clone, Debug)]
pub struct Config {
    control: Control,
    mss: u16,
}

impl Config {
    /// Returns the parameters for an MTU.
    pub fn new(control: Control, mtu: u32) -> Config {
        let mss = mtu.saturating_sub(HEADERS).clamp(64, 65_000) as u16;
        Config { control, mss }
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    syn: bool,
    seq: u64,
    len: u16,
    ack: u64,
    sacks: [(u64, u64); SACKS],
    ece: bool,
    /// Timestamp, and that of the peer.
    at: u64,
    echo: u64,
}

/// A connection and the node's notes about it.
#[derive(Debug)]
struct Entry {
    conn: Conn,
    /// In the queue of those that may send.
    ready: bool,
    /// Its time in the heap of timers.
    timer: u64,
    reported: u64,
}

/// TCP of a node.
#[derive(Debug)]
pub struct Tcp {
    config: Config,
    node: u32,
    conns: Vec<Entry>,
    by_peer: HashMap<u32, u32, foldhash::fast::FixedState>,
    ready: VecDeque<u32>,
    spent: u32,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    notices: VecDeque<Notice>,
    packets: u64,
}

impl Tcp {
    fn add(&mut self, peer: u32, state: State) -> u32 {
        let slot = self.conns.len() as u32;
        self.conns.push(Entry {
            conn: Conn::new(peer, state, self.config.control, self.config.mss),
            ready: false,
            timer: u64::MAX,
            reported: 0,
        });
        self.by_peer.insert(peer, slot);
        slot
    }

    /// Notes that a connection may have something to send, and its timer.
    fn touch(&mut self, slot: u32) {
        let entry = &mut self.conns[slot as usize];
        if !std::mem::replace(&mut entry.ready, true) {
            self.ready.push_back(slot);
        }
        self.plan(slot);
    }

    fn plan(&mut self, slot: u32) {
        let entry = &mut self.conns[slot as usize];
        if let Some(at) = entry.conn.deadline().filter(|at| *at < entry.timer) {
            entry.timer = at;
            self.timers.push(Reverse((at, slot)));
        }
    }
}

impl Stack for Tcp {
    type Body = Segment;
    type Config = Config;

    fn new(config: &Config, node: u32, _: u64) -> Tcp {
        Tcp {
            config: config.clone(),
            node,
            conns: Vec::new(),
            by_peer: HashMap::default(),
            ready: VecDeque::new(),
            spent: 0,
            timers: BinaryHeap::new(),
            notices: VecDeque::new(),
            packets: 0,
        }
    }

    fn connect(&mut self, _: u64, peer: u32) -> Option<u32> {
        if self.by_peer.contains_key(&peer) {
            return None;
        }
        let slot = self.add(peer, State::Opening);
        self.touch(slot);
        Some(slot)
    }

    fn written(&mut self, _: u64, slot: u32, total: u64) {
        self.conns[slot as usize].conn.write(total);
        self.touch(slot);
    }

    fn receive(&mut self, now: u64, packet: &Packet<Segment>, _: &mut [u8]) {
        let peer = packet.head.src;
        let slot = match self.by_peer.get(&peer) {
            Some(slot) => *slot,
            None => self.add(peer, State::Answering),
        };
        let entry = &mut self.conns[slot as usize];
        let active = entry.conn.state == State::Opening;
        if entry.conn.receive(now, &packet.body, packet.head.ce) {
            self.notices.push_back(if active {
                Notice::Connected { slot }
            } else {
                Notice::Incoming { slot, peer }
            });
        }
        let total = entry.conn.expected;
        if total > entry.reported {
            entry.reported = total;
            self.notices.push_back(Notice::Delivered { slot, total });
        }
        self.touch(slot);
    }

    fn settle(&mut self, _: u64) {}

    fn transmit(&mut self, now: u64) -> Option<Packet<Segment>> {
        while let Some(slot) = self.ready.front().copied() {
            let entry = &mut self.conns[slot as usize];
            let Some(segment) = entry.conn.poll(now) else {
                entry.ready = false;
                self.ready.pop_front();
                self.spent = 0;
                self.plan(slot);
                continue;
            };
            self.spent += 1;
            let dst = entry.conn.peer;
            if self.spent >= QUANTUM {
                self.ready.rotate_left(1);
                self.spent = 0;
            }
            self.plan(slot);
            self.packets += 1;
            let ranges = segment.sacks.iter().filter(|(a, b)| a < b).count() as u32;
            let options = if ranges > 0 { 4 + 8 * ranges } else { 0 };
            let flow = u64::from(self.node) << 32 | u64::from(dst);
            let head = Head {
                src: self.node,
                dst,
                wire: wire_bytes(HEADERS + options + u32::from(segment.len)),
                hash: mix(flow) as u32,
                ect: self.config.control == Control::Dctcp,
                ce: false,
                stop: Stop::First,
            };
            let body = segment;
            return Some(Packet { head, body });
        }
        None
    }

    fn next_timeout(&mut self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    fn timeout(&mut self, now: u64) {
        while let Some(Reverse((at, slot))) = self.timers.peek().copied() {
            if at > now {
                return;
            }
            self.timers.pop();
            let entry = &mut self.conns[slot as usize];
            if entry.timer != at {
                continue; // an earlier one was set since
            }
            entry.timer = u64::MAX;
            if entry.conn.deadline().is_some_and(|due| due <= now) {
                entry.conn.timeout(now);
                self.touch(slot);
            } else {
                self.plan(slot);
            }
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts {
            packets: self.packets,
            ..Counts::default()
        };
        for entry in &self.conns {
            counts.retransmits += entry.conn.retransmits;
            counts.timeouts += entry.conn.timeouts;
        }
        counts
    }
}
