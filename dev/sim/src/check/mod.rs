//! Observer of every frame that endpoints send: checks that it is well formed ([`frame`]) and obeys
//! the rules that span frames ([`flow`]). It knows which frames were delivered, and therefore all
//! that a sender can know.

mod deadlines;
pub mod flow;
pub mod frame;
mod ledger;
mod moves;
mod replies;
mod validation;

use crate::carrier::Carrier;
use crate::net::node_of;
use deadlines::{Limits, Times};
use esp_proto::{EndpointConfig, Instant, MacAddr};
use flow::Side;
use frame::{ACK, ECN, EXT, MOVES, MoveView, PRB, RESUME, RST, Rules, SYN, SetUpView, View};
pub use ledger::Ledger;
use replies::Replies;
use std::collections::{BTreeMap, BTreeSet};
use validation::Validation;

/// Number of remembered incarnations of one connection.
const REMEMBERED: usize = 8;

/// One direction: sender's address and port, receiver's address and port.
type Key = (MacAddr, u16, MacAddr, u16);

/// Returns the payload that needs no path verification (W-53, W-124).
fn safe_payload(carrier: Carrier) -> u16 {
    if carrier.is_udp() { 1219 } else { 1489 }
}

/// State of a node as the checker knows it.
#[derive(Clone, Copy, Debug)]
struct NodeRules {
    rules: Rules,
    max_window: u16,
    ecn: bool,
    carrier: Carrier,
    limits: Limits,
}

/// Checks every frame sent in a world.
#[derive(Debug, Default)]
pub struct Checker {
    nodes: Vec<NodeRules>,
    /// Incarnations of each direction, the current one last.
    sides: BTreeMap<Key, Vec<Side>>,
    /// Directions in which a connection has moved or was resumed.
    paths: BTreeSet<Key>,
    /// DONEs that nodes have received, and not processed yet.
    done: Vec<(Key, MoveView)>,
    validation: Validation,
    replies: Replies,
    frames_only: bool,
    checked: u64,
    now: Instant,
}

impl Checker {
    /// Adds a node whose endpoint has this MTU.
    pub fn add(&mut self, config: &EndpointConfig, mtu: u32, carrier: Carrier) {
        let rules = Rules {
            esp: config.esp_ethertype,
            edp: config.edp_ethertype,
            mtu,
            is_udp: carrier.is_udp(),
        };
        self.nodes.push(NodeRules {
            rules,
            max_window: config.max_window,
            ecn: config.ecn,
            carrier,
            limits: Limits {
                keepalive: config.keepalive,
                peer_timeout: config.peer_timeout,
            },
        });
    }

    /// Sets the time of the frames that follow.
    pub fn at(&mut self, now: Instant) {
        self.now = now;
    }

    /// Names a deadline of an open connection of a node that has passed.
    pub fn overdue(
        &self,
        node: usize,
        own: (MacAddr, u16),
        peer: (MacAddr, u16),
    ) -> Option<String> {
        if self.frames_only {
            return None;
        }
        let sides = self.sides.get(&(own.0, own.1, peer.0, peer.1))?;
        let side = sides.last().filter(|side| side.is_linked())?;
        side.overdue(self.now, self.nodes[node].limits)
    }

    /// Changes the MTU of a node's interface.
    pub fn set_mtu(&mut self, node: usize, mtu: u32) {
        self.nodes[node].rules.mtu = mtu;
    }

    /// Returns the rules for frames of a node.
    pub fn rules(&self, node: usize) -> Rules {
        self.nodes[node].rules
    }

    /// Restricts the checks to single frames: where frames are altered, a sender's knowledge is
    /// unknown.
    pub fn frames_only(&mut self) {
        self.frames_only = true;
    }

    /// Records a forged frame that a node is to receive: a SYN may be answered like any other.
    pub fn forged(&mut self, node: usize, bytes: &[u8]) {
        let NodeRules { rules, carrier, .. } = self.nodes[node];
        let Some(view) = View::of(bytes, &rules).ok().filter(|v| v.flags == SYN) else {
            return;
        };
        let key = (view.src, view.src_port, view.dst, view.dst_port);
        let Ok(set_up) = view.set_up() else {
            return;
        };
        // Inserted before the sides of the node that is its source: the last side is the one that
        // sends.
        let side = Side::new(&set_up, view.seq, safe_payload(carrier));
        self.sides.entry(key).or_default().insert(0, side);
    }

