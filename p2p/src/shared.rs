//! The engine behind its lock: every call of the program comes through here.

use std::sync::Arc;

use btl::Rank;

use crate::engine::{Core, Outcome, Request, State};
use crate::error::{Error, NotStarted, StartError};
use crate::group::Group;
use crate::memory::{ReadMem, WriteMem};
use crate::start::Agree;
use crate::types::{Card, PathReport, Rail, RailsReport, RequestId, Setup, Stats, Status};
use crate::waiting::Waiting;

/// Where a message goes; ranks of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    pub(crate) peer: Rank,
    pub(crate) tag: i32,
}

/// What a receive asks for; ranks of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) context: u32,
    pub(crate) source: Option<Rank>,
    pub(crate) tag: Option<i32>,
}

/// The layer of one process.
#[derive(Debug)]
pub(crate) struct Shared {
    waiting: Waiting,
    world: Arc<Group>,
    paths: Vec<PathReport>,
}

impl Shared {
    pub(crate) fn start(
        setup: Setup,
        cards: impl FnMut(Rank) -> Result<Vec<Card>, String>,
        agree: Option<Agree<'_>>,
    ) -> Result<Arc<Shared>, NotStarted> {
        let world = Arc::new(Group::world(setup.size, setup.rank));
        let config = setup.config.clone();
        let (core, paths) = crate::start::start(setup, cards, agree)?;
        // Everybody was reached; what the system refuses now is no riddle to the others.
        let refused = |what| NotStarted {
            error: StartError::System(what),
            transports: Vec::new(),
        };
        let waiting = Waiting::new(core, &config).map_err(refused)?;
        let shared = Arc::new(Shared {
            waiting,
            world,
            paths,
        });
        if config.progress_thread {
            crate::background::spawn(&shared).map_err(|error| refused(error.to_string()))?;
        }
        Ok(shared)
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    pub(crate) fn world(&self) -> Arc<Group> {
        Arc::clone(&self.world)
    }

    pub(crate) fn paths(&self) -> &[PathReport] {
        &self.paths
    }

    pub(crate) fn rails(&self) -> Vec<RailsReport> {
        let core = self.waiting.lock();
        let mut all = Vec::new();
        for (peer, state) in (0..).zip(&core.engine.peers) {
            let Some(rails) = &state.rails else { continue };
            let paths: Vec<&PathReport> =
                self.paths.iter().filter(|path| path.peer == peer).collect();
            let rail = |(at, lane): (usize, &crate::engine::Lane)| {
                let path = paths.get(usize::from(lane.transport));
                Rail {
                    transport: path.map_or_else(
                        || format!("transport {}", lane.transport),
                        |p| p.transport.clone(),
                    ),
                    way: path
                        .and_then(|p| p.path.as_ref())
                        .map_or_else(String::new, |p| p.reason.clone()),
                    stands_by: at >= state.used,
                    sent: lane.ledger.bytes_out,
                    received: lane.ledger.bytes_in,
                    lost: lane
                        .lost
                        .as_ref()
                        .filter(|why| **why != btl::PeerError::Left)
                        .map(ToString::to_string),
                }
            };
            let rails_of = state.lanes.iter().enumerate().map(rail).collect();
            all.push(RailsReport {
                peer,
                rails: rails_of,
                choices: rails.words(),
            });
        }
        all
    }

    pub(crate) fn stats(&self) -> Stats {
        let core = self.waiting.lock();
        Stats {
            unexpected_now: core.engine.unexpected.len(),
            ..core.engine.stats
        }
    }

    pub(crate) fn progress(&self) -> usize {
        let mut core = self.waiting.lock();
        if core.engine.closed {
            0
        } else {
            core.turn(None)
        }
    }

    pub(crate) fn finalize(&self) -> Result<(), Error> {
        let limit = std::time::Instant::now().checked_add(self.waiting.finalize_limit);
        let mut unsent = 0;
        self.waiting.wait_until(self.waiting.lock(), None, |core| {
            let flushed = core.engine.closed || core.is_flushed();
            let late = limit.is_some_and(|limit| std::time::Instant::now() >= limit);
            if !flushed && !late {
                return None;
            }
            if !flushed {
                unsent = core.engine.unsent().max(1);
            }
            if !core.engine.closed {
                core.close();
            }
            Some(())
        });
        if unsent == 0 {
            Ok(())
        } else {
            Err(Error::Unflushed(unsent))
        }
    }

    #[inline]
    pub(crate) fn send(&self, to: Envelope, bytes: &[u8], sync: bool) -> Result<(), Error> {
        let mut core = self.waiting.lock();
        // Closed, a transport refuses; a context that is gone has no communicator to call this.
        if !sync && core.send_fast(to.peer, to.context, to.tag, bytes) {
            return Ok(());
        }
        self.send_slow(core, to, bytes, sync)
    }

    #[cold]
    fn send_slow(
        &self,
        mut core: crate::waiting::Lock<'_>,
        to: Envelope,
        bytes: &[u8],
        sync: bool,
    ) -> Result<(), Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { ReadMem::new(bytes.as_ptr(), bytes.len()) };
        let key = core.submit(Request::send(memory, to.peer, to.context, to.tag, sync))?;
        self.finish(core, key).map(|_| ())
    }

