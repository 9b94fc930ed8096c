//! What is known of one peer.

use std::collections::{BTreeMap, VecDeque};

use btl::{PeerError, Rank};

use super::choice::Choice;
use super::pressure::Account;
use crate::config::Config;
use crate::matching::unexpected::RegionKey;
use crate::wire::Encoded;

/// Envelopes of a peer with several lanes that may be under way without its having said that it saw them.
pub(crate) const REORDER: u16 = 1024;
/// Longest header that a message may have on top of its body.
pub(crate) const HEADER_ROOM: usize = 28;

/// A transport used for a peer.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// Its number among this process's transports.
    pub(crate) transport: u8,
    pub(crate) max_send: usize,
    pub(crate) one_sided: bool,
    /// The peer has left it in order.
    pub(crate) left: bool,
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
    /// May be sent to without looking at anything but the credit: alive, nothing waits, one lane, not the own rank.
    pub(crate) fast: bool,
    pub(crate) alive: bool,
    pub(crate) own: bool,
    /// First of `lanes`.
    pub(crate) transport: u8,
    /// Bodies up to this are sent at once, for now.
    pub(crate) eager_now: usize,
    /// Place of the next envelope to it, from it.
    pub(crate) next_out: u16,
    pub(crate) next_in: u16,
    pub(crate) account: Account,

    eager: usize,
    eager_skewed: usize,
    pub(crate) one_sided_from: usize,
    /// Place in `lanes` for one-sided operations.
    pub(crate) one_sided: Option<usize>,
    pub(crate) lanes: Vec<Lane>,
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
        Peer { own: true, ..Peer::new(Vec::new(), &[], &Config::default(), 0, 2) }
    }

    /// `lanes` with their paths, best first.
    pub(crate) fn new(
        lanes: Vec<Lane>,
        paths: &[&btl::Path],
        config: &Config,
        eager_limit: usize,
        window: u32,
    ) -> Peer {
        let cap = lanes.iter().map(|lane| lane.max_send).min().unwrap_or(0).saturating_sub(HEADER_ROOM);
        let cap = cap.min(eager_limit);
        let header = crate::wire::EAGER_LENGTH;
        let first = paths.first();
        let eager = first.map_or(0, |path| path.eager.saturating_sub(header));
        let skewed = first.map_or(0, |path| path.eager_skewed.saturating_sub(header));
        let eager = config.eager.unwrap_or(eager).min(cap);
        let one_sided = lanes
            .iter()
            .enumerate()
            .filter(|(_, lane)| lane.one_sided)
            .max_by_key(|(at, _)| (paths.get(*at).map_or(0, |path| path.bandwidth), usize::MAX - at))
            .map(|(at, _)| at);
        let from = one_sided.and_then(|at| paths.get(at)).map_or(usize::MAX, |path| path.one_sided_from);
        let mut peer = Peer {
            fast: false,
            alive: true,
            own: false,
            transport: lanes.first().map_or(0, |lane| lane.transport),
            eager_now: 0,
            next_out: 0,
            next_in: 0,
            account: Account::new(window),
            eager,
            eager_skewed: config.eager_skewed.unwrap_or(skewed).min(cap).max(eager),
            one_sided_from: config.one_sided_from.unwrap_or(from),
            one_sided,
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
        peer.refresh();
        peer
    }

    pub(crate) fn mixed(&self) -> bool {
        self.lanes.len() > 1
    }

    pub(crate) fn idle(&self) -> bool {
        self.control.is_empty() && self.queue.is_empty() && self.streams.is_empty()
    }

    /// After a change of what `fast` and `eager_now` depend on.
    pub(crate) fn refresh(&mut self) {
        self.eager_now = match (self.announce_only, self.late) {
            (true, _) => 0,
            (false, true) => self.eager_skewed,
            (false, false) => self.eager,
        };
        self.fast = self.alive && !self.own && self.idle() && self.lanes.len() == 1;
    }

    /// Why it failed.
    pub(crate) fn error(&self, rank: Rank) -> crate::Error {
        let error = self.failed.clone().unwrap_or(PeerError::Left);
        crate::Error::PeerFailed { peer: rank, error }
    }
}
