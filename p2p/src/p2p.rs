//! The layer of one process.

use std::sync::Arc;
use std::time::Instant;

use btl::Rank;

use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Error, NotStarted, StartError};
use crate::shared::{self, Shared};
use crate::start::{Agree, Reach};
use crate::types::{
    AddressBook, PathReport, RailReport, RequestId, Setup, Stats, Status, TransportAddress,
};

/// Point-to-point layer of one process. Clones refer to one layer. Any thread may use it.
#[derive(Clone, Debug)]
pub struct P2p {
    pub(crate) shared: Arc<Shared>,
}

/// Index of a request in a list, with its result.
type Indexed = (usize, Result<Status, Error>);

impl P2p {
    /// Returns the addresses to publish before [`start`](P2p::start): one for each transport that
    /// can be reached.
    #[must_use]
    pub fn addresses(setup: &Setup) -> Vec<TransportAddress> {
        let transports = setup.transports.iter();
        let mut addresses: Vec<_> = transports
            .map(|btl| TransportAddress {
                transport: btl.name().to_owned(),
                address: btl.address(),
            })
            .collect();
        addresses.retain(|address| !address.address.is_empty());
        addresses
    }

    /// Starts the layer: makes every peer reachable. `addresses` is called once for each other
    /// rank.
    ///
    /// # Errors
    /// [`NotStarted`] returns the transports. The main cause is a peer that no transport reaches;
    /// the error then contains the reasons of all transports.
    pub fn start(
        setup: Setup,
        addresses: impl FnMut(Rank) -> Result<Vec<TransportAddress>, String>,
    ) -> Result<P2p, NotStarted> {
        let mut addresses = addresses;
        P2p::start_with(setup, |peer| Some(addresses(peer)), None)
    }

