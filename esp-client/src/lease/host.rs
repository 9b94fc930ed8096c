//! The engine inside the program: who drives it, who waits for it, and who looks after it while nobody calls.
//!
//! One [`Engine`], behind a mutex. Whoever has something to do takes it if it is free, runs a turn, and gives it back. Of the
//! threads that wait, one has the engine and blocks in its epoll set (the *driver*); the others sleep on a condition
//! variable, and the driver wakes them after each turn that did something, and when it leaves. A thread that writes while
//! another is the driver rings the bell as towards a daemon: if the engine sleeps, an eventfd wakes the driver.
//!
//! A bell is not lost between a driver's last turn and its leaving: who leaves looks at the bells once more
//! behind the unlock, who rings tries the lock behind its bell. One of the two sees the other.
//!
//! While no call comes for a while (the program computes), the *caretaker* thread runs a turn every few milliseconds:
//! acknowledgements, retransmissions, streams that were closed. It takes no part otherwise, and sleeps while there is no stream.
//! What the peer's window held back when the program left cannot wait so long: [`push`]. Nor can short writes that were put off: [`rush`].

mod push;
mod rush;
mod table;
mod wait;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use esp_engine::shm::{ClientPage, Doorbell, EngineView, Events, ForkMark};
use esp_engine::{ClientId, Clock, Command, Engine, EngineEvent, EngineHandle, IdleConfig};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::alarm::Alarm;
use super::news::News;
use crate::error::EspError;
use crate::session::{Session, lock};
use push::Behind;
use rush::Rush;
pub(super) use rush::STEP;

/// The one program of this engine.
pub(super) const SELF: ClientId = ClientId(1);
/// How long a driver steps aside for who wants the engine, and how long that one waits before it asks again.
const STEP_ASIDE: Duration = Duration::from_micros(50);
/// Who calls again so soon calls all the time.
const INCESSANT_NANOS: u64 = 100_000;
/// Nobody called for this long: the caretaker does.
const ABSENT_NANOS: u64 = 1_500_000;

/// The engine and what surrounds it.
pub(crate) struct Host {
    engine: Mutex<Engine>,
    handle: EngineHandle,
    doorbell: Doorbell,
    doorbell_fd: OwnedFd,
    news: Arc<Mutex<News>>,
    /// Threads that sleep on `turned`.
    parked: AtomicU32,
    park: Mutex<()>,
    turned: Condvar,
    /// When the last turn ended, in ns of the engine's clock.
    last_turn: AtomicU64,
    alarm: Alarm,
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
    behind: Behind,
    rush: Rush,
    /// What the engine tells of slots, until a [`Poller`](crate::Poller) takes it.
    events: Mutex<Option<Events>>,
    /// The program's end of the engine's notify pair; only a poller reads it.
    notify: OwnedFd,
    /// The engine's epoll set, for pollers.
    frames: OwnedFd,
}

