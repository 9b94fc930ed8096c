//! The table of peers, and the state of one.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use btl::{PeerError, PeerInfo, Rank};

use super::access::Accesses;
use super::account::Account;
use crate::config::Config;
use crate::ids::{PeerId, TransportId};
use crate::matching::unexpected::RegionKey;
use crate::wire::{EAGER_LENGTH, Encoded, MAX_HEADER};

/// Maximum length of an eager message on the primary rail if another rail is much faster, in bytes.
const EAGER_BESIDE_FASTER: usize = 8 << 10;
/// Maximum number of rails to one peer.
pub(crate) const MAX_RAILS: usize = 4;
/// Minimum number of bytes of one message that a rail other than the primary carries.
const MIN_STRIPE: usize = 16 << 10;

/// A transport used for a peer.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) transport: TransportId,
    pub(crate) info: PeerInfo,
    /// The transport reported that the peer left gracefully.
    pub(crate) left: bool,
    /// The transport reported that the peer left, or that it no longer exists.
    pub(crate) gone: bool,
    /// Bytes of bodies sent and received. Counted only for peers with several rails.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Rail {
    pub(crate) fn new(transport: TransportId, info: PeerInfo) -> Rail {
        Rail {
            transport,
            info,
            left: false,
            gone: false,
            sent: 0,
            received: 0,
        }
    }

    /// Returns the number of bytes in one fragment.
    pub(crate) fn fragment(&self) -> usize {
        self.info.max_send - MAX_HEADER
    }
}

/// Progress of reaching a peer of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contact {
    /// It was reached, or it failed.
    #[default]
    Made,
    /// It will be reached when it is used.
    OnUse,
    /// It is being reached.
    Begun,
}

/// A message about other messages: CTS, FIN, CREDIT or SKEW.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) header: Encoded,
    pub(crate) key: RegionKey,
}

#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// The peer is alive and not this rank, and nothing is queued: a send only needs credit.
    pub(crate) fast: bool,
    pub(crate) alive: bool,
    pub(crate) own: bool,
    pub(crate) contact: Contact,
    /// Maximum length of a body that is sent eagerly now, and of one that is then copied.
    pub(crate) eager_now: usize,
    pub(crate) copied_now: usize,
    /// Bodies of this length or more may be sent from the program's memory.
    pub(crate) held_from: usize,
    /// Sequence numbers of the next envelope to the peer and from it.
    pub(crate) next_out: u16,
    pub(crate) next_in: u16,
    pub(crate) account: Account,

    eager: usize,
    eager_skewed: usize,
    /// Messages of this length or more are moved by `get` or `put`; `usize::MAX`: none.
    pub(crate) one_sided_from: usize,
    /// Rails, the primary first; empty for this rank.
    pub(crate) rails: Vec<Rail>,
    /// The peer asked for RTS only.
    pub(crate) rts_only: bool,
    /// The peer is late.
    pub(crate) late: bool,
    /// The peer knows that this process is late.
    pub(crate) knows_late: bool,
    pub(crate) failed: Option<PeerError>,
    /// The peer failed, and no transport gives it access to memory of this process any more.
    pub(crate) quiet: bool,
    /// Transfers that end once the peer is quiet.
    pub(crate) doomed: Vec<u64>,

    pub(crate) control: VecDeque<Control>,
    /// Sends whose envelope was not sent, in order.
    pub(crate) queue: VecDeque<u64>,
    /// Transfers with fragments to send.
    pub(crate) streams: VecDeque<u64>,
    /// Accesses in both directions; `None` if there was none.
    pub(crate) accesses: Option<Box<Accesses>>,
    /// It is in the list of peers with something to send.
    pub(crate) active: bool,
    /// Rail of the next fragment.
    pub(crate) next_rail: usize,
}

/// Returns true if a rail has more than twice the bandwidth of another one.
pub(crate) fn is_much_faster(rail: &PeerInfo, than: &PeerInfo) -> bool {
    u64::from(rail.bandwidth) > 2 * u64::from(than.bandwidth.max(1))
}

impl Peer {
    /// Creates the entry of this rank.
    pub(crate) fn own() -> Peer {
        Peer {
            own: true,
            alive: true,
            one_sided_from: usize::MAX,
            ..Peer::default()
        }
    }

