//! The driver: virtual time, nodes, and what passes between them.
//!
//! A node is an interface with a queue to send and a ring of received frames, one transport, and
//! the programs of [`Program`]. Frames are processed in batches, a moment after the first of them
//! has arrived, as an engine that is woken does.

use std::collections::VecDeque;

use crate::fabric::{Fabric, PS, Topology};
use crate::packet::{Arena, Packet, Stop};
use crate::queue::Queue;
use crate::stack::{Counts, Notice, Stack};
use crate::traffic::{Arrival, Traffic};

/// Nanoseconds from the arrival of a frame at an idle node to its processing.
pub const WAKE: u64 = 1000;
/// Nanoseconds that a node is busy with one received frame.
const PER_FRAME: u64 = 200;
/// Frames processed in one batch.
const BATCH: usize = 64;
/// Frames that may wait to be processed; one more is dropped.
const RING: usize = 4096;
/// Nanoseconds of sending that a node's interface may have queued.
const TX_QUEUE: u64 = 8_000;
/// Virtual nanoseconds after which a run has failed.
const LIMIT: u64 = 100_000_000_000;
/// Bits of an event that are its index.
const INDEX_BITS: u32 = 29;
/// Nanoseconds between two connections that a node opens during set-up.
const SET_UP_EVERY: u64 = 2000;
/// Time of a timer that is not set.
const NEVER: u64 = u64::MAX;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A packet arrives at its next stop.
    Hop,
    /// A node processes received frames.
    Wake,
    /// A node's timer.
    Timer,
    /// A node's interface has room again.
    Room,
    /// An alarm of the program.
    Alarm,
    /// A channel is opened.
    Open,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Hop,
        Kind::Wake,
        Kind::Timer,
        Kind::Room,
        Kind::Alarm,
        Kind::Open,
    ];
}

/// The programs of all nodes.
pub trait Program {
    /// Begins.
    fn start(&mut self, calls: &mut Calls);
    /// A message has arrived.
    fn arrived(&mut self, arrival: Arrival, calls: &mut Calls);
    /// An alarm is due.
    fn alarm(&mut self, _tag: u32, _calls: &mut Calls) {}
    /// Returns true when nothing more is expected.
    fn is_done(&self) -> bool;
}

/// Requests of programs.
#[derive(Debug, Default)]
pub struct Calls {
    /// The time in nanoseconds.
    pub now: u64,
    sends: Vec<(u32, u32, u64, u32)>,
    alarms: Vec<(u64, u32)>,
    links: Vec<(u32, u32, bool, bool)>,
}

impl Calls {
    /// Sends a message with a tag. The connection is opened if there is none.
    pub fn send(&mut self, from: u32, to: u32, bytes: u64, tag: u32) {
        self.sends.push((from, to, bytes, tag));
    }

    /// Requests a call of [`Program::alarm`] after `nanos` nanoseconds.
    pub fn wake_in(&mut self, nanos: u64, tag: u32) {
        self.alarms.push((self.now + nanos, tag));
    }

    /// Changes a link of the fabric, see [`Fabric::set_link`].
    pub fn set_link(&mut self, leaf: u32, spine: u32, alive: bool, routed: bool) {
        self.links.push((leaf, spine, alive, routed));
    }
}

/// State of a node.
#[derive(Debug)]
struct Node<S> {
    stack: S,
    ring: VecDeque<u32>,
    /// Picosecond at which the interface has sent all it was given.
    free: u64,
    busy_until: u64,
    timer_at: u64,
    /// Further nanoseconds before received frames are processed.
    late: u64,
    wake_planned: bool,
    room_planned: bool,
    dirty: bool,
}

/// Measurements of a run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Frames dropped because a node's ring was full.
    pub ring_dropped: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Packets that were taken from an interface since the start of the world.
    pub frames: u64,
}