    /// Starts the layer and uses only transports that work in both directions.
    ///
    /// One direction alone may work if one process lacks locked memory, for example, and runs
    /// without that transport. `agree` exchanges the reachability between processes. It returns
    /// `None` if [`Reach::best`] is mutual for all of them ([`reach_digest`](crate::reach_digest)
    /// detects that); otherwise the [`REACH_BYTES`](crate::REACH_BYTES) of [`Reach::all`] that each
    /// rank reported for this one. All processes must call it once, unless a peer has no addresses.
    ///
    /// # Errors
    /// As [`start`](P2p::start); an error of `agree` is [`StartError::NoAgreement`].
    pub fn start_agreed<'a>(
        setup: Setup,
        addresses: impl FnMut(Rank) -> Result<Vec<TransportAddress>, String>,
        agree: impl FnOnce(&Reach) -> Result<Option<Vec<u8>>, String> + 'a,
    ) -> Result<P2p, NotStarted> {
        let mut addresses = addresses;
        P2p::start_with(setup, |peer| Some(addresses(peer)), Some(Box::new(agree)))
    }

    /// Starts the layer as [`start_agreed`](P2p::start_agreed) does, but reaches only near peers
    /// ([`AddressBook::is_near`]). Any other peer is reached on first use: when this process sends
    /// it a message, posts a receive that names it, or gets a connection from it. These wait until
    /// then. A peer that no transport reaches fails.
    ///
    /// All transports but those within the node must report peers that have connected
    /// ([`btl::PendingPeers`]). Between peers that are not near there is no agreement: a peer that
    /// uses a transport over which this process does not reach it fails, with the reason.
    ///
    /// # Errors
    /// As [`start_agreed`](P2p::start_agreed), for the peers that are near.
    pub fn start_lazily<'a>(
        setup: Setup,
        mut book: Box<dyn AddressBook>,
        agree: impl FnOnce(&Reach) -> Result<Option<Vec<u8>>, String> + 'a,
    ) -> Result<P2p, NotStarted> {
        let addresses = |peer| book.is_near(peer).then(|| book.addresses(peer));
        let started = P2p::start_with(setup, addresses, Some(Box::new(agree)))?;
        started.shared.lock().look_up_in(book);
        Ok(started)
    }

    fn start_with(
        setup: Setup,
        addresses: impl FnMut(Rank) -> Option<Result<Vec<TransportAddress>, String>>,
        agree: Option<Agree<'_>>,
    ) -> Result<P2p, NotStarted> {
        let config = setup.config.clone();
        // Created first, because nothing may fail after the agreement.
        let bell = match shared::bell() {
            Ok(bell) => bell,
            Err(what) => {
                return Err(NotStarted {
                    error: StartError::System(what),
                    transports: setup.transports,
                });
            }
        };
        let engine = crate::start::start(setup, addresses, agree)?;
        // The transports are gone, but the peers have reached this process and see that it left.
        let shared = Shared::new(engine, bell, &config).map_err(|what| NotStarted {
            error: StartError::System(what),
            transports: Vec::new(),
        })?;
        Ok(P2p {
            shared: Arc::new(shared),
        })
    }

    /// Returns the communicator of all ranks of the job.
    #[must_use]
    pub fn world(&self) -> Comm {
        Comm::new(self, &self.shared.world, 0)
    }

    /// Returns for each peer that was reached so far, and each transport, whether it is used and
    /// why.
    #[must_use]
    pub fn paths(&self) -> Vec<PathReport> {
        self.shared.lock().paths.clone()
    }

    /// Returns the traffic of each rail, for peers with several rails.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        let engine = self.shared.lock();
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

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().protocol.stats()
    }

    /// Polls all transports. Returns the number of events. Programs that compute for a long time
    /// should call it now and then, or in a separate thread; other calls make progress by
    /// themselves.
    pub fn progress(&self) -> usize {
        let mut engine = self.shared.lock();
        if engine.protocol.closed {
            0
        } else {
            engine.poll(None)
        }
    }

    /// Sends queued messages, then closes all transports. Requests that are not complete end with
    /// `Closed`.
    ///
    /// While a peer computes and so has no room for its messages, this waits for as long as that
    /// takes. It does not wait for peers that have failed.
    ///
    /// # Errors
    /// None currently.
    pub fn finalize(self) -> Result<(), Error> {
        self.close(None)
    }

    /// Sends queued messages, then closes all transports, at the latest at the deadline.
    ///
    /// # Errors
    /// `Unflushed` at the deadline.
    pub(crate) fn close(&self, deadline: Option<Instant>) -> Result<(), Error> {
        self.shared.wait_until(self.shared.lock(), None, |engine| {
            let mut result = Ok(());
            if !engine.protocol.closed {
                if !engine.is_flushed() {
                    if deadline.is_none_or(|at| Instant::now() < at) {
                        return None;
                    }
                    result = Err(Error::Unflushed(engine.protocol.unsent().max(1)));
                }
                engine.close();
            }
            Some(result)
        })
    }

    /// Returns the result if the request is complete. The result is returned once.
    ///
    /// # Errors
    /// The error of the request; `UnknownRequest`.
    pub fn test(&self, request: RequestId) -> Result<Option<Status>, Error> {
        let take = |engine: &mut Engine| engine.protocol.take(request.0);
        self.shared.attempt(Some(request.0), take).transpose()
    }

    /// Waits until the request is complete and returns its result.
    ///
    /// # Errors
    /// The error of the request; `UnknownRequest`.
    pub fn wait(&self, request: RequestId) -> Result<Status, Error> {
        self.shared.finish(self.shared.lock(), request.0)
    }

    /// Returns true if the request is complete, without taking the result
    /// (`MPI_Request_get_status`).
    ///
    /// # Errors
    /// `UnknownRequest`; not the error of the request.
    pub fn is_complete(&self, request: RequestId) -> Result<bool, Error> {
        let complete = |engine: &mut Engine| {
            let complete = engine.protocol.is_complete(request.0);
            (complete != Ok(false)).then_some(complete)
        };
        self.shared
            .attempt(Some(request.0), complete)
            .unwrap_or(Ok(false))
    }

    /// Waits until one of the requests is complete. Returns its index and result; `None` for an
    /// empty list.
    pub fn waitany(&self, requests: &[RequestId]) -> Option<Indexed> {
        let first = |engine: &mut Engine| take_complete(engine, requests).next();
        (!requests.is_empty()).then(|| self.shared.wait_until(self.shared.lock(), None, first))
    }

    /// Like [`waitany`](P2p::waitany), without waiting. `None` if none is complete.
    pub fn testany(&self, requests: &[RequestId]) -> Option<Indexed> {
        self.shared
            .attempt(None, |engine| take_complete(engine, requests).next())
    }

    /// Waits until at least one of the requests is complete. Returns all that are, with their
    /// indices; empty only for an empty list.
    pub fn waitsome(&self, requests: &[RequestId]) -> Vec<Indexed> {
        if requests.is_empty() {
            return Vec::new();
        }
        let some = |engine: &mut Engine| {
            let complete: Vec<Indexed> = take_complete(engine, requests).collect();
            (!complete.is_empty()).then_some(complete)
        };
        self.shared.wait_until(self.shared.lock(), None, some)
    }

    /// Like [`waitsome`](P2p::waitsome) without waiting.
    pub fn testsome(&self, requests: &[RequestId]) -> Vec<Indexed> {
        let mut engine = self.shared.lock();
        engine.poll(None);
        take_complete(&mut engine, requests).collect()
    }

    /// Waits until all requests are complete. Returns the results in order.
    pub fn waitall(&self, requests: &[RequestId]) -> Vec<Result<Status, Error>> {
        requests.iter().map(|request| self.wait(*request)).collect()
    }

    /// Returns the results of all requests in order if all are complete; otherwise takes none.
    pub fn testall(&self, requests: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        self.shared.attempt(None, |engine| {
            let open = |request: &RequestId| engine.protocol.is_complete(request.0) == Ok(false);
            (!requests.iter().any(open)).then(|| {
                take_complete(engine, requests)
                    .map(|(_, result)| result)
                    .collect()
            })
        })
    }

    /// Cancels a receive without a message or a send that is still queued. Returns true if the
    /// request ends with `Cancelled`, false if it is too late. Wait for the request in both cases.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn cancel(&self, request: RequestId) -> Result<bool, Error> {
        let mut engine = self.shared.lock();
        let cancelled = engine.cancel(request.0)?;
        engine.do_work();
        Ok(cancelled)
    }

    /// Frees a request: it continues, and its result is dropped.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidArgument` if the request borrows or owns its buffer.
    pub fn free(&self, request: RequestId) -> Result<(), Error> {
        let mut engine = self.shared.lock();
        let lent = |request: &crate::engine::Request| request.lent;
        if engine.protocol.requests.get(request.0).is_some_and(lent) {
            return Err(Error::InvalidArgument(
                "the buffer of this request is borrowed: wait for the request instead of freeing it",
            ));
        }
        engine.protocol.is_complete(request.0)?;
        engine.protocol.detach(request.0);
        Ok(())
    }
}

/// Takes the results of the completed requests.
fn take_complete(engine: &mut Engine, requests: &[RequestId]) -> impl Iterator<Item = Indexed> {
    let complete = |(at, id): (usize, &RequestId)| Some((at, engine.protocol.take(id.0)?));
    requests.iter().enumerate().filter_map(complete)
}
