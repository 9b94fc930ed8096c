//! Moving to another pair of interfaces (section 10).
//!
//! Who is in trouble *asks* over every path there is, *goes* over the first that answers, and is *done* when the peer has
//! come. Between going and done it is *frozen*: it takes and sends nothing but moves. Both ends then go on from the bytes
//! received, under sequences not used before.

use super::asking::Asking;
use super::{Acks, Connection, Cx, Path};
use crate::addr::MacAddr;
use crate::api::{CloseReason, ResetReason, State};
use crate::recovery::Recovery;
use crate::rtt::Rtt;
use crate::send::FinState;
use crate::seq::Seq;
use crate::state::Input;
use crate::time::Duration;
use crate::timers::Timer;
use crate::wire::{MAX_SETUP, MAX_WINDOW, Move, SAFE_PAYLOAD, SetUp, Step};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Time-outs without a sign of life before other paths are asked (W-103).
const TROUBLE: u8 = 3;
/// First interval between rounds of questions, and between repetitions of GO.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
/// Longest interval.
const LAST_INTERVAL: Duration = Duration::from_millis(200);
/// Rounds of questions after which a sign of life counts again from an interface that was dead: it came back, and the
/// others lead nowhere.
const DEAD_ROUNDS: u32 = 8;
/// GOs without an answer before other paths are asked again.
const GO_TRIES: u32 = 6;

/// Where a move stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is planned.
    Settled,
    /// Questions are out; nothing has changed yet, unless the connection is frozen.
    Asking(u32),
    /// It has gone and waits for the peer.
    Gone,
}

/// What a connection that may move must know.
#[derive(Debug)]
pub(crate) struct Mobility {
    /// The other addresses of this node, as told to the peer.
    own: Box<[u8]>,
    /// The peer's addresses, the first is that of the set-up. Empty until it has agreed.
    peer: Vec<MacAddr>,
    /// Largest payload agreed at set-up.
    base: u16,
    /// This side's moves have odd numbers (W-104).
    odd: bool,
    /// The last move.
    epoch: u32,
    phase: Phase,
    tries: u32,
    /// The interface is known to be dead: what still comes from its queue is no sign of life.
    known_dead: bool,
    /// A GO or DONE is to be sent.
    step: Option<Step>,
    /// Moves completed.
    moves: u64,
}

/// The question a host carries to its other endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) block: Move,
    /// Where the peer may be reached.
    pub(crate) addresses: Vec<MacAddr>,
    /// The present path need not be asked.
    pub(crate) skip_present: bool,
}

/// What to do with a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveVerdict {
    /// Say that the path would do.
    Answer,
    /// Go to the path it came on.
    Go,
    /// The peer is on the path it came on: go there, and on from there.
    Come,
    /// The peer has come.
    Finish,
    /// Say once more that we came.
    Repeat,
    /// The peer has no such connection any more.
    Lost,
    /// Nothing; counted under this.
    Unknown,
    Address,
    Stale,
    Position,
    State,
}

impl Mobility {
    /// The set-up block of a node with these other addresses offers to move, if it fits (W-100).
    pub(super) fn offer(cx: &Cx<'_>, peer: MacAddr) -> Option<Box<Mobility>> {
        let stranger = peer != cx.own && !cx.rails.contains(&peer);
        if cx.rails.is_empty() || !stranger || usize::from(cx.max_payload) < MAX_SETUP {
            return None;
        }
        let own = cx.rails.iter().flat_map(|mac| mac.0).collect();
        Some(Box::new(Mobility {
            own,
            peer: Vec::new(),
            base: 0,
            odd: false,
            epoch: 0,
            phase: Phase::Settled,
            tries: 0,
            known_dead: false,
            step: None,
            moves: 0,
        }))
    }

    /// What the set-up block says.
    pub(super) fn rails(&self) -> &[u8] {
        &self.own
    }

    /// The next number of this side above `above` (W-104).
    fn next_epoch(&self, above: u32) -> u32 {
        let next = above.saturating_add(1);
        if (next % 2 == 1) == self.odd {
            next
        } else {
            next.saturating_add(1)
        }
    }
}

impl Connection {
    /// The peer's set-up block came: is moving in force (W-100)?
    pub(super) fn learn_rails(&mut self, block: &SetUp<'_>) {
        if block.rails.is_empty() {
            self.mobility = None;
        }
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        let named = block
            .rails
            .as_chunks::<6>()
            .0
            .iter()
            .map(|mac| MacAddr(*mac));
        mobility.peer = core::iter::once(self.key.peer).chain(named).collect();
        mobility.base = self.agreed;
        mobility.odd = self.nonce > block.nonce;
    }

