//! The execution of a case by one rank.

use std::fmt;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::log::{Log, Tap};
use super::meeting::Meeting;
use super::memory::Buffer;
use super::stream::{Sizes, Streams};
use super::{Case, Options, Place};
use crate::rng::Rng;
use btl::{Btl, MAX_ADDRESS, MAX_HEADER, PeerError, PeerInfo, Rank, SendError, Tx, Unreachable};

/// Why a rank did not finish a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A promise was broken.
    Broken(String),
    /// The case does not apply.
    Skipped(String),
    /// This rank was killed by the case.
    Killed,
    /// Another rank failed.
    Aborted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Broken(what) => f.write_str(what),
            Failure::Skipped(why) => write!(f, "skipped: {why}"),
            Failure::Killed => f.write_str("killed"),
            Failure::Aborted => f.write_str("another rank failed"),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Failure {
        Failure::Broken(format!("unexpected: {error}"))
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Broken(what)
    }
}

/// An event passed on from its callback, for cases that answer there.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Sender, header and body.
    Message(Rank, &'a [u8], &'a [u8]),
    /// Token of the operation.
    Completed(u64),
    /// Rank of the peer.
    Failed(Rank),
}

/// Execution of a case by one rank.
pub struct Run {
    /// Rank of this execution.
    pub rank: Rank,
    /// Number of ranks in the job.
    pub size: u32,
    /// See [`Options::rounds`].
    pub rounds: u32,
    /// See [`Options::messages`].
    pub messages: u32,
    /// See [`Options::ends_connections`].
    pub(super) ends_connections: bool,
    /// The transport.
    pub btl: Box<dyn Btl>,
    /// Result of `add_peer` for each rank.
    pub paths: Vec<Result<PeerInfo, Unreachable>>,
    /// Addresses of all ranks.
    pub addresses: Vec<Vec<u8>>,
    /// Events.
    pub log: Log,
    /// Random choices of this rank.
    pub(crate) rng: Rng,
    pub(super) buffers: Vec<Buffer>,
    meeting: Box<dyn Meeting>,
    deadline: Instant,
    idle: u32,
    tokens: u64,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Run {
    pub(super) fn new(
        place: &Place,
        btl: Box<dyn Btl>,
        meeting: Box<dyn Meeting>,
        options: &Options,
    ) -> Run {
        let log = Log {
            size: place.size,
            streams: Streams::new(place.rank, options.seed),
            max_send: usize::MAX,
            ..Log::default()
        };
        Run {
            rank: place.rank,
            size: place.size,
            rounds: options.rounds,
            messages: options.messages,
            ends_connections: options.ends_connections,
            btl,
            paths: Vec::new(),
            addresses: Vec::new(),
            log,
            rng: Rng::new(options.seed ^ (u64::from(place.rank) << 32)),
            buffers: Vec::new(),
            meeting,
            deadline: Instant::now() + options.limit,
            idle: 0,
            tokens: 0,
        }
    }

    /// Executes a case: requirements, addresses, the function, and a check for unexpected events.
    pub(super) fn execute(&mut self, case: &Case) -> Result<(), Failure> {
        let capabilities = self.btl.capabilities();
        let kill = self.meeting.can_kill();
        if let Some(missing) = case
            .needs
            .iter()
            .find_map(|need| need.missing(capabilities, kill))
        {
            return Err(Failure::Skipped(missing.into()));
        }
        let address = self.btl.address();
        if address.len() > MAX_ADDRESS {
            return Err(Failure::Broken(format!(
                "an address of {} bytes",
                address.len()
            )));
        }
        self.addresses = self
            .exchange(&address)?
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        if case.added {
            self.add_all()?;
            self.barrier()?;
        }
        (case.run)(self)?;
        if self.is_closed() {
            Ok(())
        } else {
            self.settle()
        }
    }

    /// Adds every rank, including this one.
    ///
    /// # Errors
    /// Another rank is unreachable.
    pub fn add_all(&mut self) -> Result<(), Failure> {
        for peer in 0..self.size {
            self.add(peer)?;
        }
        Ok(())
    }

    /// Adds a rank.
    ///
    /// # Errors
    /// The rank is unreachable. This rank itself may be: another transport can serve it.
    pub fn add(&mut self, peer: Rank) -> Result<(), Failure> {
        let path = self.btl.add_peer(peer, &self.addresses[peer as usize]);
        match &path {
            Ok(path) => {
                let most = if self.log.max_send == usize::MAX {
                    0
                } else {
                    self.log.max_send
                };
                self.log.max_send = most.max(path.max_send);
            }
            Err(why) if peer != self.rank => {
                return Err(Failure::Broken(format!(
                    "rank {peer} is unreachable: {why}"
                )));
            }
            Err(_) => {}
        }
        let index = peer as usize;
        if self.paths.len() <= index {
            let missing = || {
                Err(Unreachable {
                    reason: "not added".into(),
                })
            };
            self.paths.resize_with(index + 1, missing);
        }
        self.paths[index] = path;
        Ok(())
    }

    /// Returns the result of `add_peer` for a peer.
    ///
    /// # Errors
    /// The peer is unreachable: if it is this rank, the case is skipped, otherwise it fails.
    pub fn path(&self, peer: Rank) -> Result<PeerInfo, Failure> {
        match self.paths.get(peer as usize) {
            Some(Ok(path)) => Ok(path.clone()),
            Some(Err(why)) if peer == self.rank => {
                Err(Failure::Skipped(format!("does not reach itself: {why}")))
            }
            _ => Err(Failure::Broken(format!("rank {peer} was not added"))),
        }
    }

    /// Calls `progress` once and checks the invariants.
    ///
    /// # Errors
    /// A promise is broken, or the case has ended.
    pub fn step(&mut self) -> Result<usize, Failure> {
        self.step_with(&mut |_, _| {})
    }

    /// Does a [`step`](Run::step); `watch` receives each event inside the callback and may send.
    ///
    /// # Errors
    /// As for [`step`](Run::step).
    pub fn step_with(
        &mut self,
        watch: &mut dyn FnMut(&mut dyn Tx, Event<'_>),
    ) -> Result<usize, Failure> {
        let done = self.poll_with(watch)?;
        if done == 0 {
            // The machine may have fewer processors than the job has ranks.
            self.idle += 1;
            if self.idle > 200 {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                std::thread::yield_now();
            }
        } else {
            self.idle = 0;
        }
        Ok(done)
    }

    /// Does a [`step_with`](Run::step_with) without yielding the processor when idle.
    ///
    /// # Errors
    /// As for [`step`](Run::step).
    pub fn poll_with(
        &mut self,
        watch: &mut dyn FnMut(&mut dyn Tx, Event<'_>),
    ) -> Result<usize, Failure> {
        let before = self.log.events;
        let done = self.btl.progress(&mut Tap {
            log: &mut self.log,
            watch,
        });
        if done == 0 && self.log.events != before {
            self.log
                .blame("progress returned 0 but reported events".into());
        }
        self.alive()?;
        Ok(done)
    }

    /// Checks that the case has not ended.
    ///
    /// # Errors
    /// The case has ended.
    pub fn alive(&mut self) -> Result<(), Failure> {
        if self.meeting.killed() {
            return Err(Failure::Killed);
        }
        if let Some(broken) = &self.log.broken {
            return Err(Failure::Broken(broken.clone()));
        }
        if self.meeting.aborted() {
            return Err(Failure::Aborted);
        }
        Ok(())
    }

    /// Steps until `done` returns true.
    ///
    /// # Errors
    /// As for [`step`](Run::step); or `what` did not happen within the time limit.
    pub fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Run) -> bool,
    ) -> Result<(), Failure> {
        while !done(self) {
            self.step()?;
            self.in_time(what)?;
        }
        Ok(())
    }

    /// Checks the time limit.
    ///
    /// # Errors
    /// The time limit has passed.
    pub fn in_time(&self, what: &str) -> Result<(), Failure> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let pending = self.log.pending.len();
        Err(Failure::Broken(format!(
            "time limit reached waiting for {what} ({} events, {pending} pending, failed: {:?})",
            self.log.events, self.log.failed
        )))
    }

