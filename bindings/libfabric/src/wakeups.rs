//! Descriptors to sleep on: those of transports, and a bell that other threads ring.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::core::{Core, lock};

/// A set of descriptors with a descriptor of its own, which is readable when the program has to
/// poll.
#[derive(Debug)]
pub(crate) struct Wakeups {
    epoll: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
    /// A thread sleeps or is about to, so the bell has to be rung.
    asleep: AtomicBool,
    /// Descriptors of each endpoint, by its place in memory.
    endpoints: Mutex<HashMap<usize, Entry>>,
}

/// An endpoint, and copies of its transports' descriptors.
type Entry = (Weak<Core>, Vec<OwnedFd>);

/// Takes a descriptor that a call has returned.
fn owned(fd: c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Wakeups {
    pub(crate) fn new() -> io::Result<Wakeups> {
        // SAFETY: the calls have no preconditions.
        let (epoll, bell, timer) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
                owned(libc::timerfd_create(
                    libc::CLOCK_MONOTONIC,
                    libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
                ))?,
            )
        };
        let wakeups = Wakeups {
            epoll,
            bell,
            timer,
            asleep: AtomicBool::new(false),
            endpoints: Mutex::default(),
        };
        wakeups.watch(&wakeups.bell)?;
        wakeups.watch(&wakeups.timer)?;
        Ok(wakeups)
    }

    /// Returns the descriptor for `poll`.
    pub(crate) fn fd(&self) -> c_int {
        self.epoll.as_raw_fd()
    }

    fn watch(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: open descriptors and a valid event.
        let done = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn forget(&self, fd: &OwnedFd) {
        let none = std::ptr::null_mut();
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: open descriptors; no event is needed.
        let _ = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// Makes the descriptor readable if a thread sleeps on it.
    pub(crate) fn ring(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: eight readable bytes. If the counter is full, it is readable as well.
            unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Prepares a sleep until one of the endpoints has an event or the bell is rung. Returns false
    /// if there is work to do now, which `nothing` checks last.
    pub(crate) fn prepare(
        &self,
        cores: &[Arc<Core>],
        longest: Option<Duration>,
        nothing: impl FnOnce() -> bool,
    ) -> bool {
        for fd in [&self.bell, &self.timer] {
            let mut count = 0u64;
            // SAFETY: eight writable bytes.
            unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
        if self.adopt(cores).is_err() {
            return false;
        }
        // Set before the endpoints are armed, so that progress of other threads rings from now on.
        self.asleep.store(true, Ordering::SeqCst);
        let mut longest = longest;
        for core in cores {
            let Some(limit) = core.layer().ok().and_then(p2p::Endpoint::arm) else {
                return false;
            };
            longest = Some(longest.map_or(limit, |longest| longest.min(limit)));
        }
        self.set_timer(longest);
        nothing()
    }

    /// Starts watching the descriptors of new endpoints, and stops watching those of closed ones.
    fn adopt(&self, cores: &[Arc<Core>]) -> io::Result<()> {
        let mut known = lock(&self.endpoints);
        known.retain(|_, (core, fds)| {
            let alive = core.strong_count() != 0;
            if !alive {
                fds.iter().for_each(|fd| self.forget(fd));
            }
            alive
        });
        for core in cores {
            let place = Arc::as_ptr(core) as usize;
            if known.contains_key(&place) {
                continue;
            }
            let fds = core.layer().ok().and_then(p2p::Endpoint::wait_fds);
            let fds = fds.ok_or(io::ErrorKind::Unsupported)?;
            for fd in &fds {
                self.watch(fd)?;
            }
            known.insert(place, (Arc::downgrade(core), fds));
        }
        Ok(())
    }

    fn set_timer(&self, after: Option<Duration>) {
        // Zero would disarm the timer.
        let least = |after: Duration| after.max(Duration::from_nanos(1));
        let after = after.map_or(Duration::ZERO, least);
        let time = |duration: Duration| libc::timespec {
            tv_sec: duration.as_secs().cast_signed(),
            tv_nsec: i64::from(duration.subsec_nanos()),
        };
        let setting = libc::itimerspec {
            it_interval: time(Duration::ZERO),
            it_value: time(after),
        };
        let none = std::ptr::null_mut();
        // SAFETY: an open timer and a valid setting.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const setting, none) };
    }

    /// Sleeps until the descriptor is readable, after [`prepare`](Wakeups::prepare).
    pub(crate) fn sleep(&self) {
        let mut list = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry. Interruptions are harmless: the caller polls again.
        unsafe { libc::poll(&raw mut list, 1, -1) };
    }
}
