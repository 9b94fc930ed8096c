//! Copies for all connections of one engine, in the thread that polls the engine.
//!
//! The thread sleeps on one epoll set: it contains the engine's poller, the sockets of the
//! programs, and descriptors that the owner adds. So a message takes one wake-up of the broker on
//! each node, and messages of several connections that are ready at the same time share it.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, mem};

use esp_client::Poller;
use rustix::event::{Timespec, epoll};

use super::POLL_INTERVAL;
use super::conn::{Conn, Next};

/// Token of the poller's descriptor. Tokens of connections start at [`FIRST_CONN`]; those in
/// between are the owner's.
const POLLER: u64 = 0;
/// First token of a connection.
const FIRST_CONN: u64 = 16;
/// Length of the buffer for copies, in bytes.
const BLOCK: usize = 64 << 10;
/// Maximum number of events that are taken at a time.
const EVENTS: usize = 64;

/// Events that are not handled by copying.
#[derive(Default)]
pub(super) struct News {
    /// Tokens of the owner's descriptors that are readable.
    pub(super) tokens: Vec<u64>,
    /// Slots of streams that have an event but are not copied.
    pub(super) slots: Vec<u16>,
    /// A connection may have arrived at a listener.
    pub(super) arrivals: bool,
}

/// The connections of one engine.
pub(super) struct Copier {
    poller: Poller,
    set: OwnedFd,
    conns: HashMap<u64, Conn>,
    slots: HashMap<u16, u64>,
    /// Connections that have work to do.
    queue: Vec<u64>,
    next: u64,
    block: Vec<u8>,
    /// Time of the last check of connections that are ending.
    checked: Instant,
}

impl Copier {
    pub(super) fn new(poller: Poller) -> io::Result<Copier> {
        poller.drive();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let copier = Copier {
            poller,
            set,
            conns: HashMap::new(),
            slots: HashMap::new(),
            queue: Vec::new(),
            next: FIRST_CONN,
            block: vec![0; BLOCK],
            checked: Instant::now(),
        };
        let data = epoll::EventData::new_u64(POLLER);
        epoll::add(&copier.set, copier.poller.fd(), data, epoll::EventFlags::IN)?;
        Ok(copier)
    }

    /// Adds a descriptor of the owner. The token is below 16 and not 0.
    pub(super) fn watch(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.set, fd, data, epoll::EventFlags::IN)?)
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, conn: Conn) -> io::Result<()> {
        use epoll::EventFlags;
        let token = self.next;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.set, conn.socket(), data, flags)?;
        self.next += 1;
        self.slots.insert(conn.slot(), token);
        self.conns.insert(token, conn);
        self.queue.push(token);
        Ok(())
    }

    /// Returns true if there are no connections.
    pub(super) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Copies the available bytes, then waits for more, for at most `wait`.
    pub(super) fn turn(&mut self, wait: Duration) -> News {
        let mut news = News::default();
        if self.checked.elapsed() >= POLL_INTERVAL {
            // Their time limit causes no event.
            self.checked = Instant::now();
            let ending = self.conns.iter().filter(|(_, conn)| conn.is_ending());
            self.queue.extend(ending.map(|(token, _)| *token));
        }
        self.poll(&mut news);
        if self.serve() {
            // Sends the bytes that all of them have written.
            self.poll(&mut news);
        }
        let is_idle = self.queue.is_empty() && !news.arrivals && news.slots.is_empty();
        let wait = match is_idle && self.poller.try_sleep() {
            true => wait,
            false => Duration::ZERO,
        };
        self.wait(wait, &mut news);
        news
    }

    /// Polls the engine, and queues the connections that have an event.
    fn poll(&mut self, news: &mut News) {
        let Copier {
            poller,
            slots,
            queue,
            ..
        } = self;
        news.arrivals |= poller.poll(|slot| match slots.get(&slot) {
            Some(token) => queue.push(*token),
            None => news.slots.push(slot),
        });
    }

    /// Serves each queued connection once. Returns false if the queue was empty.
    fn serve(&mut self) -> bool {
        let mut queue = mem::take(&mut self.queue);
        queue.sort_unstable();
        queue.dedup();
        let has_any = !queue.is_empty();
        for token in queue {
            let Some(conn) = self.conns.get_mut(&token) else {
                continue;
            };
            match conn.serve(&mut self.block) {
                Next::Event => {}
                Next::Turn => self.queue.push(token),
                Next::End => {
                    if let Some(conn) = self.conns.remove(&token) {
                        self.slots.remove(&conn.slot());
                        conn.end();
                    }
                }
            }
        }
        has_any
    }

    /// Waits for events.
    fn wait(&mut self, wait: Duration, news: &mut News) {
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(1),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        // EINTR is the only expected error.
        let Ok((events, _)) = epoll::wait(&self.set, &mut events, Some(&timeout)) else {
            return;
        };
        for event in events.iter() {
            let (token, flags) = (event.data.u64(), event.flags);
            if token >= FIRST_CONN {
                if let Some(conn) = self.conns.get_mut(&token) {
                    conn.note(flags);
                    self.queue.push(token);
                }
            } else if token != POLLER {
                news.tokens.push(token);
            }
        }
    }
}
