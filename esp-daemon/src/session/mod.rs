//! The session of one connected program: reads its requests and answers them.
//!
//! Requests are processed in order; only accepts wait. A program cannot delay others: its requests
//! wait while its replies are unread (`outbox.rs`), incomplete messages have a deadline, and the
//! user's request rate bounds the work.

mod accept;
mod lease;
mod requests;
mod resume;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_client::control::codec::{self, DecodeError, Decoder, encode};
use esp_client::control::{Envelope, ErrorKind, Reply, Request, VERSION};
use esp_engine::shm::ClientPage;
use esp_engine::{Command, ListenerId};
use netif::Closer;
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tracing::{debug, trace};

use crate::accounts::Charge;
use crate::node::{Client, Node, SessionEvent};
use crate::outbox::{Flushed, Outbox};
use crate::peer::Credentials;
use crate::refusal::Refusal;
use crate::server::until;
use crate::stats::Count;
use accept::Listening;

/// Number of malformed requests after which a program is disconnected.
const MALFORMED_LIMIT: u32 = 16;
/// Maximum length of a stored program name in bytes.
const NAME_BYTES: usize = 64;
/// Pause when the system refuses to pass descriptors.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(10);
/// Time to send the last message to a program that is disconnected.
const LAST_MESSAGE: Duration = Duration::from_millis(200);

/// A reply with its descriptors.
type ReplyWithFds = (Reply, Vec<OwnedFd>);

/// Reason for the end of a session.
#[derive(Debug)]
enum SessionEnd {
    /// The program closed its socket, or died.
    Gone,
    /// The daemon is stopping.
    Stopping,
    /// The program violated the protocol; the text is sent to it.
    Violation(ErrorKind, String),
}

impl SessionEnd {
    fn violation(what: impl std::fmt::Display) -> SessionEnd {
        SessionEnd::Violation(ErrorKind::BadRequest, what.to_string())
    }
}

impl From<io::Error> for SessionEnd {
    fn from(_: io::Error) -> SessionEnd {
        SessionEnd::Gone
    }
}

struct Session {
    node: Arc<Node>,
    stream: Arc<UnixStream>,
    events: mpsc::UnboundedReceiver<SessionEvent>,
    to_session: mpsc::UnboundedSender<SessionEvent>,
    credentials: Credentials,
    /// The user's supplementary groups.
    groups: Vec<u32>,
    connected: Instant,
    /// Set by `Hello`.
    client: Option<Arc<Client>>,
    listeners: HashMap<ListenerId, Listening>,
    pending_accepts: usize,
    decoder: Decoder<Request>,
    /// The decoder may hold a complete message.
    undecoded: bool,
    /// Time since which a started message is incomplete.
    started: Option<Instant>,
    /// No request is processed before this.
    not_before: Option<Instant>,
    malformed: u32,
    outbox: Outbox,
    /// Held from the request of a status until the program has read it.
    status_turn: Option<OwnedSemaphorePermit>,
    /// The socket accepts no descriptors before this.
    flush_after: Option<Instant>,
    _program: Charge,
}

/// Serves one program until it disconnects, is disconnected, or `stop` becomes true, and frees all
/// of its resources.
pub(crate) async fn serve(
    node: Arc<Node>,
    stream: UnixStream,
    credentials: Credentials,
    program: Charge,
    stop: watch::Receiver<bool>,
) {
    let (to_session, events) = mpsc::unbounded_channel();
    let stream = Arc::new(stream);
    // Dropped after the session.
    let _closing = Closing {
        stream: Some(Arc::clone(&stream)),
        user: credentials.uid,
        closer: node.closer.clone(),
    };
    let mut session = Session {
        node,
        // Without them (an old kernel) the primary group still counts.
        groups: netif::peer_groups(&stream).unwrap_or_default(),
        stream,
        events,
        to_session,
        credentials,
        connected: Instant::now(),
        client: None,
        listeners: HashMap::new(),
        pending_accepts: 0,
        decoder: Decoder::new(),
        undecoded: false,
        started: None,
        not_before: None,
        malformed: 0,
        outbox: Outbox::default(),
        status_turn: None,
        flush_after: None,
        _program: program,
    };
    let mut stopped = std::pin::pin!(until(stop));
    let end = loop {
        if let Err(end) = session.iterate(&mut stopped).await {
            break end;
        }
    };
    debug!(
        uid = credentials.uid,
        pid = credentials.pid,
        ?end,
        "program disconnected"
    );
    session.send_last_message(end).await;
}