    /// Sends a message, retrying while the transport is `Busy`.
    ///
    /// # Errors
    /// Every error except `Busy`, and as for [`step`](Run::step).
    pub fn send(&mut self, peer: Rank, header: &[u8], body: &[u8]) -> Result<(), Failure> {
        loop {
            match self.btl.send(peer, header, &[IoSlice::new(body)]) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.step()?,
                Err(error) => return Err(self.unless_killed(error)),
            };
            self.in_time("a message to be accepted")?;
        }
    }

    /// Tries once to send the next stream message to a peer.
    ///
    /// # Errors
    /// As [`Tx::send`].
    pub fn stream_now(&mut self, peer: Rank, sizes: Sizes) -> Result<(), SendError> {
        let max_send = match self.paths.get(peer as usize) {
            Some(Ok(path)) => path.max_send,
            _ => return Err(SendError::NoPeer(peer)),
        };
        let (header, body) = self.log.streams.next(peer, sizes, max_send);
        self.btl.send(peer, &header, &[IoSlice::new(&body)])?;
        self.log.streams.sent(peer);
        Ok(())
    }

    /// Sends the next stream message, retrying while the transport is `Busy`.
    ///
    /// # Errors
    /// Every error except `Busy`, and as for [`step`](Run::step).
    pub fn stream(&mut self, peer: Rank, sizes: Sizes) -> Result<(), Failure> {
        loop {
            match self.stream_now(peer, sizes) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.step()?,
                Err(error) => return Err(self.unless_killed(error)),
            };
            self.in_time("a message to be accepted")?;
        }
    }

    /// Returns the numbers of stream messages sent to and received from a peer.
    #[must_use]
    pub fn streamed(&self, peer: Rank) -> (u64, u64) {
        (
            self.log.streams.count_sent(peer),
            self.log.streams.count_arrived(peer),
        )
    }

    /// Waits until exactly `count` stream messages of `peer` have arrived.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn arrived(&mut self, peer: Rank, count: u64) -> Result<(), Failure> {
        self.arrived_at_least(peer, count)?;
        let came = self.streamed(peer).1;
        if came > count {
            return Err(Failure::Broken(format!(
                "{came} messages arrived from rank {peer}, which sent {count}"
            )));
        }
        Ok(())
    }

    /// Waits until at least `count` stream messages of `peer` have arrived.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn arrived_at_least(&mut self, peer: Rank, count: u64) -> Result<(), Failure> {
        let what = format!("message {count} of rank {peer}");
        self.until(&what, |run| run.streamed(peer).1 >= count)
    }

    /// Exchanges bytes with all ranks while the transport makes progress.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        self.meeting.offer(mine)?;
        loop {
            if let Some(all) = self.meeting.collect()? {
                return Ok(all);
            }
            self.step()?;
            self.in_time("the other ranks")?;
        }
    }

    /// Waits for all ranks while the transport makes progress.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn barrier(&mut self) -> Result<(), Failure> {
        self.exchange(&[]).map(|_| ())
    }

    /// Waits for all ranks without calling the transport.
    ///
    /// # Errors
    /// The case has ended.
    pub fn barrier_still(&mut self) -> Result<(), Failure> {
        self.meeting.offer(&[])?;
        while self.meeting.collect()?.is_none() {
            self.alive()?;
            self.in_time("the other ranks")?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Kills another rank.
    ///
    /// # Errors
    /// Killing is not supported.
    pub fn kill(&mut self, rank: Rank) -> Result<(), Failure> {
        Ok(self.meeting.kill(rank)?)
    }

    /// Kills this rank: `return Err(run.die())`.
    pub fn die(&mut self) -> Failure {
        match self.meeting.kill(self.rank) {
            Ok(()) => Failure::Killed,
            Err(why) => Failure::Broken(why),
        }
    }

    /// Waits until a peer's failure is reported.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn until_failed(&mut self, peer: Rank) -> Result<PeerError, Failure> {
        let what = format!("failure of rank {peer}");
        self.until(&what, |run| run.log.failure(peer).is_some())?;
        self.log.failure(peer).cloned().ok_or(Failure::Aborted)
    }

    /// Steps until `flush` returns true.
    ///
    /// # Errors
    /// As for [`until`](Run::until).
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.until("flush to return true", |run| run.btl.flush())
    }

    /// Returns a new token.
    pub(super) fn token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Checks that no event arrives after all ranks are done.
    fn settle(&mut self) -> Result<(), Failure> {
        self.barrier()?;
        for _ in 0..50 {
            self.step()?;
        }
        if let Some(got) = self.log.messages.front() {
            let (peer, header, body) = (got.peer, got.header.len(), got.body.len());
            return Err(Failure::Broken(format!(
                "unexpected message of {header} + {body} bytes from rank {peer}"
            )));
        }
        if !self.log.pending.is_empty() {
            return Err(Failure::Broken(format!(
                "never completed: {:?}",
                self.log.pending
            )));
        }
        self.barrier()
    }

    /// Returns the failure of a send. A killed rank does not count it as an error.
    fn unless_killed(&mut self, error: SendError) -> Failure {
        match self.alive() {
            Err(failure) => failure,
            Ok(()) => error.into(),
        }
    }

    fn is_closed(&mut self) -> bool {
        let too_long = [0; MAX_HEADER + 1];
        matches!(
            self.btl.send(self.rank, &too_long, &[]),
            Err(SendError::Closed)
        )
    }
}

/// Fails unless `holds`.
///
/// # Errors
/// Returns `what` as the failure.
pub(super) fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds {
        Ok(())
    } else {
        Err(Failure::Broken(what()))
    }
}
