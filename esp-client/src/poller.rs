//! [`Poller`]: events of many streams for a program that serves them from one thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use esp_engine::UdpAddresses;
use esp_engine::shm::Events;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::client::Client;
use crate::error::EspError;
use crate::lease::{FIRST_LEASED_SLOT, Leases};
use crate::path::Path;
use crate::protection::Protection;
use crate::session::{PolledEvents, ReplyNotice, Session};

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
    /// Events of the slots at the current daemon, if there is one.
    daemon: Option<PolledEvents>,
    /// Epoll set of all descriptors that announce events.
    all: OwnedFd,
    asleep: bool,
    lease: Option<Leased>,
}

/// The embedded engine that this poller drives.
struct Leased {
    leases: Arc<Leases>,
    events: Events,
    /// Readable at the engine's next deadline.
    timer: OwnedFd,
}

impl Leased {
    /// Adds the engine to the epoll set. `None`: another poller has its events.
    fn new(leases: Arc<Leases>, all: &OwnedFd) -> io::Result<Option<Leased>> {
        let Some(events) = leases.engine.take_events() else {
            return Ok(None);
        };
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        for fd in leases.engine.wait_fds() {
            add(all, fd)?;
        }
        add(all, timer.as_fd())?;
        Ok(Some(Leased {
            leases,
            events,
            timer,
        }))
    }

    /// Prepares to sleep; false if there is something to do.
    fn try_sleep(&mut self) -> bool {
        if !self.events.try_sleep() {
            return false;
        }
        let Some(deadline) = self.leases.engine.try_sleep() else {
            return false;
        };
        let zero = Timespec::default();
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
        // Cannot fail for these values; if it did, the progress thread would poll.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        true
    }
}

impl Client {
    /// Opens a connection to the daemon at this socket, not shared with the rest of the process,
    /// and its poller. Blocking calls work on its streams, too; futures do not.
    pub fn polled(path: impl AsRef<std::path::Path>) -> Result<(Client, Poller), EspError> {
        Client::polled_by(path, Path::from_environment()?)
    }

    /// Opens a connection as [`Client::polled`] does, for streams with this path setting.
    pub fn polled_by(
        socket: impl AsRef<std::path::Path>,
        path: Path,
    ) -> Result<(Client, Poller), EspError> {
        // An invalid value is an error even if all streams set their path.
        Path::from_environment()?;
        let session = Session::open(socket.as_ref(), true, true)?;
        let client = Client::of(session);
        let poller = Poller::new(&client, path)?;
        Ok((client, poller))
    }

    /// Opens a client as [`Client::udp`] does, but not shared with the rest of the process, over
    /// one address of each interface that `wants` selects by name, and its poller. `None`: with the
    /// protection of the environment.
    pub fn polled_udp(
        wants: impl Fn(&str) -> bool,
        protection: Option<Protection>,
    ) -> Result<(Client, Poller), EspError> {
        let wants = |name: &str, _| wants(name);
        let client = Client::open_udp(UdpAddresses::First, wants, 0, (protection, true))?;
        let poller = Poller::new(&client, Path::Lease)?;
        Ok((client, poller))
    }

    /// Opens a client as [`Client::udp_at`] does (port 0: any free one), but only over the
    /// addresses of the node that `wants` selects, and its poller.
    pub fn polled_udp_at(
        port: u16,
        wants: impl Fn(IpAddr) -> bool,
    ) -> Result<(Client, Poller), EspError> {
        let wants = |_: &str, ip| wants(ip);
        let client = Client::open_udp(UdpAddresses::EachVersion, wants, port, (None, true))?;
        let poller = Poller::new(&client, Path::Lease)?;
        Ok((client, poller))
    }
}

impl Poller {
    /// Creates the poller of a client.
    fn new(client: &Client, path: Path) -> Result<Poller, EspError> {
        let session = Arc::clone(client.session());
        let failed = EspError::resource("create an epoll descriptor");
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(&failed)?;
        let mut daemon = session.take_events();
        if let Some(daemon) = &mut daemon {
            add(&all, daemon.notify.as_fd()).map_err(&failed)?;
            daemon.events.awake();
        }
        if let Some(notice) = &session.notice {
            add(&all, notice.wake.as_fd()).map_err(&failed)?;
        }
        let lease = if client.may_lease(path) {
            Leased::new(client.leases()?, &all).map_err(EspError::resource("create a timer"))?
        } else {
            None
        };
        Ok(Poller {
            session,
            daemon,
            all,
            asleep: false,
            lease,
        })
    }
}