/// Closes a program's socket on drop, if the session has ended, without waiting for descriptors
/// that the program has sent.
struct Closing {
    stream: Option<Arc<UnixStream>>,
    user: u32,
    closer: Closer,
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().and_then(Arc::into_inner) {
            close(&self.closer, self.user, stream);
        }
    }
}

/// Closes a program's socket without waiting for descriptors that the program has sent.
pub(crate) fn close(closer: &Closer, user: u32, stream: UnixStream) {
    if let Ok(stream) = stream.into_std() {
        closer.close_socket(user, stream.into());
    }
}

impl Session {
    /// Runs one iteration of the loop: requests, replies, wait.
    async fn iterate(
        &mut self,
        stopped: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<(), SessionEnd> {
        // Before further requests, which could keep events waiting while their queue grows.
        while let Ok(event) = self.events.try_recv() {
            self.event(event).await?;
        }
        self.take_requests().await?;
        if self.flush_after.is_none_or(|after| after <= Instant::now()) {
            let flushed = self.outbox.flush(&self.stream)?;
            self.flush_after =
                (flushed == Flushed::Later).then(|| Instant::now() + DESCRIPTOR_PAUSE);
        }
        if self.outbox.is_empty() {
            self.status_turn = None;
        }
        let may_work = self.not_before.is_none() && !self.outbox.is_full();
        if self.undecoded && may_work {
            // More work is ready, but other sessions come first.
            tokio::task::yield_now().await;
            return Ok(());
        }
        let read = !self.undecoded && may_work;
        let write = !self.outbox.is_empty() && self.flush_after.is_none();
        let interest = match (read, write) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        };
        let socket_ready = async {
            match interest {
                Some(interest) => self.stream.ready(interest).await,
                None => std::future::pending().await,
            }
        };
        let deadline = self.next_deadline();
        let deadline_passed = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopped => return Err(SessionEnd::Stopping),
            event = self.events.recv() => {
                if let Some(event) = event {
                    self.event(event).await?;
                }
            }
            ready = socket_ready => {
                if ready?.is_readable() && read {
                    self.receive()?;
                }
            }
            () = deadline_passed => self.check_deadlines()?,
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), SessionEnd> {
        let received = self.stream.try_io(Interest::READABLE, || {
            codec::receive_admitted(&self.stream, &mut self.decoder, |fd| {
                if netif::is_memory(&fd) {
                    return Some(fd);
                }
                self.node.closer.close(self.credentials.uid, fd);
                None
            })
        });
        match received {
            Ok(0) => {
                if let Err(DecodeError::HalfWritten { .. }) = self.decoder.finish() {
                    self.node.stats.control_half_written.add();
                }
                Err(SessionEnd::Gone)
            }
            Ok(_) => {
                self.undecoded = true;
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionReset {
                    self.node.stats.control_socket_errors.add();
                }
                Err(SessionEnd::Gone)
            }
        }
    }

    /// Processes decoded requests within the limits of the request rate and the outbox.
    async fn take_requests(&mut self) -> Result<(), SessionEnd> {
        /// Limit after which the other parts of the loop run.
        const REQUESTS_PER_ITERATION: usize = 64;
        if self.not_before.is_some_and(|at| at <= Instant::now()) {
            self.not_before = None;
        }
        for _ in 0..REQUESTS_PER_ITERATION {
            if !self.undecoded || self.not_before.is_some() || self.outbox.is_full() {
                break;
            }
            if let Err(wait) = self
                .node
                .accounts
                .request(self.credentials.uid, Instant::now())
            {
                self.node.stats.control_throttled.add();
                self.not_before = Some(Instant::now() + wait);
                break;
            }
            match self.decoder.next() {
                Ok(Some((envelope, descriptors))) => {
                    self.started = None;
                    self.request(envelope, descriptors).await?;
                }
                Ok(None) => {
                    self.undecoded = false;
                    let partial = self.decoder.finish().is_err();
                    self.started = partial.then(|| self.started.unwrap_or_else(Instant::now));
                }
                Err(error) => {
                    self.started = None;
                    self.bad_input(&error)?;
                }
            }
        }
        Ok(())
    }

