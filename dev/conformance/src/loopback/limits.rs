//! Capabilities and limits of a job, which tests choose.

use btl::MAX_HEADER;

/// Capabilities and limits of a job's transport.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// [`Btl::name`](btl::Btl::name); tests with two loopbacks name them differently.
    pub name: &'static str,
    /// [`PeerInfo::latency_ns`](btl::PeerInfo::latency_ns).
    pub latency_ns: u32,
    /// [`PeerInfo::bandwidth`](btl::PeerInfo::bandwidth).
    pub bandwidth: u32,
    /// [`PeerInfo::exclusivity`](btl::PeerInfo::exclusivity).
    pub exclusivity: u32,
    /// [`PeerInfo::eager`](btl::PeerInfo::eager).
    pub eager: usize,
    /// [`PeerInfo::eager_skewed`](btl::PeerInfo::eager_skewed).
    pub eager_skewed: usize,
    /// [`PeerInfo::max_send`](btl::PeerInfo::max_send); raised to the contract's minimum.
    pub max_send: usize,
    /// Maximum number of messages in transit between two ranks, and of `get`s and `put`s pending at
    /// one. At least 1.
    pub entries: usize,
    /// [`Capabilities::get`](btl::Capabilities::get).
    pub get: bool,
    /// [`Capabilities::put`](btl::Capabilities::put).
    pub put: bool,
    /// [`PeerInfo::one_sided_from`](btl::PeerInfo::one_sided_from).
    pub one_sided_from: usize,
    /// `get` and `put` return [`Started::Pending`](btl::Started::Pending) and complete in the next
    /// `progress`; otherwise they return [`Started::Done`](btl::Started::Done).
    pub pending: bool,
    /// [`Capabilities::held_from`](btl::Capabilities::held_from).
    pub held_from: Option<usize>,
    /// Maximum number of events of each kind in one `progress`. At least 1.
    pub burst: usize,
}

impl Default for Limits {
    /// Returns limits with all capabilities and ample room.
    fn default() -> Limits {
        Limits {
            name: "loopback",
            latency_ns: 500,
            bandwidth: 10_000,
            exclusivity: 1,
            eager: 4096,
            eager_skewed: 8192,
            max_send: 65536,
            entries: 64,
            get: true,
            put: true,
            one_sided_from: 16384,
            pending: true,
            held_from: None,
            burst: 16,
        }
    }
}

impl Limits {
    /// Returns minimal limits: short messages, two in transit, one event at a time.
    #[must_use]
    pub fn tight() -> Limits {
        Limits {
            eager: 64,
            eager_skewed: 128,
            max_send: 1024 + MAX_HEADER,
            entries: 2,
            one_sided_from: 256,
            burst: 1,
            ..Limits::default()
        }
    }

    /// Removes one-sided operations and held sends.
    #[must_use]
    pub fn plain(self) -> Limits {
        Limits {
            get: false,
            put: false,
            held_from: None,
            ..self
        }
    }
}
