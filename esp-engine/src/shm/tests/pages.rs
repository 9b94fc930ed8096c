//! Files and seals, doorbells, events, the sleep flag, states.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use esp_proto::{CloseReason, ResetReason};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use shmem::sync::Ordering;
use shmem::{FileError, page_size};

use super::super::layout::{ClientWords, EngineWords, RegionHeader};
use super::super::{
    ClientPage, Doorbell, EnginePage, EngineView, Events, Region, RegionError, RingSizes, SLOTS,
    SlotSet, Status, StreamState, Wake, Woken,
};
use super::pair;

const FIXED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

fn doorbells() -> (
    Doorbell,
    Arc<ClientPage>,
    Arc<ClientPage>,
    Events,
    EnginePage,
    Arc<ClientPage>,
) {
    let (page, fd) = ClientPage::create().expect("memory");
    let program = ClientPage::open(fd.as_fd()).expect("own page");
    let (engine, fd) = EnginePage::create().expect("memory");
    let view = EngineView::open(fd.as_fd()).expect("own page");
    let doorbell = Doorbell::new(program.clone(), view);
    (
        doorbell,
        page.clone(),
        page,
        Events::new(program.clone()),
        engine,
        program,
    )
}

fn drained(bank: &ClientPage) -> Vec<u16> {
    let mut slots = Vec::new();
    bank.drain_doorbell(&SlotSet::ALL, |slot| slots.push(slot));
    slots
}

#[test]
fn each_slot_is_found_once_for_any_number_of_rings() {
    let (doorbell, bank, ..) = doorbells();
    assert!(!bank.any_doorbell() && drained(&bank).is_empty());
    for slot in [4095, 0, 63, 64, 0, 1000, 4095] {
        assert!(!doorbell.ring(slot), "the engine is awake");
    }
    assert!(bank.any_doorbell());
    assert_eq!(drained(&bank), [0, 63, 64, 1000, 4095]);
    assert!(!bank.any_doorbell() && drained(&bank).is_empty());
    for slot in 0..SLOTS as u16 {
        assert!(!doorbell.ring(slot));
    }
    assert_eq!(drained(&bank), (0..SLOTS as u16).collect::<Vec<_>>());
}

#[test]
fn only_owned_slots_are_visited() {
    let (doorbell, bank, ..) = doorbells();
    for slot in 0..SLOTS as u16 {
        assert!(!doorbell.ring(slot));
    }
    let mut owned = SlotSet::EMPTY;
    for slot in [70, 4095] {
        owned.set(slot, true);
    }
    owned.set(71, true);
    owned.set(71, false);
    let mut visits = Vec::new();
    bank.drain_doorbell(&owned, |slot| visits.push(slot));
    assert_eq!(visits, [70, 4095]);
    assert!(!bank.any_doorbell() && drained(&bank).is_empty());
}

#[test]
fn the_first_ring_of_a_sleeping_engine_needs_the_eventfd() {
    let (doorbell, bank, _, _, engine, _) = doorbells();
    engine.going_to_sleep();
    assert!(!bank.any_doorbell());
    assert!(doorbell.ring(5));
    assert!(!doorbell.ring(5), "only the first ringer writes it");
    assert!(
        doorbell.ring(6),
        "another slot is unaware of the first ring"
    );
    assert!(bank.any_doorbell());
    engine.awake();
    assert_eq!(drained(&bank), [5, 6]);
    assert!(!doorbell.ring(5));
}

#[test]
fn events_need_the_eventfd_only_when_none_is_pending() {
    let (_, _, raise, mut events, ..) = doorbells();
    assert!(raise.raise(9));
    assert!(!raise.raise(9) && !raise.raise(4000));
    let mut found = Vec::new();
    events.drain(|slot| found.push(slot));
    assert_eq!(found, [9, 4000]);
    assert!(raise.raise(4000));
}

#[test]
fn a_program_that_polls_is_not_notified() {
    let (_, _, raise, mut events, ..) = doorbells();
    let polled = |events: &mut Events| {
        let mut found = Vec::new();
        events.poll(|slot| found.push(slot));
        found
    };
    events.awake();
    assert!(!raise.raise(9) && !raise.raise(4095) && !raise.raise(4040));
    assert!(!events.try_sleep(), "a bit is set");
    assert!(!raise.raise(70), "still awake");
    assert_eq!(polled(&mut events), [9, 70, 4040, 4095]);
    assert_eq!(polled(&mut events), []);
    // An event in the last word alone, which shares its summary bit.
    assert!(!raise.raise(4095) && !events.try_sleep());
    assert_eq!(polled(&mut events), [4095]);
    for slot in [9, 4095] {
        assert!(events.try_sleep());
        assert!(raise.raise(slot), "asleep: notified once");
        assert!(!raise.raise(slot));
        events.awake();
        assert_eq!(polled(&mut events), [slot]);
    }
}