/// The simulated cluster.
pub struct World<S: Stack> {
    now: u64,
    queue: Queue,
    packets: Arena<S::Body>,
    fabric: Fabric,
    nodes: Vec<Node<S>>,
    traffic: Traffic,
    alarms: Vec<u32>,
    dirty: VecDeque<u32>,
    /// Connections of the set-up that are not established at both ends.
    opening: u64,
    arrivals: Vec<Arrival>,
    measured: Measured,
    before: Counts,
    room: Vec<u8>,
}

impl<S: Stack> World<S> {
    /// Creates a cluster of idle nodes.
    pub fn new(topology: Topology, config: &S::Config, seed: u64) -> World<S> {
        let node = |number| Node {
            stack: S::new(config, number, seed),
            ring: VecDeque::new(),
            free: 0,
            busy_until: 0,
            timer_at: NEVER,
            late: 0,
            wake_planned: false,
            room_planned: false,
            dirty: false,
        };
        World {
            // Timers of zero would be in the past.
            now: 1_000_000,
            queue: Queue::default(),
            packets: Arena::default(),
            nodes: (0..topology.nodes).map(node).collect(),
            traffic: Traffic::new(topology.nodes),
            fabric: Fabric::new(topology),
            alarms: Vec::new(),
            dirty: VecDeque::new(),
            opening: 0,
            arrivals: Vec::new(),
            measured: Measured::default(),
            before: Counts::default(),
            room: vec![0; 1 << 16],
        }
    }

    /// Makes a node slow: it processes received frames `nanos` nanoseconds later.
    pub fn slow_down(&mut self, node: u32, nanos: u64) {
        self.nodes[node as usize].late = nanos;
    }

    /// Opens connections, some at a time, and waits until all are established.
    ///
    /// # Errors
    /// Not all of them become established.
    pub fn set_up(&mut self, pairs: impl IntoIterator<Item = (u32, u32)>) -> Result<(), String> {
        let mut opened = vec![0; self.nodes.len()];
        for (from, to) in pairs {
            let (channel, new) = self.traffic.add(from, to);
            if !new {
                continue;
            }
            let turn = &mut opened[from as usize];
            // Nodes begin one after the other within the pause between two connections.
            let at = self.now + *turn * SET_UP_EVERY + u64::from(from) % SET_UP_EVERY;
            *turn += 1;
            self.opening += 1;
            self.plan(at, Kind::Open, channel);
        }
        let end = self.now + LIMIT;
        let mut idle = Idle;
        while self.opening > 0 {
            if !self.step(&mut idle) || self.now > end {
                return Err(format!("{} connections were not opened", self.opening));
            }
        }
        // Acknowledgements and probes of the set-up pass.
        let quiet = self.now + 2_000_000;
        while self.now < quiet && self.step(&mut idle) {}
        Ok(())
    }

    /// Runs programs until they are done, and counts from their start.
    ///
    /// # Errors
    /// They are not done after 100 s of virtual time, or not all bytes have arrived.
    pub fn run(&mut self, program: &mut impl Program) -> Result<(), String> {
        self.fabric.reset_counts();
        self.before = self.counts();
        self.measured.ring_dropped = 0;
        let end = self.now + LIMIT;
        self.call(program, |program, calls| program.start(calls));
        self.drain_dirty(program);
        while !program.is_done() {
            if !self.step(program) {
                return Err("nothing more happens, but messages are missing".into());
            }
            if self.now > end {
                let left = self.traffic.under_way();
                return Err(format!("{left} messages had not arrived after 100 s"));
            }
        }
        let (written, delivered) = self.traffic.totals();
        match self.traffic.under_way() {
            0 if written == delivered => Ok(()),
            0 => Err(format!("{written} bytes written, {delivered} delivered")),
            // Background traffic goes on.
            _ => Ok(()),
        }
    }

    /// Returns the measurements.
    pub fn measured(&self) -> &Measured {
        &self.measured
    }

