//! The rules that span frames, for one direction of one incarnation of a connection.
//!
//! Positions are 64 bits wide here: 0 is the SYN, 1 the first data frame.

use super::deadlines::Times;
use super::frame::{ACK, COOKIES, ECN, EXT, ExtView, FIN, MoveView, SYN, SetUpView, View};
use crate::rng::mix;
use esp_proto::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of outstanding packets, and maximum distance of a credit edge (W-31, W-39).
const MAX_WINDOW: u64 = 4096;
/// Positions in a SACK bitmap that fits into every MTU of the scenarios.
const MAX_SACK: u64 = 8 * 64;
/// Fingerprints kept before the oldest outstanding packet.
const KEPT: usize = 3 * MAX_WINDOW as usize;

/// State of one side of a connection: the packets it sent, and its knowledge of the peer.
#[derive(Debug)]
pub struct Side {
    /// Incarnation of this side, and of its path after a move.
    pub nonce: u64,
    /// Nonce in the set-up block.
    pub base: u64,
    /// Number of the move that began this path; 0 for the set-up.
    pub epoch: u32,
    /// The connection has left this path: nothing may be sent on it (W-105).
    pub left: bool,
    /// This side has received the peer's FIN before this path began.
    pub fin_received: bool,
    /// This side has lost its state before this path began.
    pub resumed: bool,
    /// First sequence number of this side.
    pub isn: u16,
    /// Incarnation of the peer; 0 while unknown.
    pub peer_nonce: u64,
    /// Credit given in this side's set-up block.
    pub set_up_credit: u16,
    /// This side has reset its peer.
    pub has_reset: bool,
    /// This side's node was restarted.
    pub forgotten: bool,
    /// Maximum payload that this side can receive.
    pub max_payload: u16,
    /// Features that this side offers.
    pub features: u8,
    /// Job key of this side.
    pub key: Vec<u8>,
    /// Maximum acknowledgement delay of this side, in microseconds.
    max_ack_delay: u16,
    /// Features of each SYN+ACK of this side, by the nonce that it answers.
    answers: BTreeMap<u64, u8>,
    ecn_in_force: bool,
    /// Packets that arrived with a congestion mark.
    marks: u64,
    /// Position of the peer's FIN.
    peer_fin: Option<u64>,
    agreed_payload: u16,
    /// Maximum payload by the set-up blocks.
    agreed_at_set_up: u16,
    /// Next new position.
    next: u64,
    fin: Option<u64>,
    /// Fingerprints of the frames sent, up to `next`.
    sent: VecDeque<u64>,
    /// Position that the peer has acknowledged in frames delivered to this side.
    acked: u64,
    /// Maximum number of positions that were outstanding at once.
    most: u64,
    edge: u64,
    /// Largest payload whose probe was answered.
    verified: u16,
    /// Positions received: all below `received`, and single ones above.
    received: u64,
    ahead: BTreeSet<u64>,
    probes_received: BTreeSet<u16>,
    /// Position that this side has acknowledged to the peer.
    sent_ack: u64,
    told_edge: u64,
    told_sack: BTreeSet<u64>,
    /// Times of its packets.
    pub(super) times: Times,
}

/// Returns the mark of an incarnation on the path that a move began.
pub fn on_path(nonce: u64, epoch: u32) -> u64 {
    if epoch == 0 {
        nonce
    } else {
        mix(nonce ^ mix(u64::from(epoch)))
    }
}

/// Returns the 64-bit position of a 16-bit sequence, near `about`.
fn unwrap(seq: u16, isn: u16, about: u64) -> i64 {
    let here = isn.wrapping_add(about as u16);
    about as i64 + i64::from(seq.wrapping_sub(here) as i16)
}

/// Returns a hash of length and content.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        chunk
            .iter()
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte))
    });
    words.fold(bytes.len() as u64, |hash, word| mix(hash ^ word))
}

