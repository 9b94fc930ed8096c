//! Moves to another pair of interfaces (section 10).
//!
//! A connection in trouble *asks* over every available path, *goes* to the first that answers, and
//! is *done* when the peer has followed. In between it is *frozen*: it sends and accepts only MOVE
//! frames and resets. Both ends then continue from the bytes received, under new sequence numbers.

use super::{Acks, Connection, Cx};
use crate::addr::{MacAddr, NodeAddr};
use crate::api::State;
use crate::congestion::Aimd;
use crate::counters::DropCounter;
use crate::image::ConnImage;
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::seq::Seq;
use crate::state::Input;
use crate::time::Duration;
use crate::timers::Timer;
use crate::wire::{FEATURE_RESUME, MAX_SETUP, MAX_WINDOW, Move, SetUp, Step};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Timeouts without a frame from the peer before other paths are asked (W-103).
const TROUBLE: u8 = 3;
/// First interval between rounds of ASK, and between repetitions of GO.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum of these intervals.
const MAX_INTERVAL: Duration = Duration::from_millis(200);
/// Rounds of ASK after which frames from a dead interface count again: it has come back, and no
/// other path answers.
const DEAD_ROUNDS: u32 = 8;
/// Unanswered GOs before other paths are asked again.
const GO_TRIES: u32 = 6;

/// Progress of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No move in progress.
    #[default]
    Settled,
    /// ASKs are sent; the connection is unchanged, unless it is frozen.
    Asking(u32),
    /// The connection has moved and waits for the peer.
    Gone,
}

/// Move state of a connection that may move or may be resumed.
#[derive(Debug, Default)]
pub(crate) struct Mobility {
    /// The other addresses of this node, as announced to the peer.
    pub(super) own: Box<[u8]>,
    /// The peer's addresses, the one used in the set-up first; only that one unless both sides
    /// offered moves. Empty until the set-up.
    pub(super) peer: Box<[NodeAddr]>,
    /// Both sides offered to move (W-100).
    pub(super) rails: bool,
    /// Both sides offered to resume (W-130).
    pub(super) resume: bool,
    /// This side has lost its state, and the peer has not confirmed that it knows (W-134).
    lost: bool,
    /// Maximum payload agreed on at set-up.
    pub(super) base: u16,
    /// Maximum payload in the last GO: its credit counts packets of this size, even if the
    /// interface carries larger ones before it is answered (W-38).
    offered: u16,
    /// Epoch of the last GO.
    offered_epoch: u32,
    /// This side's epochs are odd (W-104).
    odd: bool,
    /// Epoch of the last move.
    pub(super) epoch: u32,
    phase: Phase,
    tries: u32,
    /// The interface is known to be dead: frames still in its queue do not prove that the path
    /// works.
    known_dead: bool,
    /// The GO or DONE to be sent.
    step: Option<Step>,
    /// Number of completed moves.
    pub(super) moves: u64,
}

/// An ASK to be sent through the node's other endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) block: Move,
    /// Addresses at which the peer may be reachable.
    pub(crate) addresses: Vec<NodeAddr>,
    /// The current path need not be probed.
    pub(crate) skip_current: bool,
}

/// Action on a received MOVE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveAction {
    /// Answer that this path is usable.
    Answer,
    /// Go to the path it arrived on.
    Go,
    /// The peer is on the path it arrived on: follow, and continue there.
    Come,
    /// The peer has followed.
    Finish,
    /// Repeat the DONE.
    Repeat,
    /// The peer no longer has the connection.
    Lost,
    /// Take it as the acknowledgement of our SYN (W-139).
    Establish,
}

impl Mobility {
    /// Returns the move state to offer in a set-up block: to resume (W-130), and to move if the
    /// node has other addresses and the block has room (W-100).
    pub(super) fn offer(cx: &Cx, peer: NodeAddr) -> Box<Mobility> {
        let remote = peer != cx.own && peer.mac().is_some_and(|mac| !cx.rails.contains(&mac));
        let own = if remote && usize::from(cx.max_payload) >= MAX_SETUP {
            cx.rails.iter().flat_map(|mac| mac.0).collect()
        } else {
            Box::default()
        };
        Box::new(Mobility {
            own,
            ..Mobility::default()
        })
    }