#[test]
fn slots_beyond_the_bitmap_stay_within_it() {
    let (doorbell, bank, raise, ..) = doorbells();
    for slot in [4096, 4097, u16::MAX] {
        let _ = doorbell.ring(slot);
        let _ = raise.raise(slot);
    }
    assert_eq!(drained(&bank), [0, 1, 4095]);
}

#[test]
fn garbage_bits_are_bounded_work() {
    let (_, bank, .., page) = doorbells();
    let words = &page.words.doorbell;
    words.summary.0.store(u64::MAX, Ordering::Relaxed);
    assert!(drained(&bank).is_empty());
    words.summary.0.store(u64::MAX, Ordering::Relaxed);
    for word in &words.words.0 {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!(drained(&bank).len(), SLOTS);
}

#[test]
fn programs_cannot_write_the_engine_page() {
    let (engine, fd) = EnginePage::create().expect("memory");
    let view = EngineView::open(fd.as_fd()).expect("own page");
    let len = page_size();
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is asked for; the mapping is not used (and not made).
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            writable,
            MapFlags::SHARED,
            &fd,
            0,
        )
    };
    assert_eq!(mapped.expect_err("sealed"), Errno::PERM);
    let file = File::from(fd.try_clone().expect("a descriptor"));
    assert_eq!(
        (&file).write(b"x").expect_err("sealed").raw_os_error(),
        Some(Errno::PERM.raw_os_error())
    );
    assert!(file.set_len(0).is_err());
    // SAFETY: no address is asked for.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::SHARED,
            &fd,
            0,
        )
    };
    let base = base.expect("readable");
    // SAFETY: our own mapping, which nothing else uses.
    let upgraded =
        unsafe { rustix::mm::mprotect(base, len, MprotectFlags::READ | MprotectFlags::WRITE) };
    assert_eq!(
        upgraded.expect_err("not writable later either"),
        Errno::ACCESS
    );
    // SAFETY: our own mapping, used no more.
    unsafe { rustix::mm::munmap(base, len) }.expect("mapped");
    assert!(!view.asleep());
    engine.going_to_sleep();
    assert!(view.asleep(), "the engine's own mapping still writes");
}

#[test]
fn the_length_of_shared_files_is_fixed() {
    let sizes = RingSizes { tx: 4096, rx: 8192 };
    let (_region, fd) = Region::create(sizes).expect("memory");
    let (_page, page_fd) = ClientPage::create().expect("memory");
    for fd in [fd, page_fd] {
        let seals = rustix::fs::fcntl_get_seals(&fd).expect("a memory file");
        assert!(seals.contains(FIXED), "{seals:?}");
        assert!(
            rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE).is_err(),
            "no seal can be added"
        );
        let file = File::from(fd);
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    }
}