    /// By which number other endpoints of the node find this connection; 0 when it cannot move.
    pub(crate) fn moving_nonce(&self) -> u64 {
        if self.mobility.is_some() {
            self.nonce
        } else {
            0
        }
    }

    pub(crate) fn own_nonce(&self) -> u64 {
        self.nonce
    }

    /// Moves completed.
    pub(crate) fn moves(&self) -> u64 {
        self.mobility.as_ref().map_or(0, |mobility| mobility.moves)
    }

    fn may_move(&self) -> bool {
        self.attached && self.state.is_synchronized()
    }

    /// A time-out without a sign of life.
    pub(super) fn unanswered(&mut self, cx: &Cx<'_>) {
        self.silent = self.silent.saturating_add(1);
        if self.silent >= TROUBLE {
            self.leave_path(cx);
        }
    }

    /// The present interface is dead: ask other paths. False when this connection cannot.
    pub(crate) fn abandon_path(&mut self, cx: &Cx<'_>) -> bool {
        let leaves = self.leave_path(cx);
        if let Some(mobility) = self.mobility.as_mut().filter(|_| leaves && !self.frozen) {
            mobility.known_dead = true;
        }
        leaves
    }

    /// The present path is no good: ask others. False when this connection cannot.
    fn leave_path(&mut self, cx: &Cx<'_>) -> bool {
        let may = self.may_move();
        let Some(mobility) = self.mobility.as_mut().filter(|m| may && !m.peer.is_empty()) else {
            return false;
        };
        if mobility.phase == Phase::Settled {
            mobility.phase = Phase::Asking(mobility.next_epoch(mobility.epoch));
            mobility.tries = 0;
            self.notes.ask_paths = true;
            self.timers.set(Timer::Move, cx.now + FIRST_INTERVAL);
        }
        true
    }

    /// The interface is gone for good: the peer must be found elsewhere within the peer time-out, whatever it is owed.
    pub(crate) fn start_to_die(&mut self, cx: &Cx<'_>) {
        self.timers
            .start(Timer::PeerDead, cx.now + cx.config.peer_timeout / 2);
    }

    /// A sign of life on the present path: nobody needs to move.
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

    /// The timer of moving.
    pub(super) fn on_move_timer(&mut self, cx: &Cx<'_>) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        mobility.tries += 1;
        match mobility.phase {
            Phase::Settled => return,
            Phase::Asking(epoch) => {
                mobility.phase = Phase::Asking(mobility.next_epoch(epoch));
                self.notes.ask_paths = true;
            }
            Phase::Gone if mobility.tries > GO_TRIES => {
                mobility.tries = 0;
                mobility.phase = Phase::Asking(mobility.next_epoch(mobility.epoch));
                self.notes.ask_paths = true;
            }
            Phase::Gone => mobility.step = Some(Step::Go),
        }
        let wait = (FIRST_INTERVAL * (1 << mobility.tries.min(8))).min(LAST_INTERVAL);
        self.timers.set(Timer::Move, cx.now + wait);
    }

    /// What to ask other paths now.
    pub(crate) fn question(&self) -> Option<Question> {
        let mobility = self.mobility.as_ref()?;
        let Phase::Asking(epoch) = mobility.phase else {
            return None;
        };
        let block = self.move_block(Step::Ask, epoch, 0);
        Some(Question {
            block,
            addresses: mobility.peer.clone(),
            skip_present: !self.frozen,
        })
    }

    /// A block of this connection; payload and credit are those of the interface that sends it.
    pub(crate) fn move_block(&self, step: Step, epoch: u32, max_payload: u16) -> Move {
        Move {
            step,
            finished: self.recv.finished(),
            max_payload,
            epoch,
            nonce: self.peer_nonce,
            sender_nonce: self.nonce,
            received: self.recv.delivered(),
            credit: 0,
        }
    }

    /// True when a GO or DONE is to be sent.
    pub(super) fn has_move(&self) -> bool {
        self.mobility
            .as_ref()
            .is_some_and(|mobility| mobility.step.is_some())
    }

    /// The GO or DONE to be sent now, and its sequence.
    pub(super) fn take_move(&mut self, cx: &Cx<'_>) -> Option<(Seq, Move)> {
        let mobility = self.mobility.as_mut()?;
        let step = mobility.step.take()?;
        let epoch = mobility.epoch;
        let payload = mobility.base.min(cx.max_payload);
        let mut block = self.move_block(step, epoch, cx.max_payload);
        if step == Step::Go {
            block.credit = self.recv.credit_at(payload);
            return Some((self.send.next(), block));
        }
        self.recv.raise_edge();
        block.credit = self.recv.credit();
        // A peer that has not heard this yet has acknowledged nothing since.
        Some((self.send.una(), block))
    }

