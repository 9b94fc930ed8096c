//! Adding peers: addresses, and connections established by datagrams.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use btl::{PeerError, PeerInfo, Rank, Unreachable};

use super::{BATCH, CONTROL, IbBtl, PIECES, Peer, State, completions, now, receives, registered};
use crate::IbError;
use crate::credit::{Credits, ReceiveCredits};
use crate::error::explain;
use crate::nic::{Completion, NicError, Remote, Source};
use crate::wire::{ASK, HAVE, Hello, LEAVING, PeerAddress};

/// Time without any datagram of a peer after which it is lost. A live process requests its
/// connections when it adds its peers.
const SILENT_LIMIT: Duration = Duration::from_secs(8);
/// Time after which a peer that has requested a connection but does not answer, possibly because it
/// computes, is lost.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);

impl IbBtl {
    pub(super) fn add(&mut self, rank: Rank, bytes: &[u8]) -> Result<PeerInfo, Unreachable> {
        let no = |reason: String| Err(Unreachable { reason });
        let Some(nic) = &mut self.nic else {
            return no("the transport is closed".into());
        };
        if rank == self.config.rank {
            return no("messages of a rank to itself use other transports".into());
        }
        if rank >= self.config.size {
            return no(format!(
                "a job of {} ranks has no rank {rank}",
                self.config.size
            ));
        }
        let Some(address) = PeerAddress::decode(bytes) else {
            return no("its address is that of another transport or version".into());
        };
        if address.job != self.job || address.rank != rank || !address.is_sound() {
            return no("its address is that of another job, rank or rail".into());
        }
        let about = nic.about();
        if (address.ethernet != 0) != about.ethernet {
            return no("one side is InfiniBand, the other RoCE".into());
        }
        match self.peer(rank) {
            None => {}
            Some(peer) if peer.address.nonce != address.nonce => {
                return no("it was added already, with another address".into());
            }
            Some(peer) => match &peer.state {
                State::Failing(error) | State::Ended(error) => {
                    return no(format!("it failed: {error}"));
                }
                State::Connecting { .. } | State::Connected => return Ok(self.path(&address, true)),
            },
        }
        let mut peer = match self.open(rank, address) {
            Ok(peer) => peer,
            Err(error) => return no(error.to_string()),
        };
        if let Err(error) = self.greet(rank, &peer, ASK) {
            self.release_peer(&mut peer);
            return no(format!("no route to its port: {error}"));
        }
        let early = self.early.remove(&rank);
        if let Some(place) = self.peers.get_mut(rank as usize) {
            *place = Some(Box::new(peer));
        }
        if let Some((from, hello)) = early {
            self.heard(from, &hello);
        }
        let here = self.wait_for(rank);
        Ok(self.path(&address, here))
    }

