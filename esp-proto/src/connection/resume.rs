//! Resumption: a connection continues after one side has lost its state (section 10, W-130 to
//! W-138).
//!
//! The side that lost it knows the [image](ConnImage) and the stream positions. It starts frozen,
//! as after a GO, and continues when the peer's DONE arrives.

use super::moves::Mobility;
use super::{AckRequests, Connection, Cx, Key};
use crate::addr::{MacAddr, NodeAddr};
use crate::api::{Buffers, ConnId, State};
use crate::image::{ConnImage, Positions};
use crate::recv::RecvSide;
use crate::send::{FinState, SendSide};
use crate::seq::Seq;
use crate::time::Duration;
use crate::timers::{Timer, TimerTable};
use crate::wire::MAX_RAILS;
use alloc::boxed::Box;

impl Connection {
    /// Creates a connection whose state was lost. `seqs` are unpredictable: the first sequence to
    /// be used, and one that stands for the unknown next sequence of the peer.
    pub(crate) fn resumed(
        cx: &Cx,
        id: ConnId,
        (image, at): (&ConnImage, &Positions),
        buffers: Buffers,
        seqs: (Seq, Seq),
    ) -> Self {
        let key = Key {
            local_port: image.local_port,
            peer: image.peer,
            peer_port: image.peer_port,
        };
        // Our FIN may have been sent, or even received; if it was not, it is sent again (W-135).
        let state = match (at.finished, at.peer_finished) {
            (false, false) => State::Established,
            (false, true) => State::CloseWait,
            (true, false) => State::FinWait1,
            (true, true) => State::Closing,
        };
        let secrets = (image.nonce, seqs.0);
        let mut conn = Connection::new(cx, id, key, secrets, None, state);
        conn.timers = TimerTable::new();
        conn.visible = true;
        conn.attached = true;
        conn.frozen = true;
        conn.peer_nonce = image.peer_nonce;
        conn.peer_ack_delay = Duration::from_micros(image.max_ack_delay.into());
        conn.ecn.offered = image.ecn;
        conn.ecn.in_force = image.ecn;
        conn.ack_requests = AckRequests::new(buffers.tx);
        conn.agree(image.payload.min(cx.max_payload));
        conn.send = SendSide::resumed(seqs.0, at.acked, at.written);
        if at.finished {
            conn.send.fin = FinState::Sent;
        }
        conn.recv = RecvSide::resumed(seqs.1, conn.agreed, buffers.rx, at);
        conn.mobility = Some(Box::new(Mobility::lost(image)));
        // W-132: frames sent before the loss have left the network by then.
        conn.timers.set(Timer::Move, cx.now + cx.config.time_wait);
        conn.start_peer_timeout(cx);
        // Announces the epoch to the host before the first GO.
        conn.notes.progress = true;
        conn
    }

    /// Returns the image of a connection that can be resumed; `None` before it is established and
    /// if the peer does not offer it (W-130).
    pub(crate) fn image(&self) -> Option<ConnImage> {
        let mobility = self.mobility.as_ref().filter(|m| m.resume)?;
        if !self.state.is_synchronized() {
            return None;
        }
        let mut rails = [MacAddr::default(); MAX_RAILS];
        let others = mobility.peer.iter().filter_map(|addr| addr.mac());
        let others = others.filter(|mac| mobility.rails && NodeAddr::Mac(*mac) != self.key.peer);
        for (place, mac) in rails.iter_mut().zip(others) {
            *place = mac;
        }
        Some(ConnImage {
            local_port: self.key.local_port,
            peer: self.key.peer,
            peer_port: self.key.peer_port,
            nonce: self.nonce,
            peer_nonce: self.peer_nonce,
            epoch: mobility.epoch,
            payload: mobility.base,
            max_ack_delay: u16::try_from(self.peer_ack_delay.as_micros()).unwrap_or(u16::MAX),
            ecn: self.ecn.in_force,
            rails,
        })
    }
}
