//! State of the component in this process: sending, progress, loss of peers and finalization.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use btl::{Btl, MAX_HEADER, PeerError, Rank, SendError};
use btl_eth::EthBtl;

use crate::endpoint::{Endpoint, MAX_RAILS, ModuleEndpoint};
use crate::ffi;
use crate::header::Header;
use crate::idle::{EmptyPolls, Idle};
use crate::modex::ModexEntry;
use crate::onesided::Operations;
use crate::parameters::{NewRail, Parameters};
use crate::peers::PeerDirectory;
use crate::queued::Queued;
use crate::rail::Rail;

/// Maximum time that finalization waits for the acknowledgement of sent messages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a message that is copied if it cannot be sent at once. `osc/pt2pt`, which
/// sends no longer ones, would wait forever for a message that was accepted but not sent.
const MAX_COPY: usize = 16 << 10;
/// Minimum value of the bound on the bytes of queued replies to peers.
const MIN_REPLY_BACKLOG: usize = 16 << 20;

/// Handling of a message that cannot be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// Queue a copy.
    Copy,
    /// Queue the descriptor.
    Descriptor(usize),
    /// Return the message to the caller.
    Refuse,
}

/// Result of [`Runtime::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Sent or copied: the caller may reuse its memory.
    Complete,
    /// The descriptor is queued, or the message was refused.
    Incomplete,
    /// The peer is lost or was never reachable.
    Failed,
}

/// The component's state.
pub(crate) struct Runtime {
    rails: [Rail; MAX_RAILS],
    pub(crate) operations: Operations,
    directory: Mutex<PeerDirectory>,
    /// Number of rails that have a transport.
    rail_count: AtomicUsize,
    rank: AtomicU32,
    eager: AtomicUsize,
    backlog: AtomicUsize,
    fragment_size: AtomicUsize,
    /// Set when finalization begins. No function of Open MPI is called afterwards.
    pub(crate) stopping: AtomicBool,
    yields: AtomicBool,
    empty_polls: EmptyPolls,
    /// Number of times that this process has released a lock of its own windows.
    pub(crate) own_unlocks: AtomicU32,
}

/// The only instance.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(Runtime::new);

impl Runtime {
    pub(crate) fn new() -> Runtime {
        let mut numbers = 0..;
        Runtime {
            rails: [(); MAX_RAILS].map(|()| Rail::new(numbers.next().unwrap_or(0))),
            operations: Operations::default(),
            directory: Mutex::default(),
            rail_count: AtomicUsize::new(0),
            rank: AtomicU32::new(u32::MAX),
            eager: AtomicUsize::new(0),
            backlog: AtomicUsize::new(0),
            fragment_size: AtomicUsize::new(1),
            stopping: AtomicBool::new(false),
            yields: AtomicBool::new(false),
            empty_polls: EmptyPolls::new(),
            own_unlocks: AtomicU32::new(0),
        }
    }

    /// Completes the send of a queued descriptor.
    pub(crate) fn sent(&self, descriptor: usize, succeeded: bool) {
        if !self.stopping.load(Ordering::SeqCst) {
            ffi::sent(descriptor, succeeded);
        }
    }

    /// Completes a put, get or atomic operation.
    pub(crate) fn complete(&self, completion: usize, succeeded: bool) {
        if !self.stopping.load(Ordering::SeqCst) {
            ffi::complete(completion, succeeded);
        }
    }

    /// Prints a line to the user.
    pub(crate) fn print(&self, text: &str) {
        if !self.stopping.load(Ordering::SeqCst) {
            ffi::print(text);
        }
    }

