//! The ends of the rings on one thread: accepted, delivered and refused bytes.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::super::layout::FIN;
use super::super::{
    Corruption, Region, RegionError, RingSizes, RxConsumer, RxProducer, RxView, TxConsumer,
    TxProducer, TxView,
};
use super::{pair, stretch};
use shmem::sync::Ordering;

/// Returns the bytes at a pointer that `payload` returned.
fn bytes_at(consumer: &TxConsumer, offset: u64, len: usize) -> Vec<u8> {
    let at = consumer.payload(offset, len).expect("held by the ring");
    // SAFETY: `payload` promises `len` contiguous bytes; no thread writes them in these tests.
    unsafe { std::slice::from_raw_parts(at.as_ptr(), len) }.to_vec()
}

#[test]
fn tx_bytes_arrive_in_order_and_contiguous_across_the_wrap() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = TxProducer::new(program);
    let mut consumer = TxConsumer::new(engine);
    let mut total = 0u64;
    for round in 0..50 {
        let len = 700 + round * 67 % 3000;
        assert_eq!(producer.write(&stretch(total, len)), len);
        let view = consumer.poll_written().expect("an honest program");
        assert_eq!(
            view,
            TxView {
                total: total + len as u64,
                finished: false
            }
        );
        assert_eq!(
            bytes_at(&consumer, total, len),
            stretch(total, len),
            "round {round}"
        );
        let mut copy = vec![0; len];
        assert!(consumer.copy_out(total, &mut copy));
        assert_eq!(copy, stretch(total, len));
        total += len as u64;
        assert_eq!(
            (producer.pending(), producer.acked()),
            (len as u64, total - len as u64)
        );
        assert!(
            consumer.release(total),
            "an empty ring is a reason to wake the writer"
        );
        assert_eq!((producer.pending(), producer.free()), (0, 4096));
    }
    assert!(total > 10 * 4096);
}

/// A ring that is empty before each message uses only the pages that the longest message needs, and
/// one more.
#[test]
fn a_ring_emptied_each_time_stays_on_its_first_pages() {
    let (engine, program) = pair(65536, 65536);
    let first = |engine: &Arc<Region>| {
        (
            engine.tx().at(0).as_ptr() as usize,
            engine.rx().at(0).as_ptr() as usize,
        )
    };
    let (tx_first, _) = first(&engine);
    let (_, rx_first) = first(&program);
    let (mut tx, mut sent) = (
        TxProducer::new(program.clone()),
        TxConsumer::new(engine.clone()),
    );
    let (mut put, mut rx) = (RxProducer::new(engine), RxConsumer::new(program.clone()));
    let mut total = 0;
    for len in [1, 1000, 1024, 3072, 4096, 1, 9000, 5, 4095]
        .into_iter()
        .cycle()
        .take(400)
    {
        assert_eq!(tx.write(&stretch(total, len)), len);
        sent.poll_written().expect("an honest program");
        let at = sent.payload(total, len).expect("held").as_ptr() as usize - tx_first;
        assert!(at + len <= 9000 + 4096, "TX: {len} bytes at {at}");
        assert_eq!(bytes_at(&sent, total, len), stretch(total, len));
        put.put(total, &stretch(total, len)).expect("room");
        put.publish();
        let at = rx.peek().as_ptr() as usize - rx_first;
        assert!(at + len <= 9000 + 4096, "RX: {len} bytes at {at}");
        assert_eq!(rx.peek(), stretch(total, len));
        rx.consume(len);
        total += len as u64;
        sent.release(total);
    }
    // Unacknowledged and unread bytes stay in place.
    for (ring_len, step) in [(0, 3000), (3000, 3000), (6000, 3000)] {
        assert_eq!(tx.write(&stretch(total + ring_len, step)), step);
        put.put(total + ring_len, &stretch(total + ring_len, step))
            .expect("room");
    }
    put.publish();
    sent.poll_written().expect("an honest program");
    assert_eq!(bytes_at(&sent, total, 9000), stretch(total, 9000));
    assert_eq!(rx.peek(), stretch(total, 9000));
    // A new producer of the ring continues after its bytes.
    drop((tx, rx));
    let (mut tx, rx) = (TxProducer::new(program.clone()), RxConsumer::new(program));
    assert_eq!(tx.write(&stretch(total + 9000, 100)), 100);
    sent.poll_written().expect("an honest program");
    assert_eq!(bytes_at(&sent, total, 9100), stretch(total, 9100));
    assert_eq!(rx.peek(), stretch(total, 9000));
}