fn memory_file(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("memory");
    rustix::fs::ftruncate(&fd, len).expect("length");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

#[test]
fn files_of_another_kind_are_refused() {
    let page = page_size() as u64;
    let sizes = RingSizes { tx: 4096, rx: 4096 };
    let len = page + 8192;
    let open = |fd: &OwnedFd| Region::open(fd.as_fd(), sizes).expect_err("refused");
    assert!(matches!(
        open(&memory_file(len, SealFlags::empty())),
        RegionError::File(FileError::NotSealed)
    ));
    assert!(matches!(
        open(&memory_file(len, SealFlags::SHRINK)),
        RegionError::File(FileError::NotSealed)
    ));
    assert!(matches!(
        open(&memory_file(len, FIXED)),
        RegionError::BadHeader
    ));
    assert!(matches!(
        open(&memory_file(len - 1, FIXED)),
        RegionError::File(FileError::WrongLength { .. })
    ));
    assert!(matches!(
        open(&File::open("/dev/null").expect("null").into()),
        RegionError::File(FileError::NotSealed)
    ));
    let one = memory_file(page, FIXED);
    assert!(matches!(
        ClientPage::open(one.as_fd()),
        Err(RegionError::BadHeader)
    ));
    assert!(matches!(
        EngineView::open(one.as_fd()),
        Err(RegionError::BadHeader)
    ));
    let (_page, client) = ClientPage::create().expect("memory");
    assert!(matches!(
        EngineView::open(client.as_fd()),
        Err(RegionError::BadHeader)
    ));
    assert!(
        size_of::<RegionHeader>()
            .max(size_of::<ClientWords>())
            .max(size_of::<EngineWords>())
            <= 4096
    );
}

#[test]
fn a_ring_is_mapped_twice_and_rings_do_not_overlap() {
    let (engine, program) = pair(4096, 8192);
    let rings = [(engine.tx(), program.tx()), (engine.rx(), program.rx())];
    for (number, (here, there)) in rings.into_iter().enumerate() {
        for index in 0..here.capacity() as u64 {
            let mark = [number as u8 * 100 + 1 + (index % 97) as u8];
            // SAFETY: one thread, and no other user of the ring.
            unsafe { here.store(index, &mark) };
        }
        let mut both = vec![0; here.capacity()];
        // SAFETY: as above; a whole ring, starting at its middle.
        unsafe { there.load(here.capacity() as u64 / 2, &mut both) };
        let half = here.capacity() / 2;
        for (i, byte) in both.iter().enumerate() {
            let index = (half + i) % here.capacity();
            assert_eq!(*byte, number as u8 * 100 + 1 + (index % 97) as u8);
        }
    }
    let mut first = [0; 1];
    // SAFETY: as above.
    unsafe { engine.tx().load(0, &mut first) };
    assert_eq!(first, [1], "the other ring's bytes are elsewhere");
    let header = engine.words();
    assert_eq!(header.waiting.0.load(Ordering::Relaxed), 0);
    assert_eq!(header.tx_head.0.count.load(Ordering::Relaxed), 0);
}

#[test]
fn states_pass_unchanged() {
    let (engine, program) = pair(4096, 4096);
    let (engine, program) = (engine, Status::new(program));
    assert_eq!(program.state(), StreamState::Connecting);
    let resets = [
        ResetReason::Refused,
        ResetReason::Version(7),
        ResetReason::BadKey,
        ResetReason::Aborted,
        ResetReason::ProgramDied,
        ResetReason::Resources,
        ResetReason::Protocol,
        ResetReason::TimedOut,
        ResetReason::Unknown,
        ResetReason::Shutdown,
        ResetReason::Other(11),
        ResetReason::Other(255),
    ];
    let mut states = vec![StreamState::Connecting, StreamState::Open];
    let plain = [
        CloseReason::Finished,
        CloseReason::TimedOut,
        CloseReason::ConnectTimedOut,
    ];
    states.extend(plain.map(StreamState::Closed));
    states.extend(resets.map(|r| StreamState::Closed(CloseReason::Reset(r))));
    states.extend(resets.map(|r| StreamState::Closed(CloseReason::Aborted(r))));
    for state in states {
        engine.set_state(state);
        assert_eq!(program.state(), state);
    }
}

#[test]
fn any_state_word_can_be_decoded() {
    let (engine, program) = pair(4096, 4096);
    let status = Status::new(program);
    for word in (0..0x0001_0000).chain([u64::MAX, 1 << 63]) {
        engine.words().engine.0.state.store(word, Ordering::Relaxed);
        let over = matches!(status.state(), StreamState::Closed(_));
        assert_eq!(over, word & 0xff > 1, "{word:#x}");
    }
}

#[test]
fn each_request_for_a_notification_gets_one() {
    let (engine, program) = pair(4096, 4096);
    let (engine, program) = (engine, Status::new(program));
    assert_eq!(engine.wake(Wake::Readable), Woken::default());
    program.arm_fd(Wake::Readable);
    assert_eq!(engine.wake(Wake::Writable), Woken::default());
    assert_eq!(
        engine.wake(Wake::Readable),
        Woken {
            futex: false,
            notify: true
        }
    );
    assert_eq!(engine.wake(Wake::Readable), Woken::default());
    for what in [Wake::Readable, Wake::Writable, Wake::State] {
        program.arm_fd(what);
        assert!(engine.wake(Wake::All).notify);
        assert_eq!(engine.wake(what), Woken::default());
    }
}
