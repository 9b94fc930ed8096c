//! Programs that write arbitrary values anywhere: the engine must not panic and must detect them.

use std::sync::Arc;
use std::sync::mpsc;

use super::super::layout::FIN;
use super::super::record::{DgramHeader, EdpKind};
use super::super::{
    ClientPage, Corruption, Region, RxProducer, SLOTS, SlotSet, StreamState, TxConsumer, Wake,
};
use super::{Random, pair, taken};
use shmem::sync::Ordering;

/// Operations of the engine's side on a region in random order, with counts of their results.
#[derive(Debug)]
pub(super) struct Victim {
    region: Arc<Region>,
    tx: TxConsumer,
    rx: RxProducer,
    status: Arc<Region>,
    random: Random,
    corruptions: [u64; 4],
    believed: u64,
    records: u64,
    wakes: u64,
    renewed: u64,
}

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Victim {
    pub(super) fn new(region: Arc<Region>) -> Victim {
        Victim {
            tx: TxConsumer::new(region.clone()),
            rx: RxProducer::new(region.clone()),
            status: region.clone(),
            region,
            random: Random(1),
            corruptions: [0; 4],
            believed: 0,
            records: 0,
            wakes: 0,
            renewed: 0,
        }
    }

    fn count<T>(&mut self, result: Result<T, Corruption>) -> Option<T> {
        match result {
            Ok(value) => {
                self.believed += 1;
                Some(value)
            }
            Err(corruption) => {
                assert!(!corruption.to_string().is_empty());
                self.corruptions[match corruption.what.split_at(7).0 {
                    "TX head" => 0,
                    "RX tail" => 1,
                    "record " => 2,
                    _ => 3,
                }] += 1;
                None
            }
        }
    }

    /// Performs one operation and asserts the invariants that hold whatever the program does.
    pub(super) fn poll(&mut self) {
        let capacity = self.rx.capacity() as u64;
        let some = self.random.below(3000);
        match self.random.below(9) {
            0 => {
                let view = self.tx.poll_written();
                if let Some(view) = self.count(view) {
                    assert_eq!(view.total, self.tx.written());
                }
            }
            1 => {
                let (from, to) = (self.tx.released(), self.tx.written());
                let offset = from + self.random.below(to - from + 100);
                let mut bytes = vec![0; some as usize];
                let held = self.tx.copy_out(offset, &mut bytes);
                assert_eq!(held, offset + some <= to);
                assert_eq!(held, self.tx.payload(offset, bytes.len()).is_some());
            }
            2 => {
                self.tx.release(self.tx.released() + some);
            }
            3 => {
                let taken = taken(&mut self.tx);
                if let Some(Some((_, bytes))) = self.count(taken) {
                    assert!(bytes.len() <= self.region.sizes().tx as usize);
                    self.records += 1;
                }
            }
            4 => {
                let consumed = self.rx.poll_consumed();
                if let Some(consumed) = self.count(consumed) {
                    assert!(consumed <= self.rx.put_total());
                }
            }
            5 => {
                let len = self.rx.room().min(some as usize);
                self.rx
                    .put(self.rx.put_total(), &vec![0xee; len])
                    .expect("checked room");
                self.rx.publish();
            }
            6 => {
                let header = DgramHeader {
                    kind: EdpKind::Data,
                    addr: esp_proto::MacAddr([2; 6]).into(),
                    port: 1,
                    sequence: 2,
                    timestamp_ns: 3,
                };
                let put = self.rx.put_record(&header, &vec![0xdd; some as usize]);
                self.count(put);
            }
            7 => {
                self.wakes += u64::from(self.status.wake(Wake::All).notify);
                self.status.set_state(StreamState::Open);
            }
            // The engine would disconnect the program at the first corruption; the test starts the
            // next stream.
            _ => {
                if self.corruptions.iter().sum::<u64>() > self.renewed {
                    self.renewed = self.corruptions.iter().sum::<u64>() + 200;
                    self.tx.restart();
                    self.rx.restart();
                }
            }
        }
        assert!(self.tx.written() - self.tx.released() <= u64::from(self.region.sizes().tx));
        assert!(self.rx.room() as u64 <= capacity);
    }

    /// Returns true if every kind of corruption was found.
    pub(super) fn found_every_corruption(&self) -> bool {
        let [head, tail, record, _] = self.corruptions;
        [head, tail, record, self.believed, self.records, self.wakes]
            .iter()
            .all(|n| *n >= 100)
    }
}