#[test]
fn tx_takes_what_fits_and_no_more() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = TxProducer::new(program);
    let mut consumer = TxConsumer::new(engine);
    assert_eq!(producer.write(&[]), 0);
    assert_eq!(producer.write(&stretch(0, 5000)), 4096);
    assert_eq!((producer.free(), producer.write(b"x")), (0, 0));
    assert_eq!(consumer.poll_written().expect("honest").total, 4096);
    assert!(!consumer.release(1000), "less than a quarter");
    assert_eq!(producer.free(), 1000);
    assert!(consumer.release(1024), "a quarter");
    assert_eq!(producer.write(&stretch(4096, 2000)), 1024);
    assert_eq!(consumer.poll_written().expect("honest").total, 5120);
    assert_eq!(bytes_at(&consumer, 1024, 4096), stretch(1024, 4096));
}

#[test]
fn tx_payload_outside_what_is_held_is_refused() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = TxProducer::new(program);
    let mut consumer = TxConsumer::new(engine);
    producer.write(&[7; 100]);
    assert!(consumer.payload(0, 1).is_none(), "not looked at yet");
    consumer.poll_written().expect("honest");
    consumer.release(10);
    assert!(consumer.payload(10, 90).is_some() && consumer.payload(100, 0).is_some());
    for (offset, len) in [
        (9, 1),
        (10, 91),
        (101, 0),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (11, usize::MAX),
    ] {
        assert!(consumer.payload(offset, len).is_none(), "{offset} {len}");
    }
    assert!(!consumer.copy_out(9, &mut [0; 1]));
    consumer.release(5);
    assert_eq!(consumer.released(), 10, "never back");
    consumer.release(u64::MAX);
    assert_eq!(consumer.released(), 100, "never beyond what was written");
}

#[test]
fn tx_finish_is_seen_with_the_last_byte_and_stops_writing() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = TxProducer::new(program);
    let mut consumer = TxConsumer::new(engine);
    producer.write(b"last");
    producer.finish();
    assert!(producer.is_finished());
    assert_eq!(
        (producer.write(b"more"), producer.free(), producer.written()),
        (0, 0, 4)
    );
    assert_eq!(
        consumer.poll_written(),
        Ok(TxView {
            total: 4,
            finished: true
        })
    );
    assert_eq!(
        consumer.poll_written(),
        Ok(TxView {
            total: 4,
            finished: true
        })
    );
}

#[test]
fn rx_bytes_arrive_in_order_and_contiguous_across_the_wrap() {
    let (engine, program) = pair(4096, 8192);
    let mut producer = RxProducer::new(engine);
    let mut consumer = RxConsumer::new(program);
    let mut total = 0u64;
    for round in 0..50 {
        let len = 900 + round * 119 % 7000;
        producer.put(total, &stretch(total, len / 2)).expect("room");
        producer
            .put(
                total + (len / 2) as u64,
                &stretch(total + (len / 2) as u64, len - len / 2),
            )
            .expect("room");
        assert_eq!(consumer.available(), 0, "not published");
        assert!(producer.publish() && !producer.publish());
        assert_eq!(consumer.available(), len);
        assert_eq!(consumer.peek(), stretch(total, len));
        let mut first = vec![0; len / 3];
        assert_eq!(consumer.read(&mut first), len / 3);
        assert_eq!(first, stretch(total, len / 3));
        let mut rest = vec![0; 9000];
        assert_eq!(consumer.read(&mut rest), len - len / 3);
        assert_eq!(
            rest[..len - len / 3],
            stretch(total + (len / 3) as u64, len - len / 3)
        );
        total += len as u64;
        assert_eq!(producer.poll_consumed(), Ok(total));
    }
    assert!(total > 10 * 8192);
}

