//! Fault injection: wraps a transport and produces, from one seed, all behaviour that the contract
//! allows but that a good transport rarely shows. [`Faults::corrupt`], [`Faults::truncate`] and
//! [`Faults::cut`] also imitate hostile or broken peers.
//!
//! The wrapper keeps order, exactly-once delivery, one completion per operation, and one failure
//! per peer after its completions. Without the hostile faults it therefore passes the conformance
//! suite whenever the wrapped transport does. It breaks one promise: with [`Faults::late_send`], an
//! accepted message waits for the next `progress`.
//!
//! Equal seeds and calls produce equal faults. Print the seed when a test fails.

mod collector;
mod faults;
mod state;
mod tx;

pub use faults::Faults;

use std::collections::BTreeMap;
use std::io::IoSlice;

use self::collector::Collector;
use self::state::{HELD, State};
use self::tx::FaultyTx;
use crate::forward;
use crate::rng::Rng;
use btl::{
    Btl, Events, HeldSends, NoticedPuts, PeerInfo, PendingPeers, Rank, SendError, Tx, Unreachable,
};

/// Maximum number of calls of [`Btl::drop_peer`] that wait for messages held back.
const PATIENCE: u32 = 100;

/// A transport with injected faults.
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn Btl>,
    state: State,
}

impl Faulty {
    /// Wraps a transport.
    #[must_use]
    pub fn new(inner: Box<dyn Btl>, seed: u64, faults: Faults) -> Faulty {
        let state = State {
            faults,
            rng: Rng::new(seed),
            closed: false,
            peers: BTreeMap::new(),
            tokens: BTreeMap::new(),
            made: 0,
        };
        Faulty { inner, state }
    }

    /// Returns the number of injected faults. A test with none proves nothing.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.state.made
    }

    fn tx(&mut self) -> FaultyTx<'_> {
        FaultyTx {
            tx: &mut *self.inner,
            state: &mut self.state,
        }
    }

    /// Sends messages that were held back.
    fn push_out(&mut self) -> usize {
        let mut done = 0;
        for (rank, peer) in &mut self.state.peers {
            if peer.out_wait > 0 {
                peer.out_wait -= 1;
                done += 1;
                continue;
            }
            while let Some((header, body)) = peer.out.front() {
                match self.inner.send(*rank, header, &[IoSlice::new(body)]) {
                    Err(SendError::Busy) => break,
                    // Sent, or the peer failed, which is reported.
                    _ => drop(peer.out.pop_front()),
                }
                done += 1;
            }
        }
        done
    }

    /// Reports held events whose delay has passed.
    fn release(&mut self, events: &mut dyn Events, mut room: usize) -> usize {
        let ranks: Vec<Rank> = self.state.peers.keys().copied().collect();
        let first = self.state.rng.below(ranks.len());
        let mut done = 0;
        for index in 0..ranks.len() {
            let rank = ranks[(first + index) % ranks.len()];
            let Some(peer) = self.state.peers.get_mut(&rank) else {
                continue;
            };
            if peer.held_wait > 0 {
                peer.held_wait -= 1;
                done += usize::from(!peer.held.is_empty());
                continue;
            }
            // Events that callbacks add are left for the next call.
            let count = peer.held.len();
            for _ in 0..count.min(room) {
                if self.state.closed {
                    return done;
                }
                let Some(held) = self
                    .state
                    .peers
                    .get_mut(&rank)
                    .and_then(|peer| peer.held.pop_front())
                else {
                    break;
                };
                self.tx().report(events, rank, held);
                room -= 1;
                done += 1;
            }
        }
        done
    }

    fn is_holding(&self) -> bool {
        self.state
            .peers
            .values()
            .any(|peer| !peer.held.is_empty() || !peer.out.is_empty())
    }
}

impl Tx for Faulty {
    forward!(tx() => send get put);
}

impl HeldSends for Faulty {
    forward!(tx() => send_held);
}

impl NoticedPuts for Faulty {}

impl PendingPeers for Faulty {
    forward!(inner => pending_peers refuse);
}

impl Btl for Faulty {
    forward!(inner => name capabilities address register deregister wait_fd);

    fn add_peer(&mut self, peer: Rank, address: &[u8]) -> Result<PeerInfo, Unreachable> {
        let path = self.inner.add_peer(peer, address)?;
        self.state.peers.entry(peer).or_default().max_send = Some(path.max_send);
        Ok(path)
    }

    fn progress(&mut self, events: &mut dyn Events) -> usize {
        if self.state.closed {
            return 0;
        }
        let mut done = self.push_out();
        let held: usize = self.state.peers.values().map(|peer| peer.held.len()).sum();
        // At the limit, events stay in the wrapped transport, which delays the senders.
        if held < 4 * HELD {
            done += self.inner.progress(&mut Collector {
                state: &mut self.state,
            });
        }
        done += self.state.end_cut();
        done + self.release(
            events,
            if self.state.faults.one_event {
                1
            } else {
                usize::MAX
            },
        )
    }

    fn arm(&mut self) -> bool {
        let cut = self
            .state
            .peers
            .values()
            .any(|peer| peer.cut && peer.gone.is_none());
        !self.is_holding() && !cut && self.inner.arm()
    }

    /// Sends messages held back for the peer first, if there is room soon enough.
    fn drop_peer(&mut self, peer: Rank) -> bool {
        if let Some(known) = self.state.peers.get_mut(&peer) {
            known.dropping += 1;
            if !known.out.is_empty() && known.dropping < PATIENCE {
                return false;
            }
            known.out.clear();
        }
        self.inner.drop_peer(peer)
    }

    fn flush(&mut self) -> bool {
        self.state.closed
            || (self.state.peers.values().all(|peer| peer.out.is_empty()) && self.inner.flush())
    }

    fn close(&mut self) {
        self.state.closed = true;
        self.state.peers.clear();
        self.state.tokens.clear();
        self.inner.close();
    }
}
