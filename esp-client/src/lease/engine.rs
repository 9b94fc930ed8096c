//! The ESP engine inside the program, shared by its threads.
//!
//! One [`Engine`] behind a mutex. A call that has work for the engine tries the lock, polls once
//! and unlocks. Of the threads that block, one holds the engine and sleeps in its epoll set (the
//! *driver*, see [`wait`](super::wait)). The others are [parked](super::parked): the engine wakes
//! those whose sockets changed, and a driver that unlocks calls one more, which takes over. A
//! thread that writes while another one drives rings the doorbell, as it would towards a daemon: if
//! the engine sleeps, an eventfd wakes the driver.
//!
//! No doorbell is lost when the lock is passed on: the thread that unlocks checks the doorbells
//! afterwards, and the thread that rings tries the lock afterwards. One of the two sees the other.
//!
//! While no thread of the program polls, the [progress thread](super::progress) does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events};
use esp_engine::{ClientId, Clock, Command, Engine, EngineEvent, EngineHandle, IdleConfig};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::log::EventLog;
use super::parked::ParkedThreads;
use super::progress::ProgressSleep;
use crate::error::EspError;
use crate::session::Session;
use crate::sync::{Wakers, lock};

/// Id of this program at its own engine.
pub(super) const SELF: ClientId = ClientId(1);
/// Time for which a driver steps aside for a thread that wants the engine, and the period at which
/// that thread tries the lock.
pub(super) const STEP_ASIDE: Duration = Duration::from_micros(50);

/// An engine, and the state of the threads that share it.
pub(crate) struct EmbeddedEngine {
    engine: Mutex<Engine>,
    handle: EngineHandle,
    pub(super) doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    pub(super) log: Arc<Mutex<EventLog>>,
    pub(super) parked: Arc<ParkedThreads>,
    /// Start of the last poll, in ns of the engine's clock.
    pub(super) last_poll: AtomicU64,
    pub(super) progress: ProgressSleep,
    /// Tasks that wait for events of sockets. The progress thread wakes them when the engine had
    /// work.
    pub(crate) tasks: Wakers,
    /// Time until which waits do not yield, in ns of the engine's clock.
    pub(super) contended_until: AtomicU64,
    /// Number of polls that found work, modulo 2^64.
    activity: AtomicU64,
    /// Number of threads that need the engine briefly; a driver steps aside for them.
    pub(super) wanted: AtomicU32,
    session: Arc<Session>,
    /// Events of slots, until a [`Poller`](crate::Poller) takes them.
    events: Mutex<Option<Events>>,
    /// The program's end of the engine's notify pair, read by a poller only.
    notify: OwnedFd,
    /// The engine's epoll set, for pollers and the progress thread.
    pub(super) frames: OwnedFd,
}