    /// Returns the number of frames checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// Records that the programs of a node lost their connections: it knows no address any more.
    pub fn forget_addresses(&mut self, mac: MacAddr) {
        self.validation.forget(mac);
    }

    /// Records that a node lost its memory: it must not continue connections from before.
    pub fn forget(&mut self, mac: MacAddr) {
        for side in self
            .sides
            .iter_mut()
            .filter(|(key, _)| key.0 == mac)
            .flat_map(|(_, sides)| sides)
        {
            side.forgotten = true; // its peers still answer it
        }
    }

    /// Checks a frame sent by a node. Returns the mark to put on it.
    pub fn sent(&mut self, node: usize, bytes: &[u8]) -> Result<u64, String> {
        self.checked += 1;
        let NodeRules {
            rules,
            max_window,
            ecn,
            carrier,
            ..
        } = self.nodes[node];
        let view = View::of(bytes, &rules)?;
        if node_of(view.src) != Some(node) {
            return Err(format!("source address {} of node {node}", view.src));
        }
        if self.frames_only {
            return Ok(0);
        }
        let is_esp = view.packet_type == rules.esp;
        if carrier.is_udp() {
            self.validation.sends(&view, bytes.len(), is_esp)?;
        }
        if !is_esp {
            return self.replies.sends(node, &view).map(|()| 0);
        }
        let key = (view.src, view.src_port, view.dst, view.dst_port);
        if view.flags & RST != 0 {
            self.resets(key, &view)?;
            return Ok(0);
        }
        if view.flags & !EXT == SYN | PRB {
            self.moves(key, &view, carrier)?;
            return Ok(0);
        }
        if view.flags & SYN != 0 {
            let features = view.set_up()?.features;
            if (features & ECN != 0) != ecn {
                return Err(format!(
                    "W-110: feature ECN, but the carrier's ECN support is {ecn}"
                ));
            }
            if features & MOVES != 0 && carrier.is_udp() {
                return Err("W-125: feature MOVES over UDP".into());
            }
            self.opens(key, &view, safe_payload(carrier))?;
        }
        let current = self
            .sides
            .get_mut(&key)
            .and_then(|sides| sides.pop_if(|side| !side.forgotten));
        let Some(mut side) = current else {
            if self.paths.contains(&key) {
                return Ok(0);
            }
            return Err("a frame of a connection that never sent a SYN".into());
        };
        if side.has_reset {
            return Err(format!(
                "section 8: a packet of {:x} after its RST",
                side.nonce
            ));
        }
        if side.left {
            return Err(format!(
                "W-105: {:x} on a path that the connection has left",
                side.base
            ));
        }
        let verdict = self.judge(&mut side, key, &view, max_window);
        let acknowledges = side.has_acknowledged();
        side.times.sends(self.now, &view, acknowledges);
        let mark = side.nonce;
        self.sides.entry(key).or_default().push(side);
        verdict.map(|()| mark)
    }

    /// Handles a RST, which contains 0 or the nonce of a peer that has sent it, and ends the
    /// connection with that peer, if there is one.
    fn resets(&mut self, key: Key, view: &View<'_>) -> Result<(), String> {
        let nonce = view.reset_nonce();
        if nonce == 0 || view.is_retry() || self.paths.contains(&key) {
            return Ok(());
        }
        if self.peer(key, nonce).is_none() {
            return Err(format!("W-57: the nonce {nonce:x} of no peer"));
        }
        let side = self.sides.get_mut(&key).and_then(|sides| sides.last_mut());
        if let Some(side) = side.filter(|side| side.peer_nonce == nonce) {
            side.has_reset = true;
        }
        Ok(())
    }

    fn judge(
        &self,
        side: &mut Side,
        key: Key,
        view: &View<'_>,
        max_window: u16,
    ) -> Result<(), String> {
        if view.flags & SYN != 0 && view.flags & ACK == 0 {
            return Ok(());
        }
        let peer = self
            .peer(key, side.peer_nonce)
            .ok_or("an acknowledgement of a peer it cannot know")?;
        side.sends(view, peer, max_window)
    }