    /// Returns the move state of a connection that was lost after this image was taken: a GO is to
    /// be sent (W-131).
    pub(super) fn lost(image: &ConnImage) -> Mobility {
        let named = image.rails.iter().filter(|mac| mac.0 != [0; 6]);
        let named = named.map(|mac| NodeAddr::Mac(*mac));
        let mut mobility = Mobility {
            peer: core::iter::once(image.peer).chain(named).collect(),
            resume: true,
            lost: true,
            base: image.payload,
            odd: image.nonce > image.peer_nonce,
            phase: Phase::Gone,
            ..Mobility::default()
        };
        mobility.rails = mobility.peer.len() > 1;
        mobility.epoch = mobility.epoch_above(image.epoch);
        mobility
    }

    /// Returns the maximum payload for the GO with this epoch, on an interface that can receive
    /// `max_payload` now.
    fn offers(&mut self, epoch: u32, max_payload: u16) -> u16 {
        if self.offered_epoch != epoch {
            self.offered_epoch = epoch;
            self.offered = self.base;
        }
        self.offered = self.offered.min(max_payload);
        self.offered
    }

    /// Begins a round of ASK under this side's next epoch above `above` (W-104).
    fn ask(&mut self, above: u32) {
        self.phase = Phase::Asking(self.epoch_above(above));
    }

    /// Returns this side's next epoch (W-104).
    fn epoch_above(&self, above: u32) -> u32 {
        let next = above.saturating_add(1);
        let other = (next % 2 == 1) != self.odd;
        next.saturating_add(other.into())
    }
}

impl Connection {
    /// Reads the peer's set-up block, which decides whether moves (W-100) and resumption (W-130)
    /// are enabled.
    pub(super) fn learn_rails(&mut self, block: &SetUp<'_>) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        mobility.rails = !mobility.own.is_empty() && !block.rails.is_empty();
        mobility.resume = block.features & FEATURE_RESUME != 0;
        if !mobility.rails && !mobility.resume {
            self.mobility = None;
            return;
        }
        if !mobility.rails {
            mobility.own = Box::default();
        }
        let named = if mobility.rails { block.rails } else { &[] };
        let named = named
            .as_chunks()
            .0
            .iter()
            .map(|mac| NodeAddr::Mac(MacAddr(*mac)));
        mobility.peer = core::iter::once(self.key.peer).chain(named).collect();
        mobility.base = self.agreed;
        mobility.odd = self.nonce > block.nonce;
    }

    /// Returns the nonce by which other endpoints of the node find this connection, if it can move.
    pub(crate) fn moving_nonce(&self) -> Option<u64> {
        self.mobility.as_ref().map(|_| self.nonce)
    }

    /// Returns true if this MOVE acknowledges our SYN: its sender lost its state between the set-up
    /// and its answer to our SYN+ACK (W-139).
    fn opens(&self, block: &Move, here: bool) -> bool {
        let resume = self.mobility.as_ref().is_some_and(|m| m.resume);
        let asks = block.step == Step::Go && block.resumed;
        self.state == State::SynReceived && resume && asks && here
    }

    fn may_move(&self) -> bool {
        self.attached && self.state.is_synchronized()
    }

    /// Records a timeout without a frame from the peer.
    pub(super) fn unanswered(&mut self, cx: &Cx) {
        self.silent = self.silent.saturating_add(1);
        if self.silent >= TROUBLE {
            self.leave_path(cx);
        }
    }

    /// Asks other paths because the current interface is dead. Returns false when the connection
    /// cannot move.
    pub(crate) fn abandon_path(&mut self, cx: &Cx) -> bool {
        let leaves = self.leave_path(cx);
        if let Some(mobility) = self.mobility.as_mut().filter(|_| leaves && !self.frozen) {
            mobility.known_dead = true;
        }
        leaves
    }

    /// Asks other paths because the current one fails. Returns false when the connection cannot
    /// move.
    fn leave_path(&mut self, cx: &Cx) -> bool {
        let may = self.may_move();
        let Some(mobility) = self.mobility.as_mut().filter(|m| may && m.rails) else {
            return false;
        };
        if mobility.phase == Phase::Settled {
            mobility.ask(mobility.epoch);
            mobility.tries = 0;
            self.notes.ask_paths = true;
            self.timers.set(Timer::Move, cx.now + FIRST_INTERVAL);
        }
        true
    }

    /// Starts the peer timeout (W-46), unless it is running.
    pub(crate) fn start_peer_timeout(&mut self, cx: &Cx) {
        self.timers.start(Timer::PeerDead, cx.peer_deadline());
    }