    /// Waits for a request that only the caller knows.
    #[inline]
    fn finish(&self, core: crate::waiting::Lock<'_>, key: u64) -> Result<Status, Error> {
        let hint = core.hint(key);
        self.waiting
            .wait_until(core, hint, |core| core.engine.take(key))
    }

    #[inline]
    pub(crate) fn recv(&self, wanted: Wanted, buffer: &mut [u8]) -> Result<Status, Error> {
        let mut core = self.waiting.lock();
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        if core.receive_direct(memory, wanted)? {
            return match self.waiting.wait_direct(core, wanted.source) {
                Ok(result) => result,
                Err((core, key)) => self.finish(core, key),
            };
        }
        let key = core.receive(memory, wanted, false)?;
        self.finish(core, key)
    }

    pub(crate) fn sendrecv(
        &self,
        to: Envelope,
        out: &[u8],
        wanted: Wanted,
        buffer: &mut [u8],
    ) -> Result<Status, Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let receive = self.waiting.lock().receive(memory, wanted, false)?;
        let sent = self.send(to, out, false);
        if sent.is_err() {
            // What it would wait for may never come now.
            let _ = self.waiting.lock().cancel(receive);
        }
        let received = self.finish(self.waiting.lock(), receive);
        sent.and(received)
    }

    /// Starts a send whose memory is lent by safe code.
    pub(crate) fn isend(
        &self,
        to: Envelope,
        memory: ReadMem,
        sync: bool,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut core = self.waiting.lock();
        let mut request = Request::send(memory, to.peer, to.context, to.tag, sync);
        request.lent = lent;
        // SAFETY: the promise of `ReadMem::new` holds during this call.
        let body = unsafe { memory.bytes() };
        if !sync && core.send_fast(to.peer, to.context, to.tag, body) {
            request.state = State::Over;
            return Ok(RequestId(core.engine.requests.insert(request)));
        }
        core.submit(request).map(RequestId)
    }

    pub(crate) fn irecv(
        &self,
        wanted: Wanted,
        memory: WriteMem,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut core = self.waiting.lock();
        core.receive(memory, wanted, lent).map(RequestId)
    }

    /// Looks for a message without waiting.
    fn look<R>(
        &self,
        wanted: Wanted,
        mut found: impl FnMut(&mut Core, u64) -> R,
    ) -> Result<Option<R>, Error> {
        let mut core = self.waiting.lock();
        core.engine.check_context(wanted.context)?;
        if core.engine.unexpected.find(&wanted).is_none() {
            core.turn(None);
        }
        match core.engine.unexpected.find(&wanted) {
            Some(entry) => Ok(Some(found(&mut core, entry))),
            None => core.engine.can_come(&wanted).map(|()| None),
        }
    }

    /// Looks for one until it is there.
    fn look_until<R>(
        &self,
        wanted: Wanted,
        mut found: impl FnMut(&mut Core, u64) -> R,
    ) -> Result<R, Error> {
        let core = self.waiting.lock();
        self.waiting.wait_until(core, None, |core| {
            if let Err(error) = core.engine.check_context(wanted.context) {
                return Some(Err(error));
            }
            match core.engine.unexpected.find(&wanted) {
                Some(entry) => Some(Ok(found(core, entry))),
                None => core.engine.can_come(&wanted).err().map(Err),
            }
        })
    }

    pub(crate) fn probe(&self, wanted: Wanted) -> Result<Status, Error> {
        self.look_until(wanted, |core, entry| core.engine.status_of(entry))?
            .ok_or(Error::FreedRequest)
    }

    pub(crate) fn iprobe(&self, wanted: Wanted) -> Result<Option<Status>, Error> {
        Ok(self
            .look(wanted, |core, entry| core.engine.status_of(entry))?
            .flatten())
    }

    pub(crate) fn mprobe(&self, wanted: Wanted) -> Result<(u64, Status), Error> {
        self.look_until(wanted, take_out)?
            .ok_or(Error::FreedRequest)
    }

    pub(crate) fn improbe(&self, wanted: Wanted) -> Result<Option<(u64, Status)>, Error> {
        Ok(self.look(wanted, take_out)?.flatten())
    }

    pub(crate) fn recv_taken(
        &self,
        context: u32,
        taken: u64,
        buffer: &mut [u8],
    ) -> Result<Status, Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let mut core = self.waiting.lock();
        let wanted = Wanted {
            context,
            source: None,
            tag: None,
        };
        let key = core.receive_taken(Request::receive(memory, &wanted), taken)?;
        self.finish(core, key)
    }

    pub(crate) fn irecv_taken(
        &self,
        context: u32,
        taken: u64,
        memory: WriteMem,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut core = self.waiting.lock();
        let mut request = Request::receive(
            memory,
            &Wanted {
                context,
                source: None,
                tag: None,
            },
        );
        request.lent = lent;
        core.receive_taken(request, taken).map(RequestId)
    }

    pub(crate) fn throw_away(&self, taken: u64) {
        let mut core = self.waiting.lock();
        core.engine.throw_away(taken);
        core.work_off();
    }

    pub(crate) fn forget_context(&self, context: u32) {
        let mut core = self.waiting.lock();
        core.engine.forget_context(context);
        core.work_off();
    }

    pub(crate) fn test(&self, id: RequestId) -> Result<Option<Status>, Error> {
        let mut core = self.waiting.lock();
        if !core.engine.is_over(id.0)? {
            let hint = core.hint(id.0);
            core.turn(hint);
        }
        core.engine.take(id.0).transpose()
    }

    pub(crate) fn wait(&self, id: RequestId) -> Result<Status, Error> {
        self.finish(self.waiting.lock(), id.0)
    }

    pub(crate) fn is_over(&self, id: RequestId) -> Result<bool, Error> {
        let mut core = self.waiting.lock();
        if !core.engine.is_over(id.0)? {
            let hint = core.hint(id.0);
            core.turn(hint);
        }
        core.engine.is_over(id.0)
    }

    pub(crate) fn waitany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        if ids.is_empty() {
            return None;
        }
        let found = self
            .waiting
            .wait_until(self.waiting.lock(), None, |core| first_over(core, ids));
        Some(found)
    }

    pub(crate) fn testany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        let mut core = self.waiting.lock();
        first_over(&mut core, ids).or_else(|| {
            core.turn(None);
            first_over(&mut core, ids)
        })
    }

    pub(crate) fn waitsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        if ids.is_empty() {
            return Vec::new();
        }
        self.waiting.wait_until(self.waiting.lock(), None, |core| {
            let over = all_over(core, ids);
            (!over.is_empty()).then_some(over)
        })
    }

    pub(crate) fn testsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        let mut core = self.waiting.lock();
        core.turn(None);
        all_over(&mut core, ids)
    }

    pub(crate) fn testall(&self, ids: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        let mut core = self.waiting.lock();
        core.turn(None);
        if ids
            .iter()
            .any(|id| matches!(core.engine.is_over(id.0), Ok(false)))
        {
            return None;
        }
        let take = |id: &RequestId| core.engine.take(id.0).unwrap_or(Err(Error::FreedRequest));
        Some(ids.iter().map(take).collect())
    }

    pub(crate) fn cancel(&self, id: RequestId) -> Result<bool, Error> {
        let mut core = self.waiting.lock();
        let cancelled = core.cancel(id.0)?;
        core.work_off();
        Ok(cancelled)
    }

    pub(crate) fn free(&self, id: RequestId) -> Result<(), Error> {
        let mut core = self.waiting.lock();
        if core
            .engine
            .requests
            .get(id.0)
            .is_some_and(|request| request.lent)
        {
            return Err(Error::InvalidArgument(
                "the buffer of this request is borrowed: it cannot be freed, only waited for",
            ));
        }
        if core.engine.is_over(id.0)? {
            core.engine.drop_over(id.0);
        } else if let Some(request) = core.engine.requests.get_mut(id.0) {
            request.detached = true;
        }
        Ok(())
    }

    /// Nobody waits for a request that owned its buffer: cancelled, or the buffer is kept until it is over.
    pub(crate) fn abandon(&self, id: RequestId, buffer: Vec<u8>) {
        let mut core = self.waiting.lock();
        let Ok(over) = core.engine.is_over(id.0) else {
            return;
        };
        if over || core.cancel(id.0) == Ok(true) {
            core.engine.drop_over(id.0);
            return;
        }
        core.engine.kept.push((id.0, buffer));
        if let Some(request) = core.engine.requests.get_mut(id.0) {
            request.detached = true;
        }
    }

    /// For agreeing on a context: see [`crate::engine::Engine::propose_context`].
    pub(crate) fn propose_context(&self) -> u32 {
        self.waiting.lock().engine.propose_context()
    }

    pub(crate) fn reserve_context(&self, context: u32, proposed: u32, group: &Arc<Group>) -> bool {
        self.waiting
            .lock()
            .engine
            .reserve_context(context, proposed, group)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Without flushing, as the contract says of dropping; memory of requests that nobody saw the end of is no more used.
        let mut core = self.waiting.lock();
        if !core.engine.closed {
            core.close();
        }
    }
}

impl crate::engine::Engine {
    /// Forgets a request that is over without giving its answer.
    fn drop_over(&mut self, key: u64) {
        if let Some(request) = self.requests.get_mut(key) {
            request.detached = true;
            let outcome: Outcome = request.outcome;
            self.end(key, outcome);
        }
    }
}

fn take_out(core: &mut Core, entry: u64) -> Option<(u64, Status)> {
    let status = core.engine.status_of(entry)?;
    core.engine.unexpected.take(entry);
    Some((entry, status))
}

fn first_over(core: &mut Core, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
    ids.iter()
        .enumerate()
        .find_map(|(at, id)| Some((at, core.engine.take(id.0)?)))
}

fn all_over(core: &mut Core, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
    ids.iter()
        .enumerate()
        .filter_map(|(at, id)| Some((at, core.engine.take(id.0)?)))
        .collect()
}
