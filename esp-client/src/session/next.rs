//! The wait for the next daemon, when the connection to one has ended.
//!
//! The rings of a program's sockets are its own memory, and hold all that a daemon needs to resume
//! their connections. So the session's thread tries to connect for some time ([`PATIENCE`]), brings
//! each socket to the daemon that answers, opens the listeners again, and repeats the requests
//! without a reply, whose effects ended with the earlier daemon. During that time, calls of the
//! program wait as for a slow peer. If there is no daemon in time, or if it refuses a socket, the
//! error is [`EspError::DaemonGone`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use esp_engine::shm::{Events, StreamState};

use super::connection::{Calls, Daemon, Held, Session, Socket, is_stopping};
use super::handshake::{
    DAEMON_TIMEOUT, Welcome, connect_socket, receive_reply, say_hello, send_with,
};
use super::posts::is_of_lease;
use crate::control::codec::{Decoder, encode};
use crate::control::{Envelope, ErrorKind, Reply, Request};
use crate::error::EspError;
use crate::sync::lock;

/// Default time for which a program waits for the next daemon: longer than its peers keep the
/// connections by default (30 s after the last answer).
pub(super) const PATIENCE: Duration = Duration::from_secs(35);
/// Time for which a program that starts waits for the next daemon: a restart takes about 0.1 s.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of requests sent to a daemon while no reply is read: few enough for the buffer of
/// a socket.
const UNREAD: usize = 64;

/// A new connection, for the session's thread.
pub(super) struct Next {
    pub(super) decoder: Decoder<Reply>,
    pub(super) events: Events,
    /// Ids of the requests to repeat.
    pub(super) unsent: VecDeque<u64>,
}

/// Returns true if this error of opening a connection means that a daemon has ended, or is
/// stopping, and leaves its work to the next one: it then keeps its lock file.
pub(super) fn is_between_daemons(socket: &Path, error: &EspError) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let is_absent = match error {
        EspError::Unreachable { kind, .. } => matches!(kind, NotFound | ConnectionRefused),
        EspError::Denied { kind, .. } => *kind == ErrorKind::Unavailable,
        EspError::DaemonGone { .. } => true,
        _ => false,
    };
    let mut lock = socket.as_os_str().to_owned();
    lock.push(".lock");
    is_absent && std::fs::symlink_metadata(lock).is_ok()
}

/// A connection that is not in use yet.
struct Opening<'a> {
    session: &'a Session,
    /// Start of the wait for the next daemon.
    begin: Instant,
    daemon: Daemon,
    decoder: Decoder<Reply>,
    next_id: u64,
}

impl Opening<'_> {
    /// Sends a request, and waits for the reply. A refusal is the inner error.
    fn ask(
        &mut self,
        request: Request,
        file: Option<&OwnedFd>,
    ) -> Result<Result<Reply, EspError>, EspError> {
        self.next_id += 1;
        let id = self.next_id;
        let bytes = encode(&Envelope { id, body: request })
            .map_err(|_| EspError::BadArgument("a name or key is too long".into()))?;
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        let path = &self.session.path;
        send_with(&self.daemon.socket, &bytes, &files)
            .map_err(|error| EspError::gone(path, error.to_string()))?;
        let reply = loop {
            let deadline = Instant::now() + DAEMON_TIMEOUT;
            match receive_reply(path, &self.daemon.socket, &mut self.decoder, deadline) {
                // On another connection the daemon would find the object in use by this one, and
                // refuse it.
                Err(EspError::DaemonSilent { .. }) if self.session.has_patience(self.begin) => {}
                received => break received?,
            }
        };
        if is_stopping(&reply.0.body) {
            return Err(EspError::gone(path, "it is stopping"));
        }
        Ok(match reply.0.body {
            Reply::Error(error) => Err(EspError::denied(error.kind, error.message)),
            reply => Ok(reply),
        })
    }
}