    /// Creates a peer with these rails, the primary first.
    pub(crate) fn new(rails: Vec<Rail>, config: &Config, eager_limit: usize, window: u32) -> Peer {
        let mut peer = Peer::without_rails(window);
        peer.set_rails(rails, config, eager_limit);
        peer
    }

    /// Creates a peer to which nothing can be sent yet.
    pub(crate) fn without_rails(window: u32) -> Peer {
        Peer {
            alive: true,
            held_from: usize::MAX,
            account: Account::new(window),
            one_sided_from: usize::MAX,
            ..Peer::default()
        }
    }

    /// Sets the rails, the primary first, and the limits that follow from them.
    pub(crate) fn set_rails(&mut self, rails: Vec<Rail>, config: &Config, eager_limit: usize) {
        let info = rails.first().map(|rail| &rail.info);
        let cap = info.map_or(0, |info| {
            eager_limit.min(info.max_send.saturating_sub(MAX_HEADER))
        });
        let body = |message: usize| message.saturating_sub(EAGER_LENGTH);
        let eager = config.eager.or(info.map(|info| body(info.eager)));
        let mut eager = eager.unwrap_or(0).min(cap);
        // Eager messages use the primary rail. Where another one is much faster, a rendezvous costs
        // less than the slow rail above this length.
        if let Some(info) = info
            && rails.iter().any(|rail| is_much_faster(&rail.info, info))
        {
            eager = eager.min(EAGER_BESIDE_FASTER);
        }
        let skewed = info.map_or(0, |info| body(info.eager_skewed)).min(cap);
        let one_sided = info.filter(|info| info.one_sided);
        self.one_sided_from = one_sided.map_or(usize::MAX, |info| {
            config.one_sided_from.unwrap_or(info.one_sided_from)
        });
        (self.eager, self.eager_skewed) = (eager, skewed.max(eager));
        self.rails = rails;
        self.refresh();
    }

    /// Returns the transport of envelopes and control messages; `None` for this rank.
    #[inline]
    pub(crate) fn primary(&self) -> Option<TransportId> {
        self.rails.first().map(|rail| rail.transport)
    }

    /// Returns true if nothing is queued.
    pub(crate) fn idle(&self) -> bool {
        let accesses = self.accesses.as_ref();
        self.control.is_empty()
            && self.queue.is_empty()
            && self.streams.is_empty()
            && accesses.is_none_or(|accesses| !accesses.can_send())
    }

    /// Returns the number of messages that are queued.
    pub(crate) fn unsent(&self) -> usize {
        let accesses = self.accesses.as_ref().map_or(0, |all| all.unsent());
        self.control.len() + self.queue.len() + self.streams.len() + accesses
    }

    /// Recomputes `fast`, `eager_now` and `copied_now` after a change.
    pub(crate) fn refresh(&mut self) {
        self.eager_now = match (self.rts_only, self.late) {
            (true, _) => 0,
            (false, true) => self.eager_skewed,
            (false, false) => self.eager,
        };
        self.copied_now = self.eager_now.min(self.held_from.saturating_sub(1));
        self.fast = self.alive && !self.own && self.idle();
    }

    /// Divides a message among the rails in proportion to their declared bandwidth.
    ///
    /// A rail whose part would be less than [`MIN_STRIPE`] carries nothing, and neither does a
    /// primary rail with less than half of the largest bandwidth: rails that differ that much share
    /// a link, such as raw Ethernet and UDP. The rail of the largest bandwidth carries the
    /// remainder.
    pub(crate) fn shares(&self, length: usize) -> [usize; MAX_RAILS] {
        let mut shares = [0; MAX_RAILS];
        let bandwidth = |rail: &Rail| u64::from(rail.info.bandwidth.max(1));
        let mut best = 0;
        for (place, rail) in self.rails.iter().enumerate() {
            if bandwidth(rail) > bandwidth(&self.rails[best]) {
                best = place;
            }
        }
        let fastest = &self.rails[best].info;
        let carries = |rail: &&Rail| !is_much_faster(fastest, &rail.info);
        let sum: u64 = self.rails.iter().filter(carries).map(bandwidth).sum();
        let mut left = length;
        for (place, rail) in self.rails.iter().enumerate() {
            let part = length as u128 * u128::from(bandwidth(rail)) / u128::from(sum);
            if place != best && carries(&rail) && part >= MIN_STRIPE as u128 {
                shares[place] = part as usize;
                left -= part as usize;
            }
        }
        shares[best] = left;
        shares
    }

