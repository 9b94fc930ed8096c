//! What is known of one peer.

use std::collections::{BTreeMap, VecDeque};

use btl::{PeerError, Rank};

use super::choice::Choice;
use super::lanes::{Kept, Ledger};
use super::pressure::Account;
use super::rails::Rails;
use crate::config::Config;
use crate::matching::unexpected::RegionKey;
use crate::wire::Encoded;

/// Envelopes of a peer with several lanes that may be under way without its having said that it saw them.
pub(crate) const REORDER: u16 = 1024;
/// Longest header that a message may have on top of its body.
pub(crate) const HEADER_ROOM: usize = 28;

/// A transport used for a peer.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number among this process's transports.
    pub(crate) transport: u8,
    /// Places of its cards among this process's, among the peer's: the lane's name, there and here.
    pub(crate) own_card: u8,
    pub(crate) peer_card: u8,
    pub(crate) max_send: usize,
    pub(crate) bandwidth: u32,
    pub(crate) one_sided: bool,
    pub(crate) one_sided_from: usize,
    /// It can be sent over.
    pub(crate) alive: bool,
    /// Its transport has lost the peer, or the peer has left it.
    pub(crate) lost: Option<PeerError>,
    /// The peer was told what came over it; the peer has told.
    pub(crate) told: bool,
    pub(crate) settled: bool,
    pub(crate) ledger: Ledger,
}

impl Lane {
    pub(crate) fn new(transport: u8, own_card: u8, peer_card: u8, path: &btl::PeerInfo) -> Lane {
        Lane {
            transport,
            own_card,
            peer_card,
            max_send: path.max_send,
            bandwidth: path.bandwidth,
            one_sided: path.one_sided,
            one_sided_from: path.one_sided_from,
            alive: true,
            lost: None,
            told: false,
            settled: false,
            ledger: Ledger::default(),
        }
    }

    /// Bytes of a fragment, where the configuration allows messages of `cap`.
    pub(crate) fn fragment(&self, cap: usize) -> usize {
        self.max_send.min(cap.max(HEADER_ROOM + 1)) - HEADER_ROOM
    }
}

/// A message about messages.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) header: Encoded,
    pub(crate) key: RegionKey,
    /// Must take this transport.
    pub(crate) transport: Option<u8>,
}

/// A message that came before an older one.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) header: crate::wire::Header,
    pub(crate) body: Vec<u8>,
    pub(crate) transport: u8,
    pub(crate) cost: usize,
}

#[derive(Debug)]
pub(crate) struct Peer {
    /// May be sent to without looking at anything but the credit: alive, nothing waits, not the own rank.
    pub(crate) fast: bool,
    pub(crate) alive: bool,
    pub(crate) own: bool,
    /// Of the first of `lanes` that is alive.
    pub(crate) transport: u8,
    /// Bodies up to this are sent at once, for now; up to that by a copy.
    pub(crate) eager_now: usize,
    pub(crate) copied_now: usize,
    /// From here on the transport takes them from the program's memory.
    pub(crate) held_from: usize,
    /// Place of the next envelope to it, from it.
    pub(crate) next_out: u16,
    pub(crate) next_in: u16,
    pub(crate) account: Account,

    eager: usize,
    eager_skewed: usize,
    pub(crate) one_sided_from: usize,
    /// Memory of this length or more is registered while the RTS is under way (see `ahead.rs`).
    pub(crate) ahead_from: usize,
    /// Place in `lanes` for one-sided operations.
    pub(crate) one_sided: Option<usize>,
    /// The preferred one first. So many of them are used, the others stand by.
    pub(crate) lanes: Vec<Lane>,
    pub(crate) used: usize,
    /// With several lanes: which carry a message's fragments.
    pub(crate) rails: Option<Box<Rails>>,
    /// Last words on lost lanes, and what these did not deliver.
    pub(crate) notes: VecDeque<Encoded>,
    pub(crate) resend: VecDeque<Kept>,
    /// It asked for announcements only; it is late.
    pub(crate) announce_only: bool,
    pub(crate) late: bool,
    /// It was told that we are late.
    pub(crate) told_late: bool,
    /// How its announced messages come.
    pub(crate) choice: Choice,
    pub(crate) failed: Option<PeerError>,
    /// After it failed: no transport lets it reach memory of this process any more.
    pub(crate) quiet: bool,
    /// Transfers that end when it is quiet.
    pub(crate) doomed: Vec<u64>,
    /// Named receives that it does not see.
    pub(crate) private: usize,