impl Session {
    /// Waits for the next daemon after the connection ended with this error, and brings it
    /// everything that this session has. `None`: the session has ended.
    pub(super) fn find_next(&self, error: EspError) -> Option<Next> {
        self.begin_waiting(&error);
        let begin = Instant::now();
        loop {
            if !self.has_patience(begin) {
                self.fail(error);
                return None;
            }
            match self.try_next(begin) {
                Ok(next) => return Some(next),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Returns true while a wait that began at this time continues.
    fn has_patience(&self, begin: Instant) -> bool {
        self.gone.get().is_none() && begin.elapsed() < self.patience()
    }

    /// Fails the requests that cannot be repeated.
    fn begin_waiting(&self, error: &EspError) {
        let mut calls = lock(&self.calls);
        {
            // Sockets that are registered later are not brought to the next daemon.
            let _slots = lock(&self.slots);
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.waiting.store(true, Ordering::Relaxed);
        }
        let failed = calls.extract_if(|_, (request, _)| is_of_lease(request));
        let failed: Vec<_> = failed.collect();
        drop(calls);
        self.notify_loss();
        for (_, (_, cell)) in failed {
            cell.finish(Err(error.clone()));
        }
    }

    fn try_next(&self, begin: Instant) -> Result<Next, EspError> {
        let path = &self.path;
        let unreachable = |error: std::io::Error| EspError::gone(path, error.to_string());
        let socket = connect_socket(path).map_err(unreachable)?;
        let mut decoder = Decoder::new();
        let engine = Some(self.welcome().engine);
        let (welcome, descriptors) = say_hello(path, &socket, &mut decoder, engine)?;
        let (daemon, events) = Daemon::new(socket, descriptors)?;
        let mut opening = Opening {
            session: self,
            begin,
            daemon,
            decoder,
            next_id: 1,
        };
        self.bring_sockets(&mut opening)?;
        self.bring_listeners(&mut opening)?;
        let (calls, late) = self.bring_posts(&mut opening)?;
        let Opening {
            daemon, decoder, ..
        } = opening;
        let unsent = self.switch(calls, late, (&Arc::new(daemon), welcome));
        Ok(Next {
            decoder,
            events,
            unsent,
        })
    }

    /// Brings each socket to the daemon. One that it refuses is lost.
    fn bring_sockets(&self, opening: &mut Opening<'_>) -> Result<(), EspError> {
        let held: Vec<(u16, Arc<Socket>)> = lock(&self.slots)
            .iter()
            .map(|(slot, held)| (*slot, Arc::clone(&held.socket)))
            .collect();
        let mut brought = Vec::with_capacity(held.len());
        for (slot, socket) in held {
            let result = match socket.request(slot) {
                Ok(request) => opening.ask(request, socket.file.as_ref())?,
                Err(why) => Err(why),
            };
            match result {
                Ok(_) => brought.push(slot),
                Err(why) => {
                    let why = EspError::gone(
                        &self.path,
                        format!("the next daemon could not resume this socket: {why}"),
                    );
                    let _ = socket.waiting.lost.set(why);
                    socket.waiting.poke();
                }
            }
        }
        // The next daemon gives the slots of the others to new sockets.
        lock(&self.slots).retain(|slot, held| {
            held.socket.waiting.lost.get().is_none() && brought.contains(slot)
        });
        Ok(())
    }

    /// Opens the listeners again. One that the daemon refuses is lost.
    fn bring_listeners(&self, opening: &mut Opening<'_>) -> Result<(), EspError> {
        let all: Vec<(u64, Option<Request>)> = {
            let mut listeners = lock(&self.listeners);
            listeners.retain(|_, held| !held.closing);
            let each = listeners.iter();
            each.map(|(own, held)| (*own, held.request.clone()))
                .collect()
        };
        for (own, request) in all {
            let opened = match request {
                Some(request) => match opening.ask(request, None)? {
                    Ok(Reply::Listening { listener, .. }) => Ok(listener),
                    Ok(_) => Err(self.unexpected("a listener")),
                    Err(why) => Err(why),
                },
                None => Err(EspError::BadArgument("it has leases".into())),
            };
            if let Some(held) = lock(&self.listeners).get_mut(&own) {
                held.at = opened.map_err(|why| {
                    EspError::gone(
                        &self.path,
                        format!("the next daemon did not reopen this listener: {why}"),
                    )
                });
            }
        }
        Ok(())
    }

    /// Sends the requests whose replies are ignored until few remain. Returns these, and the locked
    /// calls, so that none is added. The effects of a sent request end with the connection, so all
    /// stay queued until it is in use.
    fn bring_posts(
        &self,
        opening: &mut Opening<'_>,
    ) -> Result<(MutexGuard<'_, Calls>, Vec<Request>), EspError> {
        let mut brought = 0;
        loop {
            let calls = lock(&self.calls);
            let mut posts = lock(&self.posts);
            let mut requests = posts.get(brought..).unwrap_or_default().to_vec();
            brought += requests.len();
            requests.extend(self.take_closing_listeners());
            if requests.len() <= UNREAD {
                posts.clear();
                drop(posts);
                return Ok((calls, requests));
            }
            drop(posts);
            drop(calls);
            for request in requests {
                let _ = opening.ask(request, None)?;
            }
        }
    }

    /// Switches to the connection: sends the late requests, rings the doorbells of all slots for
    /// bytes written in the meantime, and returns the ids of the requests to repeat.
    fn switch(
        &self,
        calls: MutexGuard<'_, Calls>,
        late: Vec<Request>,
        (daemon, welcome): (&Arc<Daemon>, Welcome),
    ) -> VecDeque<u64> {
        {
            let current = self.welcome.write();
            *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(welcome);
            let current = self.daemon.write();
            *current.unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(daemon));
        }
        self.waiting.store(false, Ordering::Relaxed);
        // First: a repeated request may get the slot of a socket that the daemon refused and the
        // program has closed.
        for request in late {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let _ = self.send(daemon, id, &request);
        }
        let unsent = calls.keys().copied().collect();
        drop(calls);
        let owners: Vec<_> = lock(&self.slots)
            .iter()
            .map(|(slot, held)| (*slot, Arc::clone(&held.socket)))
            .collect();
        lock(&self.slots).retain(|_, held| !held.closing);
        for (slot, socket) in owners {
            self.ring(slot);
            socket.waiting.poke();
        }
        if self.gone.get().is_some() {
            // The session was closed in the meantime, before it had this connection to end.
            let _ = rustix::net::shutdown(&daemon.socket, rustix::net::Shutdown::Both);
        }
        unsent
    }

    /// Repeats requests until the daemon's socket is full: a daemon that waits until its replies
    /// are read reads no requests.
    pub(super) fn repeat(&self, daemon: &Daemon, unsent: &mut VecDeque<u64>) {
        while let Some(id) = unsent.front()
            && self.try_repeat(daemon, *id)
        {
            unsent.pop_front();
        }
    }

    /// Repeats a request if it is still wanted; false if the socket is full.
    fn try_repeat(&self, daemon: &Daemon, id: u64) -> bool {
        // Locked until it is sent: the request that cancels it must follow.
        let mut calls = lock(&self.calls);
        let Some((request, cell)) = calls.get(&id) else {
            return true;
        };
        if !cell.is_wanted() {
            calls.remove(&id);
            return true;
        }
        let sent = match self.translate(request) {
            Ok(request) => self.try_send(daemon, id, &request),
            // Its listener is lost.
            Err(why) => {
                self.fail_call(calls, id, why);
                return true;
            }
        };
        match sent {
            Ok(sent) => sent,
            // The connection has ended, and the request is repeated at the next.
            Err(EspError::DaemonGone { .. }) if self.check().is_ok() => true,
            Err(why) => {
                self.fail_call(calls, id, why);
                true
            }
        }
    }

    /// Ends a request that cannot be repeated.
    fn fail_call(&self, mut calls: MutexGuard<'_, Calls>, id: u64, why: EspError) {
        let failed = calls.remove(&id);
        drop(calls);
        if let Some((_, cell)) = failed {
            cell.finish(Err(why));
            self.notify_poller();
        }
    }
}

impl Socket {
    /// Returns the request that brings this socket; an error if it has nothing to resume.
    fn request(&self, slot: u16) -> Result<Request, EspError> {
        if self.waiting.status.state() == StreamState::Connecting {
            let what = "the connection was not established yet";
            return Err(EspError::BadArgument(what.into()));
        }
        if matches!(self.waiting.status.state(), StreamState::Closed(_)) || self.file.is_none() {
            return Err(EspError::BadArgument(
                "it has ended, or its memory file could not be duplicated (limit of open files)"
                    .into(),
            ));
        }
        let rings = self.rings;
        Ok(match &self.held {
            Held::Stream => Request::ResumeStream { slot, rings },
            Held::Edp { interface, port } => Request::ResumeEdp {
                interface: interface.clone(),
                port: *port,
                slot,
                rings,
            },
        })
    }
}
