//! The ESP engine inside the program, shared by its threads.
//!
//! One [`Engine`] behind a mutex. A call that has work for it tries the lock, polls once and
//! unlocks. Of the threads that block, one holds the engine and sleeps in its epoll set (the
//! *driver*). The others sleep on a condition variable; the driver wakes them after each poll that
//! found work, and when it unlocks. A thread that writes while another one drives rings the
//! doorbell, as it would towards a daemon: if the engine sleeps, an eventfd wakes the driver.
//!
//! No doorbell is lost when the lock changes hands: whoever unlocks checks the doorbells again
//! afterwards, and whoever rings tries the lock afterwards. One of the two sees the other.
//!
//! While no thread of the program polls, the progress thread does: [`progress`].

mod progress;
mod table;
mod wait;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events, ForkMark};
use esp_engine::{ClientId, Clock, Command, Engine, EngineEvent, EngineHandle, IdleConfig};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::news::News;
use crate::error::EspError;
use crate::session::{Session, lock};
pub(super) use progress::Progress;
use progress::ProgressSleep;

/// The one program of this engine.
pub(super) const SELF: ClientId = ClientId(1);
/// How long a driver steps aside for who wants the engine, and how long that one waits before it
/// asks again.
const STEP_ASIDE: Duration = Duration::from_micros(50);

/// The engine and what surrounds it.
pub(crate) struct EmbeddedEngine {
    engine: Mutex<Engine>,
    handle: EngineHandle,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    news: Arc<Mutex<News>>,
    /// Threads that sleep on `turned`.
    parked: AtomicU32,
    park: Mutex<()>,
    turned: Condvar,
    /// Start of the last poll, in ns of the engine's clock.
    last_poll: AtomicU64,
    progress: ProgressSleep,
    /// Until then waits do not yield, in ns of the engine's clock.
    contended_until: AtomicU64,
    /// Turns in which something happened.
    activity: AtomicU64,
    /// Threads that want the engine for a moment; a driver lets them.
    wanted: AtomicU32,
    /// Links the engine has; without any there is nothing to do.
    links: AtomicU32,
    next_listener: AtomicU64,
    fork: ForkMark,
    /// What the engine tells of slots, until a [`Poller`](crate::Poller) takes it.
    events: Mutex<Option<Events>>,
    /// The program's end of the engine's notify pair; only a poller reads it.
    notify: OwnedFd,
    /// The engine's epoll set, for pollers.
    frames: OwnedFd,
}

