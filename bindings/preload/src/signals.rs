//! Waits with a limit that signals interrupt like calls of the kernel without one.
//!
//! After a signal whose handler says so (`SA_RESTART`) the kernel restarts a call that blocks, but
//! none that has a limit of time: see signal(7). So signals are blocked during the wait, which ends
//! when one arrives, and its action says whether the wait goes on.

use std::time::{Duration, Instant};

use libc::{c_int, pollfd, sigset_t, timespec};

use crate::kernel::{self, Errno};

/// What ended a wait.
enum Event {
    Readable,
    Limit,
    /// A signal; whether its handler does not restart calls.
    Signal(bool),
}

/// Waits until the descriptor is readable; a negative one never is. Returns false at the deadline.
///
/// # Errors
/// EINTR: interrupted by a signal whose handler does not restart calls; EMFILE, ENFILE, ENOMEM.
pub(crate) fn wait(fd: c_int, deadline: Instant) -> Result<bool, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (all, mut before) = (full(), full());
        // SAFETY: both are sets of signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        let event = next(fd, left, &before);
        // Handlers of what has arrived run here.
        // SAFETY: it is a set of signals.
        unsafe {
            let none = std::ptr::null_mut();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, none);
        }
        match event? {
            Event::Readable => return Ok(true),
            Event::Limit => return Ok(false),
            Event::Signal(true) => return Err(libc::EINTR),
            Event::Signal(false) => {}
        }
    }
}

/// Waits, with all signals blocked, for the descriptor or for a signal that is not one of
/// `before`.
fn next(fd: c_int, left: Duration, before: &sigset_t) -> Result<Event, Errno> {
    let mut awaited = full();
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| contains(before, *signal)) {
        // SAFETY: it is a set of signals.
        unsafe { libc::sigdelset(&raw mut awaited, signal) };
    }
    // SAFETY: as above.
    let arrivals = unsafe { libc::signalfd(-1, &raw const awaited, libc::SFD_CLOEXEC) };
    if arrivals < 0 {
        return Err(kernel::errno());
    }
    let mut ready = [fd, arrivals].map(|fd| pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let left = timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let polled = kernel::poll(&mut ready, Some(&left));
    kernel::close(arrivals);
    Ok(match (polled?, ready[0].revents) {
        (0, _) => Event::Limit,
        (_, 0) => Event::Signal(interrupts(&awaited)),
        _ => Event::Readable,
    })
}

/// Returns true if one of these signals is pending and has a handler that does not restart calls.
fn interrupts(awaited: &sigset_t) -> bool {
    let mut pending = full();
    // SAFETY: it is a set of signals.
    unsafe { libc::sigpending(&raw mut pending) };
    let arrived = |signal: &c_int| contains(awaited, *signal) && contains(&pending, *signal);
    (1..=libc::SIGRTMAX()).filter(arrived).any(|signal| {
        // SAFETY: the structure consists of integers, and the call writes one.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        };
        let has_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        has_handler && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// Returns the set of all signals.
fn full() -> sigset_t {
    // SAFETY: the structure consists of integers, and the call writes one.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

fn contains(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: it is a set of signals.
    unsafe { libc::sigismember(set, signal) == 1 }
}