/// Adds a descriptor to an epoll set.
fn add(all: &OwnedFd, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    epoll::add(all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

impl Poller {
    /// Calls `found` once with each slot that has an event. The slot may have been closed since.
    /// Costs a few loads if there is no event.
    ///
    /// Returns true if a reply of the daemon has arrived or the session has ended. Always true in a
    /// forked child, because the events are its parent's.
    ///
    /// While there is no daemon there are no events. When the next one has taken the streams, each
    /// stream has an event.
    #[inline]
    pub fn poll(&mut self, mut found: impl FnMut(u16)) -> bool {
        if self.session.is_forked() {
            return true;
        }
        if self.asleep {
            self.wake();
        }
        let notified = self.session.notice.as_ref().is_some_and(ReplyNotice::take);
        if notified && let Some(next) = self.session.take_events() {
            next.changed.iter().copied().for_each(&mut found);
            self.change_daemon(next);
        }
        if let Some(daemon) = &mut self.daemon {
            daemon.events.poll(&mut found);
        }
        if let Some(lease) = &mut self.lease {
            lease.leases.engine.poll();
            lease.events.poll(|slot| found(FIRST_LEASED_SLOT + slot));
        }
        notified
    }

    /// Switches to the events of the next daemon.
    #[cold]
    fn change_daemon(&mut self, mut next: PolledEvents) {
        if let Some(ended) = &self.daemon {
            // Fails if its end was noticed before.
            let _ = epoll::delete(&self.all, &ended.notify);
        }
        if let Err(error) = add(&self.all, next.notify.as_fd()) {
            let failed = EspError::resource("extend an epoll set");
            self.session.fail(failed(error));
        }
        next.events.awake();
        self.daemon = Some(next);
    }

    /// Makes the caller's loop the only driver of the embedded engine, which then has no thread of
    /// its own. As long as there are streams and listeners, one thread calls [`Poller::poll`] or
    /// sleeps on [`Poller::fd`], and does nothing else for long. Only that thread uses the streams,
    /// and it polls after writing and before it sleeps: the next poll sends the written bytes,
    /// those of several streams in one system call.
    pub fn drive(&self) {
        if let Some(lease) = &self.lease {
            lease.leases.engine.drive();
        }
    }

    /// Prepares to sleep on [`Poller::fd`]. Returns false if there is an event already: do not
    /// sleep. After true the next event makes the descriptor readable, until the next
    /// [`Poller::poll`].
    #[must_use = "do not sleep on false"]
    pub fn try_sleep(&mut self) -> bool {
        if self.session.is_forked() {
            return false;
        }
        self.asleep = true;
        let may_sleep = !self
            .session
            .notice
            .as_ref()
            .is_some_and(ReplyNotice::is_raised)
            && (self.daemon.as_mut()).is_none_or(|daemon| daemon.events.try_sleep())
            && self.lease.as_mut().is_none_or(Leased::try_sleep);
        if !may_sleep {
            self.wake();
        }
        may_sleep
    }

    /// Returns the descriptor that becomes readable after [`Poller::try_sleep`]. Do not read from
    /// it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Ends the sleep and makes the descriptors unreadable.
    #[cold]
    fn wake(&mut self) {
        self.asleep = false;
        if let Some(daemon) = &mut self.daemon {
            daemon.events.awake();
            if rustix::io::read(&daemon.notify, &mut [0u8; 64]) == Ok(0) {
                // The daemon has ended, so its descriptor stays readable. Leases continue.
                let _ = epoll::delete(&self.all, &daemon.notify);
            }
        }
        if let Some(notice) = &self.session.notice {
            notice.drain();
        }
        if let Some(lease) = &mut self.lease {
            lease.events.awake();
            lease.leases.engine.awake();
        }
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller")
            .field("asleep", &self.asleep)
            .finish_non_exhaustive()
    }
}
