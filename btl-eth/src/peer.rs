//! What this process knows of another rank.
//!
//! ```text
//!            send                    answer of the daemon            WELCOME
//!   Idle ───────────▶ Begun ───────────────────────▶ Greeting ──────────────────▶ Live
//!    ▲ │              HELLO is written into the new stream    CONFIRM is written   ▲
//!    │ │                                                                           │ CONFIRM
//!    │ └────────────────────────────────────────────▶ Welcomed ────────────────────┘
//!    │         HELLO, WELCOME is written                  │
//!    └──── the stream ended, YIELD (as in Greeting) ◀─────┘            any ──▶ Failed
//! ```
//!
//! **Both connect at once.** Who gets a HELLO while an attempt of its own is under way (`Begun`, `Greeting`) compares ranks: the
//! attempt of the lower rank goes on. The lower answers YIELD, the higher drops its own attempt and answers WELCOME. So at most one
//! stream is ever confirmed, for a stream is confirmed by the two of them together: WELCOME says that the acceptor has no other, and
//! CONFIRM that the connector has not, and each looks at its state before it says so. No message is lost or doubled by this, because
//! messages go into confirmed streams only; until there is one, `send` says `Busy`.
//!
//! **A stream that ends before it is confirmed** has delivered nothing, so the peer is `Idle` again and the next attempt begins after
//! a pause; a bounded number of times ([`EthConfig::retries`](crate::EthConfig::retries)).

use std::time::{Duration, Instant};

use btl::{PeerError, PeerInfo};
use esp_client::Begun;

use crate::channel::Channel;
use crate::probe::Route;

/// See the module.
pub(crate) enum Link {
    /// No stream. `again`: an attempt begins then by itself.
    Idle { again: Option<Instant> },
    /// The daemon was asked for a stream.
    Begun(Begun),
    /// Our stream; HELLO is on its way.
    Greeting(Channel),
    /// Their stream; WELCOME is on its way.
    Welcomed(Channel),
    /// Messages go through it.
    Live(Channel),
    /// For good.
    Failed(PeerError),
}

/// A rank of the job.
pub(crate) enum Member {
    /// Not added.
    Unknown,
    /// This process.
    Own(PeerInfo),
    /// Added, reachable.
    Peer(Box<Peer>),
}

/// Another rank.
pub(crate) struct Peer {
    pub(crate) port: u16,
    /// Of its card.
    pub(crate) nonce: u64,
    pub(crate) route: Route,
    pub(crate) path: PeerInfo,
    pub(crate) link: Link,
    /// Attempts that came to nothing.
    pub(crate) tries: u32,
    /// Attempts that gave way in a row.
    pub(crate) yields: u32,
    /// Since when it is being closed out by this process.
    pub(crate) dropping: Option<Instant>,
    /// It is in the list of those that are looked at in every `progress`.
    pub(crate) watched: bool,
    /// Looks in a row that found nothing.
    pub(crate) quiet: u32,
}

impl Peer {
    pub(crate) fn new(port: u16, nonce: u64, route: Route, path: PeerInfo) -> Peer {
        Peer {
            port,
            nonce,
            route,
            path,
            link: Link::Idle { again: None },
            tries: 0,
            yields: 0,
            dropping: None,
            watched: false,
            quiet: 0,
        }
    }

    #[inline]
    pub(crate) fn channel(&mut self) -> Option<&mut Channel> {
        match &mut self.link {
            Link::Greeting(channel) | Link::Welcomed(channel) | Link::Live(channel) => {
                Some(channel)
            }
            Link::Idle { .. } | Link::Begun(_) | Link::Failed(_) => None,
        }
    }

    /// Pause before the next attempt: 5, 20, 80 … ms.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_millis(5 << (2 * self.tries.saturating_sub(1)).min(10))
    }

    /// How long to wait for the attempt that this side gave way to: 50, 100 … 800 ms.
    pub(crate) fn yield_pause(&self) -> Duration {
        Duration::from_millis(50 << self.yields.saturating_sub(1).min(4))
    }
}

/// What to do with a stream whose HELLO is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Take it; what there was of an own attempt or of an older, unconfirmed stream is dropped.
    Welcome,
    /// The own attempt goes on.
    Yield,
    /// Never.
    Refuse(&'static str),
}

impl Link {
    /// See the module.
    pub(crate) fn judge(&self, own: btl::Rank, theirs: btl::Rank) -> Verdict {
        match self {
            Link::Idle { .. } | Link::Welcomed(_) => Verdict::Welcome,
            Link::Begun(_) | Link::Greeting(_) if own < theirs => Verdict::Yield,
            Link::Begun(_) | Link::Greeting(_) => Verdict::Welcome,
            Link::Live(_) => {
                Verdict::Refuse("there is a connection already, which this side takes for good")
            }
            Link::Failed(_) => Verdict::Refuse("this side has given the connection up"),
        }
    }
}
