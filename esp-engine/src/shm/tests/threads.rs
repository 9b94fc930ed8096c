//! Streams through small rings, doorbells and waits, with real threads.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::super::{
    ClientPage, Doorbell, EnginePage, EngineView, RingSizes, RxConsumer, RxProducer, SlotSet, Spin,
    Status, StreamState, Wake,
};
use super::echo::{EchoEngine, PATIENCE, Program};
use super::pair;

fn stream(sizes: RingSizes, total: u64, spin: Spin) {
    let (mut engine, fds) = EchoEngine::new(sizes);
    let program = std::thread::spawn(move || Program::open(fds, sizes).exchange(total, spin));
    engine.run();
    program.join().expect("every byte came back");
    assert_eq!((engine.echoed, engine.tx.released()), (total, total));
}

#[test]
fn a_stream_passes_rings_of_one_page() {
    stream(RingSizes { tx: 4096, rx: 4096 }, 4 << 20, Spin::default());
}

#[test]
fn a_stream_passes_rings_of_different_lengths() {
    stream(
        RingSizes {
            tx: 4096,
            rx: 65536,
        },
        4 << 20,
        Spin {
            spins: 20,
            yields: 0,
        },
    );
    stream(
        RingSizes {
            tx: 131_072,
            rx: 8192,
        },
        4 << 20,
        Spin {
            spins: 0,
            yields: 5,
        },
    );
}

#[test]
fn single_bytes_wake_sleepers_on_both_sides() {
    let sizes = RingSizes { tx: 4096, rx: 4096 };
    let (mut engine, fds) = EchoEngine::new(sizes);
    let program = std::thread::spawn(move || {
        let Program {
            mut tx,
            mut rx,
            status,
            bell,
        } = Program::open(fds, sizes);
        let deadline = Some(Instant::now() + PATIENCE);
        for n in 0..5000u32 {
            assert_eq!(tx.write(&[n as u8]), 1);
            bell.ring();
            assert!(
                status.wait(
                    Wake::Readable,
                    Spin::default(),
                    || rx.available() > 0,
                    deadline
                ),
                "round {n}"
            );
            let mut byte = [0];
            assert_eq!((rx.read(&mut byte), byte), (1, [n as u8]));
            if rx.consumed_notice_due() {
                bell.ring();
            }
        }
        tx.finish();
        bell.ring();
    });
    engine.run();
    program.join().expect("every byte came back");
    assert!(engine.slept > 0);
}

#[test]
fn no_ring_is_lost_by_an_engine_that_sleeps_whenever_it_can() {
    const RINGERS: u16 = 4;
    const ROUNDS: u64 = 20_000;
    let (page, fd) = ClientPage::create().expect("memory");
    let program = ClientPage::open(fd.as_fd()).expect("own page");
    let (engine, fd) = EnginePage::create().expect("memory");
    let view = EngineView::open(fd.as_fd()).expect("own page");
    let bank = page;
    let (wake, woken) = mpsc::channel();
    // Each ringer waits for the answer to its ring, so one lost ring stops it.
    let mut answers = Vec::new();
    let mut ringers = Vec::new();
    for n in 0..RINGERS {
        let (answer, answered) = mpsc::channel();
        answers.push(answer);
        let (doorbell, wake) = (Doorbell::new(program.clone(), view.clone()), wake.clone());
        ringers.push(std::thread::spawn(move || {
            for round in 0..ROUNDS {
                if doorbell.ring(n * 1000) {
                    wake.send(()).expect("the engine listens");
                }
                answered
                    .recv_timeout(PATIENCE)
                    .unwrap_or_else(|e| panic!("ring {round} of {n}: {e}"));
            }
        }));
    }
    let mut answered = 0;
    while answered < u64::from(RINGERS) * ROUNDS {
        let before = answered;
        bank.drain_doorbell(&SlotSet::ALL, |slot| {
            answered += 1;
            answers[usize::from(slot / 1000)]
                .send(())
                .expect("the ringer waits");
        });
        if answered == before {
            engine.going_to_sleep();
            if !bank.any_doorbell() {
                woken
                    .recv_timeout(PATIENCE)
                    .unwrap_or_else(|e| panic!("asleep after {answered} rings: {e}"));
            }
            engine.awake();
        }
    }
    for ringer in ringers {
        ringer.join().expect("all rings answered");
    }
}