/// Returns a random value, often close to a valid one.
fn garbage(random: &mut Random, near: u64) -> u64 {
    match random.below(5) {
        0 => random.next(),
        1 => near.wrapping_add(random.below(5000)).wrapping_sub(100),
        2 => near.wrapping_add(random.below(100)) | FIN,
        3 => near & !7,
        _ => near,
    }
}

#[test]
fn garbage_between_any_two_steps_is_harmless() {
    let (engine, program) = pair(8192, 8192);
    let mut victim = Victim::new(engine);
    let mut random = Random(99);
    let words = program.words();
    let mut turns = 0u64;
    while !victim.found_every_corruption() {
        let heads = (victim.tx.written(), victim.rx.put_total());
        match random.below(10) {
            0 => words
                .tx_head
                .0
                .count
                .store(garbage(&mut random, heads.0), Ordering::Relaxed),
            1 => words
                .rx_tail
                .0
                .store(garbage(&mut random, heads.1), Ordering::Relaxed),
            2 => words
                .waiting
                .0
                .store(random.next() as u32, Ordering::Relaxed),
            3 => words.tx_tail.0.store(random.next(), Ordering::Relaxed),
            4 => words
                .rx_head
                .0
                .count
                .store(random.next(), Ordering::Relaxed),
            5 => words.engine.0.state.store(random.next(), Ordering::Relaxed),
            7 => words
                .tx_head
                .0
                .shift
                .store(random.next(), Ordering::Relaxed),
            8 => words
                .rx_head
                .0
                .shift
                .store(random.next(), Ordering::Relaxed),
            // SAFETY: one thread; nothing else uses the ring's bytes now.
            6 => unsafe {
                let at = random.below(1024) * 8;
                let value = if random.below(2) == 0 {
                    random.below(64)
                } else {
                    random.next()
                };
                program.tx().store(at, &value.to_le_bytes());
            },
            _ => {}
        }
        victim.poll();
        turns += 1;
        assert!(
            turns < 50_000_000,
            "the garbage does not reach every check: {victim:?}"
        );
    }
}

#[test]
fn garbage_from_another_thread_at_any_moment_is_harmless() {
    let (engine, program) = pair(8192, 8192);
    let mut victim = Victim::new(engine);
    let (stop, stopped) = mpsc::channel::<()>();
    let hostile = std::thread::spawn(move || {
        let mut random = Random(7);
        let words = program.words();
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            for _ in 0..100 {
                let (tx, rx) = (
                    words.tx_tail.0.load(Ordering::Relaxed),
                    words.rx_head.0.count.load(Ordering::Relaxed),
                );
                words
                    .tx_head
                    .0
                    .count
                    .store(garbage(&mut random, tx), Ordering::Relaxed);
                words
                    .tx_head
                    .0
                    .shift
                    .store(random.next(), Ordering::Relaxed);
                words
                    .rx_tail
                    .0
                    .store(garbage(&mut random, rx & !FIN), Ordering::Relaxed);
                words
                    .waiting
                    .0
                    .store(random.next() as u32, Ordering::Relaxed);
            }
        }
    });
    while victim.corruptions[0] < 1000 || victim.corruptions[1] < 1000 || victim.believed < 100_000
    {
        victim.poll();
    }
    drop(stop);
    hostile.join().expect("the hostile thread");
}

#[test]
fn garbage_in_the_doorbell_is_bounded_work() {
    let (page, fd) = ClientPage::create().expect("memory");
    let program = ClientPage::open(std::os::fd::AsFd::as_fd(&fd)).expect("own page");
    let (bank, events) = (page.clone(), page);
    let (stop, stopped) = mpsc::channel::<()>();
    let hostile = std::thread::spawn(move || {
        let mut random = Random(3);
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            for map in [&program.words.doorbell, &program.words.events] {
                map.summary.0.store(random.next(), Ordering::Relaxed);
                for word in &map.words.0 {
                    word.store(random.next(), Ordering::Relaxed);
                }
            }
        }
    });
    let (mut found, mut round) = (0, 0u16);
    while found < 100_000 {
        round = round.wrapping_add(1);
        let mut seen = vec![false; SLOTS];
        bank.drain_doorbell(&SlotSet::ALL, |slot| {
            assert!(
                !std::mem::replace(&mut seen[usize::from(slot)], true),
                "each slot at most once"
            );
            found += 1;
        });
        let _ = events.raise(round);
    }
    drop(stop);
    hostile.join().expect("the hostile thread");
}
