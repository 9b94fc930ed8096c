//! The switches.

use std::time::Duration;

/// How the layer behaves. [`Config::default`] lets transports and machine decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Messages up to this many bytes are sent at once; `None`: [`btl::PeerInfo::eager`] of the peer.
    pub eager: Option<usize>,
    /// Likewise while the receiver is late (skew); `None`: [`btl::PeerInfo::eager_skewed`].
    pub eager_skewed: Option<usize>,
    /// Messages from this many bytes on are moved by `get`, `put` or a matched send; `None`: [`btl::PeerInfo::one_sided_from`].
    pub one_sided_from: Option<usize>,
    /// Use transports' `get`.
    pub get: bool,
    /// Use transports' `put`.
    pub put: bool,
    /// Measure which way of announced messages delivers more, `get` or fragments, where both are possible, and use that one: from 48 KiB
    /// on, for each peer and length (by powers of two). The transport's threshold is then only where it begins. Off: the
    /// threshold decides.
    pub adapt: bool,
    /// Show receives to the senders, on transports that can, so that whichever side comes later copies (LiMIC, section 4.3). Off by default:
    /// where the sender writes into the receiver's memory, bandwidth was 0.6 to 0.8 of what the receiver reaches by reading (shared memory,
    /// 256 KiB to 4 MiB; docs/performance.md). On, a sender is done without the receiver's help when the receive is there already.
    pub matched: bool,
    /// Longest fragment of a long message, header included; `None`: [`btl::PeerInfo::max_send`].
    pub fragment: Option<usize>,
    /// Bytes of one `get` or `put`.
    pub one_sided_piece: usize,
    /// Such pieces of one message under way at once.
    pub one_sided_depth: u32,
    /// Transports of the same exclusivity used for one peer at once.
    pub lanes: usize,
    /// Messages from this many bytes on take turns among the transports of a peer that has several.
    pub stripe_from: usize,
    /// Memory for messages that no receive has asked for, in bytes; at least 64 KiB. Senders are slowed down before it is full; one that does not listen is
    /// failed.
    pub unexpected_bytes: usize,
    /// React to a late receiver at all (hybrid paper, section 4.2).
    pub skew: bool,
    /// More waiting messages than this for [`skew_after`](Config::skew_after) mean that this process is late.
    pub skew_queue: usize,
    /// See [`skew_queue`](Config::skew_queue).
    pub skew_after: Duration,
    /// A late process counts as in time again when for so long no more than half as many waited.
    pub skew_rest: Duration,
    /// How long a waiting thread spins before it yields; `None`: 1 ms, or not at all when ranks outnumber CPUs.
    pub spin: Option<Duration>,
    /// How long it yields the CPU between looks before it sleeps.
    pub yields: Duration,
    /// Whether it sleeps at all.
    pub block: bool,
    /// Processes on this node that want a CPU while the job communicates (its ranks, and daemons of theirs), to compare with the CPUs; 0 is
    /// taken for 1.
    pub local_ranks: u32,
    /// CPUs this process may use; `None`: affinity mask and cgroup quota say.
    pub cpus: Option<u32>,
    /// A thread of our own makes progress while the program computes.
    pub progress_thread: bool,
    /// How long [`P2p::finalize`](crate::P2p::finalize) tries to get everything out.
    pub finalize_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager: None,
            eager_skewed: None,
            one_sided_from: None,
            get: true,
            put: true,
            adapt: true,
            matched: false,
            fragment: None,
            one_sided_piece: 4 << 20,
            one_sided_depth: 4,
            lanes: 4,
            stripe_from: 4096,
            unexpected_bytes: 256 << 20,
            skew: true,
            skew_queue: 16,
            skew_after: Duration::from_micros(200),
            skew_rest: Duration::from_millis(20),
            spin: None,
            yields: Duration::from_millis(1),
            block: true,
            local_ranks: 1,
            cpus: None,
            progress_thread: false,
            finalize_limit: Duration::from_secs(10),
        }
    }
}
