//! The queues, cooperative copies and sleep words in the model checker: every interleaving of a few
//! steps, with every value that the memory model lets a load return. Run them with
//! `RUSTFLAGS="--cfg loom" cargo test -p shm-btl --lib --target-dir target/loom loom`.
//!
//! The models are sensitive: omitting or weakening an ordering, the fence, or a comparison of the
//! real code makes one of them fail.
//!
//! The light fence is a full one here, because the model cannot express what `membarrier(2)` does
//! to the other side.

mod revoke;

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::coop::{Next, Offer, help};
use crate::fifo::{Consumer, Found, Producer};
use crate::layout::{About, Apart, Common, PairHead, Slot};
use crate::pool::Pool;
use shmem::sync::{AtomicU64, Ordering, fence};
use shmem::{Bytes, Fence, PeerSleep, Shared, SharedSlice, SleepEpoch};

/// Runs one model and prints the number of executions. `preemptions` bounds the switches away from
/// a thread that could continue.
fn check(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = runs.clone();
    let begin = std::time::Instant::now();
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    assert!(runs > 1, "{name}: a model with one run checks nothing");
    eprintln!("model {name}: {runs} executions in {:?}", begin.elapsed());
}

fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

fn pair_head() -> Shared<PairHead> {
    let words = || Apart(std::array::from_fn(|_| zero()));
    Arc::new(PairHead {
        consumed: Apart(zero()),
        end: Apart(zero()),
        offers: words(),
        shares: words(),
    })
}

fn common() -> Shared<Common> {
    Arc::new(Common {
        about: Apart(About {
            nonce: [zero(), zero()],
            left: zero(),
        }),
        sleep: Apart(zero()),
        address: std::array::from_fn(|_| zero()),
        directory: std::array::from_fn(|_| zero()),
        refused: std::array::from_fn(|_| zero()),
        full: zero(),
    })
}

fn slots(n: usize) -> SharedSlice<Slot> {
    Arc::new(
        (0..n)
            .map(|_| Slot(std::array::from_fn(|_| zero())))
            .collect(),
    )
}

/// Returns a queue of two slots from rank 0 to rank 1, with a ring and chunks of these sizes.
fn queue(ring: usize, chunks: usize) -> (Producer, Consumer, Pool) {
    long_queue(2, ring, chunks)
}

fn long_queue(count: usize, ring: usize, chunks: usize) -> (Producer, Consumer, Pool) {
    let (sender, receiver) = (pair_head(), pair_head());
    let (slots, ring) = (slots(count), Bytes::model(ring));
    // Chunks of a model are one byte; the consumer sees each as one slice, so there is only one.
    let chunk = Bytes::model(65);
    let pool = Pool::new(vec![chunk.clone(); chunks]);
    let producer = Producer::new(
        (0, 1),
        slots.clone(),
        ring.clone(),
        sender,
        receiver.clone(),
        2,
    );
    (
        producer,
        Consumer::new((0, 1), slots, ring, (chunk, 65), receiver),
        pool,
    )
}

/// Waits for the next message.
fn next(consumer: &mut Consumer) -> (Vec<u8>, Vec<u8>) {
    loop {
        match consumer.poll().expect("an honest sender") {
            Some(word) => {
                if let Some((bytes, header, end)) = consumer.take_short(word) {
                    consumer.done();
                    return (bytes[..header].to_vec(), bytes[header..end].to_vec());
                }
                match consumer.take(word).expect("an honest sender") {
                    Found::Message(taken) => {
                        let message = (taken.header().to_vec(), consumer.body(&taken).to_vec());
                        consumer.done();
                        return message;
                    }
                    Found::Help(_) => panic!("nothing is copied"),
                }
            }
            None => thread::yield_now(),
        }
    }
}

fn free_slot(producer: &mut Producer) {
    while !producer.has_room(1).expect("an honest receiver") {
        thread::yield_now();
    }
}

