//! Idle strategy and the one place where the loop blocks.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use esp_proto::{Duration, Instant};
use rustix::event::{Timespec, epoll};

use super::link::Link;
use super::links::Links;
use super::stats::EngineStats;
use crate::clock::Clock;
use crate::command::LinkId;
use crate::config::{CONTENDED_TIME, CONTENDED_YIELD, IdleConfig};

/// Maximum sleep without a deadline, so that a lost wake-up (a bug) appears as slowness and not as
/// a hang.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Time without a sleep after which the streams' sockets leave the epoll set: while they are in it,
/// each frame costs its sender a call.
const DISARM_AFTER: Duration = Duration::from_millis(1);
/// Epoll tokens: kind in the upper half, index in the lower.
const INBOX: u64 = 0;
const MONITOR: u64 = 1 << 32;
const ESP: u64 = 2 << 32;
const EDP: u64 = 3 << 32;
const CLIENT: u64 = 4 << 32;
const KIND: u64 = !0 << 32;

/// Spins, yields, or blocks on every source of work.
pub(super) struct Waiter {
    set: rustix::fd::OwnedFd,
    config: IdleConfig,
    last_work: Instant,
    contended_until: Instant,
    /// The next iteration must poll datagram sockets and link states. Only that one, because each
    /// costs a system call.
    pub(super) side: bool,
    /// The command queue's descriptor was readable, and must be reset.
    pub(super) inbox: bool,
    /// The set contains the streams' sockets.
    armed: bool,
    /// Another thread may sleep on the set, which then is not disarmed.
    pub(super) watched: bool,
    /// End of the last sleep, or time of the last `arm`.
    last_sleep: Instant,
    /// A packet socket has a pending error.
    pub(super) socket_error: bool,
}

impl Waiter {
    pub(super) fn new(config: IdleConfig) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Waiter {
            set,
            config,
            last_work: Instant::ZERO,
            contended_until: Instant::ZERO,
            side: true,
            inbox: true,
            armed: true,
            watched: false,
            last_sleep: Clock.now(),
            socket_error: false,
        })
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.set,
            fd,
            epoll::EventData::new_u64(token),
            epoll::EventFlags::IN,
        )?)
    }

    pub(super) fn add_inbox(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add(fd, INBOX)
    }

    pub(super) fn add_monitor(&mut self, monitor: &netif::LinkMonitor) -> io::Result<()> {
        self.add(monitor.as_fd(), MONITOR)
    }

    pub(super) fn add_link(&mut self, id: LinkId, link: &Link) -> io::Result<()> {
        if link.standby {
            // Always in the set, and polled with the datagram sockets: frames are rare.
            self.add(link.carrier.stream_fd(), EDP | u64::from(id.0))?;
        } else if self.armed {
            self.add(link.carrier.stream_fd(), ESP | u64::from(id.0))?;
        }
        match link.carrier.datagram_fd() {
            Some(datagrams) => self.add(datagrams, EDP | u64::from(id.0)),
            None => Ok(()),
        }
    }

    /// Adds the streams' sockets to the set, before a sleep.
    pub(super) fn arm(&mut self, now: Instant, links: &Links) {
        self.last_sleep = now;
        if !self.armed {
            self.armed = true;
            for (id, link) in links
                .numbered()
                .filter(|(_, link)| !link.standby && !link.gone)
            {
                // It was in the set before. If this fails, the sleep ends at its time limit.
                let _ = self.add(link.carrier.stream_fd(), ESP | u64::from(id.0));
            }
        }
    }

    /// Returns true while the set contains the streams' sockets.
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Removes the streams' sockets from the set, if the loop has been awake for [`DISARM_AFTER`].
    #[inline]
    pub(super) fn disarm(&mut self, now: Instant, links: &Links) {
        if self.armed && !self.watched && now.since(self.last_sleep) > DISARM_AFTER {
            self.armed = false;
            for link in links.iter().filter(|link| !link.standby) {
                let _ = epoll::delete(&self.set, link.carrier.stream_fd());
            }
        }
    }

    pub(super) fn remove_link(&mut self, link: &Link) {
        let _ = epoll::delete(&self.set, link.carrier.stream_fd());
        if let Some(datagrams) = link.carrier.datagram_fd() {
            let _ = epoll::delete(&self.set, datagrams);
        }
    }

    /// Adds a doorbell, edge-triggered: each write ends a sleep, and the descriptor is never read.
    /// The program shares its open file description, so it could make a read block the loop.
    pub(super) fn add_client(&mut self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.set,
            doorbell,
            epoll::EventData::new_u64(CLIENT),
            flags,
        )?)
    }

    /// Removes a doorbell. Its file may stay open in the program, so that closing the descriptor
    /// would not remove it from the set.
    pub(super) fn remove_client(&mut self, doorbell: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.set, doorbell);
    }

    /// Moves the calling thread to the configured core.
    pub(super) fn pin(&self) {
        let Some(core) = self.config.core else { return };
        let mut cpus = rustix::thread::CpuSet::new();
        if core < rustix::thread::CpuSet::MAX_CPU {
            cpus.set(core);
            // Not permitted (cgroup, affinity of the parent): the scheduler decides, as without the
            // option.
            let _ = rustix::thread::sched_setaffinity(None, &cpus);
        }
    }

    #[inline]
    pub(super) fn worked(&mut self, now: Instant) {
        self.last_work = now;
        self.side = false;
    }

    /// Spins or yields once and returns true, or returns false if the loop should block.
    #[inline]
    pub(super) fn stay_awake(&mut self, now: Instant) -> bool {
        let idle = now.since(self.last_work);
        if idle < self.config.spin {
            std::hint::spin_loop();
            return true;
        }
        if idle >= self.config.spin + self.config.yield_for || now < self.contended_until {
            return false;
        }
        rustix::thread::sched_yield();
        // Alone on the core, a yield costs a fraction of a µs. If another thread wants the core,
        // the scheduler takes away the rest of the time slice (milliseconds), whereas a blocked
        // thread runs soon after its wake-up.
        let after = Clock.now();
        if after.since(now) > CONTENDED_YIELD {
            self.contended_until = after + CONTENDED_TIME;
        }
        true
    }

    /// Blocks until there may be work (returns true) or until `deadline`.
    pub(super) fn block(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
        stats: &mut EngineStats,
    ) -> bool {
        let wait = deadline.map_or(MAX_SLEEP, |d| d.since(now)).min(MAX_SLEEP);
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut events = [MaybeUninit::uninit(); 64];
        self.side = false;
        // EINTR is the only expected error; the loop then polls again.
        let waited = epoll::wait(&self.set, &mut events, Some(&timeout));
        if wait > Duration::ZERO {
            self.last_sleep = Clock.now();
        }
        let Ok((events, _)) = waited else {
            return false;
        };
        if events.is_empty() {
            stats.wakes_by_timer += 1;
        }
        for event in events.iter() {
            let (token, flags) = (event.data.u64(), event.flags);
            let error = flags.contains(epoll::EventFlags::ERR);
            match token & KIND {
                ESP => {
                    stats.wakes_by_frame += 1;
                    self.socket_error |= error;
                }
                EDP => {
                    stats.wakes_by_frame += 1;
                    self.side = true;
                    self.socket_error |= error;
                }
                MONITOR => self.side = true,
                CLIENT => stats.wakes_by_program += 1,
                _ => {
                    stats.wakes_by_program += 1;
                    self.inbox = true;
                }
            }
        }
        !events.is_empty()
    }

    /// Returns the epoll set, readable when [`Waiter::block`] would return at once.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
