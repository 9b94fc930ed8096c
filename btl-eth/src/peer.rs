//! State of another rank and of the connection to it.
//!
//! ```text
//!            send                    answer of the daemon            WELCOME
//!   Idle ───────────▶ Requested ───────────────────▶ HelloSent ──────────────▶ Established
//!    ▲ │                      HELLO is written               CONFIRM is written      ▲
//!    │ │                                                                             │ CONFIRM
//!    │ └───────────────────────────────────────────▶ WelcomeSent ────────────────────┘
//!    │         HELLO arrives, WELCOME is written          │
//!    └──── stream ended, YIELD (also from HelloSent) ◀────┘            any ──▶ Failed
//!
//!              RELEASE is written             RELEASE            all is acknowledged
//!   Established ────────────────▶ Releasing ───────────▶ Ending ────────────────────▶ Idle
//!        └──────────────────────────────────────────────▶
//!                     RELEASE, and RELEASE is written
//! ```
//!
//! **Simultaneous open.** A rank that receives a HELLO while it is connecting itself (`Requested`,
//! `HelloSent`) compares ranks: the connection of the lower rank is continued. The lower rank
//! answers YIELD; the higher drops its own attempt and answers WELCOME. Both sides confirm a
//! stream: the acceptor states with WELCOME, the connector with CONFIRM, that it has no other. So
//! at most one stream is established, and as messages are sent on established streams only, none is
//! lost or duplicated.
//!
//! **Release.** A process with more connections than its limit ends the least recently used one.
//! RELEASE is the last record of either side, so a side that has both written and read it has
//! received everything. When all that it has sent is acknowledged, too, it connects again for its
//! next message. Its HELLO may be read before its RELEASE on the earlier stream; the acceptor keeps
//! it until that stream has ended.
//!
//! **Attempts are numbered**, because the HELLO of an abandoned one may arrive after the next.
//!
//! **A stream that ends before it is established** has delivered nothing. The peer is `Idle` again,
//! and the next attempt follows after a pause, a few times.

use std::time::{Duration, Instant};

use btl::{PeerError, PeerInfo};
use esp_client::Connecting;

use crate::channel::Channel;
use crate::probe::NodePath;

/// State of a connection, see the module.
pub(crate) enum Connection {
    /// No stream. `retry_at`: when the next attempt starts by itself.
    Idle { retry_at: Option<Instant> },
    /// A stream was requested from the daemon.
    Requested(Box<Connecting>),
    /// Stream of this side; WELCOME is awaited.
    HelloSent(Channel),
    /// Stream of the peer; CONFIRM is awaited.
    WelcomeSent(Channel),
    /// Messages are exchanged.
    Established(Channel),
    /// RELEASE is awaited; messages still arrive.
    Releasing(Channel),
    /// Both sides have written RELEASE; acknowledgement of the last bytes is awaited.
    Ending(Channel),
    /// Final.
    Failed(PeerError),
}

/// State of a rank of the job.
pub(crate) enum PeerState {
    /// Not added.
    Unknown,
    /// This rank itself, added.
    Own,
    /// Another rank, added and reachable.
    Peer(Box<Peer>),
}

/// Another rank.
pub(crate) struct Peer {
    pub(crate) port: u16,
    /// Nonce in the peer's address.
    pub(crate) nonce: u64,
    pub(crate) path: NodePath,
    pub(crate) info: PeerInfo,
    pub(crate) connection: Connection,
    /// `EthBtl::calls` when the connection was last used.
    pub(crate) used: u64,
    /// A connection was established before, so its port was open.
    pub(crate) was_connected: bool,
    /// Number of attempts of this side to connect, modulo 2^16.
    pub(crate) attempts: u16,
    /// Number of the peer's last attempt that was answered.
    pub(crate) answered: Option<u16>,
    /// Number of failed attempts, except unanswered ones.
    pub(crate) failures: u32,
    /// Number of consecutive attempts without an answer.
    pub(crate) unanswered: u32,
    /// Number of consecutive attempts that ended with YIELD.
    pub(crate) yields: u32,
    /// Time at which the owner began to drop this peer.
    pub(crate) dropped_at: Option<Instant>,
    /// The peer is in `EthBtl::polled`.
    pub(crate) polled: bool,
    /// Number of consecutive polls that found nothing.
    pub(crate) empty_polls: u32,
}

impl Peer {
    pub(crate) fn new(port: u16, nonce: u64, path: NodePath, info: PeerInfo) -> Peer {
        Peer {
            port,
            nonce,
            path,
            info,
            connection: Connection::Idle { retry_at: None },
            used: 0,
            was_connected: false,
            attempts: 0,
            answered: None,
            failures: 0,
            unanswered: 0,
            yields: 0,
            dropped_at: None,
            polled: false,
            empty_polls: 0,
        }
    }

    #[inline]
    pub(crate) fn channel(&mut self) -> Option<&mut Channel> {
        match &mut self.connection {
            Connection::HelloSent(channel)
            | Connection::WelcomeSent(channel)
            | Connection::Established(channel)
            | Connection::Releasing(channel)
            | Connection::Ending(channel) => Some(channel),
            Connection::Idle { .. } | Connection::Requested(_) | Connection::Failed(_) => None,
        }
    }

    /// Returns the pause after a failed attempt: 5, 20, 80 … ms.
    pub(crate) fn retry_pause(&self) -> Duration {
        Duration::from_millis(5 << (2 * self.failures.saturating_sub(1)).min(10))
    }

    /// Returns the time to wait for the peer's attempt after a YIELD: 50, 100 … 800 ms.
    pub(crate) fn yield_pause(&self) -> Duration {
        Duration::from_millis(50 << self.yields.saturating_sub(1).min(4))
    }
}

/// Response to a valid HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloResponse {
    /// Accept it, and drop this side's attempt or an older stream that is not established.
    Welcome,
    /// Continue this side's attempt.
    Yield,
    /// Keep it until the peer is added, or its earlier stream has ended.
    Wait,
    /// Refuse it, with the reason.
    Refuse(&'static str),
}

impl Connection {
    /// Returns the response to a HELLO of rank `theirs`, see the module. Open transports compare
    /// identities instead of ranks.
    pub(crate) fn respond(&self, own: u64, theirs: u64) -> HelloResponse {
        match self {
            Connection::Idle { .. } | Connection::WelcomeSent(_) => HelloResponse::Welcome,
            Connection::Requested(_) | Connection::HelloSent(_) if own < theirs => {
                HelloResponse::Yield
            }
            Connection::Requested(_) | Connection::HelloSent(_) => HelloResponse::Welcome,
            Connection::Established(_) => {
                HelloResponse::Refuse("a connection is established already")
            }
            Connection::Releasing(_) | Connection::Ending(_) => HelloResponse::Wait,
            Connection::Failed(_) => HelloResponse::Refuse("the connection has failed for good"),
        }
    }
}