#[test]
fn loom_a_slot_is_whole_when_it_is_seen() {
    check("fifo: three messages through two slots", 3, || {
        let (mut producer, mut consumer, _) = queue(2, 0);
        let sender = thread::spawn(move || {
            for i in 0..3u8 {
                free_slot(&mut producer);
                producer.push_inline(&[i], &[i + 100, i + 200]);
            }
        });
        for i in 0..3u8 {
            assert_eq!(next(&mut consumer), (vec![i], vec![i + 100, i + 200]));
        }
        assert!(
            consumer.poll().expect("an honest sender").is_none(),
            "no message is delivered twice"
        );
        sender.join().expect("the sender");
    });
}

#[test]
fn loom_both_slots_of_a_pair_are_visible_with_the_first() {
    check(
        "fifo: two pairs and a short message through four slots",
        2,
        || {
            let (mut producer, mut consumer, _) = long_queue(4, 0, 0);
            let sender = thread::spawn(move || {
                for i in 0..2u8 {
                    while !producer.has_room(2).expect("an honest receiver") {
                        thread::yield_now();
                    }
                    producer.push_pair(&[i], &[i + 10; 60]);
                }
                free_slot(&mut producer);
                producer.push_inline(&[2], &[]);
            });
            for i in 0..2u8 {
                assert_eq!(next(&mut consumer), (vec![i], vec![i + 10; 60]));
            }
            assert_eq!(next(&mut consumer), (vec![2], vec![]));
            sender.join().expect("the sender");
        },
    );
}

#[test]
fn loom_ring_bytes_are_visible_with_their_slot_until_consumed() {
    check(
        "fifo: four messages through a ring of four bytes",
        2,
        || {
            // More slots than messages that fit into the ring.
            let (mut producer, mut consumer, _) = long_queue(4, 4, 0);
            let sender = thread::spawn(move || {
                for i in 0..4u8 {
                    loop {
                        free_slot(&mut producer);
                        // Lengths 1, 2, 1, 2: the last one has to skip the end.
                        let body = vec![i; 1 + usize::from(i % 2)];
                        if producer.push_ring(&[i], &body).expect("an honest receiver") {
                            break;
                        }
                        thread::yield_now();
                    }
                }
            });
            for i in 0..4u8 {
                assert_eq!(
                    next(&mut consumer),
                    (vec![i], vec![i; 1 + usize::from(i % 2)])
                );
            }
            sender.join().expect("the sender");
        },
    );
}

#[test]
fn loom_a_chunk_is_reused_only_after_it_was_read() {
    check("pool: three messages through one chunk", 3, || {
        let (mut producer, mut consumer, mut pool) = queue(2, 1);
        let sender = thread::spawn(move || {
            for i in 0..3u8 {
                free_slot(&mut producer);
                loop {
                    producer.refresh().expect("an honest receiver");
                    while let Some(chunk) = producer.next_returned(false) {
                        pool.put_back(chunk);
                    }
                    if let Some((chunk, bytes)) = pool.take() {
                        producer.push_chunk(chunk, bytes, &[i], &[i + 50]);
                        break;
                    }
                    thread::yield_now();
                }
                assert!(
                    pool.free() + producer.lent() == 1,
                    "no chunk is lost or doubled"
                );
            }
        });
        for i in 0..3u8 {
            assert_eq!(next(&mut consumer), (vec![i], vec![i + 50]));
        }
        sender.join().expect("the sender");
    });
}