impl Side {
    /// Creates an incarnation that starts with this set-up block. Payloads of `safe_payload` bytes
    /// need no path verification.
    pub fn new(set_up: &SetUpView<'_>, isn: u16, safe_payload: u16) -> Self {
        Side {
            nonce: set_up.nonce,
            base: set_up.nonce,
            epoch: 0,
            left: false,
            fin_received: false,
            resumed: false,
            isn,
            peer_nonce: 0,
            set_up_credit: set_up.credit,
            has_reset: false,
            forgotten: false,
            max_payload: set_up.max_payload,
            features: set_up.features,
            key: set_up.key.to_vec(),
            max_ack_delay: set_up.max_ack_delay,
            answers: BTreeMap::new(),
            ecn_in_force: false,
            marks: 0,
            peer_fin: None,
            agreed_payload: set_up.max_payload,
            agreed_at_set_up: set_up.max_payload,
            next: 1,
            fin: None,
            sent: VecDeque::from([0]),
            acked: 0,
            most: 0,
            edge: 1,
            verified: safe_payload,
            received: 1,
            ahead: BTreeSet::new(),
            probes_received: BTreeSet::new(),
            sent_ack: 0,
            told_edge: 1 + u64::from(set_up.credit),
            told_sack: BTreeSet::new(),
            times: Times::default(),
        }
    }

    pub(super) fn max_ack_delay(&self) -> Duration {
        Duration::from_micros(self.max_ack_delay.into())
    }

    /// Returns true if this side is the current one of its connection, and knows its peer.
    pub(super) fn is_linked(&self) -> bool {
        self.peer_nonce != 0 && !self.left && !self.forgotten && !self.has_reset
    }

    /// Returns true while positions are sent and not acknowledged.
    pub(super) fn has_outstanding(&self) -> bool {
        self.next > self.acked.max(1)
    }

    /// Returns true if this side has acknowledged all that it has received in order.
    pub(super) fn has_acknowledged(&self) -> bool {
        self.sent_ack >= self.received
    }

    /// Checks that a repeated set-up block of the incarnation is equal, except for credit, which
    /// may grow, and COOKIES. Answers to different incarnations of the peer may have different
    /// features.
    pub fn repeats_set_up(
        &mut self,
        set_up: &SetUpView<'_>,
        isn: u16,
        is_answer: bool,
    ) -> Result<(), String> {
        let features = set_up.features & !COOKIES;
        let before = if is_answer {
            *self.answers.entry(set_up.peer_nonce).or_insert(features)
        } else {
            self.features & !COOKIES
        };
        let equal = isn == self.isn
            && set_up.max_payload == self.max_payload
            && set_up.max_ack_delay == self.max_ack_delay
            && set_up.key == self.key
            && features == before;
        if !equal {
            return Err(format!("a repeated SYN with other contents: {set_up:?}"));
        }
        if set_up.credit < self.set_up_credit {
            return Err(format!(
                "W-38: set-up credit {} after {}",
                set_up.credit, self.set_up_credit
            ));
        }
        self.set_up_credit = set_up.credit;
        self.raise_edge(set_up.credit);
        Ok(())
    }

    /// Records a credit that a repeated GO or DONE gives.
    pub fn raise_edge(&mut self, credit: u16) {
        self.told_edge = self.told_edge.max(1 + u64::from(credit));
    }

    /// Records the incarnation of the peer.
    pub fn link(&mut self, peer_nonce: u64, credit: u16, max_payload: u16, ecn: bool) {
        if self.peer_nonce != peer_nonce {
            self.peer_nonce = peer_nonce;
            (self.received, self.sent_ack) = (1, 0);
            (self.marks, self.peer_fin) = (0, None);
            self.ahead.clear();
        }
        self.edge = self.edge.max(1 + u64::from(credit));
        self.agreed_payload = self.max_payload.min(max_payload);
        self.agreed_at_set_up = self.agreed_payload;
        self.ecn_in_force = self.features & ECN != 0 && ecn;
    }

    /// Creates the state of this side on the path that a GO or DONE with the sequence `seq` begins
    /// (W-106).
    pub fn on_new_path(&self, block: &MoveView, seq: u16, safe_payload: u16) -> Side {
        let set_up = SetUpView {
            max_payload: self.agreed_at_set_up.min(block.max_payload),
            nonce: self.base,
            peer_nonce: 0,
            credit: block.credit,
            max_ack_delay: self.max_ack_delay,
            features: self.features,
            key: &self.key,
        };
        Side {
            nonce: on_path(self.base, block.epoch),
            epoch: block.epoch,
            fin_received: block.fin_received,
            resumed: block.resumed,
            agreed_at_set_up: self.agreed_at_set_up,
            ecn_in_force: self.ecn_in_force,
            marks: self.marks,
            most: if block.resumed { 0 } else { self.most },
            peer_fin: block.fin_received.then_some(0),
            ..Side::new(&set_up, seq.wrapping_sub(1), safe_payload)
        }
    }

