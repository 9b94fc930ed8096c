//! The layer of one process.

use std::sync::Arc;

use btl::Rank;

use crate::comm::Comm;
use crate::error::{Error, NotStarted};
use crate::shared::Shared;
use crate::types::{PathReport, RailReport, RequestId, Setup, Stats, Status, TransportAddress};

/// Point-to-point layer of one process. A clone is the same layer. Any thread may use it.
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

    /// Starts the layer: makes every peer reachable. `addresses` is called once for each peer
    /// except the own rank.
    ///
    /// # Errors
    /// [`NotStarted`] returns the transports. The main cause is a peer that no transport reaches;
    /// the error then has the reasons of all transports.
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
    /// One direction alone may work if one process lacks locked memory, for example, and runs
    /// without that transport. `agree` exchanges what each process reaches. It gets
    /// [`REACH_BYTES`](crate::REACH_BYTES) for each rank and returns what each rank said of this
    /// one. All processes must call it once, unless a peer has no addresses.
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

    /// Returns the communicator of all ranks of the job.
    #[must_use]
    pub fn world(&self) -> Comm {
        Comm::new(Arc::clone(&self.shared), self.shared.world(), 0)
    }

    /// Returns for each peer and transport whether it is used, and why.
    #[must_use]
    pub fn paths(&self) -> Vec<PathReport> {
        self.shared.paths().to_vec()
    }

    /// Returns the traffic of each rail, for peers with several rails.
    #[must_use]
    pub fn rails(&self) -> Vec<RailReport> {
        self.shared.rails()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Polls all transports. Returns the number of events. Programs that compute for a long time
    /// call it now and then; other calls poll by themselves.
    pub fn progress(&self) -> usize {
        self.shared.progress()
    }

    /// Sends what is queued, then closes all transports. Requests that are not over end with
    /// `Closed`.
    ///
    /// # Errors
    /// `Unflushed` after [`Config::finalize_limit`](crate::Config::finalize_limit); the transports
    /// are closed nevertheless.
    pub fn finalize(self) -> Result<(), Error> {
        self.shared.finalize()
    }

    /// Returns the result if the request is over. The result is returned once.
    ///
    /// # Errors
    /// The error of the request; `FreedRequest`, `AlreadyWaited`.
    pub fn test(&self, request: RequestId) -> Result<Option<Status>, Error> {
        self.shared.test(request)
    }

    /// Waits until the request is over and returns its result.
    ///
    /// # Errors
    /// The error of the request; `FreedRequest`, `AlreadyWaited`.
    pub fn wait(&self, request: RequestId) -> Result<Status, Error> {
        self.shared.wait(request)
    }

    /// Returns true if the request is over, without taking the result (`MPI_Request_get_status`).
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`; not the error of the request.
    pub fn is_over(&self, request: RequestId) -> Result<bool, Error> {
        self.shared.is_over(request)
    }

    /// Waits until one of the requests is over. Returns its index and result; `None` for an empty
    /// list.
    pub fn waitany(&self, requests: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        self.shared.waitany(requests)
    }

    /// Like [`waitany`](P2p::waitany), without waiting. `None` if none is over.
    pub fn testany(&self, requests: &[RequestId]) -> Option<(usize, Result<Status, Error>)> {
        self.shared.testany(requests)
    }

    /// Waits until at least one of the requests is over. Returns all that are, with their indices;
    /// empty only for an empty list.
    pub fn waitsome(&self, requests: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        self.shared.waitsome(requests)
    }

    /// Like [`waitsome`](P2p::waitsome) without waiting.
    pub fn testsome(&self, requests: &[RequestId]) -> Vec<(usize, Result<Status, Error>)> {
        self.shared.testsome(requests)
    }

    /// Waits until all requests are over. Returns the results in order.
    pub fn waitall(&self, requests: &[RequestId]) -> Vec<Result<Status, Error>> {
        requests
            .iter()
            .map(|request| self.shared.wait(*request))
            .collect()
    }

    /// Returns the results of all requests in order if all are over; otherwise takes none.
    pub fn testall(&self, requests: &[RequestId]) -> Option<Vec<Result<Status, Error>>> {
        self.shared.testall(requests)
    }

    /// Cancels a receive without a message or a send that is still queued. Returns true if the
    /// request ends with `Cancelled`, false if it is too late. Wait for the request in both cases.
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`.
    pub fn cancel(&self, request: RequestId) -> Result<bool, Error> {
        self.shared.cancel(request)
    }

    /// Frees a request: it continues, and its result is dropped.
    ///
    /// # Errors
    /// `FreedRequest`, `AlreadyWaited`.
    pub fn free(&self, request: RequestId) -> Result<(), Error> {
        self.shared.free(request)
    }
}
