//! The sleep protocols in the model checker: every interleaving, with every value that the memory
//! model lets a load return. A lost wake-up is a deadlock, which the checker reports. The models of
//! the crates above run the same code with their own words. Run them with
//! `RUSTFLAGS="--cfg loom" cargo test -p shmem --lib --target-dir target/loom loom`.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::{Fence, FutexSleeper, FutexWord, PeerSleep, SleepEpoch, Spin};

/// Words of a futex sleeper: waiting bits, wake count, and the value that it waits for.
type Words = (AtomicU32, FutexWord, AtomicU32);

fn words() -> Arc<Words> {
    Arc::new((AtomicU32::new(0), FutexWord::default(), AtomicU32::new(0)))
}

/// Sets the value, and wakes the threads that wait for it.
fn publish((waiting, wakes, value): &Words) {
    value.store(1, Ordering::Release);
    // SYNC POINT sleep
    fence(Ordering::SeqCst);
    if waiting.load(Ordering::Relaxed) != 0 {
        waiting.fetch_and(!1, Ordering::AcqRel);
        wakes.bump_and_wake();
    }
}

/// Waits for the value.
fn wait((waiting, wakes, value): &Words) {
    let sleeper = FutexSleeper {
        waiting,
        bit: 1,
        wakes,
    };
    assert!(sleeper.wait(Spin::default(), || value.load(Ordering::Acquire) == 1, None));
}

#[test]
fn loom_a_futex_sleeper_is_woken() {
    loom::model(|| {
        let words = words();
        let publisher = {
            let words = words.clone();
            thread::spawn(move || publish(&words))
        };
        wait(&words);
        publisher.join().expect("the publisher");
    });
}

/// A call of the publisher wakes one thread in the models, which wakes the other.
#[test]
fn loom_one_publication_wakes_all_sleepers() {
    let mut builder = loom::model::Builder::new();
    // Without a bound, three threads have too many interleavings.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let words = words();
        let threads = [(); 2].map(|()| {
            let words = words.clone();
            thread::spawn(move || wait(&words))
        });
        publish(&words);
        for thread in threads {
            thread.join().expect("a sleeper");
        }
    });
}

#[test]
fn loom_a_sleeping_process_is_woken_once() {
    loom::model(|| {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let pipe = Arc::new((Mutex::new(0u32), Condvar::new()));
        let writer = {
            let (words, pipe) = (words.clone(), pipe.clone());
            thread::spawn(move || {
                let mut peer = PeerSleep::new(Fence::Light);
                for value in 1..=2 {
                    words.1.store(value, Ordering::Release);
                    if peer.needs_wake(&words.0) {
                        *pipe.0.lock().expect("no panic while locked") += 1;
                        pipe.1.notify_all();
                    }
                }
            })
        };
        let mut epoch = SleepEpoch::default();
        epoch.sleep(&words.0);
        fence(Ordering::SeqCst);
        if words.1.load(Ordering::Acquire) == 0 {
            let mut bytes = pipe.0.lock().expect("no panic while locked");
            while *bytes == 0 {
                bytes = pipe.1.wait(bytes).expect("no panic while locked");
            }
        }
        assert!(words.1.load(Ordering::Acquire) > 0, "woken without a value");
        writer.join().expect("the writer");
        assert!(
            *pipe.0.lock().expect("no panic while locked") <= 1,
            "woken twice in one sleep"
        );
    });
}
