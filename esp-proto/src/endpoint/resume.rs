//! Resumption of connections whose endpoint has lost its state (W-130 to W-138).

use super::Endpoint;
use super::moves::MoveFrame;
use crate::api::{Buffers, CloseReason, ConnId, State};
use crate::connection::{Connection, Key};
use crate::image::{ConnImage, Positions, ResumeError};
use crate::time::Instant;
use crate::wire::{MIN_MAX_PAYLOAD, Step};
use alloc::boxed::Box;

impl Endpoint {
    /// Returns the image that the host must keep to resume a connection; `None` if it cannot be
    /// resumed, because it is not established or the peer does not offer this.
    pub fn image(&self, conn: ConnId) -> Option<ConnImage> {
        self.table.get(conn)?.image()
    }

    /// Resumes a connection of an earlier endpoint with this address, whose state is lost.
    ///
    /// The bytes from `acked` to `written` must be in the host's send buffer; further calls are
    /// those of an established connection. Nothing is sent for a TIME-WAIT (100 ms), then the peer
    /// is asked to continue. [`Event::Closed`](crate::Event::Closed) follows if it does not answer,
    /// or no longer has the connection.
    ///
    /// Wrong values harm no other connection: the peer ignores requests without its nonces.
    pub fn resume(
        &mut self,
        now: Instant,
        image: &ConnImage,
        at: &Positions,
        buffers: Buffers,
    ) -> Result<ConnId, ResumeError> {
        self.clock(now);
        if !image.is_sound(self.cx.own)
            || !at.fit(buffers.rx, buffers.tx)
            || buffers.rx < u32::from(MIN_MAX_PAYLOAD)
        {
            return Err(ResumeError::BadImage);
        }
        let key = Key {
            local_port: image.local_port,
            peer: image.peer,
            peer_port: image.peer_port,
        };
        if self.table.find_nonce(image.nonce).is_some() {
            return Err(ResumeError::InUse);
        }
        if let Some(slot) = self.table.find(&key) {
            match self.table.at(slot).map(|conn| conn.state) {
                None | Some(State::TimeWait) => self.reclaim(slot),
                // Begun by a late copy of the connection's own SYN.
                Some(State::SynReceived) => self.finish(slot, CloseReason::ConnectTimedOut, None),
                Some(_) => return Err(ResumeError::InUse),
            }
        }
        let id = self.table.next_id().ok_or(ResumeError::TooMany)?;
        let seqs = (self.secrets().1, self.secrets().1);
        let conn = Connection::resumed(&self.cx, id, (image, at), buffers, seqs);
        self.table.insert(Box::new(conn));
        self.moved_keys.remove(&key);
        self.settle(id.slot);
        Ok(id)
    }

    /// Answers no frame of an unknown connection before this instant, as long as programs may bring
    /// connections of an earlier endpoint (W-136).
    pub fn expect_resumptions(&mut self, until: Instant) {
        self.adopts_until = until;
    }

    /// Returns true while connections of an earlier endpoint may still be resumed here.
    pub(super) fn is_adopting(&self) -> bool {
        self.cx.now < self.adopts_until
    }

    /// Returns true if a frame of an unknown connection must not be answered, and counts it
    /// (W-136).
    pub(super) fn stays_silent(&mut self) -> bool {
        let adopting = self.is_adopting();
        self.cx.counters.rx_drop_adopting += u64::from(adopting);
        adopting
    }

    /// Processes a MOVE for a node with this one interface: a resumption.
    pub(super) fn serve_move(&mut self, frame: &MoveFrame) {
        match self.judge_move(frame, true) {
            Some((conn, Ok(action))) => self.apply_move(conn, frame, action),
            Some((_, Err(counter))) => self.drop_move(counter),
            None => {
                self.drop_move(|c| &mut c.rx_drop_move_unknown);
                if frame.block.step == Step::Go {
                    self.deny_move(frame); // W-137
                }
            }
        }
    }
}