/// Two messages of `chunks` chunks, one after the other through one word, each copied by both
/// sides: every chunk by one of them, and none after the receiver's program has the buffer. The
/// checker reports a chunk that both write, or that is written and read concurrently. The sender
/// cannot copy chunk `fails`.
fn both_copy(name: &str, chunks: u32, preemptions: usize, fails: Option<u32>) {
    check(name, preemptions, move || {
        let (offers, shares) = (Arc::new(zero()), Arc::new(zero()));
        let buffer = Bytes::model(chunks as usize);
        let (theirs, mine, target) = (offers.clone(), shares.clone(), buffer.clone());
        let sender = thread::spawn(move || {
            for id in 1..=2u32 {
                help((id, chunks), (0, u32::MAX), &mine, &theirs, |chunk| {
                    if Some(chunk) == fails {
                        return false;
                    }
                    // SAFETY: the model checks it.
                    unsafe { target.store(chunk as usize, &[id as u8]) };
                    true
                });
            }
        });
        for id in 1..=2u32 {
            let mut offer = Offer::open(&offers, id, chunks);
            loop {
                match offer.next(&offers, &shares).expect("an honest sender") {
                    // SAFETY: the model checks it.
                    Next::Copy(chunk) => unsafe { buffer.store(chunk as usize, &[id as u8]) },
                    Next::Wait => thread::yield_now(),
                    Next::Done => break,
                }
            }
            // SAFETY: the model checks it.
            let all = unsafe { buffer.view(0, chunks as usize) }.expect("inside");
            assert!(
                all.iter().all(|chunk| u32::from(*chunk) == id),
                "{all:?} of {id}"
            );
            // The program uses its buffer.
            // SAFETY: the model checks it.
            unsafe { buffer.store(0, &vec![0; chunks as usize]) };
        }
        sender.join().expect("the sender");
    });
}

#[test]
fn loom_both_sides_copy_and_each_chunk_is_copied_once() {
    both_copy("share: two messages of two chunks", 2, 3, None);
    both_copy("share: two messages of one chunk", 1, 3, None);
    both_copy("share: two messages of three chunks", 3, 2, None);
}

#[test]
fn loom_the_receiver_copies_chunks_that_the_sender_cannot() {
    both_copy("share: the sender fails at the last chunk", 2, 3, Some(1));
    both_copy("share: the sender fails at the first chunk", 2, 3, Some(0));
}

#[test]
fn loom_nothing_is_written_after_an_offer_was_stopped() {
    check("share: the receiver gives up", 3, || {
        let (offers, shares) = (Arc::new(zero()), Arc::new(zero()));
        let buffer = Bytes::model(2);
        let (theirs, mine, target) = (offers.clone(), shares.clone(), buffer.clone());
        let sender = thread::spawn(move || {
            help((1, 2), (0, u32::MAX), &mine, &theirs, |chunk| {
                // SAFETY: the model checks it.
                unsafe { target.store(chunk as usize, &[1]) };
                true
            });
        });
        let mut offer = Offer::open(&offers, 1, 2);
        offer.stop(&offers);
        while !offer.stopped(&shares) {
            thread::yield_now();
        }
        // SAFETY: the model checks it.
        unsafe { buffer.store(0, &[9, 9]) };
        sender.join().expect("the sender");
        // SAFETY: the model checks it.
        assert_eq!(unsafe { buffer.view(0, 2) }, Some(vec![9, 9]));
    });
}

/// A pipe.
#[derive(Default)]
struct Pipe {
    bytes: Mutex<u64>,
    readable: Condvar,
}

#[test]
fn loom_no_wake_up_is_lost() {
    check("sleep: a message while falling asleep", 3, || {
        let (mut producer, mut consumer, _) = queue(2, 0);
        let common = common();
        let pipe = Arc::new(Pipe::default());
        let (mut sleep, bell) = (PeerSleep::new(Fence::Light), pipe.clone());
        let theirs = common.clone();
        let sender = thread::spawn(move || {
            for i in 0..2u8 {
                producer.push_inline(&[i], &[]);
                if sleep.needs_wake(&theirs.sleep.0) {
                    *bell.bytes.lock().expect("no panic while locked") += 1;
                    bell.readable.notify_all();
                }
            }
        });
        let mut epoch = SleepEpoch::default();
        for i in 0..2u8 {
            while consumer.poll().expect("an honest sender").is_none() {
                epoch.sleep(&common.sleep.0);
                fence(Ordering::SeqCst);
                if consumer.poll().expect("an honest sender").is_none() {
                    // Without a byte this never ends, which the checker reports.
                    let mut bytes = pipe.bytes.lock().expect("no panic while locked");
                    while *bytes == 0 {
                        bytes = pipe.readable.wait(bytes).expect("no panic while locked");
                    }
                }
                epoch.wake(&common.sleep.0);
                *pipe.bytes.lock().expect("no panic while locked") = 0;
            }
            assert_eq!(next(&mut consumer).0, [i]);
        }
        sender.join().expect("the sender");
    });
}