impl Host {
    pub(crate) fn start(session: &Arc<Session>) -> Result<Arc<Host>, EspError> {
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
        Ok(Arc::new(Host {
            engine: Mutex::new(engine),
            handle,
            doorbell: Doorbell::new(page, view),
            doorbell_fd: bell,
            news,
            parked: AtomicU32::new(0),
            park: Mutex::new(()),
            turned: Condvar::new(),
            last_turn: AtomicU64::new(0),
            alarm: Alarm::new().map_err(|e| failed("make a timer", &e))?,
            contended_until: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            links: AtomicU32::new(0),
            next_listener: AtomicU64::new(1),
            fork,
            behind: Behind::default(),
            rush: Rush::default(),
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

    /// Before its one user sleeps on [`Host::wait_fds`]: `None` when there is something to do, else when to come back. In either case
    /// [`Host::rise`] follows.
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

    /// One turn if the engine is free; with `all` false only what was written is sent. Whoever has it sees to the rest.
    #[inline]
    pub(crate) fn poll(&self, all: bool) -> bool {
        self.poll_and(all, |_| ())
    }

    /// The same, and a look at the engine after it.
    #[inline]
    fn poll_and(&self, all: bool, mut look: impl FnMut(&Engine)) -> bool {
        if self.is_forked() {
            return true;
        }
        let mut had = false;
        // As often as somebody rang while we were leaving; each time because a bell rang, so it ends when they stop.
        loop {
            let Some(mut engine) = self.try_engine() else {
                return had;
            };
            had = true;
            if if all { engine.poll() } else { engine.push() } {
                self.active();
            }
            look(&engine);
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

    /// Gives the engine back after a turn. Who waits is woken in any case: nobody drives it now.
    fn leave(&self, engine: MutexGuard<'_, Engine>) {
        let now = engine.turned().as_nanos();
        // Whoever wrote that knows nothing of it.
        if self.rush.waits() && engine.has_unsent() {
            self.behind.anything();
        }
        drop(engine);
        let before = self.last_turn.load(Ordering::Relaxed);
        self.last_turn.store(now, Ordering::Relaxed);
        self.rush.turned(now);
        // Only who calls all the time: to set a timer costs several µs in a virtual machine, more than the call of one who calls seldom.
        if now.saturating_sub(before) < INCESSANT_NANOS {
            self.alarm.turned(now);
        }
        self.wake_parked();
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

    /// Says that a slot has news, and has it sent. False: all of it was, as far as is known. And when that was, in ns of the engine's clock.
    #[inline]
    pub(crate) fn ring(&self, slot: u16) -> (bool, u64) {
        if self.is_forked() {
            return (false, 0);
        }
        let asleep = self.doorbell.ring(slot);
        fence(Ordering::SeqCst);
        let mut held_back = true;
        if !self.poll_and(false, |engine| held_back = engine.holds_back(slot)) && asleep {
            // It can only fail with the counter full, and then the driver is on its way.
            let _ = rustix::io::write(&self.doorbell_fd, &1u64.to_ne_bytes());
        }
        let now = self.last_turn.load(Ordering::Relaxed);
        self.rush.wrote(now);
        (held_back, now)
    }

    /// A turn, if the engine is free, with a buffer for a stream ([`Engine::poll_into`]): how many bytes went there.
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
        self.see_to_bells();
        filled
    }

    /// Behind the unlock of a driver.
    fn see_to_bells(&self) {
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

    /// Takes the engine, from a driver that blocks if need be. Not for forked children: whose the engine is may never come back there.
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
        self.see_to_bells();
        result
    }

    /// Ends the driver's sleep.
    fn interrupt(&self) {
        let _ = rustix::io::write(&self.doorbell_fd, &1u64.to_ne_bytes());
    }

    /// The caretaker's step: a turn, if nobody has made one for a while.
    pub(super) fn care(&self) {
        let now = Clock.now().as_nanos();
        if now.saturating_sub(self.last_turn.load(Ordering::Relaxed)) >= ABSENT_NANOS {
            self.poll(true);
        }
    }

    /// Waits until a frame is there, or the alarm rings, or so long. Some other thread may take it.
    pub(super) fn wait_for_frames(&self, time: Duration) {
        if !self.is_forked()
            && let Some(mut engine) = self.try_engine()
        {
            engine.arm();
            self.leave(engine);
        }
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        let alarm = PollFd::from_borrowed_fd(self.alarm.fd(), PollFlags::IN);
        let mut fds = [PollFd::new(&self.frames, PollFlags::IN), alarm];
        if poll(&mut fds, Some(&limit)).is_ok() && fds[1].revents().contains(PollFlags::IN) {
            self.alarm.heard();
        }
    }

    /// What the caretaker sleeps by.
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// When the last turn was made, in ns of the engine's clock.
    pub(super) fn last_turn(&self) -> u64 {
        self.last_turn.load(Ordering::Relaxed)
    }

    /// Grows with every turn in which something happened.
    pub(super) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// True when no connection is left, not even one that was closed and still delivers, and the daemon knows.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.news).slots.is_empty()
    }

    /// The same, whether the daemon knows or not. Turns of the engine alone make it true.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.news).all_over()
    }
}