#[test]
fn rx_put_refuses_bytes_that_do_not_follow_or_fit() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = RxProducer::new(engine);
    let mut consumer = RxConsumer::new(program);
    producer.put(0, &[1; 4000]).expect("room");
    for (offset, len) in [(0, 1), (3999, 1), (4001, 1), (u64::MAX, 1), (4000, 97)] {
        let refused = producer
            .put(offset, &vec![2; len])
            .expect_err("no place for it");
        assert!(refused.what.starts_with("RX bytes"), "{refused}");
    }
    producer.put(4000, &[3; 96]).expect("exactly full");
    producer.publish();
    consumer.consume(4000);
    assert!(
        producer.put(4096, &[4]).is_err(),
        "room is as of the last poll"
    );
    assert_eq!(producer.poll_consumed(), Ok(4000));
    producer.put(4096, &[4; 4000]).expect("room now");
}

#[test]
fn rx_notices_are_due_once_for_each_quarter() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = RxProducer::new(engine);
    let mut consumer = RxConsumer::new(program);
    producer.put(0, &[1; 4096]).expect("room");
    producer.publish();
    assert!(!consumer.consumed_notice_due());
    consumer.consume(1023);
    assert!(!consumer.consumed_notice_due());
    consumer.consume(1);
    assert!(consumer.consumed_notice_due() && !consumer.consumed_notice_due());
    consumer.consume(usize::MAX);
    assert_eq!(consumer.consumed(), 4096, "never more than there is");
    assert!(consumer.consumed_notice_due());
}

#[test]
fn rx_end_is_visible_only_after_the_last_byte() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = RxProducer::new(engine);
    let mut consumer = RxConsumer::new(program);
    producer.put(0, b"end").expect("room");
    assert!(!consumer.finished());
    producer.finish();
    assert!(consumer.finished() && !consumer.at_end());
    assert_eq!(consumer.read(&mut [0; 10]), 3);
    assert!(consumer.at_end());
    assert!(
        producer.put(3, b"x").is_err(),
        "nothing comes after the end"
    );
}

#[test]
fn impossible_tx_heads_are_corruption() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = TxProducer::new(program.clone());
    let mut consumer = TxConsumer::new(engine);
    producer.write(&[1; 4000]);
    consumer.poll_written().expect("honest");
    consumer.release(1000);
    let word = &program.words().tx_head.0.count;
    for bad in [
        0,
        3999,
        1000 + 4097,
        1 << 40,
        FIN - 1,
        FIN,
        FIN | 3999,
        u64::MAX,
    ] {
        word.store(bad, Ordering::Relaxed);
        let corruption = consumer.poll_written().expect_err("impossible");
        assert!(corruption.what.starts_with("TX head"), "{corruption}");
        assert_eq!(corruption.value, bad);
        assert!(consumer.payload(4000, 1).is_none());
    }
    word.store(1000 + 4096, Ordering::Relaxed);
    assert_eq!(consumer.poll_written().expect("possible again").total, 5096);
    word.store(FIN | 5096, Ordering::Relaxed);
    assert!(consumer.poll_written().expect("a FIN").finished);
    for bad in [5096, FIN | 5095, FIN | 5097] {
        word.store(bad, Ordering::Relaxed);
        let late = consumer.poll_written().expect_err("after its FIN");
        assert!(late.what.starts_with("TX head"), "{late}");
    }
}