    /// Returns true if a repeated GO or DONE may have this sequence: its peer has all before it.
    pub fn may_begin_at(&self, seq: u16) -> bool {
        let oldest = self.acked.max(1);
        unwrap(seq, self.isn, oldest) == oldest as i64
    }

    /// Records the peer's state on this path.
    pub fn link_path(&mut self, peer: &Side) {
        self.peer_nonce = peer.nonce;
        self.edge = self.edge.max(1 + u64::from(peer.set_up_credit));
        self.agreed_payload = self.max_payload.min(peer.max_payload);
        if self.resumed || peer.resumed {
            self.marks = 0; // W-134
        }
        if peer.fin_received {
            (self.fin, self.acked) = (Some(0), 1);
        }
    }

    /// Checks a sent frame with ACK.
    pub fn sends(&mut self, view: &View<'_>, peer: &Side, max_window: u16) -> Result<(), String> {
        self.check_ack(view, peer)?;
        self.check_marks(view)?;
        if let Some(ext) = &view.ext {
            self.check_ext(ext, peer)?;
        }
        self.check_sack(view)?;
        if view.flags & SYN != 0 {
            return Ok(());
        }
        let position = unwrap(view.seq, self.isn, self.next);
        if view.is_data() || view.is_fin() {
            return self.check_numbered(view, position, max_window);
        }
        if position != self.next as i64 {
            return Err(format!(
                "W-12: a bare frame at {position}, next is {}",
                self.next
            ));
        }
        Ok(())
    }

    fn check_numbered(
        &mut self,
        view: &View<'_>,
        position: i64,
        max_window: u16,
    ) -> Result<(), String> {
        let print = if view.flags & FIN != 0 {
            u64::MAX
        } else {
            fingerprint(view.payload)
        };
        if position < self.next as i64 {
            let behind = self.next as i64 - position;
            let Some(before) = self
                .sent
                .len()
                .checked_sub(behind as usize)
                .and_then(|i| self.sent.get(i))
            else {
                return Err(format!(
                    "position {position} sent again, far behind {}",
                    self.next
                ));
            };
            return if *before == print {
                Ok(())
            } else {
                Err(format!("W-30: position {position} with other bytes"))
            };
        }
        let position = position as u64;
        if position > self.next {
            return Err(format!(
                "W-30: position {position} sent, next is {}",
                self.next
            ));
        }
        if let Some(fin) = self.fin {
            return Err(format!("W-54: position {position} after the FIN at {fin}"));
        }
        if position >= self.edge {
            return Err(format!(
                "W-31: position {position} sent, credit edge is {}",
                self.edge
            ));
        }
        // The oldest outstanding position is `acked`; position 0 is the SYN.
        let outstanding = position + 1 - self.acked.max(1);
        if outstanding > u64::from(max_window).min(MAX_WINDOW) {
            return Err(format!(
                "W-31: {outstanding} packets outstanding, {max_window} allowed"
            ));
        }
        self.check_length(view.payload.len())?;
        if view.flags & FIN != 0 {
            self.fin = Some(position);
        }
        self.next += 1;
        self.most = self.most.max(self.next - self.acked.max(1));
        self.sent.push_back(print);
        if self.sent.len() > KEPT {
            self.sent.pop_front();
        }
        Ok(())
    }

    fn check_length(&self, len: usize) -> Result<(), String> {
        if len > usize::from(self.agreed_payload) {
            return Err(format!(
                "W-19: payload of {len}, agreed {}",
                self.agreed_payload
            ));
        }
        if len > usize::from(self.verified) {
            return Err(format!(
                "W-53: payload of {len}, verified {}",
                self.verified
            ));
        }
        Ok(())
    }

    fn check_ack(&mut self, view: &View<'_>, peer: &Side) -> Result<(), String> {
        let ack = unwrap(view.ack, peer.isn, self.sent_ack.max(1));
        if ack < self.sent_ack as i64 {
            return Err(format!(
                "the ack moved back from {} to {ack}",
                self.sent_ack
            ));
        }
        let ack = ack as u64;
        if ack > self.received {
            return Err(format!(
                "W-34: ack {ack}, received {} in order",
                self.received
            ));
        }
        self.sent_ack = ack;
        Ok(())
    }

