//! Small types of the interface.

use std::fmt;

use btl::{Btl, PeerInfo, Rank};

use crate::config::Config;

/// One transport's business card, for the job's bootstrap to hand to every peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// [`Btl::name`].
    pub transport: String,
    /// [`Btl::address`], at most [`btl::MAX_ADDRESS`] bytes.
    pub address: Vec<u8>,
}

/// What a process brings along to start.
#[derive(Debug)]
pub struct Setup {
    /// The own rank in the job.
    pub rank: Rank,
    /// Ranks of the job.
    pub size: u32,
    /// The transports, in no particular order. Messages to the own rank need none.
    pub transports: Vec<Box<dyn Btl>>,
    /// Switches.
    pub config: Config,
}

/// From whom a receive takes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Anybody in the communicator.
    Any,
    /// This rank of the communicator.
    Rank(Rank),
}

impl From<Rank> for Source {
    fn from(rank: Rank) -> Source {
        Source::Rank(rank)
    }
}

/// Which tag a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Every tag.
    Any,
    /// This one; 0 or more.
    Is(i32),
}

impl From<i32> for Tag {
    fn from(tag: i32) -> Tag {
        Tag::Is(tag)
    }
}

/// What was received, or would be (probe). For sends: the own rank, the tag, the length sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who sent it (rank in the communicator).
    pub source: Rank,
    /// Its tag.
    pub tag: i32,
    /// Bytes that were sent.
    pub length: usize,
}

/// Names a request. It carries a generation, so one that is over is never taken for a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// As a number, for handles of other languages.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From such a number. A wrong one names no request, which the calls that take it report.
    pub fn from_bits(bits: u64) -> RequestId {
        RequestId(bits)
    }
}

/// Counters since the start, and levels now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent at once, with their bytes.
    pub eager_sent: u64,
    /// Of these, those whose body the sender's transport did not copy.
    pub held_sent: u64,
    /// Messages announced first.
    pub announced: u64,
    /// Messages put into a receive that the peer had shown ([`btl::PostedReceives::send_to_posted`]).
    pub matched_sent: u64,
    /// Messages to the own rank.
    pub self_sent: u64,
    /// Messages that came with their bytes.
    pub eager_received: u64,
    /// Messages that came announced.
    pub announcements: u64,
    /// Messages that a peer put into a receive shown to it.
    pub matched_received: u64,
    /// Announced messages fetched by `get`.
    pub by_get: u64,
    /// Announced messages written by `put`.
    pub by_put: u64,
    /// Announced messages received in fragments.
    pub by_fragments: u64,
    /// `get` or `put` was refused by the transport, fragments were used instead.
    pub fallbacks: u64,
    /// Fragments sent.
    pub fragments_sent: u64,
    /// Messages that found no receive.
    pub unexpected: u64,
    /// Such messages waiting now.
    pub unexpected_now: usize,
    /// Memory they hold now, in bytes, with an allowance for bookkeeping.
    pub unexpected_bytes: usize,
    /// The most they ever held.
    pub unexpected_peak: usize,
    /// Times a peer was told to announce instead of sending at once, or was kept waiting.
    pub pressed: u64,
    /// Times this process was told so.
    pub pressed_by_peers: u64,
    /// Times this process found itself late (skew) and told its peers.
    pub skew_on: u64,
    /// Times that was over.
    pub skew_off: u64,
    /// Times a peer said that it is late.
    pub skewed_peers: u64,
    /// Messages that came before an older one over another transport, and were kept.
    pub reordered: u64,
    /// Messages for a communicator that is gone here.
    pub discarded: u64,
    /// Peers that failed.
    pub failed_peers: u64,
    /// Transports that lost a peer which has others.
    pub lost_lanes: u64,
    /// Messages, and fragments, that were sent again over another transport.
    pub resent: u64,
    /// Times a waiting thread slept.
    pub slept: u64,
}

/// Why a peer is, or is not, reached by one transport.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// The peer's rank in the job.
    pub peer: Rank,
    /// [`Btl::name`]; `self` for the own rank.
    pub transport: String,
    /// Whether it is used.
    pub used: bool,
    /// The path's figures, if the transport reaches the peer.
    pub path: Option<PeerInfo>,
    /// Why it is used or not, in words.
    pub reason: String,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.used { "used" } else { "not used" };
        write!(
            f,
            "rank {} by {}: {verdict}, {}",
            self.peer, self.transport, self.reason
        )?;
        let Some(path) = &self.path else {
            return Ok(());
        };
        write!(
            f,
            " [{} ns, {} MB/s, exclusivity {}, eager to {} B, one-sided {}; {}]",
            path.latency_ns,
            path.bandwidth,
            path.exclusivity,
            path.eager,
            if path.one_sided {
                format!("from {} B", path.one_sided_from)
            } else {
                "no".into()
            },
            path.reason.replace('\n', " ")
        )
    }
}

/// One of several transports to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// [`Btl::name`].
    pub transport: String,
    /// [`PeerInfo::reason`]: which interface, among other things.
    pub way: String,
    /// It is used only when the others have failed.
    pub stands_by: bool,
    /// Bytes of messages that went out and came in.
    pub sent: u64,
    /// See [`sent`](Rail::sent).
    pub received: u64,
    /// Why it is not used any more.
    pub lost: Option<String>,
}

/// How several transports to one peer are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailsReport {
    /// The peer's rank in the job.
    pub peer: Rank,
    /// The preferred one first; way 0, 1, … of [`choices`](RailsReport::choices).
    pub rails: Vec<Rail>,
    /// What was measured for messages of which length, and what is done therefore, in words.
    pub choices: Vec<String>,
}

impl fmt::Display for RailsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}:", self.peer)?;
        for (at, rail) in self.rails.iter().enumerate() {
            let way = rail.way.split(": ").next().unwrap_or_default();
            let by = if rail.stands_by { ", stands by" } else { "" };
            write!(
                f,
                " way {at} is {} {way}{by}: {} B out, {} B in",
                rail.transport, rail.sent, rail.received
            )?;
            match &rail.lost {
                Some(why) => write!(f, ", lost ({why});")?,
                None => f.write_str(";")?,
            }
        }
        let none = ["no long messages so far".to_owned()];
        let choices = if self.choices.is_empty() {
            &none[..]
        } else {
            &self.choices
        };
        write!(f, " {}", choices.join("; "))
    }
}