    /// Records a frame received on the current path: no move is needed.
    pub(super) fn path_works(&mut self) {
        self.silent = 0;
        if let Some(mobility) = &mut self.mobility
            && matches!(mobility.phase, Phase::Asking(_))
            && !self.frozen
            && !(mobility.known_dead && mobility.tries < DEAD_ROUNDS)
        {
            mobility.known_dead = false;
            mobility.phase = Phase::Settled;
            self.timers.stop(Timer::Move);
        }
    }

    /// Handles the expiry of the move timer.
    pub(super) fn on_move_timer(&mut self, cx: &Cx) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        mobility.tries += 1;
        match mobility.phase {
            Phase::Settled => return,
            Phase::Asking(epoch) => {
                mobility.ask(epoch);
                self.notes.ask_paths = true;
            }
            Phase::Gone if mobility.rails && mobility.tries > GO_TRIES => {
                mobility.tries = 0;
                mobility.ask(mobility.epoch);
                self.notes.ask_paths = true;
            }
            Phase::Gone => mobility.step = Some(Step::Go),
        }
        let wait = (FIRST_INTERVAL * (1 << mobility.tries.min(8))).min(MAX_INTERVAL);
        self.timers.set(Timer::Move, cx.now + wait);
    }

    /// Returns true if the nodes agreed that the connection may move to another interface (W-100).
    pub(crate) fn has_rails(&self) -> bool {
        self.mobility
            .as_ref()
            .is_some_and(|mobility| mobility.rails)
    }

    /// Returns the addresses to ask now.
    pub(crate) fn question(&self) -> Option<Question> {
        let mobility = self.mobility.as_ref()?;
        let Phase::Asking(epoch) = mobility.phase else {
            return None;
        };
        let block = self.move_block(Step::Ask, epoch, 0);
        Some(Question {
            block,
            addresses: mobility.peer.to_vec(),
            skip_current: !self.frozen,
        })
    }

    /// Builds a move block of this connection; payload and credit are those of the sending
    /// interface.
    pub(crate) fn move_block(&self, step: Step, epoch: u32, max_payload: u16) -> Move {
        Move {
            step,
            finished: self.recv.finished,
            resumed: false,
            max_payload,
            epoch,
            nonce: self.peer_nonce,
            sender_nonce: self.nonce,
            received: self.recv.delivered,
            credit: 0,
        }
    }

    /// Returns true when a GO or DONE is to be sent.
    pub(super) fn has_move(&self) -> bool {
        self.mobility.as_ref().is_some_and(|m| m.step.is_some())
    }

    /// Returns the GO or DONE to be sent now, with its sequence number.
    pub(super) fn take_move(&mut self, cx: &Cx) -> Option<(Seq, Move)> {
        let mobility = self.mobility.as_mut()?;
        let step = mobility.step.take()?;
        let epoch = mobility.epoch;
        let resumed = mobility.lost;
        let payload = if step == Step::Go {
            mobility.offers(epoch, cx.max_payload)
        } else {
            self.agreed
        };
        let mut block = Move {
            resumed, // W-131, W-134
            ..self.move_block(step, epoch, payload)
        };
        if step == Step::Go {
            block.credit = self.recv.credit_at(payload);
            return Some((self.send.next(), block));
        }
        self.recv.raise_edge();
        block.credit = self.recv.credit();
        // A peer that has not received this GO or DONE has acknowledged nothing since.
        Some((self.send.una, block))
    }

    /// Judges a MOVE from `src` (W-102, W-104): the action, or the counter of dropped frames.
    /// `here` is true if it came on the current path.
    pub(crate) fn judge_move(
        &self,
        block: &Move,
        src: NodeAddr,
        here: bool,
    ) -> Result<MoveAction, DropCounter> {
        let Some(mobility) = &self.mobility else {
            return Err(|c| &mut c.rx_drop_move_unknown);
        };
        if block.nonce != self.nonce || block.sender_nonce != self.peer_nonce {
            return Err(|c| &mut c.rx_drop_move_unknown);
        }
        if !mobility.peer.contains(&src) {
            return Err(|c| &mut c.rx_drop_move_address);
        }
        let opens = self.opens(block, here);
        if !opens && !self.may_move() {
            return Err(|c| &mut c.rx_drop_move_state);
        }
        let asked = mobility.phase == Phase::Asking(block.epoch);
        let gone = self.frozen && mobility.epoch == block.epoch;
        let newer = block.epoch > mobility.epoch;
        let repeated = mobility.epoch == block.epoch && here && !self.frozen;
        // W-133: resumption needs the feature, and stays on the path unless both sides may move.
        let may_go = if mobility.rails {
            !block.resumed || mobility.resume
        } else {
            here && block.resumed && mobility.resume
        };
        let action = match block.step {
            Step::Ask if newer && mobility.rails => MoveAction::Answer,
            Step::Answer if asked => MoveAction::Go,
            Step::Go if newer && opens => MoveAction::Establish,
            Step::Go if newer && may_go => MoveAction::Come,
            Step::Go if repeated && may_go => MoveAction::Repeat,
            Step::Done if gone && here => MoveAction::Finish,
            Step::Gone if asked || gone => MoveAction::Lost,
            _ => return Err(|c| &mut c.rx_drop_move_stale),
        };
        let placed = matches!(
            action,
            MoveAction::Come | MoveAction::Finish | MoveAction::Establish
        );
        if placed && !self.send.may_have_received(block.received, block.finished) {
            return Err(|c| &mut c.rx_drop_move_position);
        }
        Ok(action)
    }

    /// Freezes the connection, which is now on the path that answered, and sends GO (W-105).
    pub(crate) fn go(&mut self, cx: &mut Cx) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        let Phase::Asking(epoch) = mobility.phase else {
            return;
        };
        mobility.epoch = epoch;
        mobility.phase = Phase::Gone;
        mobility.known_dead = false;
        mobility.tries = 0;
        mobility.step = Some(Step::Go);
        self.frozen = true;
        self.notes.progress = true;
        self.recv.release(&mut cx.pool);
        self.stop_sending();
        self.timers.set(Timer::Move, cx.now + FIRST_INTERVAL);
        self.start_peer_timeout(cx);
    }

    fn stop_sending(&mut self) {
        for timer in [
            Timer::Retransmit,
            Timer::TailProbe,
            Timer::Loss,
            Timer::Ack,
            Timer::Persist,
            Timer::Path,
        ] {
            self.timers.stop(timer);
        }
        self.probe = false;
        (self.path_pending, self.path_tries) = (false, 0);
        self.acks = Acks::default();
    }

    /// Resumes after the bytes that the peer has received, now that both ends are on the new path
    /// (W-106). The block was checked by `judge_move`.
    pub(crate) fn resume(&mut self, cx: &mut Cx, seq: Seq, block: &Move) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        mobility.epoch = block.epoch;
        mobility.phase = Phase::Settled;
        mobility.known_dead = false;
        mobility.step = (block.step == Step::Go).then_some(Step::Done);
        if mobility.lost || block.resumed {
            cx.counters.connections_resumed += 1;
            self.ecn.restart(); // W-134
        } else {
            mobility.moves += 1;
            cx.counters.connections_moved += 1;
        }
        // A GO is confirmed by its DONE; a DONE by the next move of the peer.
        mobility.lost &= block.step == Step::Go;
        let agreed = match block.step {
            Step::Done => mobility.offers(block.epoch, cx.max_payload),
            _ => mobility.base.min(cx.max_payload),
        };
        let agreed = agreed.min(block.max_payload);
        self.agree(agreed);
        self.stop_sending();
        self.timers.stop(Timer::Move);
        self.timers.stop(Timer::PeerDead);
        self.queries = 0;
        self.frozen = false;
        self.silent = 0;
        let fin_acked =
            self.send
                .restart(block.received, block.finished, block.credit.min(MAX_WINDOW));
        self.recv.restart(seq, self.agreed, &mut cx.pool);
        self.recovery = Recovery::default();
        self.rtt = Rtt::default();
        self.congestion = Aimd::new(cx.max_window().into(), self.ecn.in_force);
        self.ecn.base = 0; // W-117: transmissions are numbered from 0 again
        self.path_pending = !self.path_verified();
        self.acks.now = true;
        self.notes.progress = true;
        self.timers
            .set(Timer::KeepAlive, cx.now + cx.config.keepalive);
        if fin_acked {
            self.advance(cx, Input::FinAcked);
        }
    }

    /// Repeats the DONE for a repeated GO.
    pub(crate) fn repeat_done(&mut self) {
        if let Some(mobility) = &mut self.mobility {
            mobility.step = Some(Step::Done);
        }
    }
}
