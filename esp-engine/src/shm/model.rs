//! Models of the rings, doorbells and waits: the checker runs the real code in every interleaving
//! of a few steps, with every value that the memory model lets a load return. It reports a lost
//! wake-up as a deadlock and a missing ordering as a data race or a wrong value. The module's
//! documentation has the command.
//!
//! Weakening or removing any single ordering, fence or recheck of the real code makes at least one
//! model fail, except for the two orderings of the bitmaps' summary word, which publish the bit of
//! its word: the checker runs read-modify-writes in program order and so cannot test them.

mod resume;

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::{
    ClientPage, Doorbell, EnginePage, Events, Region, RxConsumer, RxProducer, SlotSet, Spin,
    Status, StreamState, TxConsumer, TxProducer, Wake,
};
use shmem::sync::{AtomicU64, Ordering};

/// Runs one model and prints its number of executions. `preemptions` limits the switches away from
/// a thread that could continue; `None`: no limit. Two find almost every ordering fault.
fn check(name: &str, preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = runs.clone();
    let begin = std::time::Instant::now();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    assert!(runs > 1, "{name}: a model with one run checks nothing");
    eprintln!("model {name}: {runs} executions in {:?}", begin.elapsed());
}

/// Model of an eventfd: a counter that `read` waits for and resets.
#[derive(Default)]
struct EventFd {
    count: Mutex<u64>,
    readable: Condvar,
}

impl EventFd {
    fn new() -> Arc<EventFd> {
        Arc::new(EventFd {
            count: Mutex::new(0),
            readable: Condvar::new(),
        })
    }

    fn write(&self) {
        *self.count.lock().expect("no panic while locked") += 1;
        self.readable.notify_all();
    }

    fn read(&self) {
        let mut count = self.count.lock().expect("no panic while locked");
        while *count == 0 {
            count = self.readable.wait(count).expect("no panic while locked");
        }
        *count = 0;
    }
}

#[test]
fn loom_tx_bytes_are_visible_with_their_index() {
    check("tx: bytes through a ring of 2", Some(3), || {
        let region = Region::model(2, 1);
        let mut producer = TxProducer::new(region.clone());
        let mut consumer = TxConsumer::new(region);
        let program = thread::spawn(move || {
            let mut next = 1;
            // Whenever the ring is empty, the next byte is at its beginning.
            while next <= 3 {
                if producer.write(&[next]) == 1 {
                    next += 1;
                } else {
                    thread::yield_now();
                }
            }
            producer.finish();
        });
        let mut seen = 0;
        loop {
            let view = consumer.poll_written().expect("an honest program");
            while seen < view.total {
                let mut byte = [0];
                assert!(consumer.copy_out(seen, &mut byte));
                seen += 1;
                assert_eq!(u64::from(byte[0]), seen);
                consumer.release(seen);
            }
            if view.finished {
                assert_eq!(view.total, 3, "the mark follows the last byte");
                break;
            }
            thread::yield_now();
        }
        program.join().expect("the program");
    });
}

#[test]
fn loom_rx_bytes_are_visible_with_their_index() {
    check("rx: bytes through a ring of 2", Some(3), || {
        let region = Region::model(1, 2);
        let mut producer = RxProducer::new(region.clone());
        let mut consumer = RxConsumer::new(region);
        let program = thread::spawn(move || {
            let mut seen = 0;
            while !consumer.at_end() {
                let mut bytes = [0; 2];
                let n = consumer.read(&mut bytes);
                for byte in &bytes[..n] {
                    seen += 1;
                    assert_eq!(*byte, seen);
                }
                if n == 0 {
                    thread::yield_now();
                }
            }
            assert_eq!(seen, 3, "the mark follows the last byte");
        });
        let mut next = 0;
        while next < 3 {
            producer.poll_consumed().expect("an honest program");
            if producer.room() > 0 {
                producer.put(next, &[next as u8 + 1]).expect("room");
                producer.publish();
                next += 1;
            } else {
                thread::yield_now();
            }
        }
        producer.finish();
        program.join().expect("the program");
    });
}

/// Runs the engine of the doorbell models until `done`; it sleeps whenever it can.
fn drain_until(
    bank: &ClientPage,
    page: &EnginePage,
    eventfd: &EventFd,
    mut done: impl FnMut(u16) -> bool,
) {
    let mut finished = false;
    while !finished {
        let mut rang = false;
        bank.drain_doorbell(&SlotSet::ALL, |slot| {
            rang = true;
            finished |= done(slot);
        });
        if !rang {
            page.going_to_sleep();
            if !bank.any_doorbell() {
                eventfd.read();
            }
            page.awake();
        }
    }
}

