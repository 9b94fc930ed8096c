//! Reads the facts: about the daemon, the kernel and the files below `/proc` and `/sys`, then about
//! the peers.

mod daemon;
mod files;
mod host;
mod link;
mod mpi;
mod network;

use std::path::Path;
use std::time::{Duration, Instant};

use super::facts::Facts;
use super::flags::Flags;
use crate::out::Failure;
use crate::signal::Interrupt;
use files::Files;

/// Time between the two readings of counters.
const BETWEEN: Duration = Duration::from_millis(300);

/// Reads all facts that the command line requires.
pub(super) fn facts(flags: &Flags, interrupt: &Interrupt) -> Result<Facts, Failure> {
    let files = Files::below(Path::new("/"));
    let (mut daemon, client) = daemon::read(&files);
    let mut links = link::read(&files, &daemon, &flags.interface);
    let begin = Instant::now();
    let host = host::read(&files);
    let mpi = mpi::read();
    let network = match &client {
        Some(client) if flags.asks_peers() => {
            Some(network::read(client, &daemon, flags, interrupt)?)
        }
        None if flags.asks_peers() => Some(network::without_daemon(flags, interrupt)),
        _ => None,
    };
    std::thread::sleep(BETWEEN.saturating_sub(begin.elapsed()));
    link::read_again(&files, &mut links);
    if let Some(client) = &client {
        daemon::read_again(client, &mut daemon, begin.elapsed());
    }
    Ok(Facts {
        daemon,
        links,
        host,
        mpi,
        network,
    })
}
