//! Accesses to the memory of endpoints.

use std::sync::Arc;

use crate::common::open::{endpoints_with, reports};
use p2p::{
    Atomic, AtomicOp, AtomicType, Completion, Ended, Endpoint, Error, Exposure, Refusal, Regions,
    Remote,
};

const KEY: u64 = 0xABCD;
const BASE: u64 = 1 << 40;

/// Two endpoints, of which the first has the second as its peer 1, and memory that all expose.
struct Pair {
    all: Vec<Endpoint>,
    regions: Arc<Regions>,
    memory: &'static mut [u8],
}

fn pair(length: usize, (readable, writable): (bool, bool)) -> Pair {
    let regions = Arc::new(Regions::default());
    let (all, _) = endpoints_with(2, &regions);
    assert_eq!(all[0].add_peer(101, all[1].addresses()), Ok(1));
    let memory = Box::leak((0..length).map(|at| at as u8).collect());
    let exposure = Exposure {
        at: memory.as_mut_ptr(),
        length,
        address: BASE,
        readable,
        writable,
    };
    // SAFETY: it is never freed, and the tests read it after the accesses.
    assert!(unsafe { regions.expose(KEY, exposure) });
    Pair {
        all,
        regions,
        memory,
    }
}

fn at(peer: u32, address: u64) -> Remote {
    Remote {
        peer,
        key: KEY,
        address,
    }
}

impl Pair {
    fn write(&self, bytes: &'static [u8], to: &Remote, cookie: u64) {
        // SAFETY: static.
        unsafe { self.all[0].write((bytes.as_ptr(), bytes.len()), to, None, cookie) }.unwrap();
    }

    /// Reads, and returns the completion and the bytes.
    fn read(&self, length: usize, from: &Remote) -> (Completion, Vec<u8>) {
        let mut bytes = vec![0; length];
        // SAFETY: the bytes are kept until the completion is reported.
        unsafe { self.all[0].read((bytes.as_mut_ptr(), length), from, 9) }.unwrap();
        (self.report(), bytes)
    }

    fn report(&self) -> Completion {
        reports(&self.all, 1).remove(0)
    }

    fn atomic(&self, op: AtomicOp, operands: &[u64], to: &Remote) -> (Completion, u64) {
        let mut old = 0u64;
        let operands: Vec<u8> = operands.iter().flat_map(|one| one.to_ne_bytes()).collect();
        let atomic = Atomic {
            op,
            number: AtomicType::U64,
            length: 8,
            operands: &operands,
        };
        // SAFETY: the result is kept until the completion is reported.
        unsafe { self.all[0].atomic(&atomic, (&raw mut old).cast(), to, 9) }.unwrap();
        (self.report(), old)
    }
}

fn refused(completion: &Completion) -> Option<Refusal> {
    match completion.result {
        Err(Error::Refused(refusal)) => Some(refusal),
        _ => None,
    }
}

#[test]
fn short_and_long_accesses_reach_the_memory() {
    for peer in [1, 0] {
        let pair = pair(1 << 20, (true, true));
        let long: &'static [u8] = Box::leak(vec![0xEE; 300_001].into_boxed_slice());
        pair.write(b"short", &at(peer, BASE + 3), 1);
        pair.write(long, &at(peer, BASE + 1000), 2);
        pair.write(b"", &at(peer, BASE + (1 << 20)), 3);
        let all = reports(&pair.all, 3);
        let cookies: Vec<u64> = all.iter().map(|one| one.cookie).collect();
        assert_eq!(cookies, [1, 2, 3]);
        assert!(
            all.iter()
                .all(|one| one.result.is_ok() && one.ended == Ended::Accessed)
        );
        let (end, bytes) = pair.read(600_000, &at(peer, BASE + 1));
        assert!(end.result.is_ok(), "{end:?}");
        assert!(bytes == pair.memory[1..600_001]);
        assert_eq!(&bytes[2..7], b"short");
        assert_eq!(bytes[998..1000], [0xE7, 0xEE]);
        assert_eq!(bytes[999..301_000], *long);
        assert!(pair.read(0, &at(peer, BASE)).0.result.is_ok());
    }
}

#[test]
fn refused_accesses_touch_nothing() {
    for peer in [1, 0] {
        let pair = pair(200_000, (true, true));
        let before = pair.memory.to_vec();
        let long: &'static [u8] = Box::leak(vec![0xEE; 150_000].into_boxed_slice());
        let unknown = Remote {
            key: KEY + 1,
            ..at(peer, BASE)
        };
        let places = [
            (unknown, Refusal::UnknownKey),
            (at(peer, BASE - 1), Refusal::Outside),
            (at(peer, BASE + 50_001), Refusal::Outside),
            (at(peer, u64::MAX), Refusal::Outside),
        ];
        for (place, why) in places {
            pair.write(long, &place, 1);
            assert_eq!(refused(&pair.report()), Some(why));
            let (end, bytes) = pair.read(150_000, &place);
            assert_eq!((refused(&end), bytes[0]), (Some(why), 0));
        }
        let wrong = at(peer, BASE + 199_993);
        let (end, old) = pair.atomic(AtomicOp::Write, &[1], &wrong);
        assert_eq!((refused(&end), old), (Some(Refusal::Outside), 0));
        assert!(*pair.memory == before);
        pair.regions.withdraw(KEY);
        pair.write(b"late", &at(peer, BASE), 1);
        assert_eq!(refused(&pair.report()), Some(Refusal::UnknownKey));
        assert!(*pair.memory == before);
    }
}

