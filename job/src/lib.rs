//! Joins a job: detects the launcher and this process's rank, creates the transports, exchanges
//! addresses, and starts the point-to-point layer.
//!
//! ```no_run
//! let job = job::join()?;
//! let world = job.world();
//! if world.rank() == 0 {
//!     world.send(b"hello", world.size() - 1, 7)?;
//! }
//! if world.rank() == world.size() - 1 {
//!     let mut text = [0; 5];
//!     world.recv(&mut text, 0, 7)?;
//! }
//! job.finalize()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program runs unchanged under `mpirun`, under `mpiexec`, and alone (a job of one);
//! docs/launchers.md has the command lines.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `ESP_BTL` | transports to use, in order of preference among equals: `self,shm,ib,eth,udp` (all, by default) |
//! | `ESP_INTERFACES` | interfaces for Ethernet and UDP: `eth0,eth1`, or `^wlan*` for all but these; default: all that the daemon serves, and for UDP all that are up and have an IP address |
//! | `ESP_RAILS` | number of interfaces used at once, each as a rail, 1 to 4; default 4 |
//! | `ESP_AUTH` | `encrypt` or `integrity`: protect packets between nodes, over UDP, by keys: those of `ESP_KEY_FILE`, otherwise one of the job; `off`: do not; default: `encrypt` with `ESP_KEY_FILE`, or if the daemon of rank 0's node has a key |
//! | `ESP_KEY_FILE` | files with keys, separated by colons; all processes need one in common |
//! | `ESP_CHECKSUM` | 1: add a checksum, which detects damage, to packets over UDP that no key protects; 0: do not; default: if the daemon of rank 0's node does |
//! | `ESP_RDMA_PORTS` | ports for InfiniBand and RoCE, one rail each: `mlx5_0,mlx5_1:2`; default: the active ones, at most four |
//! | `ESP_RDMA_SHARED` | 1: all peers share receive blocks; 0: each peer has its own; default: shared in jobs of 257 or more ranks |
//! | `ESP_BTL_VERBOSE=1` | each process prints on standard error how it reaches each peer, and why |
//! | `ESP_TUNE` | the file of thresholds that `esplab tune` has written; default `~/.config/esp/tune.toml`, if it exists; empty: none |
//! | `ESP_PATH` | `lease`, `daemon`, or `auto` (default): whether a process uses a lease, see `esp-client` |
//! | `ESP_LAZY_FROM` | minimum number of ranks of a job in which a process reaches those of other nodes when it first communicates with them, not at the start; that of rank 0 counts; default 65 |
//! | `ESP_CONNECTIONS` | number of connections of a process, at each rail, above which it ends the one that it has not used for the longest time; default 256 |
//! | `ESP_BOOT`, `ESP_BOOT_TIMEOUT` | see the crate `boot` |
//! | `ESP_SOCKET` | the daemon's socket, see `esp-client` |
//! | `ESP_PEER_TIMEOUT` | seconds that a peer may be silent, see `docs/launchers.md`; default 30 |
//!
//! All processes of a job agree: either all of them join it, or each reports which one could not
//! and why. In jobs of `ESP_LAZY_FROM` or more ranks, this applies to the peers on one node; any
//! other peer that cannot be reached fails when it is used.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod agree;
mod book;
mod cpus;
pub mod endpoint;
mod error;
mod groups;
mod join;
mod modex;
mod options;
mod peers;
mod places;
mod protection;
mod report;
mod transports;
mod tune;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use book::Nodes;
use boot::Bootstrap;
use p2p::{Comm, P2p, PathReport};

pub use error::{FinalizeError, JoinError};
pub use join::{join, join_by, join_with};
pub use options::{Options, Transport};
pub use report::Report;
pub use tune::Rdma;

/// Time between the reason of an abort on standard error and the request to end the job.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A process's membership in a running job.
///
/// Dropping it without [`finalize`](Job::finalize) does not disconnect from the launcher, which
/// then reports a failure.
pub struct Job {
    boot: Arc<Mutex<Bootstrap>>,
    nodes: Nodes,
    p2p: P2p,
    world: Comm,
    report: Report,
    verbose: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("launcher", &self.report.launcher)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Returns the communicator of all processes.
    pub fn world(&self) -> Comm {
        self.world.clone()
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.world.rank()
    }

    /// Returns the number of processes.
    pub fn size(&self) -> u32 {
        self.world.size()
    }

    /// Returns the layer below [`world`](Job::world): requests by id, counters, progress.
    pub fn p2p(&self) -> &P2p {
        &self.p2p
    }

    /// Returns the name of a rank's node, if this process has looked it up.
    pub fn node_of(&self, rank: u32) -> Option<String> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&rank).cloned()
    }

    /// Returns the number of values that this process has read from the launcher.
    pub fn lookups(&self) -> u64 {
        let boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        boot.lookups()
    }

    /// Returns the transports that reach each peer that was reached so far, and the reason.
    pub fn paths(&self) -> Vec<PathReport> {
        self.p2p.paths()
    }

    /// Returns a printable report: paths, node names, and transports that could not be created.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Leaves the job. Every process must call it; it returns when all have called it or one of
    /// them has died. There is no time limit: a process that computes receives the messages sent to
    /// it when it is done.
    ///
    /// # Errors
    /// The launcher is gone. The process has left the job nevertheless.
    pub fn finalize(self) -> Result<(), FinalizeError> {
        if self.verbose {
            let rank = self.world.rank();
            let line = |rail: p2p::RailReport| format!("esp: rank {rank}: {rail}\n");
            report::say(&self.p2p.rails().into_iter().map(line).collect::<String>());
        }
        drop(self.world);
        let sent = self.p2p.finalize();
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        // Others may still read this process's memory. If one has died and does not arrive, the
        // launcher reports it or ends the job. Some may work for long before they arrive.
        let met = boot.fence_at_end();
        let left = boot.finalize();
        sent?;
        met.and(left)?;
        Ok(())
    }

    /// Ends the whole job: prints the reason, asks the launcher to end all processes, and exits
    /// with `code`.
    pub fn abort(&self, code: i32, why: &str) -> ! {
        let why: String = why
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        report::say(&format!(
            "esp: rank {} ends the job (code {code}): {why}\n",
            self.rank()
        ));
        // A launcher that ends the job drops the output of this process that it has not read.
        std::thread::sleep(LAST_WORDS);
        // Another thread that holds the launcher's connection for long is in `abort` as well, or
        // looks up a peer, for which there is a time limit.
        let mut boot = self.boot.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = boot.abort(code, &why);
        if !matches!(answer, boot::BootError::Aborted { .. }) {
            report::say(&format!(
                "esp: rank {}: the launcher was not reached: {answer}\n",
                self.rank()
            ));
        }
        std::process::exit(code)
    }
}