    /// Counts invalid input; answers it if the connection can continue.
    fn bad_input(&mut self, error: &DecodeError) -> Result<(), SessionEnd> {
        let stats = &self.node.stats;
        match error {
            DecodeError::Malformed { .. } => stats.control_malformed.add(),
            DecodeError::Oversized { .. } => stats.control_oversized.add(),
            DecodeError::UnexpectedDescriptors { .. } | DecodeError::MissingDescriptors { .. } => {
                stats.control_unexpected_descriptors.add();
            }
            DecodeError::HalfWritten { .. } => stats.control_half_written.add(),
        }
        let DecodeError::Malformed { id, .. } = error else {
            return Err(SessionEnd::violation(error));
        };
        self.malformed += 1;
        if self.client.is_none() || self.malformed >= MALFORMED_LIMIT {
            self.node.stats.control_misbehaved.add();
            return Err(SessionEnd::violation(error));
        }
        self.answer(
            id.unwrap_or(0),
            Err(Refusal::new(ErrorKind::BadRequest, error)),
        );
        Ok(())
    }

    async fn request(
        &mut self,
        Envelope { id, body }: Envelope<Request>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), SessionEnd> {
        self.node.stats.control_requests.add();
        trace!(uid = self.credentials.uid, pid = self.credentials.pid, id, request = ?body, "request");
        if let Some(client) = self.client.clone() {
            if matches!(body, Request::Status) {
                return self.status(id).await;
            }
            if let Some(answer) = self.execute(&client, id, body, descriptors).await {
                self.answer(id, answer);
            }
            return Ok(());
        }
        match body {
            Request::Hello {
                version: VERSION,
                program,
                engine,
            } => {
                let hello = self.hello(&program, engine);
                self.answer(id, hello);
                Ok(())
            }
            Request::Hello { version, .. } => Err(SessionEnd::Violation(
                ErrorKind::Version,
                format!(
                    "esp-daemon speaks version {VERSION} of the control protocol, the program version {version}; \
                         install the same release of both"
                ),
            )),
            _ => {
                self.node.stats.control_no_hello.add();
                Err(SessionEnd::violation("the first request must be Hello"))
            }
        }
    }

    /// Registers the program, which `engine` of the last daemon has served. The reply has its page,
    /// its descriptors and its id.
    fn hello(&mut self, program: &str, engine: Option<u8>) -> Result<ReplyWithFds, Refusal> {
        let program = printable(program);
        let make = |what: &'static str| move |error: io::Error| Refusal::system(what, &error);
        let (page, page_fd) = ClientPage::create().map_err(make("create a program's page"))?;
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let pair = || event().and_then(|fd| Ok((fd.try_clone()?, fd)));
        let (doorbell, doorbell_fd) = pair().map_err(make("create an eventfd"))?;
        let notify = std::os::unix::net::UnixStream::pair().and_then(|(ours, theirs)| {
            // The program polls and then reads; a spurious read must not block its event thread.
            theirs.set_nonblocking(true)?;
            // The engine never reads there: bytes sent by the program must not accumulate.
            ours.shutdown(std::net::Shutdown::Read)?;
            Ok((ours.into(), theirs.into()))
        });
        let (notify, notify_fd) = notify.map_err(make("create a socket pair"))?;
        let seat = self.node.engines.seat(engine);
        let engine = seat.engine();
        let engine_page = self.node.engines.page(engine);
        let engine_page = engine_page.map_err(make("pass the engine's page"))?;
        let client = self
            .node
            .add_client(self.credentials, program, seat, self.to_session.clone());
        let number = client.id;
        // Once this is set, `Drop` removes the client.
        self.client = Some(client);
        let command = Command::AddClient {
            client: number,
            user: self.credentials.uid,
            page,
            doorbell,
            notify,
        };
        self.node.engines.send(engine, command)?;
        let reply = Reply::Hello {
            version: VERSION,
            daemon: env!("CARGO_PKG_VERSION").into(),
            client: number.0,
            incarnation: self.node.engines.incarnation(),
            engine,
            interfaces: self.node.links.iter().map(|link| link.info()).collect(),
            leases: self.node.leases.allowed(self.credentials, &self.groups),
        };
        Ok((reply, vec![engine_page, page_fd, doorbell_fd, notify_fd]))
    }

