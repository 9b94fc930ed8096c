//! A program of rounds: each node sends the messages of a round, and begins the next when it has
//! received all that it expects. Nodes wait only for their partners.

use std::collections::VecDeque;

use crate::stats::{Times, jain};
use crate::traffic::Arrival;
use crate::world::{Calls, Program};

/// Tag of messages that are not part of the rounds.
const BACKGROUND: u32 = u32::MAX;

/// Nanoseconds after the start during which background messages are sent again.
const BACKGROUND_TIME: u64 = 5_000_000;

/// Messages of a workload.
pub trait Pattern: Send + Sync {
    /// Returns the number of rounds.
    fn rounds(&self) -> u32;
    /// Calls `send` with the receiver and length of each message of a node in a round, in the order
    /// of sending.
    fn sends(&self, node: u32, round: u32, send: &mut dyn FnMut(u32, u64));
    /// Returns the number of messages that a node receives in a round.
    fn expects(&self, node: u32, round: u32) -> u32;
}

/// A change of a link, some time after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Nanoseconds after the start.
    pub after: u64,
    /// Leaf switch.
    pub leaf: u32,
    /// Spine switch.
    pub spine: u32,
    /// True if the link carries frames afterwards.
    pub alive: bool,
    /// True if the routing uses it afterwards.
    pub routed: bool,
}

/// State of a node.
#[derive(Clone, Debug, Default)]
struct Node {
    round: u32,
    /// Messages received of the current round and the following ones.
    received: VecDeque<u32>,
    /// Time at which the last of its messages arrived.
    last_arrival: u64,
}

/// Runs a [`Pattern`].
pub struct Rounds<'a> {
    pattern: &'a dyn Pattern,
    faults: &'a [Fault],
    background: &'a [(u32, u32, u64)],
    nodes: Vec<Node>,
    busy: usize,
    begun: u64,
    ended: u64,
    /// Times of all messages of the rounds.
    pub times: Times,
    /// Bytes of all messages of the rounds.
    pub bytes: u64,
}

impl<'a> Rounds<'a> {
    /// Creates the programs of all nodes. `background` are messages that are sent again whenever
    /// they have arrived.
    pub fn new(
        pattern: &'a dyn Pattern,
        nodes: u32,
        faults: &'a [Fault],
        background: &'a [(u32, u32, u64)],
    ) -> Rounds<'a> {
        Rounds {
            pattern,
            faults,
            background,
            nodes: vec![Node::default(); nodes as usize],
            busy: nodes as usize,
            begun: 0,
            ended: 0,
            times: Times::default(),
            bytes: 0,
        }
    }

    /// Returns the nanoseconds from the start to the last arrival.
    pub fn elapsed(&self) -> u64 {
        self.ended - self.begun
    }

    /// Returns the fairness index of the nodes' rates. A rate is one over the time from the start
    /// to the arrival of a node's last message: nodes of one role send as many bytes.
    pub fn jain(&self) -> f64 {
        let ends = self.nodes.iter().map(|node| node.last_arrival);
        let senders = ends.filter(|end| *end > self.begun);
        jain(senders.map(|end| 1e9 / (end - self.begun) as f64))
    }

    /// Sends the messages of a node's round, and of the following ones while it expects nothing.
    fn enter(&mut self, number: u32, calls: &mut Calls) {
        loop {
            let round = self.nodes[number as usize].round;
            if round == self.pattern.rounds() {
                self.busy -= 1;
                return;
            }
            self.pattern.sends(number, round, &mut |to, bytes| {
                calls.send(number, to, bytes, round);
            });
            let expected = self.pattern.expects(number, round);
            if !self.nodes[number as usize].advance(expected) {
                return;
            }
        }
    }
}

impl Node {
    /// Ends the round if enough messages have arrived.
    fn advance(&mut self, expected: u32) -> bool {
        let done = self.received.front().copied().unwrap_or(0) >= expected;
        if done {
            self.received.pop_front();
            self.round += 1;
        }
        done
    }
}

impl Program for Rounds<'_> {
    fn start(&mut self, calls: &mut Calls) {
        (self.begun, self.ended) = (calls.now, calls.now);
        for (number, fault) in self.faults.iter().enumerate() {
            calls.wake_in(fault.after, number as u32);
        }
        for (from, to, bytes) in self.background {
            calls.send(*from, *to, *bytes, BACKGROUND);
        }
        for number in 0..self.nodes.len() {
            self.enter(number as u32, calls);
        }
    }

    fn arrived(&mut self, arrival: Arrival, calls: &mut Calls) {
        if arrival.tag == BACKGROUND {
            if calls.now - self.begun < BACKGROUND_TIME {
                calls.send(arrival.from, arrival.to, arrival.bytes, BACKGROUND);
            }
            return;
        }
        self.times.add(calls.now - arrival.sent);
        self.bytes += arrival.bytes;
        self.ended = calls.now;
        self.nodes[arrival.from as usize].last_arrival = calls.now;
        let node = &mut self.nodes[arrival.to as usize];
        let place = (arrival.tag - node.round) as usize;
        if node.received.len() <= place {
            node.received.resize(place + 1, 0);
        }
        node.received[place] += 1;
        if place == 0 && node.advance(self.pattern.expects(arrival.to, arrival.tag)) {
            self.enter(arrival.to, calls);
        }
    }

    fn alarm(&mut self, tag: u32, calls: &mut Calls) {
        let fault = self.faults[tag as usize];
        calls.set_link(fault.leaf, fault.spine, fault.alive, fault.routed);
    }

    fn is_done(&self) -> bool {
        self.busy == 0
    }
}