    fn check_ext(&mut self, ext: &ExtView<'_>, peer: &Side) -> Result<(), String> {
        if let Some(credit) = ext.credit {
            let edge = unwrap(credit, peer.isn, self.told_edge);
            if edge < self.told_edge as i64 {
                return Err(format!(
                    "W-38: the credit edge moved back from {} to {edge}",
                    self.told_edge
                ));
            }
            self.told_edge = edge as u64;
            if self.told_edge > self.sent_ack + MAX_WINDOW {
                return Err(format!(
                    "W-39: credit edge {edge} with ack {}",
                    self.sent_ack
                ));
            }
        }
        if let Some(len) = ext.probed.filter(|len| !self.probes_received.contains(len)) {
            return Err(format!("W-51: PROBED {len} without such a probe"));
        }
        Ok(())
    }

    /// Checks the count of congestion marks (W-112 to W-114).
    fn check_marks(&self, view: &View<'_>) -> Result<(), String> {
        let field = view.ext.and_then(|ext| ext.ce);
        if field.is_some() && !self.ecn_in_force {
            return Err("W-114: CE without the feature".into());
        }
        let bare = view.flags & !EXT == ACK && view.payload.is_empty();
        let due = bare && self.ecn_in_force && self.marks > 0;
        if due != field.is_some() {
            return Err(format!("W-113: CE {field:?} after {} marks", self.marks));
        }
        if field.is_some_and(|count| count != self.marks as u16) {
            return Err(format!("W-112: CE {field:?} after {} marks", self.marks));
        }
        Ok(())
    }

    /// Checks the SACK bitmap. Each bare acknowledgement must report what others have reported; the
    /// positions beyond a bitmap count as missing.
    fn check_sack(&mut self, view: &View<'_>) -> Result<(), String> {
        let sack = view.ext.map_or(&[][..], |ext| ext.sack);
        let bare = view.flags & !EXT == ACK && view.payload.is_empty();
        if sack.is_empty() && !bare {
            return Ok(());
        }
        let first = self.sent_ack + 1;
        let end = first + 8 * sack.len() as u64;
        for position in first..end {
            let bit = position - first;
            let set = sack[(bit / 8) as usize] >> (bit % 8) & 1 == 1;
            if set && !self.ahead.contains(&position) && position >= self.received {
                return Err(format!(
                    "W-42: position {position} reported but not received"
                ));
            }
            if !set && self.told_sack.contains(&position) {
                return Err(format!(
                    "W-35: position {position} was reported before, and not now"
                ));
            }
            if set {
                self.told_sack.insert(position);
            }
        }
        if let Some(position) = self.told_sack.range(end..end.max(first + MAX_SACK)).next() {
            return Err(format!(
                "W-35: position {position} was reported before, and is beyond the bitmap now"
            ));
        }
        self.told_sack = self.told_sack.split_off(&first);
        Ok(())
    }

    /// Returns true when both FINs are acknowledged.
    fn has_ended(&self) -> bool {
        self.fin.is_some_and(|fin| self.acked > fin)
            && self.peer_fin.is_some_and(|fin| self.received > fin)
    }

    /// Records a delivered frame of the peer's incarnation. Returns false if its acknowledgement is
    /// too old for it to be taken (W-33).
    pub fn receives(&mut self, view: &View<'_>, peer_isn: u16, ce: bool) -> bool {
        let ack = unwrap(view.ack, self.isn, self.acked.max(1));
        if ack + (self.most as i64) < self.acked as i64 {
            return false;
        }
        if view.is_data() || view.is_fin() {
            // W-112: not in TIME-WAIT.
            self.marks += u64::from(ce && !self.has_ended());
            let position = unwrap(view.seq, peer_isn, self.received);
            if view.is_fin() {
                self.peer_fin = Some(position as u64);
            }
            if position >= self.received as i64 {
                self.ahead.insert(position as u64);
            }
            while self.ahead.remove(&self.received) {
                self.received += 1;
            }
        }
        if ack > self.acked as i64 && ack <= self.next as i64 {
            self.acked = ack as u64;
        }
        if view.flags & super::frame::PRB != 0 {
            self.probes_received.insert(view.payload.len() as u16);
        }
        let Some(ext) = &view.ext else { return true };
        if let Some(credit) = ext.credit {
            let edge = unwrap(credit, self.isn, self.edge);
            if edge > self.edge as i64 {
                self.edge = edge as u64;
            }
        }
        if let Some(probed) = ext.probed {
            self.verified = self.verified.max(probed);
        }
        true
    }
}

#[cfg(test)]
mod tests;
