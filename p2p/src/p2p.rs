//! The layer of one process.

use std::sync::Arc;

use btl::Rank;

use crate::comm::Comm;
use crate::error::{Error, NotStarted};
use crate::shared::Shared;
use crate::types::{PathReport, RailReport, RequestId, Setup, Stats, Status, TransportAddress};

/// The point-to-point layer of one process. A clone is the same layer; any thread may use any of them.
#[derive(Clone, Debug)]
pub struct P2p {
    pub(crate) shared: Arc<Shared>,
}

impl P2p {
    /// Returns the addresses to publish before [`start`](P2p::start): one for each transport that
    /// can be reached.
    #[must_use]
    pub fn addresses(setup: &Setup) -> Vec<TransportAddress> {
        let address = |btl: &dyn btl::Btl| TransportAddress {
            transport: btl.name().to_owned(),
            address: btl.address(),
        };
        setup
            .transports
            .iter()
            .map(|btl| address(&**btl))
            .filter(|address| !address.address.is_empty())
            .collect()
    }

    /// Starts the layer: makes every peer reachable. `addresses` is called once for each peer except
    /// the own rank.
    ///
    /// # Errors
    /// [`NotStarted`] returns the transports. The main cause is a peer that no transport reaches; the
    /// error then has the reasons of all transports.
    pub fn start(
        setup: Setup,
        addresses: impl FnMut(Rank) -> Result<Vec<TransportAddress>, String>,
    ) -> Result<P2p, NotStarted> {
        Ok(P2p {
            shared: Shared::start(setup, addresses, None)?,
        })
    }

    /// Starts the layer and uses only transports that work in both directions.
    ///
    /// One direction alone may work if one process lacks locked memory, for example, and runs without
    /// that transport. `agree` exchanges what each process reaches. It gets
    /// [`REACH_BYTES`](crate::REACH_BYTES) for each rank and returns what each rank said of this one.
    /// All processes must call it once, unless a peer has no addresses.
    ///
    /// # Errors
    /// As [`start`](P2p::start); an error of `agree` is
    /// [`StartError::NoAgreement`](crate::StartError::NoAgreement).
    pub fn start_agreed<'a>(
        setup: Setup,
        addresses: impl FnMut(Rank) -> Result<Vec<TransportAddress>, String>,
        agree: impl FnOnce(&[u8]) -> Result<Vec<u8>, String> + 'a,
    ) -> Result<P2p, NotStarted> {
        Ok(P2p {
            shared: Shared::start(setup, addresses, Some(Box::new(agree)))?,
        })
    }

    /// All ranks of the job.
    #[must_use]
    pub fn world(&self) -> Comm {
        Comm::new(Arc::clone(&self.shared), self.shared.world(), 0)
    }

    /// For each peer and transport: used or not, and why.
    #[must_use]
    pub fn paths(&self) -> Vec<PathReport> {
        self.shared.paths().to_vec()
    }

    /// Returns the traffic of each rail, for peers with several rails.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.shared.rails()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Gives every transport a turn. Programs that compute for long call it now and then; all other calls do it themselves. Answers how
    /// many things happened.
    pub fn progress(&self) -> usize {
        self.shared.progress()
    }

    /// Sends what waits, then closes all transports. Requests that are not over end with `Closed`.
    ///
    /// # Errors
    /// `Unflushed` after [`Config::finalize_limit`](crate::Config::finalize_limit); closed all the same.
    pub fn finalize(self) -> Result<(), Error> {
        self.shared.finalize()
    }

    /// Is the request over? The answer is given once.
    ///
    /// # Errors
    /// Its own; `FreedRequest`, `AlreadyWaited`.
    pub fn test(&self, request: RequestId) -> Result<Option<Status>, Error> {
        self.shared.test(request)
    }

    /// Waits until the request is over.
    ///
    /// # Errors
    /// Its own; `FreedRequest`, `AlreadyWaited`.
    pub fn wait(&self, request: RequestId) -> Result<Status, Error> {
        self.shared.wait(request)
    }

    /// Is it over? Without taking the answer (`MPI_Request_get_status`).
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`; not its own.
    pub fn is_over(&self, request: RequestId) -> Result<bool, Error> {
        self.shared.is_over(request)
    }

    /// Waits until one of them is over: its place in the list and its result. `None`: the list is empty.
    pub fn waitany(&self, requests: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        self.shared.waitany(requests)
    }

    /// Like [`waitany`](P2p::waitany) without waiting: `None` when none is over.
    pub fn testany(&self, requests: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        self.shared.testany(requests)
    }

    /// Waits until at least one of them is over: all that are, by their place in the list. Empty only for an empty list.
    pub fn waitsome(&self, requests: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        self.shared.waitsome(requests)
    }

    /// Like [`waitsome`](P2p::waitsome) without waiting.
    pub fn testsome(&self, requests: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        self.shared.testsome(requests)
    }

    /// Waits until all are over: the results, in order.
    pub fn waitall(&self, requests: &[RequestId]) -> Vec<Result<Status, Error>> {
        requests
            .iter()
            .map(|request| self.shared.wait(*request))
            .collect()
    }

    /// The results of all, in order, if all are over; else none is taken.
    pub fn testall(&self, requests: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        self.shared.testall(requests)
    }

    /// Cancels a request of which nothing has happened yet: a receive without a message, a send that has not gone out. It then ends with
    /// `Cancelled`. False: too late, it ends as if nothing had been asked. Wait for it in both cases.
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`.
    pub fn cancel(&self, request: RequestId) -> Result<bool, Error> {
        self.shared.cancel(request)
    }

    /// Nobody will wait for it: it goes on, and is forgotten when over.
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`.
    pub fn free(&self, request: RequestId) -> Result<(), Error> {
        self.shared.free(request)
    }
}