    /// Returns the network with its counts.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the connections and messages.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the counts of all transports since the start of the run.
    pub fn counts_of_run(&self) -> Counts {
        self.counts().since(self.before)
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for node in &self.nodes {
            sum.add(node.stack.counts());
        }
        sum
    }

    fn plan(&mut self, at: u64, kind: Kind, index: u32) {
        debug_assert!(index < 1 << INDEX_BITS);
        self.queue.push(at, (kind as u32) << INDEX_BITS | index);
    }

    /// Performs the next event; returns false when there is none.
    fn step(&mut self, program: &mut impl Program) -> bool {
        let Some((at, event)) = self.queue.pop() else {
            return false;
        };
        self.now = self.now.max(at);
        let index = event & ((1 << INDEX_BITS) - 1);
        match Kind::ALL[(event >> INDEX_BITS) as usize] {
            Kind::Hop => self.hop(index),
            Kind::Wake => self.wake(index, program),
            Kind::Timer => self.timer(index, at, program),
            Kind::Room => {
                self.nodes[index as usize].room_planned = false;
                self.send_frames(index);
                self.plan_timer(index);
            }
            Kind::Alarm => {
                let tag = self.alarms[index as usize];
                self.call(program, |program, calls| program.alarm(tag, calls));
            }
            Kind::Open => {
                self.connect(index);
            }
        }
        self.drain_dirty(program);
        true
    }

    fn hop(&mut self, number: u32) {
        let packet = self.packets.head(number);
        if packet.stop != Stop::Host {
            match self.fabric.forward(self.now, packet) {
                Some(at) => self.plan(at, Kind::Hop, number),
                None => drop(self.packets.take(number)),
            }
            return;
        }
        self.fabric.arrived(packet);
        let index = packet.dst;
        let node = &mut self.nodes[index as usize];
        if node.ring.len() >= RING {
            self.measured.ring_dropped += 1;
            self.packets.take(number);
            return;
        }
        node.ring.push_back(number);
        if !std::mem::replace(&mut node.wake_planned, true) {
            let at = (self.now + WAKE + node.late).max(node.busy_until);
            self.plan(at, Kind::Wake, index);
        }
    }

    fn wake(&mut self, index: u32, program: &mut impl Program) {
        let node = &mut self.nodes[index as usize];
        let mut handled = 0;
        while handled < BATCH
            && let Some(number) = node.ring.pop_front()
        {
            if let Some(packet) = self.packets.take(number) {
                node.stack.receive(self.now, &packet, &mut self.room);
            }
            handled += 1;
        }
        node.busy_until = self.now + PER_FRAME * handled as u64;
        node.wake_planned = !node.ring.is_empty();
        if node.wake_planned {
            let at = node.busy_until;
            self.plan(at, Kind::Wake, index);
        }
        self.drain(index, program);
    }

    fn timer(&mut self, index: u32, at: u64, program: &mut impl Program) {
        let node = &mut self.nodes[index as usize];
        if node.timer_at != at {
            return; // an earlier one was set since
        }
        node.timer_at = NEVER;
        if node.stack.next_timeout().is_some_and(|due| due <= self.now) {
            node.stack.timeout(self.now);
        }
        self.drain(index, program);
    }

    /// Passes on all notices of a transport, and sends its packets.
    fn drain(&mut self, index: u32, program: &mut impl Program) {
        self.nodes[index as usize].dirty = false;
        self.nodes[index as usize].stack.settle(self.now);
        while let Some(notice) = self.nodes[index as usize].stack.notice() {
            self.on_notice(index, notice);
            self.pass_on(program);
        }
        self.send_frames(index);
        self.plan_timer(index);
    }

    fn drain_dirty(&mut self, program: &mut impl Program) {
        while let Some(index) = self.dirty.pop_front() {
            if self.nodes[index as usize].dirty {
                self.drain(index, program);
            }
        }
    }

