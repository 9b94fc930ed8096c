//! For programs that serve many streams from one thread: which of them have news, without asking each, and one descriptor to
//! sleep on.

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

/// Tells the owner of a [`Client::polled`] connection what has news.
///
/// A stream tells once after [`EspStream::arm`](crate::EspStream::arm), by its [`slot`](crate::EspStream::slot). Answers of the
/// daemon (a stream that was [begun](crate::StreamBuilder::begin_at), a connection to a nonblocking listener) are news of no slot.
///
/// While the owner looks by itself, the engine makes no system call for it and no thread runs. One owner, one thread.
pub struct Poller {
    session: Arc<Session>,
    events: Events,
    /// Readable when the engine's notify descriptor or `Answers::wake` is.
    all: OwnedFd,
    dozing: bool,
    lease: Option<Leased>,
    fork: ForkMark,
}

/// The engine in the program, which this poller drives.
struct Leased {
    engine: Arc<EmbeddedEngine>,
    events: Events,
    /// Readable when the engine has to be driven though nothing came.
    timer: OwnedFd,
}

impl Leased {
    /// Puts it beside the rest; `None`: somebody else is told of its events.
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
        // It fails for no time that can stand here; without it the caretaker comes by.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        true
    }
}

/// The session's thread says by this that an answer has come, or that the daemon is gone.
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
    /// A connection to the daemon at this socket that is not shared with the rest of the process, and the way to hear of all
    /// its streams at once. Blocking calls work on its streams too; futures do not.
    pub fn polled(path: impl AsRef<Path>) -> Result<(Client, Poller), EspError> {
        Client::polled_by(path, crate::Path::from_environment())
    }

    /// As [`Client::polled`], for streams that are all to go this way, or through the daemon.
    pub fn polled_by(
        path: impl AsRef<Path>,
        way: crate::Path,
    ) -> Result<(Client, Poller), EspError> {
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
    /// Calls `found` with each slot that has news, once each. A slot may be one that has been closed since. A few loads when there
    /// is none. Returns whether an answer of the daemon has come, or the daemon is gone; in a forked child, whose news is its parent's,
    /// always true.
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

    /// Before sleeping on [`Poller::fd`]. False: there is news, do not sleep. True: the next news makes the descriptor readable, until
    /// the next [`Poller::poll`].
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

    /// What becomes readable after [`Poller::doze`]. Only poll it: nothing in it is to be read.
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