impl EmbeddedEngine {
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<EmbeddedEngine>, EspError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| EspError::Memory {
            what: format!("{what}: {error}"),
        };
        let news = Arc::new(Mutex::new(News::default()));
        let told = Arc::clone(&news);
        let session = Arc::clone(session);
        let events = Box::new(move |event| {
            lock(&told).take(&event);
            if let EngineEvent::Incoming { .. } = event {
                session.tell();
            }
        });
        let (engine, handle) = Engine::hosted(IdleConfig::default(), events)
            .map_err(|e| failed("start an engine", &e))?;
        let (page, _fd) = ClientPage::create().map_err(|e| failed("make a page", &e))?;
        let view =
            EngineView::open(handle.page_fd()).map_err(|e| failed("map the engine's page", &e))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed("make an eventfd", &e))?;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|e| failed("make a socket pair", &e))?;
        let doorbell = bell
            .try_clone()
            .map_err(|e| failed("duplicate an eventfd", &e))?;
        let fork = ForkMark::new().map_err(|e| failed("make a page", &e))?;
        let frames = engine
            .wait_fd()
            .try_clone_to_owned()
            .map_err(|e| failed("duplicate an epoll set", &e))?;
        let mut told = Events::new(Arc::clone(&page));
        // Nobody reads the notify pair unless a poller dozes.
        told.awake();
        let _ = handle.send(Command::AddClient {
            client: SELF,
            page: Arc::clone(&page),
            doorbell,
            notify: theirs,
        });
        Ok(Arc::new(EmbeddedEngine {
            engine: Mutex::new(engine),
            handle,
            doorbell: Doorbell::new(page, view),
            doorbell_fd: bell,
            news,
            parked: AtomicU32::new(0),
            park: Mutex::new(()),
            turned: Condvar::new(),
            last_poll: AtomicU64::new(0),
            progress: ProgressSleep::new().map_err(|e| failed("make an eventfd", &e))?,
            contended_until: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            links: AtomicU32::new(0),
            next_listener: AtomicU64::new(1),
            fork,
            events: Mutex::new(Some(told)),
            notify: ours,
            frames,
        }))
    }

    /// True in a process forked from the one that leased: the engine is the parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    pub(crate) fn take_events(&self) -> Option<Events> {
        lock(&self.events).take()
    }

    /// Becomes readable by news of a slot, and by frames.
    pub(crate) fn wait_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.notify.as_fd(), self.frames.as_fd()]
    }

    /// True while the engine has anything to speak on.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.links.load(Ordering::Relaxed) > 0
    }

    /// Before its one user sleeps on [`EmbeddedEngine::wait_fds`]: `None` when there is something
    /// to do, else when to come back. In either case [`EmbeddedEngine::rise`] follows.
    pub(crate) fn doze(&self) -> Option<Option<Duration>> {
        if self.is_forked() {
            return None;
        }
        let mut engine = self.try_engine()?;
        engine.watch(true);
        let busy = engine.collect() | engine.poll();
        if busy {
            self.active();
        }
        let deadline = engine.deadline();
        self.leave(engine);
        if busy || self.doorbell.pending() {
            return None;
        }
        Some(deadline.map(|at| at.since(Clock.now())))
    }

    /// Behind that sleep: makes the descriptors quiet.
    pub(crate) fn rise(&self) {
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

    /// Takes the engine if nobody has it.
    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Polls the engine, if no other thread has it; with `all` false only sends what was written.
    /// Returns false if another thread has it, which then does the work.
    #[inline]
    pub(crate) fn poll(&self, all: bool) -> bool {
        if self.is_forked() {
            return true;
        }
        let poll = if all { Engine::poll } else { Engine::push };
        self.poll_with(poll, |_| ())
    }

    /// Calls `poll`, and `after` with the engine still locked.
    #[inline]
    fn poll_with(
        &self,
        poll: impl Fn(&mut Engine) -> bool,
        mut after: impl FnMut(&Engine),
    ) -> bool {
        let mut had = false;
        // Again for each doorbell that rings during the unlock.
        loop {
            let Some(mut engine) = self.try_engine() else {
                return had;
            };
            had = true;
            if poll(&mut engine) {
                self.active();
            }
            after(&engine);
            self.leave(engine);
            fence(Ordering::SeqCst);
            if !self.doorbell.pending() {
                return true;
            }
        }
    }

    #[inline]
    fn active(&self) {
        // Whoever calls has the engine: no increment is lost.
        self.activity.store(
            self.activity.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Unlocks the engine after a poll. Wakes the threads that wait for it, since no thread drives
    /// it now, and the progress thread if it took the program for away.
    fn leave(&self, engine: MutexGuard<'_, Engine>) {
        self.last_poll
            .store(engine.turned().as_nanos(), Ordering::Relaxed);
        drop(engine);
        self.wake_parked();
        self.progress.wake();
    }

    fn wake_parked(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            let _turn = lock(&self.park);
            self.turned.notify_all();
        }
    }

    /// Something that the engine does not know of has changed: who waits looks again.
    pub(crate) fn poke(&self) {
        if !self.is_forked() {
            // Two kinds of sleep: the driver's in epoll, and that of those whom it wakes.
            self.interrupt();
            self.wake_parked();
        }
    }

    /// Rings a slot's doorbell and sends what was written, as far as the windows allow. The
    /// progress thread sends the rest if the program does not poll.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) {
        if self.is_forked() {
            return;
        }
        let asleep = self.doorbell.ring(slot);
        fence(Ordering::SeqCst);
        let mut unsent = false;
        if !self.poll_with(Engine::push, |engine| unsent = engine.has_unsent(slot)) && asleep {
            self.interrupt();
        }
        if unsent {
            self.progress.attend();
        }
    }

    /// A turn, if the engine is free, with a buffer for a stream ([`Engine::poll_into`]): how many
    /// bytes went there.
    pub(crate) fn poll_into(&self, slot: u16, buffer: &mut [u8]) -> usize {
        if self.is_forked() {
            return 0;
        }
        let Some(mut engine) = self.try_engine() else {
            return 0;
        };
        let (work, filled) = engine.poll_into(slot, buffer);
        if work {
            self.active();
        }
        self.leave(engine);
        self.answer_doorbells();
        filled
    }

    /// Behind the unlock of a driver.
    fn answer_doorbells(&self) {
        fence(Ordering::SeqCst);
        if self.doorbell.pending() {
            self.poll(false);
        }
    }

    /// Sends a command; the next turn does it.
    pub(crate) fn tell(&self, command: Command) {
        if !self.is_forked() {
            let _ = self.handle.send(command);
        }
    }

    /// Takes the engine, from a driver that blocks if need be. Not for forked children: whose the
    /// engine is may never come back there.
    fn with_engine<R>(&self, act: impl FnOnce(&mut Engine) -> R) -> R {
        debug_assert!(!self.is_forked(), "the engine is the parent's");
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let mut engine = loop {
            match self.try_engine() {
                Some(engine) => break engine,
                None => {
                    self.interrupt();
                    std::thread::sleep(STEP_ASIDE);
                }
            }
        };
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        let result = act(&mut engine);
        self.leave(engine);
        self.answer_doorbells();
        result
    }

    /// Ends the driver's sleep.
    fn interrupt(&self) {
        // Fails only with a full counter, and then the driver is about to wake anyway.
        let _ = rustix::io::write(&self.doorbell_fd, &1u64.to_ne_bytes());
    }

    /// Number of polls that found work, modulo 2^64.
    #[cfg(feature = "tokio")]
    pub(super) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// Returns true when no connection is left, not even one that is closed and still delivers.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.news).all_over()
    }
}
