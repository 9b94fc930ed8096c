//! The engine behind its lock. Every call of the program passes through this file.

use std::sync::Arc;

use btl::Rank;

use crate::engine::{Engine, Request, State};
use crate::envelope::{Destination, Selector};
use crate::error::{Error, NotStarted, StartError};
use crate::group::Group;
use crate::memory::{ReadMem, WriteMem};
use crate::start::Agree;
use crate::types::{PathReport, RailReport, RequestId, Setup, Stats, Status, TransportAddress};
use crate::waiting::Waiting;

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
        addresses: impl FnMut(Rank) -> Result<Vec<TransportAddress>, String>,
        agree: Option<Agree<'_>>,
    ) -> Result<Arc<Shared>, NotStarted> {
        let config = setup.config.clone();
        let (engine, paths) = crate::start::start(setup, addresses, agree)?;
        let protocol = &engine.protocol;
        let world = Arc::new(Group::world(protocol.peers.size(), protocol.own));
        // The transports are gone, but the peers have reached this process and see that it left.
        let refused = |what| NotStarted {
            error: StartError::System(what),
            transports: Vec::new(),
        };
        let waiting = Waiting::new(engine, &config).map_err(refused)?;
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

    pub(crate) fn rails(&self) -> Vec<RailReport> {
        let engine = self.waiting.lock();
        let mut all = Vec::new();
        for (peer, state) in engine.protocol.peers.iter() {
            if state.rails.len() < 2 {
                continue;
            }
            all.extend(state.rails.iter().map(|rail| RailReport {
                peer: peer.rank(),
                transport: engine.transports.name(rail.transport).to_owned(),
                reason: rail.info.reason.clone(),
                bandwidth: rail.info.bandwidth,
                sent: rail.sent,
                received: rail.received,
            }));
        }
        all
    }

    pub(crate) fn stats(&self) -> Stats {
        let engine = self.waiting.lock();
        Stats {
            unexpected_now: engine.protocol.unexpected.len(),
            ..engine.protocol.stats
        }
    }

    pub(crate) fn progress(&self) -> usize {
        let mut engine = self.waiting.lock();
        if engine.protocol.closed {
            0
        } else {
            engine.poll(None)
        }
    }

    pub(crate) fn finalize(&self) -> Result<(), Error> {
        let limit = std::time::Instant::now().checked_add(self.waiting.finalize_limit);
        let mut unsent = 0;
        self.waiting
            .wait_until(self.waiting.lock(), None, |engine| {
                let flushed = engine.protocol.closed || engine.is_flushed();
                let late = limit.is_some_and(|limit| std::time::Instant::now() >= limit);
                if !flushed && !late {
                    return None;
                }
                if !flushed {
                    unsent = engine.protocol.unsent().max(1);
                }
                if !engine.protocol.closed {
                    engine.close();
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
    pub(crate) fn send(&self, to: Destination, bytes: &[u8], sync: bool) -> Result<(), Error> {
        let mut engine = self.waiting.lock();
        // A closed transport refuses. The context exists: its communicator makes this call.
        if !sync && engine.send_fast(to, bytes) {
            return Ok(());
        }
        self.send_slow(engine, to, bytes, sync)
    }

    #[cold]
    fn send_slow(
        &self,
        mut engine: crate::waiting::Lock<'_>,
        to: Destination,
        bytes: &[u8],
        sync: bool,
    ) -> Result<(), Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { ReadMem::new(bytes.as_ptr(), bytes.len()) };
        let key = engine.submit(to, Request::send(memory, to, sync))?;
        self.finish(engine, key).map(|_| ())
    }

    /// Waits for a request and returns its result.
    #[inline]
    fn finish(&self, engine: crate::waiting::Lock<'_>, key: u64) -> Result<Status, Error> {
        let hint = engine.hint(key);
        self.waiting
            .wait_until(engine, hint, |engine| engine.protocol.take(key))
    }

    #[inline]
    pub(crate) fn recv(&self, selector: Selector, buffer: &mut [u8]) -> Result<Status, Error> {
        let mut engine = self.waiting.lock();
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        if engine.protocol.receive_direct(memory, selector)? {
            return match self.waiting.wait_direct(engine, selector.source) {
                Ok(result) => result,
                Err((engine, key)) => self.finish(engine, key),
            };
        }
        let key = engine.receive(memory, selector, false)?;
        self.finish(engine, key)
    }

    pub(crate) fn sendrecv(
        &self,
        to: Destination,
        out: &[u8],
        selector: Selector,
        buffer: &mut [u8],
    ) -> Result<Status, Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let receive = self.waiting.lock().receive(memory, selector, false)?;
        let sent = self.send(to, out, false);
        if sent.is_err() {
            // The peer may now never send the message.
            let _ = self.waiting.lock().cancel(receive);
        }
        let received = self.finish(self.waiting.lock(), receive);
        sent.and(received)
    }

    /// Starts a send. `lent`: safe code lends the memory and waits for the end.
    pub(crate) fn isend(
        &self,
        to: Destination,
        memory: ReadMem,
        sync: bool,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut engine = self.waiting.lock();
        let mut request = Request::send(memory, to, sync);
        request.lent = lent;
        // SAFETY: the promise of `ReadMem::new` holds during this call.
        let body = unsafe { memory.bytes() };
        if !sync && engine.send_fast(to, body) {
            request.state = State::Over;
            return Ok(RequestId(engine.protocol.requests.insert(request)));
        }
        engine.submit(to, request).map(RequestId)
    }

    pub(crate) fn irecv(
        &self,
        selector: Selector,
        memory: WriteMem,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut engine = self.waiting.lock();
        engine.receive(memory, selector, lent).map(RequestId)
    }

    /// Searches for a message without waiting.
    fn look<R>(
        &self,
        selector: Selector,
        mut found: impl FnMut(&mut Engine, u64) -> R,
    ) -> Result<Option<R>, Error> {
        let mut engine = self.waiting.lock();
        engine.protocol.check_context(selector.context)?;
        if engine.protocol.unexpected.find(&selector).is_none() {
            engine.poll(None);
        }
        match engine.protocol.unexpected.find(&selector) {
            Some(entry) => Ok(Some(found(&mut engine, entry))),
            None => engine.protocol.check_source(&selector).map(|()| None),
        }
    }

    /// Waits for a message.
    fn look_until<R>(
        &self,
        selector: Selector,
        mut found: impl FnMut(&mut Engine, u64) -> R,
    ) -> Result<R, Error> {
        let engine = self.waiting.lock();
        self.waiting.wait_until(engine, None, |engine| {
            if let Err(error) = engine.protocol.check_context(selector.context) {
                return Some(Err(error));
            }
            match engine.protocol.unexpected.find(&selector) {
                Some(entry) => Some(Ok(found(engine, entry))),
                None => engine.protocol.check_source(&selector).err().map(Err),
            }
        })
    }

    pub(crate) fn probe(&self, selector: Selector) -> Result<Status, Error> {
        self.look_until(selector, |engine, entry| engine.protocol.status_of(entry))?
            .ok_or(Error::FreedRequest)
    }

    pub(crate) fn iprobe(&self, selector: Selector) -> Result<Option<Status>, Error> {
        Ok(self
            .look(selector, |engine, entry| engine.protocol.status_of(entry))?
            .flatten())
    }

    pub(crate) fn mprobe(&self, selector: Selector) -> Result<(u64, Status), Error> {
        self.look_until(selector, take_out)?
            .ok_or(Error::FreedRequest)
    }

    pub(crate) fn improbe(&self, selector: Selector) -> Result<Option<(u64, Status)>, Error> {
        Ok(self.look(selector, take_out)?.flatten())
    }

    pub(crate) fn recv_taken(
        &self,
        context: u32,
        taken: u64,
        buffer: &mut [u8],
    ) -> Result<Status, Error> {
        // SAFETY: borrowed during this call, which returns when the request is over.
        let memory = unsafe { WriteMem::new(buffer.as_mut_ptr(), buffer.len()) };
        let mut engine = self.waiting.lock();
        let selector = Selector {
            context,
            source: None,
            tag: None,
        };
        let key = engine.receive_taken(Request::receive(memory, &selector), taken)?;
        self.finish(engine, key)
    }

    pub(crate) fn irecv_taken(
        &self,
        context: u32,
        taken: u64,
        memory: WriteMem,
        lent: bool,
    ) -> Result<RequestId, Error> {
        let mut engine = self.waiting.lock();
        let mut request = Request::receive(
            memory,
            &Selector {
                context,
                source: None,
                tag: None,
            },
        );
        request.lent = lent;
        engine.receive_taken(request, taken).map(RequestId)
    }

    pub(crate) fn discard(&self, taken: u64) {
        let mut engine = self.waiting.lock();
        engine.protocol.discard(taken);
        engine.do_work();
    }

    pub(crate) fn forget_context(&self, context: u32) {
        let mut engine = self.waiting.lock();
        engine.protocol.forget_context(context);
        engine.do_work();
    }

    pub(crate) fn test(&self, id: RequestId) -> Result<Option<Status>, Error> {
        let mut engine = self.waiting.lock();
        if !engine.protocol.is_over(id.0)? {
            let hint = engine.hint(id.0);
            engine.poll(hint);
        }
        engine.protocol.take(id.0).transpose()
    }

    pub(crate) fn wait(&self, id: RequestId) -> Result<Status, Error> {
        self.finish(self.waiting.lock(), id.0)
    }

    pub(crate) fn is_over(&self, id: RequestId) -> Result<bool, Error> {
        let mut engine = self.waiting.lock();
        if !engine.protocol.is_over(id.0)? {
            let hint = engine.hint(id.0);
            engine.poll(hint);
        }
        engine.protocol.is_over(id.0)
    }

    pub(crate) fn waitany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        if ids.is_empty() {
            return None;
        }
        let found = self
            .waiting
            .wait_until(self.waiting.lock(), None, |engine| first_over(engine, ids));
        Some(found)
    }

    pub(crate) fn testany(&self, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        let mut engine = self.waiting.lock();
        first_over(&mut engine, ids).or_else(|| {
            engine.poll(None);
            first_over(&mut engine, ids)
        })
    }

    pub(crate) fn waitsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        if ids.is_empty() {
            return Vec::new();
        }
        self.waiting
            .wait_until(self.waiting.lock(), None, |engine| {
                let over = all_over(engine, ids);
                (!over.is_empty()).then_some(over)
            })
    }

    pub(crate) fn testsome(&self, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        let mut engine = self.waiting.lock();
        engine.poll(None);
        all_over(&mut engine, ids)
    }

    pub(crate) fn testall(&self, ids: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        let mut engine = self.waiting.lock();
        engine.poll(None);
        if ids
            .iter()
            .any(|id| matches!(engine.protocol.is_over(id.0), Ok(false)))
        {
            return None;
        }
        let take = |id: &RequestId| {
            engine
                .protocol
                .take(id.0)
                .unwrap_or(Err(Error::FreedRequest))
        };
        Some(ids.iter().map(take).collect())
    }

    pub(crate) fn cancel(&self, id: RequestId) -> Result<bool, Error> {
        let mut engine = self.waiting.lock();
        let cancelled = engine.cancel(id.0)?;
        engine.do_work();
        Ok(cancelled)
    }

    pub(crate) fn free(&self, id: RequestId) -> Result<(), Error> {
        let mut engine = self.waiting.lock();
        if engine
            .protocol
            .requests
            .get(id.0)
            .is_some_and(|request| request.lent)
        {
            return Err(Error::InvalidArgument(
                "the buffer of this request is borrowed: it cannot be freed, only waited for",
            ));
        }
        if engine.protocol.is_over(id.0)? {
            engine.protocol.forget(id.0);
        } else if let Some(request) = engine.protocol.requests.get_mut(id.0) {
            request.detached = true;
        }
        Ok(())
    }

    /// Cancels a request that owned its buffer, or keeps the buffer until the request is over.
    pub(crate) fn abandon(&self, id: RequestId, buffer: Vec<u8>) {
        let mut engine = self.waiting.lock();
        let Ok(over) = engine.protocol.is_over(id.0) else {
            return;
        };
        if over || engine.cancel(id.0) == Ok(true) {
            engine.protocol.forget(id.0);
            return;
        }
        engine.protocol.kept.push((id.0, buffer));
        if let Some(request) = engine.protocol.requests.get_mut(id.0) {
            request.detached = true;
        }
    }

    /// Proposes a context, see [`Contexts::propose`](crate::engine::Protocol::contexts).
    pub(crate) fn propose_context(&self) -> u32 {
        self.waiting.lock().protocol.contexts.propose()
    }

    pub(crate) fn reserve_context(&self, context: u32, proposed: u32, group: &Arc<Group>) -> bool {
        self.waiting
            .lock()
            .protocol
            .contexts
            .reserve(context, proposed, group)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Closing does not flush. Afterwards no memory of requests is used.
        let mut engine = self.waiting.lock();
        if !engine.protocol.closed {
            engine.close();
        }
    }
}

fn take_out(engine: &mut Engine, entry: u64) -> Option<(u64, Status)> {
    let status = engine.protocol.status_of(entry)?;
    engine.protocol.unexpected.take(entry);
    Some((entry, status))
}

fn first_over(engine: &mut Engine, ids: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
    ids.iter()
        .enumerate()
        .find_map(|(at, id)| Some((at, engine.protocol.take(id.0)?)))
}

fn all_over(engine: &mut Engine, ids: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
    ids.iter()
        .enumerate()
        .filter_map(|(at, id)| Some((at, engine.protocol.take(id.0)?)))
        .collect()
}