#[test]
fn rights_allow_what_they_say() {
    let readable = pair(64, (true, false));
    readable.write(b"no", &at(1, BASE), 1);
    assert_eq!(refused(&readable.report()), Some(Refusal::NotAllowed));
    assert!(readable.read(64, &at(1, BASE)).0.result.is_ok());
    let (end, _) = readable.atomic(AtomicOp::Sum, &[1], &at(1, BASE));
    assert_eq!(refused(&end), Some(Refusal::NotAllowed));
    let (end, old) = readable.atomic(AtomicOp::Read, &[], &at(1, BASE));
    assert_eq!((end.result, old), (Ok(()), 0x0706_0504_0302_0100));
    let writable = pair(64, (false, true));
    let (end, bytes) = writable.read(64, &at(1, BASE));
    assert_eq!(
        (refused(&end), bytes),
        (Some(Refusal::NotAllowed), vec![0; 64])
    );
}

#[test]
fn atomic_operations_are_executed_once_and_in_order() {
    for peer in [1, 0] {
        let pair = pair(64, (true, true));
        let place = at(peer, BASE + 8);
        assert_eq!(
            pair.atomic(AtomicOp::Write, &[40], &place).1,
            0x0F0E_0D0C_0B0A_0908
        );
        assert_eq!(pair.atomic(AtomicOp::Sum, &[2], &place).1, 40);
        assert_eq!(pair.atomic(AtomicOp::SwapEqual, &[5, 41], &place).1, 42);
        assert_eq!(pair.atomic(AtomicOp::SwapEqual, &[6, 42], &place).1, 42);
        assert_eq!(pair.atomic(AtomicOp::Read, &[], &place).1, 6);
        let float = Atomic {
            op: AtomicOp::BitOr,
            number: AtomicType::F64,
            length: 8,
            operands: &[0; 8],
        };
        let none = std::ptr::null_mut();
        // SAFETY: there is no result.
        unsafe { pair.all[0].atomic(&float, none, &place, 1) }.unwrap();
        assert_eq!(refused(&pair.report()), Some(Refusal::Unsupported));
        let odd = Atomic { length: 7, ..float };
        // SAFETY: as above.
        let odd = unsafe { pair.all[0].atomic(&odd, none, &place, 1) };
        assert!(matches!(odd, Err(Error::InvalidArgument(_))));
    }
}

/// More accesses than may be without a result.
#[test]
fn many_accesses_wait_for_results() {
    let pair = pair(64, (true, true));
    let one = 1u64.to_ne_bytes();
    let add = Atomic {
        op: AtomicOp::Sum,
        number: AtomicType::U64,
        length: 8,
        operands: &one,
    };
    let count = 5000;
    for cookie in 0..count {
        let none = std::ptr::null_mut();
        // SAFETY: there is no result.
        unsafe { pair.all[0].atomic(&add, none, &at(1, BASE), cookie) }.unwrap();
    }
    let all = reports(&pair.all, count as usize);
    assert!(
        all.iter()
            .zip(0..)
            .all(|(one, cookie)| one.cookie == cookie && one.result.is_ok())
    );
    let (_, sum) = pair.atomic(AtomicOp::Read, &[], &at(1, BASE));
    assert_eq!(sum, 0x0706_0504_0302_0100 + count);
}

#[test]
fn numbers_and_reported_regions_are_reported_at_the_target() {
    let pair = pair(64, (true, true));
    let served = |count| {
        let both = [pair.all[1].clone(), pair.all[0].clone()];
        reports(&both, count)
    };
    pair.write(b"silent", &at(1, BASE), 1);
    pair.report();
    // SAFETY: static.
    unsafe { pair.all[0].write((b"x".as_ptr(), 1), &at(1, BASE), Some(7), 2) }.unwrap();
    let with_number = served(1).remove(0);
    let written = Ended::Served {
        key: KEY,
        writes: true,
        atomic: false,
    };
    assert_eq!((with_number.ended, with_number.data), (written, Some(7)));
    assert_eq!((with_number.length, with_number.peer), (1, Some(1)));
    pair.regions.report(KEY);
    pair.write(b"said", &at(1, BASE), 3);
    let without_number = served(1).remove(0);
    assert_eq!(
        (
            without_number.ended,
            without_number.data,
            without_number.length
        ),
        (written, None, 4)
    );
    pair.write(b"outside", &at(1, BASE + 60), 4);
    let mut byte = 0;
    // SAFETY: kept until it is reported.
    unsafe { pair.all[0].read((&raw mut byte, 1), &at(1, BASE), 5) }.unwrap();
    let read = served(1).remove(0);
    let was_read = Ended::Served {
        key: KEY,
        writes: false,
        atomic: false,
    };
    assert_eq!(read.ended, was_read);
}

#[test]
fn accesses_of_a_dead_peer_fail() {
    let regions = Arc::new(Regions::default());
    let (all, killer) = endpoints_with(2, &regions);
    assert_eq!(all[0].add_peer(101, all[1].addresses()), Ok(1));
    static BYTES: [u8; 100_000] = [1; 100_000];
    for cookie in 0..3 {
        // SAFETY: static.
        unsafe { all[0].write((BYTES.as_ptr(), BYTES.len()), &at(1, BASE), None, cookie) }.unwrap();
    }
    killer.kill(1);
    let ends = reports(&all[..1], 3);
    assert!(
        ends.iter()
            .all(|end| matches!(end.result, Err(Error::PeerFailed { .. })))
    );
}