    /// Judges a move that came from `src` (W-102, W-104); `here`: on the present path.
    pub(crate) fn judge_move(&self, block: &Move, src: MacAddr, here: bool) -> MoveVerdict {
        let Some(mobility) = &self.mobility else {
            return MoveVerdict::Unknown;
        };
        if block.nonce != self.nonce || block.sender_nonce != self.peer_nonce {
            return MoveVerdict::Unknown;
        }
        if !mobility.peer.contains(&src) {
            return MoveVerdict::Address;
        }
        if !self.may_move() {
            return MoveVerdict::State;
        }
        let asked = mobility.phase == Phase::Asking(block.epoch);
        let gone = self.frozen && mobility.epoch == block.epoch;
        let newer = block.epoch > mobility.epoch;
        let plausible = self.send.may_have_received(block.received, block.finished);
        match block.step {
            Step::Ask if newer => MoveVerdict::Answer,
            Step::Answer if asked => MoveVerdict::Go,
            Step::Go if newer && !plausible => MoveVerdict::Position,
            Step::Go if newer => MoveVerdict::Come,
            Step::Go if mobility.epoch == block.epoch && here && !self.frozen => {
                MoveVerdict::Repeat
            }
            Step::Done if gone && here && !plausible => MoveVerdict::Position,
            Step::Done if gone && here => MoveVerdict::Finish,
            Step::Gone if asked || gone => MoveVerdict::Lost,
            _ => MoveVerdict::Stale,
        }
    }

    /// The connection is on the path that answered: freeze, and tell the peer (W-105).
    pub(crate) fn go(&mut self, cx: &mut Cx<'_>) {
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
        self.recv.release(cx.pool);
        self.stop_sending();
        self.timers.set(Timer::Move, cx.now + FIRST_INTERVAL);
        self.timers
            .start(Timer::PeerDead, cx.now + cx.config.peer_timeout / 2);
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
        self.path = Path::default();
        self.acks = Acks::default();
    }

    /// Both ends are on the new path: go on from what the peer has received (W-106). The block was judged.
    pub(crate) fn resume(&mut self, cx: &mut Cx<'_>, seq: Seq, block: &Move) {
        let Some(mobility) = &mut self.mobility else {
            return;
        };
        mobility.epoch = block.epoch;
        mobility.phase = Phase::Settled;
        mobility.known_dead = false;
        mobility.step = (block.step == Step::Go).then_some(Step::Done);
        mobility.moves += 1;
        cx.counters.connections_moved += 1;
        self.agreed = mobility.base.min(cx.max_payload).min(block.max_payload);
        self.payload = self.agreed.min(SAFE_PAYLOAD); // W-53
        self.stop_sending();
        self.timers.stop(Timer::Move);
        self.timers.stop(Timer::PeerDead);
        self.queries = 0;
        self.frozen = false;
        self.silent = 0;
        let fin_acked =
            self.send
                .restart(block.received, block.finished, block.credit.min(MAX_WINDOW));
        self.recv.restart(seq, self.agreed, cx.pool);
        self.recovery = Recovery::new();
        self.rtt = Rtt::new();
        self.congestion = cx
            .config
            .congestion
            .build(u32::from(cx.config.max_window.clamp(1, MAX_WINDOW)));
        self.asking = Asking::default();
        self.path.verified = self.agreed <= SAFE_PAYLOAD;
        self.path.pending = !self.path.verified;
        self.acks.now = true;
        self.notes.progress = true;
        self.timers
            .set(Timer::KeepAlive, cx.now + cx.config.keepalive);
        if fin_acked {
            self.advance(cx, Input::FinAcked);
        }
    }

    /// We are asked again whether we came.
    pub(crate) fn repeat_done(&mut self) {
        if let Some(mobility) = &mut self.mobility {
            mobility.step = Some(Step::Done);
        }
    }

    /// The peer knows nothing of this connection any more: over, and well over if only the end of the end was missing (W-58).
    pub(crate) fn lose_peer(&mut self) {
        let complete = matches!(self.state, State::LastAck | State::Closing)
            && self.send.fin == FinState::Sent
            && self.send.acked() == self.send.written();
        let reason = if complete {
            CloseReason::Finished
        } else {
            CloseReason::Reset(ResetReason::Unknown)
        };
        self.end(reason, None);
    }
}