    /// Locks the directory of peers, which is empty before the start.
    pub(crate) fn directory(&self) -> MutexGuard<'_, PeerDirectory> {
        let directory = self.directory.lock();
        directory.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the local rail of an endpoint.
    #[inline]
    pub(crate) fn rail(&self, endpoint: Endpoint) -> Option<&Rail> {
        let rail = self.rails.get(endpoint.rail as usize);
        debug_assert!(rail.is_some(), "endpoint of rail {}", endpoint.rail);
        rail
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of bytes of a put or get in one message.
    pub(crate) fn fragment_size(&self) -> usize {
        self.fragment_size.load(Ordering::Relaxed)
    }

    /// Returns the rails that have a transport.
    pub(crate) fn rails(&self) -> &[Rail] {
        self.rails
            .get(..self.rail_count.load(Ordering::Acquire))
            .unwrap_or_default()
    }

    /// Creates the rails. Returns the modex entry to publish and the names of the modules'
    /// interfaces.
    pub(crate) fn start(&self, parameters: Parameters) -> (Vec<u8>, Vec<String>) {
        let mut new = parameters.rails();
        if new.rails.is_empty() || parameters.verbose {
            new.errors.append(&mut new.absent);
        }
        if parameters.report_errors || parameters.verbose {
            for error in &new.errors {
                ffi::print(&format!("esp: {parameters}: {error}"));
            }
            if new.rails.is_empty() {
                ffi::show_help(c"no transport");
            }
        }
        let locals: Vec<_> = new.rails.iter().map(NewRail::published).collect();
        let entry = ModexEntry {
            node: parameters.node.clone(),
            rails: match locals.is_empty() {
                true => Err(new.errors.join("; ")),
                false => Ok(locals.clone()),
            },
        };
        self.rank.store(parameters.rank, Ordering::Relaxed);
        self.eager.store(parameters.eager, Ordering::Relaxed);
        self.yields.store(parameters.yields, Ordering::Relaxed);
        self.backlog.store(parameters.backlog, Ordering::Relaxed);
        self.fragment_size
            .store(parameters.max_message, Ordering::Relaxed);
        *self.directory() = PeerDirectory::new(parameters, locals);
        self.stopping.store(new.rails.is_empty(), Ordering::SeqCst);
        let descriptors = new.rails.iter().filter_map(|rail| {
            let descriptor = rail.transport.wait_fd()?;
            descriptor.try_clone_to_owned().ok()
        });
        self.empty_polls.set_descriptors(descriptors.collect());
        let count = new.rails.len();
        for (rail, new) in self.rails.iter().zip(new.rails) {
            let room = new.transport.frame_room().saturating_sub(MAX_HEADER);
            rail.frame_room.store(room, Ordering::Relaxed);
            rail.module.store(new.module, Ordering::Relaxed);
            let install = |place: &mut Option<EthBtl>| *place = Some(new.transport);
            let installed = rail.transport.enter(install);
            debug_assert!(installed.is_some(), "a rail is in use before the start");
        }
        self.rail_count.store(count, Ordering::Release);
        (entry.encode(), new.interfaces)
    }

    /// Returns the endpoint of a message of this length in bytes.
    #[inline]
    pub(crate) fn endpoint_of_length(&self, peer: ModuleEndpoint, length: usize) -> Endpoint {
        let is_short = |rail: &Rail| length <= rail.frame_room.load(Ordering::Relaxed);
        if peer.short == peer.long || self.rail(peer.short).is_some_and(is_short) {
            peer.short
        } else {
            peer.long
        }
    }

    /// Returns true if this component's progress has called back into Open MPI on this thread.
    pub(crate) fn is_nested(&self) -> bool {
        self.rails().iter().any(|rail| rail.transport.is_mine())
    }

    /// Sends a message. If that is not possible now, handles it according to `fallback`.
    #[inline]
    pub(crate) fn send(
        &self,
        endpoint: Endpoint,
        header: &Header,
        body: &[IoSlice<'_>],
        fallback: Fallback,
    ) -> SendOutcome {
        let Some(rail) = self.rail(endpoint) else {
            return SendOutcome::Failed;
        };
        let (peer, bytes) = (endpoint.remote.0, header.encode());
        match rail.transport.send(peer, bytes.as_slice(), body) {
            Ok(()) => return SendOutcome::Complete,
            // `NoPeer`: the addition of this peer was deferred.
            Err(SendError::Busy | SendError::NoPeer(_)) => {}
            Err(_) => return SendOutcome::Failed,
        }
        let (queued, outcome) = match (fallback, *header) {
            (Fallback::Descriptor(descriptor), Header::Active { tag }) => {
                let queued = Queued::Descriptor { descriptor, tag };
                (queued, SendOutcome::Incomplete)
            }
            (Fallback::Copy, _) => {
                let mut bytes = bytes.as_slice().to_vec();
                let header = bytes.len();
                body.iter().for_each(|part| bytes.extend_from_slice(part));
                (Queued::Copy { bytes, header }, SendOutcome::Complete)
            }
            (Fallback::Refuse | Fallback::Descriptor(_), _) => return SendOutcome::Incomplete,
        };
        rail.transport.queue(peer, queued);
        outcome
    }

    /// Chooses the fallback for a message of `length` bytes. `descriptor` is 0 if there is none.
    /// Returns `None` if the message must be refused, because too many bytes are queued.
    ///
    /// A long message from a call of the program (`nested` is false) is not copied: its sender
    /// waits for the completion, and so makes progress. A message with a descriptor is never
    /// refused: ob1 repeats a refused send only when another one completes.
    pub(crate) fn fallback(
        &self,
        length: usize,
        descriptor: usize,
        nested: bool,
    ) -> Option<Fallback> {
        let backlog = self.backlog.load(Ordering::Relaxed);
        let room = backlog.saturating_sub(self.queued_bytes());
        match descriptor {
            0 if !nested && length > MAX_COPY => Some(Fallback::Refuse),
            0 => (length <= room).then_some(Fallback::Copy),
            _ if !nested && length > MAX_COPY => Some(Fallback::Descriptor(descriptor)),
            _ if length > room.min(self.eager.load(Ordering::Relaxed)) => {
                Some(Fallback::Descriptor(descriptor))
            }
            _ => Some(Fallback::Copy),
        }
    }

    fn queued_bytes(&self) -> usize {
        let rails = self.rails().iter();
        rails.map(|rail| rail.transport.queued_bytes()).sum()
    }

    /// Returns true if the queued replies exceed their bound: peers send requests but do not accept
    /// the replies.
    pub(crate) fn replies_overrun(&self) -> bool {
        let backlog = self.backlog.load(Ordering::Relaxed);
        self.queued_bytes() > backlog.saturating_mul(2).max(MIN_REPLY_BACKLOG)
    }

    /// Polls all rails, and yields the core after several consecutive empty polls. Returns the
    /// number of events.
    pub(crate) fn progress(&self) -> usize {
        let events = self.poll();
        if events > 0 {
            self.empty_polls.reset();
        } else if self.yields.load(Ordering::Relaxed) {
            match self.empty_polls.count() {
                Idle::Poll => {}
                Idle::Yield => self.empty_polls.let_others_run(),
                Idle::Sleep => {
                    if self.arm() {
                        self.empty_polls.sleep();
                    }
                }
            }
        }
        events
    }

    /// Requests a wake-up from all rails. Returns false if one has an event or unsent messages, or
    /// is in use by another thread.
    fn arm(&self) -> bool {
        self.rails().iter().all(|rail| {
            let arm = |place: &mut Option<EthBtl>| place.as_mut().is_some_and(Btl::arm);
            rail.transport.is_queue_empty() && rail.transport.enter(arm) == Some(true)
        })
    }

    /// Polls all rails without yielding. Returns the number of events.
    pub(crate) fn poll(&self) -> usize {
        self.rails().iter().map(|rail| self.poll_rail(rail)).sum()
    }

    /// Ends all sends and operations to a peer that was lost on one endpoint. The caller has lent
    /// the rail's transport.
    pub(crate) fn lose(&self, endpoint: Endpoint, error: &PeerError) {
        let Some(rail) = self.rail(endpoint) else {
            return;
        };
        let queued = rail.transport.clear_queue(endpoint.remote.0);
        let operations = self.operations.take_all(endpoint);
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let idle = queued.is_empty() && operations.is_empty();
        for item in queued {
            if let Queued::Descriptor { descriptor, .. } = item {
                ffi::sent(descriptor, false);
            }
        }
        for completion in operations {
            ffi::complete(completion, false);
        }
        if !idle || is_failure(error) {
            let directory = self.directory();
            let local = directory.describe_rail(endpoint.rail);
            let peer = directory.describe(endpoint.remote.process());
            // Open MPI is called without the lock.
            drop(directory);
            ffi::fail_job(&format!("esp: {local} has lost {peer}: {error}"));
        }
    }

    /// Flushes and closes all transports. No function of Open MPI is called from now on: the layers
    /// that started the messages and operations have ended. Their memory is freed with the process.
    pub(crate) fn stop(&self) {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let flush = |rail: &Rail| {
            let flush = |place: &mut Option<EthBtl>| {
                place.as_mut().is_none_or(|transport| {
                    self.poll_transport(rail, transport);
                    rail.transport.is_queue_empty() && transport.flush()
                })
            };
            rail.transport.enter(flush) == Some(true)
        };
        // All rails are polled in each round.
        while self.rails().iter().filter(|rail| !flush(rail)).count() > 0
            && Instant::now() < deadline
        {
            std::thread::yield_now();
        }
        for rail in self.rails() {
            let close = |place: &mut Option<EthBtl>| {
                if let Some(mut transport) = place.take() {
                    transport.close();
                }
            };
            // If another thread is still using the transport, it is closed when the process ends.
            let _ = rail.transport.enter(close);
        }
    }
}

/// Returns true if the loss of a peer with no messages or operations pending is a failure of the
/// job. A peer that has left or is gone is not: processes leave `MPI_Finalize` one after the other,
/// and `mpirun` notices if one died instead.
fn is_failure(error: &PeerError) -> bool {
    !matches!(error, PeerError::Left | PeerError::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::RemoteRail;

    #[test]
    fn peers_that_leave_before_this_process_are_no_failure() {
        assert!(!is_failure(&PeerError::Left) && !is_failure(&PeerError::Gone));
        assert!(is_failure(&PeerError::Died) && is_failure(&PeerError::Lost("link".into())));
    }

    #[test]
    fn messages_of_one_frame_are_short() {
        let runtime = Runtime::new();
        runtime.rails[0].frame_room.store(1400, Ordering::Relaxed);
        let on = |rail| Endpoint {
            rail,
            remote: RemoteRail(3),
        };
        let peer = |short, long| ModuleEndpoint {
            short: on(short),
            long: on(long),
        };
        for (short, long, length, rail) in [
            (0, 1, 0, 0),
            (0, 1, 1400, 0),
            (0, 1, 1401, 1),
            (0, 0, 1401, 0),
            (1, 1, 0, 1),
        ] {
            let chosen = runtime.endpoint_of_length(peer(short, long), length);
            assert_eq!(chosen, on(rail), "{length} bytes");
        }
    }

    #[test]
    fn a_full_backlog_refuses_what_has_no_descriptor() {
        let runtime = Runtime::new();
        runtime.eager.store(4096, Ordering::Relaxed);
        runtime.backlog.store(1000, Ordering::Relaxed);
        let long = MAX_COPY + 1;
        for (length, descriptor, nested, fallback) in [
            (1000, 0, false, Some(Fallback::Copy)),
            (1001, 0, false, None),
            (1001, 0, true, None),
            (long, 0, false, Some(Fallback::Refuse)),
            (1000, 7, false, Some(Fallback::Copy)),
            (1001, 7, true, Some(Fallback::Descriptor(7))),
            (long, 7, false, Some(Fallback::Descriptor(7))),
        ] {
            assert_eq!(
                runtime.fallback(length, descriptor, nested),
                fallback,
                "{length} {descriptor} {nested}"
            );
        }
    }
}