    fn on_notice(&mut self, index: u32, notice: Notice) {
        match notice {
            Notice::Connected { .. } => {}
            Notice::Incoming { slot, peer } => {
                let Some(channel) = self.traffic.find(peer, index) else {
                    return;
                };
                self.opening = self.opening.saturating_sub(1);
                let written = self.traffic.bind(channel, index, slot);
                if written > 0 {
                    let stack = &mut self.nodes[index as usize].stack;
                    stack.written(self.now, slot, written);
                }
            }
            Notice::Delivered { slot, total } => {
                (self.traffic).deliver(index, slot, total, &mut self.arrivals);
            }
            Notice::Failed { .. } => self.measured.failed += 1,
        }
    }

    /// Passes complete messages to the programs.
    fn pass_on(&mut self, program: &mut impl Program) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        for arrival in arrivals.drain(..) {
            self.call(program, |program, calls| program.arrived(arrival, calls));
        }
        self.arrivals = arrivals;
    }

    /// Runs a program and performs its requests.
    fn call<P: Program>(&mut self, program: &mut P, run: impl FnOnce(&mut P, &mut Calls)) {
        let mut calls = Calls {
            now: self.now,
            ..Calls::default()
        };
        run(program, &mut calls);
        for (leaf, spine, alive, routed) in calls.links {
            self.fabric.set_link(leaf, spine, alive, routed);
        }
        for (from, to, bytes, tag) in calls.sends {
            self.send(from, to, bytes, tag);
        }
        for (at, tag) in calls.alarms {
            self.alarms.push(tag);
            self.plan(at, Kind::Alarm, self.alarms.len() as u32 - 1);
        }
    }

    fn send(&mut self, from: u32, to: u32, bytes: u64, tag: u32) {
        let channel = match self.traffic.add(from, to) {
            (channel, false) => channel,
            (channel, true) => {
                self.connect(channel);
                channel
            }
        };
        if let Some((slot, total)) = self.traffic.send(channel, from, bytes, tag, self.now) {
            let stack = &mut self.nodes[from as usize].stack;
            stack.written(self.now, slot, total);
            self.mark(from);
        }
    }

    fn connect(&mut self, channel: u32) {
        let [from, to] = self.traffic.nodes(channel);
        let stack = &mut self.nodes[from as usize].stack;
        match stack.connect(self.now, to) {
            Some(slot) => {
                self.traffic.bind(channel, from, slot);
                self.mark(from);
            }
            None => self.measured.failed += 1,
        }
    }

    fn mark(&mut self, index: u32) {
        if !std::mem::replace(&mut self.nodes[index as usize].dirty, true) {
            self.dirty.push_back(index);
        }
    }

    fn send_frames(&mut self, index: u32) {
        let now = self.now * PS;
        let ps = self.fabric.topology.host_ps();
        let delay = self.fabric.topology.delay;
        loop {
            let node = &mut self.nodes[index as usize];
            if node.free > now + TX_QUEUE * PS {
                if !std::mem::replace(&mut node.room_planned, true) {
                    let at = node.free / PS - TX_QUEUE / 2;
                    self.plan(at, Kind::Room, index);
                }
                return;
            }
            let Some(packet) = node.stack.transmit(self.now) else {
                return;
            };
            self.measured.frames += 1;
            node.free = node.free.max(now) + u64::from(packet.head.wire) * ps;
            let at = node.free.div_ceil(PS) + delay;
            self.launch(packet, at);
        }
    }

    fn launch(&mut self, packet: Packet<S::Body>, at: u64) {
        let number = self.packets.insert(packet);
        self.plan(at, Kind::Hop, number);
    }

    fn plan_timer(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        if let Some(due) = node.stack.next_timeout()
            && due < node.timer_at
        {
            let at = due.max(self.now);
            node.timer_at = at;
            self.plan(at, Kind::Timer, index);
        }
    }
}

/// No programs.
struct Idle;

impl Program for Idle {
    fn start(&mut self, _: &mut Calls) {}
    fn arrived(&mut self, _: Arrival, _: &mut Calls) {}
    fn is_done(&self) -> bool {
        true
    }
}