    fn open(&mut self, rank: Rank, address: PeerAddress) -> Result<Peer, IbError> {
        let (depth, receives, blocks) = (self.depth(), receives(&self.config), self.config.blocks);
        let needed = completions(&self.config, self.peers.iter().flatten().count() + 1);
        let ring_bytes = self.config.ring();
        let Some(nic) = &mut self.nic else {
            return Err(IbError::Config("closed".into()));
        };
        let max = nic.about().max_completions;
        if needed > max {
            return Err(IbError::NoPort(format!(
                "the device has room for {max} completions, which is less than one more peer needs"
            )));
        }
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|_| IbError::NoRandom)?;
        let (queue, qpn) = nic.open(rank, depth.max(receives))?;
        let ring = nic.expect(queue, receives).map_err(IbError::from);
        let ring = ring.and_then(|()| {
            let ring = (blocks != 0).then(|| registered(&mut **nic, ring_bytes, true));
            ring.transpose()
        });
        let ring = ring.inspect_err(|_| nic.close(queue))?;
        let now = now();
        // Messages to shared blocks are bounded by the sender's queue only.
        let credits = if address.blocks == 0 {
            blocks.max(64) / 2
        } else {
            address.blocks.into()
        };
        Ok(Peer {
            address,
            state: State::Connecting {
                since: now,
                next: now + Duration::from_millis(20),
                tries: 0,
            },
            queue,
            qpn,
            psn: u32::from_ne_bytes(random) & 0xff_ffff,
            theirs: None,
            ring,
            credits: Credits::new(credits),
            receive_credits: ReceiveCredits::new(blocks),
            flights: VecDeque::new(),
            posted: 0,
            unsignaled: 0,
            sequence: 0,
            used: 0,
            pieces: 0,
            unposted: VecDeque::new(),
            operations: 0,
            spoke: now,
        })
    }

    fn path(&self, address: &PeerAddress, here: bool) -> PeerInfo {
        let longest = address.max_message();
        let bandwidth = self.nic.as_ref().map_or(0, |nic| nic.about().bandwidth);
        let least = [bandwidth, address.bandwidth]
            .into_iter()
            .filter(|speed| *speed > 0)
            .min();
        let connected = if here {
            "connected"
        } else {
            "no answer yet, connects later"
        };
        PeerInfo {
            latency_ns: 2000,
            bandwidth: least.unwrap_or(1000),
            exclusivity: 500,
            eager: longest.min(self.config.long_from),
            eager_skewed: longest.min(self.config.long_from),
            max_send: longest,
            one_sided: true,
            one_sided_from: self.config.long_from,
            reason: format!("{}; {connected}", self.describe()),
        }
    }

    /// Waits at most [`IbConfig::add_wait`](crate::IbConfig::add_wait) for the connection. Other
    /// events are kept for `progress`.
    fn wait_for(&mut self, rank: Rank) -> bool {
        let begin = Instant::now();
        let limit = self.config.add_wait.min(Duration::from_millis(500));
        loop {
            let connected = self.peer(rank).map(|peer| &peer.state);
            if !matches!(connected, Some(State::Connecting { .. })) {
                return true;
            }
            if begin.elapsed() >= limit {
                return false;
            }
            let mut batch = std::mem::take(&mut self.batch);
            if let Some(nic) = &mut self.nic {
                let _ = nic.poll(BATCH, &mut batch);
            }
            if batch.is_empty() {
                std::thread::sleep(Duration::from_micros(200));
            }
            for completion in batch.drain(..) {
                match completion {
                    Completion::Datagram { from, bytes } => self.datagram(from, &bytes),
                    other => self.stash.push_back(other),
                }
            }
            self.batch = batch;
            self.connect_on();
        }
    }

    /// Sends this side's part of the connection.
    pub(super) fn greet(&mut self, rank: Rank, peer: &Peer, flags: u8) -> Result<(), NicError> {
        let have = if peer.theirs.is_some() { HAVE } else { 0 };
        let hello = Hello {
            from: self.config.rank,
            to: rank,
            from_nonce: self.nonce,
            to_nonce: peer.address.nonce,
            job: self.job,
            flags: flags | have,
            qpn: peer.qpn,
            psn: peer.psn,
            ring: peer
                .ring
                .as_ref()
                .map_or(0, |(memory, _)| memory.address() as u64),
            ring_key: peer.ring.as_ref().map_or(0, |(_, keys)| keys.rkey),
        };
        let Some(nic) = &mut self.nic else {
            return Ok(());
        };
        nic.datagram(&peer.address.place(), &hello.encode())
    }

    /// Handles a datagram.
    pub(super) fn datagram(&mut self, from: Source, bytes: &[u8]) {
        match Hello::decode(bytes) {
            Some(hello)
                if hello.job == self.job
                    && hello.to == self.config.rank
                    && hello.to_nonce == self.nonce =>
            {
                self.heard(from, &hello);
            }
            _ => self.stats.strays += 1,
        }
    }

    /// Handles a connection request whose job and ranks match. It must come from the port and queue
    /// pair of the rank's address, which another machine cannot forge on InfiniBand, and on
    /// Ethernet only by forging addresses.
    fn heard(&mut self, from: Source, hello: &Hello) {
        let rank = hello.from;
        let Some(place) = self.peers.get_mut(rank as usize) else {
            self.stats.strays += 1;
            return;
        };
        let Some(mut peer) = place.take() else {
            // The rank is not added yet. One request for each rank is kept.
            self.early.insert(rank, (from, *hello));
            return;
        };
        if peer.address.nonce != hello.from_nonce || !from.is(&peer.address.place()) {
            self.stats.forged += 1;
        } else {
            self.hear(rank, &mut peer, hello);
        }
        self.peers[rank as usize] = Some(peer);
    }

    fn hear(&mut self, rank: Rank, peer: &mut Peer, hello: &Hello) {
        if matches!(peer.state, State::Failing(_) | State::Ended(_)) {
            return;
        }
        if hello.flags & LEAVING != 0 {
            return self.stop(peer, PeerError::Left);
        }
        if peer.theirs.is_none() {
            let remote = Remote {
                place: peer.address.place(),
                mtu: peer.address.mtu,
                qpn: hello.qpn,
                psn: [hello.psn & 0xff_ffff, peer.psn],
                timeout: self.config.timeout,
                retries: self.config.retries,
            };
            peer.theirs = Some(*hello);
            let Some(nic) = &mut self.nic else { return };
            if let Err(error) = nic.connect(peer.queue, &remote) {
                return self.stop(peer, PeerError::Lost(explain(&error)));
            }
        }
        if hello.flags & HAVE != 0 && peer.state != State::Connected {
            peer.state = State::Connected;
        }
        if hello.flags & ASK != 0 {
            let flags = if peer.state == State::Connected {
                0
            } else {
                ASK
            };
            if let Err(error) = self.greet(rank, peer, flags) {
                self.no_route(peer, &error);
            }
        }
    }

    fn no_route(&mut self, peer: &mut Peer, error: &NicError) {
        let text = format!("no route to its port: {error}");
        self.stop(peer, PeerError::Lost(text));
    }

    /// Repeats requests that have no answer, and gives up after the limits.
    pub(super) fn connect_on(&mut self) {
        let now = now();
        for rank in 0..self.peers.len() {
            let due = |peer: &mut Box<Peer>| match peer.state {
                State::Connecting { next, .. } => next <= now,
                _ => false,
            };
            let Some(mut peer) = self.peers[rank].take_if(due) else {
                continue;
            };
            if let State::Connecting { since, tries, .. } = peer.state {
                let silent = peer.theirs.is_none();
                let limit = if silent { SILENT_LIMIT } else { CONNECT_LIMIT };
                if now.saturating_sub(since) > limit {
                    let text = if silent {
                        "its process ended, or datagrams do not pass (firewall, subnet manager, address of the port): no datagram"
                    } else {
                        "it requested a connection and then stopped answering: no answer"
                    };
                    let text = format!("{text} in {limit:?} to {tries} requests for a connection");
                    self.stop(&mut peer, PeerError::Lost(text));
                } else if let Err(error) = self.greet(rank as Rank, &peer, ASK) {
                    self.no_route(&mut peer, &error);
                } else {
                    let pause = Duration::from_millis(if tries < 20 { 20 } else { 200 });
                    peer.state = State::Connecting {
                        since,
                        next: now + pause,
                        tries: tries + 1,
                    };
                }
            }
            self.peers[rank] = Some(peer);
        }
    }
}

// One-sided operations leave this many entries of a queue free.
const _: () = assert!(CONTROL + PIECES < 64);