#[test]
fn impossible_rx_tails_are_corruption() {
    let (engine, program) = pair(4096, 4096);
    let mut producer = RxProducer::new(engine);
    producer.put(0, &[1; 3000]).expect("room");
    producer.publish();
    producer.put(3000, &[1; 500]).expect("room");
    let word = &program.words().rx_tail.0;
    word.store(2000, Ordering::Relaxed);
    assert_eq!(producer.poll_consumed(), Ok(2000));
    for bad in [0, 1999, 3001, 3500, FIN, FIN | 2500, u64::MAX] {
        word.store(bad, Ordering::Relaxed);
        let corruption = producer.poll_consumed().expect_err("impossible");
        assert!(corruption.what.starts_with("RX tail"), "{corruption}");
        assert_eq!(corruption.value, bad);
        assert_eq!(producer.room(), 4096 - 1500);
    }
}

#[test]
fn garbage_of_a_broken_engine_is_harmless_to_the_program() {
    let (engine, program) = pair(4096, 4096);
    let mut tx = TxProducer::new(program.clone());
    let mut rx = RxConsumer::new(program);
    tx.write(&[1; 100]);
    for bad in [101, 4097, FIN, FIN | 50, u64::MAX, 1 << 62] {
        engine.words().tx_tail.0.store(bad, Ordering::Relaxed);
        assert_eq!((tx.acked(), tx.free()), (0, 3996), "{bad:#x}");
        engine.words().rx_head.0.count.store(
            if bad < 4097 {
                bad + 4096
            } else {
                bad | 1 << 40
            },
            Ordering::Relaxed,
        );
        assert_eq!(
            (rx.available(), rx.read(&mut [0; 8]), rx.peek().len()),
            (0, 0, 0),
            "{bad:#x}"
        );
        assert!(!rx.finished() && !rx.at_end());
    }
    engine.words().tx_tail.0.store(60, Ordering::Relaxed);
    assert_eq!(tx.acked(), 60);
    engine.words().rx_head.0.count.store(10, Ordering::Relaxed);
    assert_eq!(rx.read(&mut [0; 8]), 8);
    engine.words().rx_head.0.count.store(5, Ordering::Relaxed);
    assert_eq!(
        rx.available(),
        2,
        "a head that goes back counts as the last one seen"
    );
}

#[test]
fn a_role_exists_once_and_can_be_acquired_again() {
    let (_engine, program) = pair(4096, 4096);
    let mut first = TxProducer::new(program.clone());
    first.write(b"abc");
    let second = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        TxProducer::new(program.clone())
    }));
    assert!(second.is_err());
    drop(first);
    let mut heir = TxProducer::new(program.clone());
    assert_eq!((heir.written(), heir.free()), (3, 4093));
    heir.finish();
    drop(heir);
    assert!(TxProducer::new(program).is_finished());
}

#[test]
fn garbage_is_harmless_to_a_later_holder_of_the_roles() {
    let (_engine, program) = pair(4096, 4096);
    for (head, tail) in [
        (0, u64::MAX),
        (u64::MAX, 0),
        (5, 9),
        (1 << 50, 3),
        (FIN - 1, FIN),
    ] {
        program
            .words()
            .tx_head
            .0
            .count
            .store(head, Ordering::Relaxed);
        program.words().tx_tail.0.store(tail, Ordering::Relaxed);
        program.words().rx_tail.0.store(head, Ordering::Relaxed);
        program
            .words()
            .rx_head
            .0
            .count
            .store(tail, Ordering::Relaxed);
        let mut tx = TxProducer::new(program.clone());
        assert!(tx.free() <= 4096 && tx.pending() <= 4096);
        let wrote = tx.write(&[1; 5000]);
        assert!(wrote <= 4096);
        let mut rx = RxConsumer::new(program.clone());
        assert!(rx.available() <= 4096 && rx.peek().len() <= 4096);
        rx.read(&mut [0; 5000]);
        rx.consume(usize::MAX);
        rx.consumed_notice_due();
    }
}

