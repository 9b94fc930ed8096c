//! An engine that echoes the bytes of a program, and a program that checks them. Both sleep as in
//! production. Used with threads and with processes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::super::{
    ClientPage, Doorbell, EnginePage, EngineView, Region, RingSizes, RxConsumer, RxProducer,
    SlotSet, Spin, Status, StreamState, TxConsumer, TxProducer, Wake,
};
use super::pattern;

/// Timeout of every wait, reached only if a wake-up is lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Slot of the only stream.
const SLOT: u16 = 77;

/// Descriptors with which a program opens its side.
pub(super) struct Descriptors {
    pub(super) region: OwnedFd,
    pub(super) client: OwnedFd,
    pub(super) engine: OwnedFd,
    pub(super) eventfd: OwnedFd,
}

pub(super) struct EchoEngine {
    pub(super) tx: TxConsumer,
    pub(super) rx: RxProducer,
    status: Arc<Region>,
    bank: Arc<ClientPage>,
    page: EnginePage,
    eventfd: OwnedFd,
    /// Bytes sent back.
    pub(super) echoed: u64,
    pub(super) ended: bool,
    /// Number of times it blocked.
    pub(super) slept: u64,
}

impl EchoEngine {
    pub(super) fn new(sizes: RingSizes) -> (EchoEngine, Descriptors) {
        let (region, region_fd) = Region::create(sizes).expect("memory");
        let (client, client_fd) = ClientPage::create().expect("memory");
        let (page, engine_fd) = EnginePage::create().expect("memory");
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("eventfd");
        let theirs = eventfd.try_clone().expect("a descriptor");
        let engine = EchoEngine {
            tx: TxConsumer::new(region.clone()),
            rx: RxProducer::new(region.clone()),
            status: region,
            bank: client,
            page,
            eventfd,
            echoed: 0,
            ended: false,
            slept: 0,
        };
        let descriptors = Descriptors {
            region: region_fd,
            client: client_fd,
            engine: engine_fd,
            eventfd: theirs,
        };
        (engine, descriptors)
    }

    /// Echoes the bytes for which there is room.
    fn serve(&mut self) {
        let view = self.tx.poll_written().expect("an honest program");
        self.rx.poll_consumed().expect("an honest program");
        let len = usize::try_from(view.total - self.echoed)
            .expect("a ring full")
            .min(self.rx.room());
        if len > 0 {
            let from = self
                .tx
                .payload(self.echoed, len)
                .expect("written, not released");
            // SAFETY: `payload` promises `len` contiguous bytes, which a correct program does
            // not change.
            let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr(), len) };
            self.rx.put(self.echoed, bytes).expect("room");
            self.echoed += len as u64;
            assert!(self.rx.publish());
            let _ = self.status.wake(Wake::Readable);
            if self.tx.release(self.echoed) {
                let _ = self.status.wake(Wake::Writable);
            }
        }
        if view.finished && self.echoed == view.total && !self.ended {
            self.rx.finish();
            self.ended = true;
            let _ = self.status.wake(Wake::Readable);
        }
    }

    /// Serves the slots that rang, or blocks until one rings.
    pub(super) fn poll(&mut self) {
        let mut rang = false;
        self.bank.drain_doorbell(&SlotSet::ALL, |slot| {
            assert_eq!(slot, SLOT);
            rang = true;
        });
        if rang {
            return self.serve();
        }
        self.page.going_to_sleep();
        if !self.bank.any_doorbell() {
            self.slept += 1;
            let timeout = Timespec::try_from(PATIENCE).expect("in range");
            let mut fds = [PollFd::new(&self.eventfd, PollFlags::IN)];
            let ready = rustix::event::poll(&mut fds, Some(&timeout)).expect("poll");
            assert_eq!(ready, 1, "no ring within {PATIENCE:?}");
            rustix::io::read(&self.eventfd, &mut [0u8; 8]).expect("readable");
        }
        self.page.awake();
    }

    /// Runs until the program has finished and everything was sent back.
    pub(super) fn run(&mut self) {
        self.status.set_state(StreamState::Open);
        let _ = self.status.wake(Wake::State);
        while !self.ended {
            self.poll();
        }
    }
}

#[derive(Clone)]
pub(super) struct RealDoorbell {
    doorbell: Doorbell,
    eventfd: Arc<OwnedFd>,
}

impl RealDoorbell {
    pub(super) fn ring(&self) {
        if self.doorbell.ring(SLOT) {
            rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).expect("the counter is not full");
        }
    }
}

pub(super) struct Program {
    pub(super) tx: TxProducer,
    pub(super) rx: RxConsumer,
    pub(super) status: Status,
    pub(super) bell: RealDoorbell,
}

impl Program {
    pub(super) fn open(fds: Descriptors, sizes: RingSizes) -> Program {
        let region = Region::open(fds.region.as_fd(), sizes).expect("the engine's region");
        let client = ClientPage::open(fds.client.as_fd()).expect("the engine's client page");
        let view = EngineView::open(fds.engine.as_fd()).expect("the engine's page");
        let status = Status::new(region.clone());
        let bell = RealDoorbell {
            doorbell: Doorbell::new(client, view),
            eventfd: Arc::new(fds.eventfd),
        };
        Program {
            tx: TxProducer::new(region.clone()),
            rx: RxConsumer::new(region),
            status,
            bell,
        }
    }

    /// Writes `total` bytes in chunks of varying length, and reads and checks them on another
    /// thread.
    pub(super) fn exchange(self, total: u64, spin: Spin) {
        let Program {
            mut tx,
            mut rx,
            status,
            bell,
        } = self;
        let deadline = Some(Instant::now() + PATIENCE);
        assert!(status.wait(
            Wake::State,
            spin,
            || status.state() == StreamState::Open,
            deadline
        ));
        let (their_status, their_bell) = (status.clone(), bell.clone());
        let writer = std::thread::spawn(move || {
            let mut piece = vec![0; tx.capacity()];
            while tx.written() < total {
                let wish = usize::try_from(total - tx.written()).unwrap_or(usize::MAX);
                let len = (tx.written() as usize % 70_001 + 1)
                    .min(piece.len())
                    .min(wish);
                for (index, byte) in (tx.written()..).zip(&mut piece[..len]) {
                    *byte = pattern(index);
                }
                let mut done = 0;
                while done < len {
                    let n = tx.write(&piece[done..len]);
                    done += n;
                    if n > 0 {
                        their_bell.ring();
                    } else {
                        let room =
                            their_status.wait(Wake::Writable, spin, || tx.free() > 0, deadline);
                        assert!(room, "no room after {PATIENCE:?} at {}", tx.written());
                    }
                }
            }
            tx.finish();
            their_bell.ring();
        });
        let mut buffer = vec![0; 50_000];
        while !rx.at_end() {
            let there = status.wait(
                Wake::Readable,
                spin,
                || rx.available() > 0 || rx.finished(),
                deadline,
            );
            assert!(
                there,
                "nothing to read after {PATIENCE:?} at {}",
                rx.consumed()
            );
            let from = rx.consumed();
            let n = rx.read(&mut buffer);
            for (index, byte) in (from..).zip(&buffer[..n]) {
                assert_eq!(*byte, pattern(index), "byte {index}");
            }
            if rx.consumed_notice_due() {
                bell.ring();
            }
        }
        assert_eq!(rx.consumed(), total);
        writer.join().expect("the writer");
    }
}
