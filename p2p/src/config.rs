//! Configuration.

use std::time::Duration;

/// Behaviour of the layer. [`Config::default`] leaves the choice to the transports and the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Maximum length of an eager message, in bytes; `None`: [`btl::PeerInfo::eager`].
    pub eager: Option<usize>,
    /// Minimum length of a message that is moved by `get` or `put`, in bytes; `None`:
    /// [`btl::PeerInfo::one_sided_from`].
    pub one_sided_from: Option<usize>,
    /// Memory for messages that no receive matches, in bytes; at least 64 KiB. Senders are slowed
    /// down before it is full.
    pub unexpected_bytes: usize,
    /// Informs senders when this process is late (hybrid paper, section 4.2).
    pub skew: bool,
    /// Time that a waiting thread spins before it yields the CPU, and a millisecond later sleeps;
    /// `None`: 1 ms, or zero if the ranks outnumber the CPUs.
    pub spin: Option<Duration>,
    /// Number of processes on this node that need a CPU while the job communicates: its ranks, and
    /// daemons. 0 counts as 1.
    pub local_ranks: u32,
    /// Number of CPUs that this process may use; `None`: from the affinity mask and cgroup quota.
    pub cpus: Option<u32>,
    /// Node of each rank of the job: any numbers, equal for ranks of one node, and equal on all
    /// ranks. Collectives then send less between nodes. Empty: unknown.
    pub nodes: Vec<u32>,
    /// Internal thresholds, for tests.
    #[doc(hidden)]
    pub tuning: Tuning,
}

/// Internal thresholds. The defaults suit programs; tests make them small.
#[doc(hidden)]
#[allow(missing_docs, reason = "one comment covers several fields")]
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Allow `get` and `put`.
    pub get: bool,
    pub put: bool,
    /// Bytes of one `get` or `put`.
    pub one_sided_part: usize,
    /// This process is late while more than `skew_queue` messages have waited for `skew_after`,
    /// until at most half as many have waited for `skew_rest`.
    pub skew_queue: usize,
    pub skew_after: Duration,
    pub skew_rest: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager: None,
            one_sided_from: None,
            unexpected_bytes: 256 << 20,
            skew: true,
            spin: None,
            local_ranks: 1,
            cpus: None,
            nodes: Vec::new(),
            tuning: Tuning::default(),
        }
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            get: true,
            put: true,
            one_sided_part: 16 << 20,
            skew_queue: 16,
            skew_after: Duration::from_micros(200),
            skew_rest: Duration::from_millis(20),
        }
    }
}
