//! [`Poller`]: events of many streams for a program that serves them from one thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use esp_engine::shm::{Events, ForkMark};
use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::client::Client;
use crate::core::FIRST_LEASED_SLOT;
use crate::error::EspError;
use crate::lease::EmbeddedEngine;
use crate::session::Session;

/// Reports events of the streams of a [`Client::polled`] connection, and has one descriptor to
/// sleep on.
///
/// A stream causes one event after each [`EspStream::arm`](crate::EspStream::arm), under its
/// [`slot`](crate::EspStream::slot). Replies of the daemon (to
/// [`begin_at`](crate::StreamBuilder::begin_at), or a connection to a nonblocking listener) have no
/// slot.
///
/// While the program polls, the engine makes no system call to notify it.
pub struct Poller {
    session: Arc<Session>,
    events: Events,
    /// Readable when the engine's notify descriptor or `Answers::wake` is.
    all: OwnedFd,
    dozing: bool,
    lease: Option<Leased>,
    fork: ForkMark,
}

/// The embedded engine that this poller drives.
struct Leased {
    engine: Arc<EmbeddedEngine>,
    events: Events,
    /// Readable at the engine's next deadline.
    timer: OwnedFd,
}

impl Leased {
    /// Adds the engine to the epoll set. `None`: another poller has its events.
    fn new(engine: &Arc<EmbeddedEngine>, all: &OwnedFd) -> io::Result<Option<Leased>> {
        let Some(events) = engine.take_events() else {
            return Ok(None);
        };
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let (readable, news) = (epoll::EventFlags::IN, epoll::EventData::new_u64(0));
        for fd in engine.wait_fds() {
            epoll::add(all, fd, news, readable)?;
        }
        epoll::add(all, &timer, news, readable)?;
        Ok(Some(Leased {
            engine: Arc::clone(engine),
            events,
            timer,
        }))
    }

    /// Before sleeping; false: there is something to do.
    fn doze(&mut self) -> bool {
        if !self.events.try_sleep() {
            return false;
        }
        let Some(deadline) = self.engine.doze() else {
            return false;
        };
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let it_value = deadline.map_or(zero, |wait| {
            let wait = wait.clamp(Duration::from_micros(1), Duration::from_secs(3600));
            Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            }
        });
        let once = Itimerspec {
            it_interval: zero,
            it_value,
        };
        // Cannot fail for these values; without it the progress thread polls.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        true
    }
}

/// Notification by the session's thread of a reply, or of the end of the daemon.
pub(crate) struct Answers {
    fresh: AtomicBool,
    dozing: AtomicBool,
    wake: OwnedFd,
}

impl Answers {
    pub(crate) fn new() -> io::Result<Answers> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Answers {
            fresh: AtomicBool::new(false),
            dozing: AtomicBool::new(false),
            wake,
        })
    }

    pub(crate) fn tell(&self) {
        self.fresh.store(true, Ordering::Release);
        // Against the one of `Poller::doze`: either we see that it dozes, or it sees what is fresh.
        fence(Ordering::SeqCst);
        if self.dozing.load(Ordering::Relaxed) {
            // It can only fail with the counter full, and then the owner is on its way.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Client {
    /// Opens a connection to the daemon at this socket that is not shared with the rest of the
    /// process, and its poller. Blocking calls work on its streams, too; futures do not.
    pub fn polled(path: impl AsRef<Path>) -> Result<(Client, Poller), EspError> {
        Client::polled_by(path, crate::Path::from_environment()?)
    }

    /// Opens a connection as [`Client::polled`] does, for streams with this path setting.
    pub fn polled_by(
        path: impl AsRef<Path>,
        way: crate::Path,
    ) -> Result<(Client, Poller), EspError> {
        // A wrong value is an error even where the caller has chosen.
        crate::Path::from_environment()?;
        let (session, mut events) = Session::open_polled(path.as_ref())?;
        let made = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|all| {
            let readable = epoll::EventFlags::IN;
            let news = epoll::EventData::new_u64(0);
            epoll::add(&all, session.notify_fd(), news, readable)?;
            if let Some(answers) = session.answers() {
                epoll::add(&all, &answers.wake, news, readable)?;
            }
            Ok(all)
        });
        let client = Client::of(Arc::clone(&session));
        let all = made.map_err(|error| EspError::Memory {
            what: format!("no epoll descriptor: {error}"),
        })?;
        let fork = ForkMark::new().map_err(|error| EspError::Memory {
            what: format!("no page: {error}"),
        })?;
        events.awake();
        let lease = if client.may_lease(way) {
            let failed = |error| EspError::Memory {
                what: format!("no descriptor for a lease: {error}"),
            };
            Leased::new(client.leases()?.engine(), &all).map_err(failed)?
        } else {
            None
        };
        Ok((
            client,
            Poller {
                session,
                events,
                all,
                dozing: false,
                lease,
                fork,
            },
        ))
    }
}

impl Poller {
    /// Calls `found` once with each slot that has an event. The slot may have been closed since.
    /// Costs a few loads if there is no event.
    ///
    /// Returns true if a reply of the daemon has arrived or the daemon is gone. Always true in a
    /// forked child, because the events are its parent's.
    #[inline]
    pub fn poll(&mut self, mut found: impl FnMut(u16)) -> bool {
        if self.fork.is_child() {
            return true;
        }
        if self.dozing {
            self.rise();
        }
        self.events.poll(&mut found);
        if let Some(lease) = &mut self.lease
            && lease.engine.is_used()
        {
            lease.engine.poll(true);
            lease.events.poll(|slot| found(FIRST_LEASED_SLOT + slot));
        }
        let Some(answers) = self.session.answers() else {
            return false;
        };
        answers.fresh.load(Ordering::Relaxed) && answers.fresh.swap(false, Ordering::Acquire)
    }

    /// Prepares to sleep on [`Poller::fd`]. Returns false if there is an event already: do not
    /// sleep. After true the next event makes the descriptor readable, until the next
    /// [`Poller::poll`].
    #[must_use = "do not sleep on false"]
    pub fn doze(&mut self) -> bool {
        if self.fork.is_child() {
            return false;
        }
        let Some(answers) = self.session.answers() else {
            return false;
        };
        answers.dozing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.dozing = true;
        if answers.fresh.load(Ordering::Relaxed) || !self.events.try_sleep() {
            self.rise();
            return false;
        }
        if self.lease.as_mut().is_some_and(|lease| !lease.doze()) {
            self.rise();
            return false;
        }
        true
    }

    /// Returns the descriptor that becomes readable after [`Poller::doze`]. Do not read from it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    #[cold]
    fn rise(&mut self) {
        self.dozing = false;
        self.events.awake();
        // Left in there, the descriptor would stay readable.
        let _ = rustix::io::read(self.session.notify_fd(), &mut [0u8; 64]);
        if let Some(answers) = self.session.answers() {
            answers.dozing.store(false, Ordering::Relaxed);
            let _ = rustix::io::read(&answers.wake, &mut [0u8; 8]);
        }
        if let Some(lease) = &mut self.lease {
            lease.events.awake();
            lease.engine.rise();
        }
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller")
            .field("dozing", &self.dozing)
            .finish_non_exhaustive()
    }
}