    pub(crate) control: VecDeque<Control>,
    /// Sends that have not gone out, in order.
    pub(crate) queue: VecDeque<u64>,
    /// Transfers with fragments to send.
    pub(crate) streams: VecDeque<u64>,
    /// It stands in the list of those with something to do.
    pub(crate) active: bool,

    /// With several lanes: envelopes since the last one seen, the lane that is next.
    pub(crate) unseen: u16,
    pub(crate) turn: usize,
    pub(crate) early: BTreeMap<u16, Early>,
    pub(crate) early_cost: usize,
}

impl Peer {
    pub(crate) fn own() -> Peer {
        Peer {
            own: true,
            ..Peer::new(Vec::new(), None, 0, &Config::default(), 0, 2)
        }
    }

    /// `lanes`, the best first, and that one's path; `used`: so many may be used at once.
    pub(crate) fn new(
        lanes: Vec<Lane>,
        first: Option<&btl::PeerInfo>,
        used: usize,
        config: &Config,
        eager_limit: usize,
        window: u32,
    ) -> Peer {
        let cap = lanes
            .iter()
            .map(|lane| lane.max_send)
            .min()
            .unwrap_or(0)
            .saturating_sub(HEADER_ROOM);
        let cap = cap.min(eager_limit);
        let header = crate::wire::EAGER_LENGTH;
        let eager = first.map_or(0, |path| path.eager.saturating_sub(header));
        let skewed = first.map_or(0, |path| path.eager_skewed.saturating_sub(header));
        let eager = config.eager.unwrap_or(eager).min(cap);
        let said: Vec<u32> = lanes.iter().take(used).map(|lane| lane.bandwidth).collect();
        let mut peer = Peer {
            fast: false,
            alive: true,
            own: false,
            transport: lanes.first().map_or(0, |lane| lane.transport),
            eager_now: 0,
            copied_now: 0,
            held_from: usize::MAX,
            next_out: 0,
            next_in: 0,
            account: Account::new(window),
            eager,
            eager_skewed: config.eager_skewed.unwrap_or(skewed).min(cap).max(eager),
            one_sided_from: usize::MAX,
            ahead_from: usize::MAX,
            one_sided: None,
            rails: (lanes.len() > 1).then(|| Box::new(Rails::new(&said, config.adapt))),
            used: used.min(super::rails::MOST),
            notes: VecDeque::new(),
            resend: VecDeque::new(),
            lanes,
            announce_only: false,
            late: false,
            told_late: false,
            choice: Choice::new(),
            failed: None,
            quiet: false,
            doomed: Vec::new(),
            private: 0,
            control: VecDeque::new(),
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            active: false,
            unseen: 0,
            turn: 0,
            early: BTreeMap::new(),
            early_cost: 0,
        };
        peer.choose_one_sided();
        let from = peer
            .one_sided
            .and_then(|at| peer.lanes.get(at))
            .map(|lane| lane.one_sided_from);
        peer.one_sided_from = config.one_sided_from.or(from).unwrap_or(usize::MAX);
        peer.refresh();
        peer
    }

    /// The lane of `get` and `put`: the widest of those that can.
    pub(crate) fn choose_one_sided(&mut self) {
        let used = self.used.max(1);
        let can = |(_, lane): &(usize, &Lane)| lane.one_sided && lane.alive;
        let lanes = self.lanes.iter().enumerate().take(used).filter(can);
        let widest = lanes.max_by_key(|(at, lane)| (lane.bandwidth, usize::MAX - at));
        self.one_sided = widest.map(|(at, _)| at);
    }

    pub(crate) fn mixed(&self) -> bool {
        self.lanes.len() > 1
    }

    pub(crate) fn idle(&self) -> bool {
        let waits = !self.control.is_empty() || !self.queue.is_empty() || !self.streams.is_empty();
        !waits && self.notes.is_empty() && self.resend.is_empty() && !self.holds()
    }

    /// After a change of what `fast` and `eager_now` depend on.
    pub(crate) fn refresh(&mut self) {
        self.eager_now = match (self.announce_only, self.late) {
            (true, _) => 0,
            (false, true) => self.eager_skewed,
            (false, false) => self.eager,
        };
        let copied = if self.mixed() {
            usize::MAX
        } else {
            self.held_from.saturating_sub(1)
        };
        self.copied_now = self.eager_now.min(copied);
        self.fast = self.alive && !self.own && self.idle();
    }

    /// Why it failed.
    pub(crate) fn error(&self, rank: Rank) -> crate::Error {
        let error = self.failed.clone().unwrap_or(PeerError::Left);
        crate::Error::PeerFailed { peer: rank, error }
    }
}
