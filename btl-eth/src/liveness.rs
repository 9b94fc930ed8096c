//! Liveness of peers without a connection.
//!
//! The stream of a connected peer shows its end. Of the other peers, each round probes a bounded
//! number, by a connection with a key that no job uses: an open port answers BAD_KEY (W-20), a
//! closed one REFUSED (W-23). The peer's program notices neither. A process that died is found
//! within a second in jobs of up to 64 processes, and within a minute in one of 512. A node that
//! does not answer counts as dead when several probes together have waited for the peer timeout.
//! Probes are counted, not timed, so that each waits in full even after a pause of this machine.

use std::time::{Duration, Instant};

use btl::{PeerError, Rank};
use esp_client::{Connecting, EspAddr, EspError, EspStream, Interest, StreamBuilder};

use crate::channel::SetupError;
use crate::peer::{Connection, PeerState};
use crate::transport::{EthBtl, SlotOwner};

/// Time between two rounds.
pub(crate) const INTERVAL: Duration = Duration::from_millis(400);
/// Maximum number of probes at a time of one process.
const MAX_PROBES: usize = 32;
/// Maximum number of probes that the processes of a job start together in one round. Each process
/// may start one even if that exceeds it. Without this limit the rate grows with the size of the
/// job.
const JOB_PROBES: usize = 2048;
/// Default connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Key of probes. Keys of jobs have 16 bytes.
const KEY: &[u8] = b"are you there?";

/// Probes in flight.
pub(crate) struct Liveness {
    builder: StreamBuilder,
    probes: Vec<Probe>,
    /// First rank of the next round.
    next: usize,
    pub(crate) next_round: Option<Instant>,
}

struct Probe {
    rank: Rank,
    request: Connecting,
    /// The stream, once it was made.
    stream: Option<EspStream>,
    /// Number of probes before it that were not answered.
    unanswered: u32,
}

/// Returns the number of consecutive attempts to connect, each of the default connect timeout, that
/// fill the peer timeout.
pub(crate) fn silent_attempts(peer_timeout: Duration) -> u32 {
    let attempts = peer_timeout.as_secs().div_ceil(CONNECT_TIMEOUT.as_secs());
    u32::try_from(attempts.max(1)).unwrap_or(u32::MAX)
}

/// Returns the maximum number of probes at a time for one process of a job of `size` processes.
fn max_probes(size: usize) -> usize {
    (JOB_PROBES / size.max(1)).clamp(1, MAX_PROBES)
}

impl Liveness {
    pub(crate) fn new(path: esp_client::Path) -> Liveness {
        // No data is sent.
        let builder = EspStream::builder()
            .path(path)
            .key(KEY)
            .rings(4 << 10, 4 << 10);
        Liveness {
            builder,
            probes: Vec::new(),
            next: 0,
            next_round: None,
        }
    }
}

impl EthBtl {
    /// Schedules the first round.
    pub(crate) fn start_liveness(&mut self) {
        let at = Instant::now() + INTERVAL;
        if let Some(open) = &mut self.open
            && open.liveness.next_round.is_none()
        {
            open.liveness.next_round = Some(at);
            self.schedule(at);
        }
    }

    pub(crate) fn start_liveness_round(&mut self, now: Instant) {
        let Some(open) = &self.open else { return };
        let liveness = &open.liveness;
        let size = self.peers.len();
        let room = max_probes(size).saturating_sub(liveness.probes.len());
        let first = liveness.next;
        let (mut started, mut seen) = (Vec::new(), 0);
        while started.len() < room && seen < size {
            let index = (first + seen) % size;
            seen += 1;
            started.extend(self.begin_probe(index, 0));
        }
        let at = now + INTERVAL;
        if let Some(open) = &mut self.open {
            open.liveness.probes.append(&mut started);
            open.liveness.next = (first + seen) % size.max(1);
            open.liveness.next_round = Some(at);
        }
        self.schedule(at);
    }

    /// Begins a probe of a peer without a connection. After an error one of the next rounds probes
    /// the peer.
    fn begin_probe(&self, index: usize, unanswered: u32) -> Option<Probe> {
        let open = self.open.as_ref()?;
        let PeerState::Peer(peer) = self.peers.get(index)? else {
            return None;
        };
        if !matches!(peer.connection, Connection::Idle { retry_at: None }) {
            return None;
        }
        let address = EspAddr::new(peer.path.peer, peer.port).via(peer.path.interface.clone());
        let request = open.liveness.builder.begin_at(&open.client, address);
        Some(Probe {
            rank: Rank::try_from(index).ok()?,
            request: request.ok()?,
            stream: None,
            unanswered,
        })
    }

    /// Handles the answers to probes.
    pub(crate) fn poll_liveness(&mut self) {
        let Some(open) = &mut self.open else { return };
        let mut probes = std::mem::take(&mut open.liveness.probes);
        probes.retain_mut(|probe| self.is_in_flight(probe));
        if let Some(open) = &mut self.open {
            open.liveness.probes = probes;
        }
    }

    fn is_in_flight(&mut self, probe: &mut Probe) -> bool {
        if probe.stream.is_none() {
            match probe.request.poll() {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(stream)) => {
                    self.set_owner(stream.slot(), SlotOwner::Probe);
                    probe.stream = Some(stream);
                }
            }
        }
        let Some(stream) = &probe.stream else {
            return true;
        };
        stream.arm(Interest::State);
        let error = match stream.is_connected() {
            Ok(false) => return true,
            Ok(true) => None,
            Err(error) => Some(error),
        };
        self.set_owner(stream.slot(), SlotOwner::None);
        // A failed attempt has its own retries.
        let idle = (self.peer(probe.rank))
            .is_some_and(|peer| matches!(peer.connection, Connection::Idle { retry_at: None }));
        let Some(error) = error.filter(|_| idle) else {
            return false;
        };
        match EspError::of(&error) {
            // Nothing was in progress, so this is not a failure if the peer left gracefully.
            Some(EspError::Refused { .. }) => self.fail(probe.rank, PeerError::Gone),
            Some(EspError::ConnectTimedOut { .. }) => {
                let unanswered = probe.unanswered + 1;
                if unanswered >= self.silent_attempts {
                    self.fail(probe.rank, SetupError::new(&error).error);
                    return false;
                }
                let next = self.begin_probe(probe.rank as usize, unanswered);
                return next.is_some_and(|next| {
                    *probe = next;
                    true
                });
            }
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_fill_the_peer_timeout() {
        for (seconds, attempts) in [(1, 1), (5, 1), (30, 6), (31, 7), (3600, 720)] {
            assert_eq!(silent_attempts(Duration::from_secs(seconds)), attempts);
        }
    }

    #[test]
    fn a_job_probes_no_more_when_it_is_larger() {
        for size in [0, 1, 2, 64] {
            assert_eq!(max_probes(size), 32, "{size}");
        }
        for size in [65, 128, 512, 1000, 2048] {
            assert!(max_probes(size) * size <= 2048, "{size}");
        }
        assert_eq!(max_probes(512), 4);
        assert_eq!(max_probes(100_000), 1);
    }
}