#[test]
fn ring_sizes_out_of_range_are_refused() {
    for (tx, rx) in [
        (0, 4096),
        (4096, 0),
        (2048, 4096),
        (4096, 5000),
        (4096, 128 << 20),
        (u32::MAX, 4096),
    ] {
        assert!(Region::create(RingSizes { tx, rx }).is_err(), "{tx} {rx}");
    }
    let (_region, fd) = Region::create(RingSizes {
        tx: 4096,
        rx: 64 << 20,
    })
    .expect("the largest");
    assert!(
        Region::open(
            fd.as_fd(),
            RingSizes {
                tx: 4096,
                rx: 32 << 20
            }
        )
        .is_err()
    );
    assert!(
        Region::open(
            fd.as_fd(),
            RingSizes {
                tx: 64 << 20,
                rx: 4096
            }
        )
        .is_err(),
        "same length, other rings"
    );
}

#[test]
fn rx_view_sees_what_the_consumer_could_read() {
    let (engine, program) = pair(4096, 4096);
    let view = RxView::new(std::sync::Arc::clone(&program));
    let mut producer = RxProducer::new(std::sync::Arc::clone(&engine));
    let mut consumer = RxConsumer::new(program);
    assert_eq!(view.available(), (0, false));
    for round in 0..20u64 {
        let at = producer.put_total();
        producer.put(at, &stretch(at, 3000)).expect("room");
        assert_eq!(view.available(), (0, false), "not published, round {round}");
        producer.publish();
        assert_eq!(view.available(), (3000, false));
        assert_eq!(consumer.read(&mut [0; 1000]), 1000);
        assert_eq!(view.available(), (2000, false));
        consumer.consume(2000);
        assert_eq!(view.available(), (0, false));
        producer.poll_consumed().expect("honest");
    }
    let head = producer.put_total();
    engine
        .words()
        .rx_head
        .0
        .count
        .store(head + 4097, Ordering::Release);
    assert_eq!(view.available(), (0, false), "more than the ring holds");
    engine
        .words()
        .rx_head
        .0
        .count
        .store(head - 1, Ordering::Release);
    assert_eq!(view.available(), (0, false), "less than was read");
    producer.put(head, b"end").expect("room");
    producer.finish();
    assert_eq!(view.available(), (3, true));
    assert_eq!(consumer.read(&mut [0; 10]), 3);
    assert_eq!(view.available(), (0, true));
}

/// The roles of a file are held once per process, not once per mapping.
#[test]
fn roles_exist_once_for_a_file_opened_twice() {
    let sizes = RingSizes { tx: 4096, rx: 4096 };
    let (engine, fd) = Region::create(sizes).expect("memory");
    let open = || Region::open(fd.as_fd(), sizes);
    let (first, second) = (open().expect("free"), open().expect("still free"));
    let producer = TxProducer::new(first);
    let again = std::panic::catch_unwind(|| TxProducer::new(second));
    assert!(again.is_err(), "two producers of one ring");
    assert!(matches!(open(), Err(RegionError::InUse)));
    // The engine's end of this ring is another role.
    drop(TxConsumer::new(engine));
    drop(producer);
    drop(RxConsumer::new(open().expect("released")));
    drop(TxProducer::new(open().expect("released")));
}

#[test]
fn one_of_two_engines_that_resume_a_region_at_once_gets_it() {
    let sizes = RingSizes { tx: 4096, rx: 4096 };
    for _ in 0..500 {
        let (region, file) = Region::create(sizes).unwrap();
        drop(region);
        let adopted = || Region::adopt(file.as_fd(), sizes).unwrap();
        let regions = [adopted(), adopted()];
        let start = std::sync::Barrier::new(2);
        let results = std::thread::scope(|scope| {
            let engines = regions.each_ref().map(|region| {
                scope.spawn(|| {
                    start.wait();
                    let tx = TxConsumer::resume(Arc::clone(region))?;
                    let rx = RxProducer::resume(Arc::clone(region))?;
                    Ok::<_, Corruption>((tx, rx))
                })
            });
            engines.map(|engine| engine.join().expect("no panic"))
        });
        assert_eq!(results.iter().filter(|ends| ends.is_ok()).count(), 1);
    }
}
