//! The ESP engine inside the program, shared by its threads.
//!
//! One [`Engine`] behind a mutex. A call that has work for it tries the lock, polls once and
//! unlocks. Of the threads that block, one holds the engine and sleeps in its epoll set (the
//! *driver*). The others sleep on a condition variable; the driver wakes them after each poll that
//! found work, and when it unlocks. A thread that writes while another one drives rings the
//! doorbell, as it would towards a daemon: if the engine sleeps, an eventfd wakes the driver.
//!
//! No doorbell is lost when the lock changes hands: the thread that unlocks checks the doorbells
//! afterwards, and the thread that rings tries the lock afterwards. One of the two sees the other.
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

use super::events::EventLog;
use crate::error::EspError;
use crate::session::Session;
use crate::sync::lock;
pub(super) use progress::Progress;
use progress::ProgressSleep;

/// Id of this program at its own engine.
pub(super) const SELF: ClientId = ClientId(1);
/// Time for which a driver steps aside for a thread that wants the engine, and the period at which
/// that thread tries the lock.
const STEP_ASIDE: Duration = Duration::from_micros(50);

/// An engine, and the state of the threads that share it.
pub(crate) struct EmbeddedEngine {
    engine: Mutex<Engine>,
    handle: EngineHandle,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    log: Arc<Mutex<EventLog>>,
    /// Number of threads that sleep on `polled`.
    parked: AtomicU32,
    park: Mutex<()>,
    polled: Condvar,
    /// Start of the last poll, in ns of the engine's clock.
    last_poll: AtomicU64,
    progress: ProgressSleep,
    /// Time until which waits do not yield, in ns of the engine's clock.
    contended_until: AtomicU64,
    /// Number of polls that found work, modulo 2^64.
    activity: AtomicU64,
    /// Number of threads that want the engine for a moment; a driver steps aside for them.
    wanted: AtomicU32,
    /// Number of the engine's links; without any there is nothing to do.
    links: AtomicU32,
    next_listener: AtomicU64,
    fork: ForkMark,
    /// Events of slots, until a [`Poller`](crate::Poller) takes them.
    events: Mutex<Option<Events>>,
    /// The program's end of the engine's notify pair, read by a poller only.
    notify: OwnedFd,
    /// The engine's epoll set, for pollers.
    frames: OwnedFd,
}

impl EmbeddedEngine {
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<EmbeddedEngine>, EspError> {
        let log = Arc::new(Mutex::new(EventLog::default()));
        let events = {
            let (log, session) = (Arc::clone(&log), Arc::clone(session));
            Box::new(move |event| {
                lock(&log).add(&event);
                if let EngineEvent::Incoming { .. } = event {
                    session.notify_poller();
                }
            })
        };
        let (engine, handle) =
            Engine::embedded(IdleConfig::default(), events).map_err(failed("start an engine"))?;
        let (page, _fd) = ClientPage::create().map_err(failed("create a page"))?;
        let view = EngineView::open(handle.page_fd())?;
        let doorbell_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(failed("create an eventfd"))?;
        let (notify, engine_notify) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed("create a socket pair"))?;
        let doorbell = doorbell_fd
            .try_clone()
            .map_err(failed("duplicate an eventfd"))?;
        let frames = engine
            .wait_fd()
            .try_clone_to_owned()
            .map_err(failed("duplicate an epoll set"))?;
        let mut events = Events::new(Arc::clone(&page));
        // The notify pair is used only while a poller sleeps.
        events.awake();
        let _ = handle.send(Command::AddClient {
            client: SELF,
            page: Arc::clone(&page),
            doorbell,
            notify: engine_notify,
        });
        Ok(Arc::new(EmbeddedEngine {
            engine: Mutex::new(engine),
            handle,
            doorbell: Doorbell::new(page, view),
            doorbell_fd,
            log,
            parked: AtomicU32::new(0),
            park: Mutex::new(()),
            polled: Condvar::new(),
            last_poll: AtomicU64::new(0),
            progress: ProgressSleep::new().map_err(failed("create an eventfd"))?,
            contended_until: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            links: AtomicU32::new(0),
            next_listener: AtomicU64::new(1),
            fork: ForkMark::new().map_err(failed("map a page"))?,
            events: Mutex::new(Some(events)),
            notify,
            frames,
        }))
    }

    /// Returns true in a forked child: the engine is the parent's.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Returns the events of slots, once.
    pub(crate) fn take_events(&self) -> Option<Events> {
        lock(&self.events).take()
    }

    /// Returns the descriptors that become readable by events of slots and by frames.
    pub(crate) fn wait_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.notify.as_fd(), self.frames.as_fd()]
    }

    /// Returns true while the engine has links.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.links.load(Ordering::Relaxed) > 0
    }

    /// Prepares a poller's sleep on [`EmbeddedEngine::wait_fds`]. Returns `None` if there is
    /// something to do, else the time until the next deadline. In either case
    /// [`EmbeddedEngine::awake`] follows.
    pub(crate) fn try_sleep(&self) -> Option<Option<Duration>> {
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
    fn try_engine(&self) -> Option<MutexGuard<'_, Engine>> {
        if self.is_forked() {
            return None;
        }
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
        let poll = if all {
            Engine::poll
        } else {
            Engine::poll_doorbells
        };
        self.poll_with(poll, |_| ())
    }

    /// Polls the engine as [`EmbeddedEngine::poll`] does, and receives over every link.
    pub(crate) fn poll_all_links(&self) {
        self.poll_with(Engine::poll_all_links, |_| ());
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

    /// Counts a poll that found work. The caller has the engine, so no increment is lost.
    #[inline]
    fn active(&self) {
        self.activity.store(
            self.activity.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }

    /// Unlocks the engine after a poll. Wakes the threads that wait for it, since no thread drives
    /// it now, and the progress thread if it took the program for away.
    fn leave(&self, engine: MutexGuard<'_, Engine>) {
        self.last_poll
            .store(engine.polled_at().as_nanos(), Ordering::Relaxed);
        drop(engine);
        self.wake_parked();
        self.progress.wake();
    }

    fn wake_parked(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) > 0 {
            let _turn = lock(&self.park);
            self.polled.notify_all();
        }
    }

    /// Wakes all waiting threads to check their condition again.
    pub(crate) fn poke(&self) {
        if !self.is_forked() {
            // The driver sleeps in epoll, the others on the condition variable.
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
        if !self.poll_with(Engine::poll_doorbells, |engine| {
            unsent = engine.has_unsent(slot);
        }) && asleep
        {
            self.interrupt();
        }
        if unsent {
            self.progress.attend();
        }
    }

    /// Polls the engine, if it is free, with a buffer for a stream ([`Engine::poll_into`]). Returns
    /// the number of bytes received into it.
    pub(crate) fn poll_into(&self, slot: u16, buffer: &mut [u8]) -> usize {
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

    /// Serves the doorbells that rang during an unlock.
    fn answer_doorbells(&self) {
        fence(Ordering::SeqCst);
        if self.doorbell.pending() {
            self.poll(false);
        }
    }

    /// Sends a command for the next poll.
    pub(crate) fn send(&self, command: Command) {
        if !self.is_forked() {
            let _ = self.handle.send(command);
        }
    }

    /// Calls `act` with the engine; a driver that has it steps aside. Not for forked children,
    /// where the lock may never be released.
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

    /// Returns the number of polls that found work, modulo 2^64.
    pub(super) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// Returns true if no connection is left, not even a closed one that still delivers.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.log).all_closed()
    }
}

/// Converts an error of the system to one about `what`.
fn failed<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> EspError {
    move |error| EspError::resource(what, error)
}
