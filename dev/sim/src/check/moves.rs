//! Moves and resumptions: sequences, credit and path verification begin again on the new path
//! (W-106), and are checked there as on that of the set-up.

use super::deadlines::Times;
use super::flow::{Side, on_path};
use super::frame::{DONE, GO, MoveView, View};
use super::{Checker, Key, REMEMBERED, safe_payload};
use crate::carrier::Carrier;

impl Checker {
    /// Handles a MOVE that a node sends. GO and DONE begin a new path; the others change nothing.
    pub(super) fn moves(
        &mut self,
        key: Key,
        view: &View<'_>,
        carrier: Carrier,
    ) -> Result<(), String> {
        let Some(block) = view.move_block() else {
            return Ok(());
        };
        let is_resumption = block.step > GO || (block.step == GO && block.resumed);
        if carrier.is_udp() && !is_resumption {
            return Err(format!("W-125: step {} of a MOVE over UDP", block.step));
        }
        if ![GO, DONE].contains(&block.step) {
            return Ok(());
        }
        let reverse = (key.2, key.3, key.0, key.1);
        self.paths.extend([key, reverse]);
        self.begin_path(key, &block, view.seq, safe_payload(carrier))?;
        if block.step == DONE {
            self.link_path(key, block.sender, &block)?;
        }
        Ok(())
    }

    /// Begins a path, or checks that a repeated GO or DONE has the first sequence that is not
    /// acknowledged.
    fn begin_path(
        &mut self,
        key: Key,
        block: &MoveView,
        seq: u16,
        safe_payload: u16,
    ) -> Result<(), String> {
        let mut all: Vec<&mut Side> = self.sides.values_mut().flatten().collect();
        all.retain(|side| side.base == block.sender);
        if let Some(side) = all.iter_mut().find(|side| side.epoch == block.epoch) {
            if !side.may_begin_at(seq) {
                return Err(format!("W-105: another sequence {seq}: {block:?}"));
            }
            side.set_up_credit = side.set_up_credit.max(block.credit);
            side.raise_edge(block.credit);
            return Ok(());
        }
        let Some(last) = all.iter().max_by_key(|side| side.epoch) else {
            return Err(format!("W-102: no such connection: {block:?}"));
        };
        if last.epoch > block.epoch {
            return Err(format!("W-104: {block:?} after epoch {}", last.epoch));
        }
        let mut next = last.on_new_path(block, seq, safe_payload);
        next.times = Times::starting(self.now);
        for side in all {
            side.left = true;
        }
        let sides = self.sides.entry(key).or_default();
        // A half-open connection that a late SYN began (W-136).
        for side in sides.iter_mut().filter(|side| side.base != block.sender) {
            side.forgotten = true;
        }
        sides.push(next);
        if sides.len() > REMEMBERED {
            sides.remove(0);
        }
        Ok(())
    }

    /// Links the path of `nonce`, which sends from `key`, with that of its peer.
    fn link_path(&mut self, key: Key, nonce: u64, block: &MoveView) -> Result<(), String> {
        let peer = if nonce == block.sender {
            block.receiver
        } else {
            block.sender
        };
        let reverse = (key.2, key.3, key.0, key.1);
        let peer = on_path(peer, block.epoch);
        let Some(at) = self.position(reverse, peer) else {
            return Err(format!("W-105: DONE without a GO: {block:?}"));
        };
        let Some(own) = self.position(key, on_path(nonce, block.epoch)) else {
            return Ok(()); // superseded in the meantime
        };
        let mut side = self.sides.get_mut(&key).map(|sides| sides.remove(own));
        if let (Some(side), Some(sides)) = (&mut side, self.sides.get(&reverse))
            && side.peer_nonce == 0
        {
            side.link_path(&sides[at]);
        }
        self.sides.entry(key).or_default().splice(own..own, side);
        Ok(())
    }

    fn position(&self, key: Key, nonce: u64) -> Option<usize> {
        self.sides
            .get(&key)?
            .iter()
            .position(|side| side.nonce == nonce)
    }

    /// Records that a node received a MOVE: after DONE it may send on the path that its GO began.
    pub(super) fn receives_move(&mut self, view: &View<'_>) {
        let Some(block) = view.move_block().filter(|block| block.step == DONE) else {
            return;
        };
        let key = (view.dst, view.dst_port, view.src, view.src_port);
        self.done.push((key, block));
    }

    /// Processes the MOVEs that nodes have received: a node with several interfaces does so after a
    /// batch of frames, another one at once.
    pub fn process_moves(&mut self) {
        for (key, block) in std::mem::take(&mut self.done) {
            // A forged one has no path.
            let _ = self.link_path(key, block.receiver, &block);
        }
    }
}
