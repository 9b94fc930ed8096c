//! Waits with a time limit that signals interrupt like system calls without one.
//!
//! After a signal whose handler has `SA_RESTART`, the kernel restarts a blocking call, but not a
//! call with a time limit: see signal(7). So signals are blocked during the wait, which ends when
//! one arrives. The flags of its handler decide whether the wait continues.

use std::time::{Duration, Instant};

use libc::{c_int, pollfd, sigset_t, timespec};

use crate::kernel::{self, Errno};

/// Reason why a wait ended.
enum Event {
    Readable,
    Limit,
    /// A signal arrived; true if its handler does not restart calls.
    Signal(bool),
}

/// Waits until the descriptor is readable; a negative one is ignored. Returns false at the
/// deadline.
///
/// # Errors
/// EINTR: interrupted by a signal whose handler does not restart calls; EMFILE, ENFILE, ENOMEM.
pub(crate) fn wait(fd: c_int, deadline: Instant) -> Result<bool, Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (all, mut before) = (full(), full());
        // SAFETY: both pointers are valid for sets of signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        let event = next(fd, left, &before);
        // Handlers of signals that have arrived run here.
        // SAFETY: the pointer is valid for a set of signals, and the other one may be null.
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

/// Waits, with all signals blocked, for the descriptor or for a signal that is not in `before`.
fn next(fd: c_int, left: Duration, before: &sigset_t) -> Result<Event, Errno> {
    let mut awaited = full();
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| contains(before, *signal)) {
        // SAFETY: the pointer is valid for a set of signals.
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
    // SAFETY: the pointer is valid for a set of signals.
    unsafe { libc::sigpending(&raw mut pending) };
    let arrived = |signal: &c_int| contains(awaited, *signal) && contains(&pending, *signal);
    (1..=libc::SIGRTMAX()).filter(arrived).any(|signal| {
        // SAFETY: the structure consists of integers and may be zero, and the call writes to it.
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
    // SAFETY: the structure consists of integers and may be zero, and the call writes to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

fn contains(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: the pointer is valid for a set of signals.
    unsafe { libc::sigismember(set, signal) == 1 }
}
