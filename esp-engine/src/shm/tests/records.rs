//! Datagram records over both rings.

use super::super::record::{DgramHeader, EdpKind, HEADER_LEN, MAX_DATAGRAM, record_len};
use super::super::{RxConsumer, RxProducer, TxConsumer, TxProducer};
use super::{Random, pair, stretch, taken};
use shmem::sync::Ordering;

fn header(n: u16) -> DgramHeader {
    let kinds = [
        EdpKind::Data,
        EdpKind::EchoRequest,
        EdpKind::EchoReply,
        EdpKind::InfoRequest,
        EdpKind::InfoReply,
    ];
    DgramHeader {
        kind: kinds[usize::from(n) % 5],
        addr: esp_proto::MacAddr([2, 0, 0, 1, (n >> 8) as u8, n as u8]).into(),
        port: n ^ 0x5555,
        sequence: n,
        timestamp_ns: 1 << 50 | u64::from(n),
    }
}

#[test]
fn records_of_all_lengths_pass_both_rings() {
    let (engine, program) = pair(131_072, 131_072);
    let (mut to, mut from) = (
        TxProducer::new(program.clone()),
        TxConsumer::new(engine.clone()),
    );
    let (mut back, mut home) = (RxProducer::new(engine), RxConsumer::new(program));
    let mut buffer = vec![0; MAX_DATAGRAM];
    for (n, len) in [
        0,
        1,
        7,
        8,
        9,
        1500,
        4096,
        9000,
        MAX_DATAGRAM,
        3,
        65528,
        65529,
    ]
    .into_iter()
    .enumerate()
    {
        let (header, bytes) = (header(n as u16), stretch(len as u64, len));
        assert!(to.put_record(&header, &bytes), "{len}");
        assert_eq!(taken(&mut from), Ok(Some((header, bytes.clone()))), "{len}");
        assert_eq!(taken(&mut from), Ok(None));
        assert_eq!((to.pending(), from.room_notice_due()), (0, true));
        assert_eq!(back.put_record(&header, &bytes), Ok(true));
        assert_eq!(home.next_record(), None, "not published");
        back.publish();
        assert_eq!(home.next_record(), Some((header, len)));
        assert_eq!(home.take_record(&mut buffer), Some((header, len)));
        assert_eq!(buffer[..len], bytes);
        assert_eq!((home.take_record(&mut buffer), home.available()), (None, 0));
    }
}

#[test]
fn records_are_dropped_when_they_do_not_fit() {
    let (engine, program) = pair(4096, 4096);
    let (mut to, mut from) = (
        TxProducer::new(program.clone()),
        TxConsumer::new(engine.clone()),
    );
    let (mut back, mut home) = (RxProducer::new(engine), RxConsumer::new(program));
    assert!(!to.put_record(&header(0), &vec![0; MAX_DATAGRAM + 1]));
    assert!(
        !to.put_record(&header(0), &[0; 4096 - HEADER_LEN + 1]),
        "fits never"
    );
    let each = 1000;
    let fit = 4096 / record_len(each);
    for n in 0..6 {
        assert_eq!(
            to.put_record(&header(n), &stretch(u64::from(n), each)),
            usize::from(n) < fit,
            "{n}"
        );
        assert_eq!(
            back.put_record(&header(n), &stretch(u64::from(n), each)),
            Ok(usize::from(n) < fit),
            "{n}"
        );
    }
    back.publish();
    for n in 0..fit as u16 {
        let record = taken(&mut from).expect("honest").expect("put before");
        assert_eq!(record, (header(n), stretch(u64::from(n), each)));
        let mut short = [0; 10];
        assert_eq!(
            home.take_record(&mut short),
            Some((header(n), each)),
            "the full length is returned"
        );
        assert_eq!(short[..], stretch(u64::from(n), each)[..10]);
    }
    assert!(to.put_record(&header(9), &[1; 1000]));
    assert_eq!(
        back.put_record(&header(9), &[1; 1000]),
        Ok(true),
        "room is polled before a record is dropped"
    );
}

#[test]
fn a_refused_record_is_not_copied() {
    let (engine, program) = pair(131_072, 4096);
    let (mut to, mut from) = (TxProducer::new(program), TxConsumer::new(engine));
    assert!(to.put_record(&header(1), &[1; MAX_DATAGRAM]));
    assert!(to.put_record(&header(2), &[2; 100]));
    let (mut bytes, short) = (Vec::new(), |_: &DgramHeader, len| {
        (len <= 1500).then_some(len)
    });
    assert_eq!(from.take_record(&mut bytes, short), Ok(Some(None)));
    assert_eq!(bytes.capacity(), 0, "nothing was copied");
    assert_eq!(from.take_record(&mut bytes, short), Ok(Some(Some(100))));
    assert_eq!(bytes, [2; 100]);
    assert_eq!((to.pending(), taken(&mut from)), (0, Ok(None)));
}

#[test]
fn random_records_keep_their_order_over_many_wraps() {
    let (engine, program) = pair(8192, 4096);
    let (mut to, mut from) = (TxProducer::new(program), TxConsumer::new(engine));
    let mut random = Random(42);
    let (mut sent, mut home_count) = (std::collections::VecDeque::new(), 0);
    while home_count < 3000 {
        if random.below(2) == 0 {
            let n = random.below(1 << 16) as u16;
            let bytes = stretch(random.next() >> 8, random.below(1200) as usize);
            if to.put_record(&header(n), &bytes) {
                sent.push_back((header(n), bytes));
            }
        } else {
            assert_eq!(taken(&mut from), Ok(sent.pop_front()));
            home_count += 1;
        }
    }
    assert!(to.written() > 20 * 8192);
}

/// Writes raw bytes in place of a record and returns the engine's result.
fn judge(raw: &[u8]) -> Result<Option<(DgramHeader, Vec<u8>)>, super::super::Corruption> {
    let (engine, program) = pair(4096, 4096);
    let (mut to, mut from) = (TxProducer::new(program), TxConsumer::new(engine));
    to.write(raw);
    let first = taken(&mut from);
    if first.is_err() {
        assert_eq!(taken(&mut from), first, "the error is returned again");
    }
    first
}

#[test]
fn impossible_tx_records_are_corruption() {
    let mut good = [0u8; 48];
    good[0] = 8;
    assert!(matches!(judge(&good), Ok(Some((_, bytes))) if bytes.len() == 8));
    for cut in 1..48 {
        let corruption = judge(&good[..cut]).expect_err("cut off");
        assert!(corruption.what.starts_with("record cut off"), "{cut}");
    }
    for (at, value) in [(0, 9), (1, 1), (2, 1), (3, 255), (4, 5), (4, 255), (5, 1)] {
        let mut bad = good;
        bad[at] = value;
        let corruption = judge(&bad).expect_err("impossible");
        assert!(corruption.what.starts_with("record"), "byte {at} = {value}");
    }
}

#[test]
fn garbage_in_the_rx_ring_is_skipped_by_the_program() {
    let (engine, program) = pair(4096, 4096);
    let (mut back, mut home) = (RxProducer::new(engine.clone()), RxConsumer::new(program));
    back.put(0, &[0xff; 100]).expect("room");
    back.publish();
    assert_eq!((home.next_record(), home.available()), (None, 0));
    assert_eq!(back.put_record(&header(1), b"whole"), Ok(true));
    back.publish();
    assert_eq!(home.take_record(&mut [0; 5]), Some((header(1), 5)));
    engine
        .words()
        .rx_head
        .0
        .count
        .store(u64::MAX, Ordering::Relaxed);
    assert_eq!(home.next_record(), None);
}
