//! The sending half: the wrapped one with faults.

use std::io::IoSlice;

use super::state::{HELD, Held, State, lost};
use btl::{
    Events, HeldSends, MAX_HEADER, NoticedPuts, Rank, SendError, Started, Tx, contiguous,
    gathered_len,
};

/// Sending half: the wrapped one with faults.
pub(super) struct FaultyTx<'a> {
    pub(super) tx: &'a mut dyn Tx,
    pub(super) state: &'a mut State,
}

impl FaultyTx<'_> {
    pub(super) fn report(&mut self, events: &mut dyn Events, peer: Rank, event: Held) {
        match event {
            Held::Message(header, body) => events.message(self, peer, &header, &body),
            Held::Completed(token, result) => events.completed(self, token, result),
            Held::Failed(error) => events.failed(self, peer, error),
        }
    }

    /// Fails if the transport is closed or the peer has failed.
    fn refuse(&mut self, peer: Rank) -> Result<(), SendError> {
        if self.state.closed {
            return Err(SendError::Closed);
        }
        let Some(known) = self.state.peers.get(&peer) else {
            return Ok(());
        };
        let error = known.gone.clone().or_else(|| known.cut.then(lost));
        error.map_or(Ok(()), |error| Err(SendError::Failed { peer, error }))
    }

    /// Returns the result of the wrapped transport's length checks; `None` if the peer is unknown.
    fn judge(
        &self,
        peer: Rank,
        header: &[u8],
        body: &[IoSlice<'_>],
    ) -> Option<Result<(), SendError>> {
        let limit = self.state.peers.get(&peer)?.max_send?;
        if header.len() > MAX_HEADER {
            return Some(Err(SendError::TooLong {
                length: header.len(),
                limit: MAX_HEADER,
            }));
        }
        let length = header.len() + gathered_len(body);
        Some(if length > limit {
            Err(SendError::TooLong { length, limit })
        } else {
            Ok(())
        })
    }

    fn started(
        &mut self,
        peer: Rank,
        token: u64,
        result: Result<Started, SendError>,
    ) -> Result<Started, SendError> {
        match result {
            Ok(Started::Pending) => drop(self.state.tokens.insert(token, peer)),
            Ok(Started::Done) if self.state.chance(self.state.faults.pending) => {
                self.state.hold(peer, Held::Completed(token, Ok(())));
                return Ok(Started::Pending);
            }
            _ => {}
        }
        result
    }
}

impl Tx for FaultyTx<'_> {
    fn send(&mut self, peer: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.refuse(peer)?;
        match self.judge(peer, header, body) {
            None => return self.tx.send(peer, header, body),
            Some(result) => result?,
        }
        let waiting = self
            .state
            .peers
            .get(&peer)
            .map_or(0, |known| known.out.len());
        if waiting >= HELD || self.state.chance(self.state.faults.busy) {
            return Err(SendError::Busy);
        }
        if waiting == 0 && !self.state.chance(self.state.faults.late_send) {
            self.tx.send(peer, header, body)?;
        } else {
            let wait = self.state.rng.below(6) as u32;
            let known = self.state.peers.entry(peer).or_default();
            known
                .out
                .push_back((header.to_vec(), contiguous(body).into_owned()));
            known.out_wait = known.out_wait.max(wait);
        }
        self.state.count(peer);
        Ok(())
    }

    unsafe fn get(
        &mut self,
        peer: Rank,
        local: *mut u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        self.refuse(peer)?;
        // SAFETY: the caller's promise, handed on.
        let result = unsafe { self.tx.get(peer, local, length, key, offset, token) };
        self.started(peer, token, result)
    }

    unsafe fn put(
        &mut self,
        peer: Rank,
        local: *const u8,
        length: usize,
        key: &[u8],
        offset: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        self.refuse(peer)?;
        // SAFETY: the caller's promise, handed on.
        let result = unsafe { self.tx.put(peer, local, length, key, offset, token) };
        self.started(peer, token, result)
    }
}

impl HeldSends for FaultyTx<'_> {
    /// Copies the body, and possibly completes late.
    unsafe fn send_held(
        &mut self,
        peer: Rank,
        header: &[u8],
        body: *const u8,
        length: usize,
        token: u64,
    ) -> Result<Started, SendError> {
        let body = if length == 0 {
            &[]
        } else {
            // SAFETY: readable for `length` bytes, as the caller promises.
            unsafe { std::slice::from_raw_parts(body, length) }
        };
        self.send(peer, header, &[IoSlice::new(body)])?;
        self.started(peer, token, Ok(Started::Done))
    }
}

impl NoticedPuts for FaultyTx<'_> {}
