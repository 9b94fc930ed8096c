//! The shared-memory region of a stream or datagram socket: mapping it, and waiting for its events.

#[cfg(feature = "tokio")]
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};

#[cfg(feature = "tokio")]
use esp_engine::shm::Wake;
use esp_engine::shm::{Region, RingSizes, Spin, Status};

#[cfg(feature = "tokio")]
use crate::blocking::would_block;
use crate::control::Rings;
use crate::error::{EspError, MISSING_DESCRIPTORS};
use crate::session::Wakeable;
use crate::sync::Wakers;

/// Maps the region of a stream or datagram socket.
pub(crate) fn open_region(descriptors: &[OwnedFd], rings: Rings) -> Result<Arc<Region>, EspError> {
    let fd = descriptors.first().ok_or_else(|| EspError::Memory {
        what: format!("its descriptor {MISSING_DESCRIPTORS}"),
    })?;
    let sizes = RingSizes {
        tx: rings.tx,
        rx: rings.rx,
    };
    Ok(Region::open(fd.as_fd(), sizes)?)
}

/// Status word of a region, and the tasks that wait for its events.
pub(crate) struct Waiting {
    pub(crate) status: Status,
    pub(crate) reader: Wakers,
    pub(crate) writer: Wakers,
}

impl Waiting {
    pub(crate) fn new(region: Arc<Region>) -> Waiting {
        Waiting {
            status: Status::new(region),
            reader: Wakers::default(),
            writer: Wakers::default(),
        }
    }
}

#[cfg(feature = "tokio")]
impl Waiting {
    /// Polls an operation: makes an attempt and, on `WouldBlock`, registers the task for the event
    /// (and with `register`), and makes another one.
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        event: Wake,
        register: impl FnOnce(),
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        match attempt() {
            Err(error) if would_block(&error) => {}
            done => return Poll::Ready(done),
        }
        register();
        self.register(cx, event);
        match attempt() {
            Err(error) if would_block(&error) => Poll::Pending,
            done => Poll::Ready(done),
        }
    }

    /// Registers the task for an event.
    pub(crate) fn register(&self, cx: &Context<'_>, event: Wake) {
        let wakers = match event {
            Wake::Writable => &self.writer,
            _ => &self.reader,
        };
        wakers.register(cx);
        self.status.arm_fd(event);
    }
}

impl Wakeable for Waiting {
    fn event(&self) {
        self.reader.wake();
        self.writer.wake();
    }

    fn daemon_gone(&self) {
        self.status.poke();
        self.event();
    }
}

/// Returns the default [`Spin`] of waits. With one or two processors the other side needs the one
/// that a spinning thread would use, so a wait only yields. `available_parallelism` includes the
/// affinity mask and the cgroup quota.
pub(crate) fn default_spin() -> Spin {
    static SPIN: OnceLock<Spin> = OnceLock::new();
    *SPIN.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Spin {
            spins: if processors > 2 { 500 } else { 0 },
            yields: 10,
        }
    })
}

/// Returns the default [`Spin`] of waits over a lease, which poll for frames themselves: they stay
/// awake as long as the daemon's engine does, some 50 µs.
pub(crate) fn default_lease_spin() -> Spin {
    Spin {
        yields: 100,
        ..default_spin()
    }
}