/// Starts a ringer for each of these slots, which rings `rings` times. The engine must read the
/// last value of each. The values are Relaxed: only the doorbell orders them.
fn doorbell_model(slots: &'static [u16], rings: u64) {
    let page = ClientPage::model();
    let (engine, view) = EnginePage::model();
    let eventfd = EventFd::new();
    let values: Arc<Vec<AtomicU64>> = Arc::new(slots.iter().map(|_| AtomicU64::new(0)).collect());
    let ringers: Vec<_> = slots
        .iter()
        .enumerate()
        .map(|(n, &slot)| {
            let (values, eventfd) = (values.clone(), eventfd.clone());
            let doorbell = Doorbell::new(page.clone(), view.clone());
            thread::spawn(move || {
                for value in 1..=rings {
                    values[n].store(value, Ordering::Relaxed);
                    if doorbell.ring(slot) {
                        eventfd.write();
                    }
                }
            })
        })
        .collect();
    let mut latest = vec![0; slots.len()];
    drain_until(&page, &engine, &eventfd, |slot| {
        for (n, value) in values.iter().enumerate().filter(|(n, _)| slots[*n] == slot) {
            latest[n] = value.load(Ordering::Relaxed);
        }
        latest.iter().all(|value| *value == rings)
    });
    for ringer in ringers {
        ringer.join().expect("a ringer");
    }
}

#[test]
fn loom_doorbell_rung_twice_is_drained_after_the_last_ring() {
    check("doorbell: one ringer, two rings", Some(4), || {
        doorbell_model(&[5], 2)
    });
}

#[test]
fn loom_doorbell_of_two_threads_of_one_slot() {
    check("doorbell: two ringers of one slot", Some(3), || {
        doorbell_model(&[5, 5], 1)
    });
}

#[test]
fn loom_doorbell_of_two_slots_of_one_word() {
    check("doorbell: two slots of one word", Some(3), || {
        doorbell_model(&[5, 6], 1)
    });
}

#[test]
fn loom_doorbell_of_two_words() {
    check("doorbell: two slots of two words", Some(3), || {
        doorbell_model(&[5, 70], 1)
    });
}

#[test]
fn loom_reader_sleeps_and_is_woken() {
    check(
        "wait: reader sleeps on the futex, two bytes",
        Some(3),
        || {
            let region = Region::model(1, 2);
            let mut producer = RxProducer::new(region.clone());
            let engine = region.clone();
            let mut consumer = RxConsumer::new(region.clone());
            let status = Status::new(region);
            let program = thread::spawn(move || {
                for expected in 1..=2 {
                    assert!(status.wait(
                        Wake::Readable,
                        Spin::default(),
                        || consumer.available() > 0,
                        None
                    ));
                    let mut byte = [0];
                    assert_eq!((consumer.read(&mut byte), byte[0]), (1, expected));
                }
            });
            for next in 0..2 {
                producer.put(next, &[next as u8 + 1]).expect("room");
                producer.publish();
                let _ = engine.wake(Wake::Readable);
            }
            program.join().expect("the program");
        },
    );
}

#[test]
fn loom_writer_sleeps_for_room() {
    check(
        "wait: writer sleeps for room, engine sleeps for the doorbell",
        Some(2),
        || {
            let region = Region::model(1, 1);
            let page = ClientPage::model();
            let (engine_page, view) = EnginePage::model();
            let eventfd = EventFd::new();
            let mut producer = TxProducer::new(region.clone());
            let status = Status::new(region.clone());
            let mut consumer = TxConsumer::new(region.clone());
            let engine = region;
            let doorbell = Doorbell::new(page.clone(), view);
            let bell_fd = eventfd.clone();
            let program = thread::spawn(move || {
                for byte in 1..=2 {
                    assert!(status.wait(
                        Wake::Writable,
                        Spin::default(),
                        || producer.free() > 0,
                        None
                    ));
                    assert_eq!(producer.write(&[byte]), 1);
                    if doorbell.ring(3) {
                        bell_fd.write();
                    }
                }
            });
            drain_until(&page, &engine_page, &eventfd, |_| {
                let total = consumer.poll_written().expect("an honest program").total;
                if total > consumer.released() {
                    let mut byte = [0];
                    assert!(consumer.copy_out(total - 1, &mut byte));
                    assert_eq!(u64::from(byte[0]), total);
                    if consumer.release(total) {
                        let _ = engine.wake(Wake::Writable);
                    }
                }
                total == 2
            });
            program.join().expect("the program");
        },
    );
}