    /// Counts bytes that arrived from a transport, if there are several.
    #[inline]
    pub(crate) fn count_received(&mut self, transport: TransportId, bytes: usize) {
        if self.rails.len() > 1 {
            for rail in &mut self.rails {
                if rail.transport == transport {
                    rail.received += bytes as u64;
                }
            }
        }
    }
}

/// All peers of the job by rank, including this rank.
#[derive(Debug)]
pub(crate) struct Peers(pub(crate) Vec<Peer>);

impl Peers {
    /// Adds a peer.
    pub(crate) fn push(&mut self, peer: Peer) -> Option<PeerId> {
        self.0.push(peer);
        self.id(self.size() - 1)
    }

    /// Returns the number of ranks in the job.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.0.len() as u32
    }

    /// Checks a rank that a transport reports.
    #[inline]
    pub(crate) fn id(&self, rank: Rank) -> Option<PeerId> {
        PeerId::new(rank, self.size())
    }

    /// Iterates over all ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        let size = self.size();
        (0..size).filter_map(move |rank| PeerId::new(rank, size))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.ids().zip(&self.0)
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.0[peer.rank() as usize]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.0[peer.rank() as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(bandwidths: &[u32]) -> Peer {
        let rail = |bandwidth: &u32| {
            let info = PeerInfo {
                latency_ns: 1,
                bandwidth: *bandwidth,
                exclusivity: 1,
                eager: 4096,
                eager_skewed: 4096,
                max_send: 64 << 10,
                one_sided: false,
                one_sided_from: 0,
                reason: String::new(),
            };
            Rail::new(TransportId::all(1).next().unwrap(), info)
        };
        let rails = bandwidths.iter().map(rail).collect();
        Peer::new(rails, &Config::default(), 1 << 20, 1 << 20)
    }

    #[test]
    fn shares_are_in_proportion_to_bandwidth() {
        let mib = 1 << 20;
        assert_eq!(peer(&[10]).shares(4 * mib), [4 * mib, 0, 0, 0]);
        assert_eq!(peer(&[10, 10]).shares(4 * mib), [2 * mib, 2 * mib, 0, 0]);
        assert_eq!(peer(&[20, 10]).shares(3 * mib), [2 * mib, mib, 0, 0]);
        assert_eq!(peer(&[10, 20]).shares(3 * mib), [mib, 2 * mib, 0, 0]);
        // Much less bandwidth than the best: no part.
        assert_eq!(
            peer(&[10, 40, 40]).shares(4 * mib),
            [0, 2 * mib, 2 * mib, 0]
        );
        assert_eq!(peer(&[1, 1, 1, 1]).shares(4 * mib), [mib; 4]);
        // Too little for the second rail.
        assert_eq!(peer(&[10, 10]).shares(MIN_STRIPE), [MIN_STRIPE, 0, 0, 0]);
        // Undeclared bandwidth, and the longest message.
        assert_eq!(peer(&[0, 0]).shares(mib), [mib / 2, mib / 2, 0, 0]);
        for length in [0, 1, MIN_STRIPE * 3 + 1, isize::MAX as usize] {
            let shares = peer(&[7, 11, 13]).shares(length);
            assert_eq!(shares.iter().sum::<usize>(), length);
        }
    }

    #[test]
    fn only_ranks_of_the_job_have_an_entry() {
        let mut peers = Peers(vec![Peer::own(), Peer::own()]);
        assert_eq!(peers.id(2), None);
        assert_eq!(PeerId::new(u32::MAX, 2), None);
        for peer in peers.ids() {
            peers[peer].late = true;
        }
        assert!(peers.iter().all(|(_, peer)| peer.late));
    }

    /// An id of a larger job is detected as an error, not ignored.
    #[test]
    #[should_panic(expected = "out of bounds")]
    fn an_id_outside_the_table_panics() {
        let peers = Peers(vec![Peer::own()]);
        let other = PeerId::new(1, 2).unwrap();
        let _ = &peers[other];
    }
}