#[test]
fn a_wait_ends_at_its_deadline_or_when_the_condition_holds() {
    let (_engine, program) = pair(4096, 4096);
    let status = Status::new(program);
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(!status.wait(
        Wake::Readable,
        Spin {
            spins: 3,
            yields: 3
        },
        || false,
        Some(soon)
    ));
    assert!(Instant::now() >= soon, "not before");
    let past = Instant::now().checked_sub(Duration::from_secs(1));
    assert!(!status.wait(Wake::Writable, Spin::default(), || false, past));
    assert!(status.wait(Wake::Writable, Spin::default(), || true, past));
    let mut asked = 0;
    let third = || {
        asked += 1;
        asked == 3
    };
    assert!(status.wait(
        Wake::State,
        Spin {
            spins: 5,
            yields: 0
        },
        third,
        None
    ));
}

#[test]
fn the_end_of_a_stream_wakes_all_kinds_of_waiters() {
    let (engine, program) = pair(4096, 4096);
    let status = Status::new(program);
    let (ready, started) = mpsc::channel();
    let waiters: Vec<_> = [Wake::Readable, Wake::Writable, Wake::State, Wake::Readable]
        .into_iter()
        .map(|what| {
            let (status, ready) = (status.clone(), ready.clone());
            std::thread::spawn(move || {
                let mut first = true;
                let over = || {
                    if std::mem::take(&mut first) {
                        ready.send(()).expect("the test waits");
                    }
                    matches!(status.state(), StreamState::Closed(_))
                };
                status.wait(what, Spin::default(), over, Some(Instant::now() + PATIENCE))
            })
        })
        .collect();
    for _ in &waiters {
        started.recv_timeout(PATIENCE).expect("a waiter");
    }
    let engine = engine;
    engine.set_state(StreamState::Closed(esp_proto::CloseReason::TimedOut));
    let _ = engine.wake(Wake::All);
    for waiter in waiters {
        assert!(waiter.join().expect("a waiter"), "woken, not timed out");
    }
}

#[test]
fn poke_makes_waiters_check_again() {
    let (_engine, program) = pair(4096, 4096);
    let status = Status::new(program);
    let (gone, is_gone) = mpsc::channel::<()>();
    let waiter = {
        let status = status.clone();
        std::thread::spawn(move || {
            let gone = || is_gone.try_recv().is_ok();
            status.wait(
                Wake::Readable,
                Spin::default(),
                gone,
                Some(Instant::now() + PATIENCE),
            )
        })
    };
    gone.send(()).expect("the waiter listens");
    while !waiter.is_finished() {
        status.poke();
        std::thread::yield_now();
    }
    assert!(waiter.join().expect("the waiter"), "woken, not timed out");
}

#[test]
fn reader_threads_see_all_bytes_of_a_busy_engine() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = RxProducer::new(engine.clone());
    let status = engine;
    let reader = std::thread::spawn(move || {
        let (mut rx, status) = (RxConsumer::new(program.clone()), Status::new(program));
        let deadline = Some(Instant::now() + PATIENCE);
        let mut next = 0u64;
        let mut bytes = [0; 777];
        while !rx.at_end() {
            assert!(status.wait(
                Wake::Readable,
                Spin::default(),
                || rx.available() > 0 || rx.finished(),
                deadline
            ));
            let n = rx.read(&mut bytes);
            for byte in &bytes[..n] {
                assert_eq!(*byte, super::pattern(next));
                next += 1;
            }
        }
        next
    });
    let total = 1 << 20;
    let mut sent = 0u64;
    while sent < total {
        producer.poll_consumed().expect("an honest program");
        let len = producer.room().min(1000).min((total - sent) as usize);
        producer
            .put(sent, &super::stretch(sent, len))
            .expect("room");
        sent += len as u64;
        if producer.publish() {
            let _ = status.wake(Wake::Readable);
        } else {
            std::thread::yield_now();
        }
    }
    producer.finish();
    let _ = status.wake(Wake::Readable);
    assert_eq!(reader.join().expect("the reader"), total);
}