impl EmbeddedEngine {
    pub(super) fn new(session: &Arc<Session>) -> Result<EmbeddedEngine, EspError> {
        let failed = EspError::resource::<std::io::Error>;
        let log = Arc::new(Mutex::new(EventLog::default()));
        let (sink, poller) = (Arc::clone(&log), Arc::clone(session));
        let parked = Arc::new(ParkedThreads::default());
        let listeners = Arc::clone(&parked);
        let events = Box::new(move |event| {
            lock(&sink).add(&event);
            if let EngineEvent::Incoming { .. } = event {
                poller.notify_poller();
                listeners.arrived();
            }
        });
        let (engine, handle) = Engine::embedded(IdleConfig::default(), events)
            .map_err(EspError::resource("start an engine"))?;
        let (page, _fd) = ClientPage::create().map_err(failed("create a page"))?;
        let view = EngineView::open(handle.page_fd())?;
        let doorbell_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(EspError::resource("create an eventfd"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (notify, engine_notify) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map_err(EspError::resource("create a socket pair"))?;
        let mut events = Events::new(Arc::clone(&page));
        // The notify pair is used only while a poller sleeps.
        events.awake();
        let _ = handle.send(Command::AddClient {
            client: SELF,
            user: 0,
            page: Arc::clone(&page),
            doorbell: doorbell_fd
                .try_clone()
                .map_err(failed("duplicate an eventfd"))?,
            notify: engine_notify,
        });
        let frames = engine.wait_fd().try_clone_to_owned();
        Ok(EmbeddedEngine {
            frames: frames.map_err(failed("duplicate an epoll set"))?,
            engine: Mutex::new(engine),
            handle,
            doorbell: Doorbell::new(page, view),
            doorbell_fd,
            log,
            parked,
            last_poll: AtomicU64::new(0),
            progress: ProgressSleep::new()?,
            tasks: Wakers::default(),
            contended_until: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            session: Arc::clone(session),
            events: Mutex::new(Some(events)),
            notify,
        })
    }

    /// Returns true in a forked child: the engine is the parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.session.is_forked()
    }

    /// Returns the events of slots, once.
    pub(crate) fn take_events(&self) -> Option<Events> {
        lock(&self.events).take()
    }

    /// Returns the descriptors that become readable by events of slots and by frames.
    pub(crate) fn wait_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.notify.as_fd(), self.frames.as_fd()]
    }

    /// Prepares a poller's sleep on [`EmbeddedEngine::wait_fds`]. Returns `None` if there is
    /// something to do, else the time until the next deadline. In either case
    /// [`EmbeddedEngine::awake`] follows.
    pub(crate) fn try_sleep(&self) -> Option<Option<Duration>> {
        let Some(mut engine) = self.try_engine() else {
            // Another thread drives the engine, and later the progress thread does. Both serve the
            // deadlines, and write to the notify pair for events.
            let is_driven = !self.is_forked() && !self.progress.has_stopped_polling();
            return is_driven.then_some(None);
        };
        engine.watch(true);
        let work = engine.collect() | engine.poll();
        self.count(work);
        let deadline = engine.deadline();
        self.leave(engine);
        if work || self.doorbell.pending() {
            return None;
        }
        Some(deadline.map(|at| at.since(Clock.now())))
    }

    /// Leaves all polls to the poller.
    pub(crate) fn drive(&self) {
        self.progress.stop_polling();
    }

    /// Ends a poller's sleep and makes the descriptors unreadable.
    pub(crate) fn awake(&self) {
        if self.is_forked() {
            return;
        }
        let _ = rustix::io::read(&self.notify, &mut [0u8; 64]);
        if let Some(mut engine) = self.try_engine() {
            engine.collect();
            engine.watch(false);
            self.leave(engine);
        }
    }

    /// Locks the engine if it is free; never in a forked child.
    pub(super) fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        if self.is_forked() {
            return None;
        }
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Polls the engine. Returns false if another thread has it, which then does the work.
    #[inline]
    pub(crate) fn poll(&self) -> bool {
        self.poll_with(Engine::poll)
    }

    /// Calls `poll` with the engine, again for each doorbell that rings during the unlock. Returns
    /// false if another thread has the engine.
    #[inline]
    pub(crate) fn poll_with(&self, mut poll: impl FnMut(&mut Engine) -> bool) -> bool {
        let mut had = false;
        while let Some(mut engine) = self.try_engine() {
            had = true;
            let work = poll(&mut engine);
            self.count(work);
            self.leave(engine);
            fence(Ordering::SeqCst);
            if !self.doorbell.pending() {
                break;
            }
        }
        had
    }

    /// Counts a poll that found work. The caller has the engine, so no increment is lost.
    #[inline]
    pub(super) fn count(&self, work: bool) {
        if work {
            let next = self.activity.load(Ordering::Relaxed).wrapping_add(1);
            self.activity.store(next, Ordering::Relaxed);
        }
    }

    /// Unlocks the engine. Wakes a thread that waits for it, since no thread drives it now, and the
    /// progress thread if it waits for the engine or, after a poll, considered the program away.
    pub(super) fn leave(&self, engine: MutexGuard<'_, Engine>) {
        let polled_at = engine.polled_at().as_nanos();
        // A program that only writes serves doorbells without a poll, and still counts as away.
        let polled = self.last_poll.load(Ordering::Relaxed) != polled_at;
        self.last_poll.store(polled_at, Ordering::Relaxed);
        let worked = self.progress.has_new_work(self.activity()) || !engine.is_armed();
        drop(engine);
        self.parked.call_driver();
        self.progress.unlocked(polled, worked);
    }

    /// Wakes all waiting threads to check their condition again.
    pub(crate) fn poke(&self) {
        if !self.is_forked() {
            // The driver sleeps in epoll, the others are parked.
            self.interrupt();
            self.parked.call_all();
        }
    }

    /// Rings a slot's doorbell and, unless a poller drives the engine, sends the written bytes that
    /// the windows allow. The progress thread sends the rest if the program does not poll.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) {
        if self.is_forked() {
            return;
        }
        let asleep = self.doorbell.ring(slot);
        fence(Ordering::SeqCst);
        if self.progress.has_stopped_polling() {
            // The poller's next poll sends the written bytes, together with those of other streams.
            if asleep {
                self.interrupt();
            }
            return;
        }
        let mut unsent = false;
        let had = self.poll_with(|engine| {
            let work = engine.poll_doorbells();
            unsent = engine.has_unsent(slot);
            work
        });
        if !had && asleep {
            self.interrupt();
        }
        if unsent {
            self.progress.watch_unsent();
        }
    }

    /// Polls the engine, if it is free, with a buffer for a stream ([`Engine::poll_into`]). Returns
    /// the number of bytes received into it.
    pub(crate) fn poll_into(&self, slot: u16, buffer: &mut [u8]) -> usize {
        let polled = self.try_with(|engine| {
            let (work, filled) = engine.poll_into(slot, buffer);
            self.count(work);
            filled
        });
        polled.unwrap_or(0)
    }

    /// Sends a command for the next poll.
    pub(crate) fn send(&self, command: Command) {
        if !self.is_forked() {
            let _ = self.handle.send(command);
        }
    }

    /// Calls `act` with the engine if no other thread has it.
    pub(super) fn try_with<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Option<R> {
        let engine = self.try_engine()?;
        Some(self.act(engine, act))
    }

    /// Calls `act` with the engine; a driver that has it steps aside.
    pub(super) fn with_engine<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> Result<R, EspError> {
        if self.is_forked() {
            return Err(EspError::Forked);
        }
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let engine = loop {
            match self.try_engine() {
                Some(engine) => break engine,
                None => {
                    self.interrupt();
                    std::thread::sleep(STEP_ASIDE);
                }
            }
        };
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        Ok(self.act(engine, act))
    }

    fn act<R>(&self, mut engine: MutexGuard<'_, Engine>, act: impl FnOnce(&mut Engine) -> R) -> R {
        let result = act(&mut engine);
        self.leave(engine);
        self.serve_doorbells();
        result
    }

    /// Serves the doorbells that rang during an unlock.
    pub(super) fn serve_doorbells(&self) {
        fence(Ordering::SeqCst);
        if self.doorbell.pending() {
            self.poll_with(Engine::poll_doorbells);
        }
    }

    /// Ends the driver's sleep.
    pub(super) fn interrupt(&self) {
        // Fails only with a full counter, and then the driver is about to wake anyway.
        let _ = rustix::io::write(&self.doorbell_fd, &1u64.to_ne_bytes());
    }

    /// Returns the number of polls that found work, modulo 2^64.
    pub(super) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }
}