    /// Handles a SYN or SYN+ACK, which starts or repeats an incarnation.
    fn opens(&mut self, key: Key, view: &View<'_>, safe_payload: u16) -> Result<(), String> {
        let set_up = view.set_up()?;
        let answered = if view.flags & ACK != 0 {
            let peer = self
                .peer(key, set_up.peer_nonce)
                .ok_or("W-21: a SYN+ACK to a nonce never seen")?;
            if set_up.key != peer.key {
                return Err("W-21: a SYN+ACK with another key than the SYN".into());
            }
            if set_up.features & !peer.features & (MOVES | RESUME) != 0 {
                return Err(format!(
                    "W-100, W-130: features {:x} in answer to {:x}",
                    set_up.features, peer.features
                ));
            }
            let ecn = peer.features & ECN != 0;
            Some((peer.nonce, peer.set_up_credit, peer.max_payload, ecn))
        } else {
            None
        };
        let sides = self.sides.entry(key).or_default();
        if sides.last().is_none_or(|side| side.nonce != set_up.nonce) {
            if sides.iter().any(|side| side.nonce == set_up.nonce) {
                return Err("W-16: a nonce used before".into());
            }
            sides.push(Side::new(&set_up, view.seq, safe_payload));
            if let Some(side) = sides.last_mut() {
                side.times = Times::starting(self.now);
            }
            if sides.len() > REMEMBERED {
                sides.remove(0);
            }
        }
        let side = sides.last_mut().ok_or("no side")?;
        side.repeats_set_up(&set_up, view.seq, view.flags & ACK != 0)?;
        if let Some((nonce, credit, max_payload, ecn)) = answered {
            side.link(nonce, credit, max_payload, ecn);
        }
        Ok(())
    }

    fn peer(&self, key: Key, nonce: u64) -> Option<&Side> {
        let reverse = (key.2, key.3, key.0, key.1);
        self.sides
            .get(&reverse)?
            .iter()
            .find(|side| side.nonce == nonce)
    }

    /// Records the delivery of a frame with the mark of its sender's incarnation. `ce` states that
    /// it arrived with a congestion mark.
    pub fn delivered(&mut self, node: usize, bytes: &[u8], mark: u64, ce: bool) {
        if self.frames_only {
            return;
        }
        let Ok(view) = View::of(
            bytes,
            &Rules {
                mtu: u32::MAX >> 1,
                ..self.nodes[node].rules
            },
        ) else {
            return;
        };
        let is_esp = view.packet_type == self.nodes[node].rules.esp;
        self.validation.receives(&view, bytes.len(), is_esp);
        if view.packet_type == self.nodes[node].rules.edp {
            self.replies.receives(node, &view);
        }
        if is_esp && view.flags & !EXT == SYN | PRB {
            self.receives_move(&view);
        }
        if mark == 0 {
            return;
        }
        let key = (view.src, view.src_port, view.dst, view.dst_port);
        let set_up = if view.flags & SYN != 0 {
            view.set_up().ok()
        } else {
            None
        };
        let reverse = (key.2, key.3, key.0, key.1);
        let Some(side) = self
            .sides
            .get_mut(&reverse)
            .and_then(|sides| sides.last_mut())
        else {
            return;
        };
        // The first answer counts; another one comes from a peer that has been restarted since.
        let takes = |s: &SetUpView<'_>| {
            s.peer_nonce == side.nonce && [0, s.nonce].contains(&side.peer_nonce)
        };
        if let Some(set_up) = set_up.filter(takes) {
            let ecn = set_up.features & ECN != 0;
            side.link(set_up.nonce, set_up.credit, set_up.max_payload, ecn);
        }
        if side.peer_nonce != mark {
            return;
        }
        let peer_isn = self
            .sides
            .get(&key)
            .and_then(|sides| sides.iter().find(|s| s.nonce == mark))
            .map(|s| s.isn);
        if let (Some(isn), Some(side)) = (
            peer_isn,
            self.sides
                .get_mut(&reverse)
                .and_then(|sides| sides.last_mut()),
        ) && side.receives(&view, isn, ce)
        {
            side.times.receives(self.now, &view);
        }
    }
}