#[test]
fn loom_two_waiters_for_one_condition_are_both_woken() {
    check("wait: two threads wait for the end", Some(3), || {
        let region = Region::model(1, 1);
        let engine = region.clone();
        let waiters: Vec<_> = [Wake::State, Wake::State]
            .into_iter()
            .map(|what| {
                let status = Status::new(region.clone());
                thread::spawn(move || {
                    let over = || status.state() == StreamState::Open;
                    assert!(status.wait(what, Spin::default(), over, None));
                })
            })
            .collect();
        engine.set_state(StreamState::Open);
        let _ = engine.wake(Wake::All);
        for waiter in waiters {
            waiter.join().expect("a waiter");
        }
    });
}

#[test]
fn loom_reader_waits_on_its_descriptor() {
    check("wait: reader arms the notify eventfd", Some(3), || {
        let region = Region::model(1, 2);
        let page = ClientPage::model();
        let notify = EventFd::new();
        let mut producer = RxProducer::new(region.clone());
        let engine = region.clone();
        let raise = page.clone();
        let mut consumer = RxConsumer::new(region.clone());
        let status = Status::new(region);
        let mut events = Events::new(page);
        let readable = notify.clone();
        let program = thread::spawn(move || {
            for expected in 1..=2 {
                // As an executor does: armed once for each "pending", polled again only after the
                // event.
                loop {
                    let mut byte = [0];
                    if consumer.available() == 0 {
                        status.arm_fd(Wake::Readable);
                    }
                    if consumer.available() > 0 {
                        assert_eq!((consumer.read(&mut byte), byte[0]), (1, expected));
                        break;
                    }
                    let mut seen_bit = false;
                    while !seen_bit {
                        readable.read();
                        events.drain(|slot| seen_bit |= slot == 9);
                    }
                }
            }
        });
        for next in 0..2 {
            producer.put(next, &[next as u8 + 1]).expect("room");
            producer.publish();
            if engine.wake(Wake::Readable).notify && raise.raise(9) {
                notify.write();
            }
        }
        program.join().expect("the program");
    });
}

#[test]
fn loom_events_of_two_slots_reach_the_program() {
    check("events: two slots, two raises of one", Some(3), || {
        let page = ClientPage::model();
        let notify = EventFd::new();
        let values = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let raise = page.clone();
        let (their_values, readable) = (values.clone(), notify.clone());
        let program = thread::spawn(move || {
            let mut events = Events::new(page);
            let mut latest = [0; 2];
            while latest != [2, 1] {
                readable.read();
                events.drain(|slot| {
                    let n = usize::from(slot - 7);
                    latest[n] = their_values[n].load(Ordering::Relaxed);
                });
            }
        });
        for (n, value) in [(0, 1), (1, 1), (0, 2)] {
            values[n].store(value, Ordering::Relaxed);
            if raise.raise(7 + n as u16) {
                notify.write();
            }
        }
        program.join().expect("the program");
    });
}

#[test]
fn loom_a_program_that_sleeps_misses_no_event() {
    // A slot of the first word, and one of the word whose summary bit also means "awake".
    for slot in [7, 64] {
        check("events: polled, then asleep", Some(3), move || {
            let page = ClientPage::model();
            let notify = EventFd::new();
            let value = Arc::new(AtomicU64::new(0));
            let raise = page.clone();
            let (their_value, readable) = (value.clone(), notify.clone());
            let program = thread::spawn(move || {
                let mut events = Events::new(page);
                events.awake();
                let mut latest = 0;
                while latest != 2 {
                    let mut seen_bit = false;
                    events.poll(|found| seen_bit |= found == slot);
                    if seen_bit {
                        latest = their_value.load(Ordering::Relaxed);
                    } else if events.try_sleep() {
                        readable.read();
                        events.awake();
                    }
                }
            });
            for next in 1..=2 {
                value.store(next, Ordering::Relaxed);
                if raise.raise(slot) {
                    notify.write();
                }
            }
            program.join().expect("the program");
        });
    }
}

#[test]
fn loom_bytes_are_visible_with_a_later_state() {
    check("state: closed after the last byte", None, || {
        let region = Region::model(1, 1);
        let mut producer = RxProducer::new(region.clone());
        let engine = region.clone();
        let mut consumer = RxConsumer::new(region.clone());
        let status = Status::new(region);
        let program = thread::spawn(move || {
            while status.state() != StreamState::Open {
                thread::yield_now();
            }
            let mut byte = [0];
            assert_eq!((consumer.read(&mut byte), byte[0]), (1, 7));
        });
        producer.put(0, &[7]).expect("room");
        producer.publish();
        // `Open` stands for any state: it needs no types of the protocol.
        engine.set_state(StreamState::Open);
        program.join().expect("the program");
    });
}