    /// Puts a reply into the outbox.
    fn answer(&mut self, id: u64, answer: Result<ReplyWithFds, Refusal>) {
        let (body, descriptors) = answer.unwrap_or_else(|refusal| {
            let stats = &self.node.stats;
            stats.control_errors.add();
            match refusal.kind {
                ErrorKind::Limit => stats.refused_limit.add(),
                ErrorKind::Permission => stats.refused_permission.add(),
                _ => {}
            }
            (Reply::Error(refusal.into()), Vec::new())
        });
        // Only a status could be too long, and `status.rs` truncates it.
        let encoded = encode(&Envelope { id, body }).or_else(|error| {
            let body = Reply::Error(Refusal::new(ErrorKind::Limit, error).into());
            encode(&Envelope { id, body })
        });
        if let Ok(bytes) = encoded {
            self.outbox.push(bytes, descriptors);
        }
    }

    /// Returns, for each deadline, the time since which the program owes something, the counter of
    /// programs that miss the deadline, and its description.
    fn debts(&self) -> [(Option<Instant>, &Count, &'static str); 3] {
        let stats = &self.node.stats;
        let hello = self.client.is_none().then_some(self.connected);
        let unread = self.outbox.waiting_since();
        [
            (hello, &stats.control_no_hello, "no Hello"),
            (
                self.started,
                &stats.control_half_written,
                "message not completed",
            ),
            (unread, &stats.control_slow_readers, "reply not read"),
        ]
    }

    /// Returns the earliest deadline.
    fn next_deadline(&self) -> Option<Instant> {
        let debts = self.debts().into_iter();
        debts
            .map(|(since, ..)| since.map(|since| since + self.node.patience))
            .chain([self.not_before, self.flush_after])
            .flatten()
            .min()
    }

    fn check_deadlines(&self) -> Result<(), SessionEnd> {
        let patience = self.node.patience;
        for (since, counter, what) in self.debts() {
            if since.is_some_and(|since| since.elapsed() >= patience) {
                counter.add();
                return Err(SessionEnd::violation(format_args!(
                    "{what} within {patience:?}"
                )));
            }
        }
        Ok(())
    }

    /// Sends the last message, unless the program does not read it in time.
    async fn send_last_message(&mut self, end: SessionEnd) {
        let last = match end {
            SessionEnd::Gone => return,
            SessionEnd::Stopping => Refusal::new(ErrorKind::Unavailable, "esp-daemon is stopping"),
            SessionEnd::Violation(kind, what) => {
                debug!(
                    uid = self.credentials.uid,
                    pid = self.credentials.pid,
                    what,
                    "program disconnected for a violation"
                );
                Refusal::new(kind, what)
            }
        };
        let waiting: Vec<u64> = self
            .listeners
            .values()
            .flat_map(Listening::waiting_accepts)
            .collect();
        for id in waiting {
            self.answer(id, Err(last.clone()));
        }
        self.answer(0, Err(last));
        let flush = async {
            while let Ok(Flushed::WhenWritable) = self.outbox.flush(&self.stream)
                && !self.outbox.is_empty()
                && self.stream.writable().await.is_ok()
            {}
        };
        let _ = tokio::time::timeout(LAST_MESSAGE, flush).await;
    }
}

/// Returns the beginning of a name, without characters that would disturb a terminal.
fn printable(name: &str) -> String {
    let mut kept = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if kept.len() + c.len_utf8() > NAME_BYTES {
            break;
        }
        kept.push(c);
    }
    kept
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            for id in self.listeners.keys() {
                self.node.remove_listener(*id);
            }
            // The listeners' ports are freed (drop) after this command, so that commands of their
            // next owner follow it.
            self.node.remove_client(client);
            // Leases end after the listeners: a port that is no longer held must have no listener
            // of this program.
            for lease in self.node.leases.numbers(client.id) {
                self.node.end_lease(lease);
            }
        }
    }
}
