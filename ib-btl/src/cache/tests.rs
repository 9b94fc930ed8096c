//! The cache over the fabric, with memory that is unmapped and mapped again.

#![allow(unsafe_code)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::*;
use crate::fabric::{Fabric, FabricNic};
use crate::raw::watch::tests::ALONE;

const PAGE: usize = 4096;

type Alone = std::sync::MutexGuard<'static, ()>;

fn setup(limit: u64) -> Option<(Alone, Fabric, FabricNic, Cache)> {
    let alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let watch = match Watch::new() {
        Ok(watch) => watch,
        Err(error) => {
            assert!(
                std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
                "no userfaultfd: {error}"
            );
            println!("SKIPPED: no userfaultfd: {error}");
            return None;
        }
    };
    let fabric = Fabric::new();
    let (_, nic) = fabric.nic().unwrap();
    Some((alone, fabric, nic, Cache::new(Some(watch), limit)))
}

/// Maps pages of this test, at a given address if it is not 0.
fn map(at: usize, pages: usize) -> usize {
    let fixed = if at == 0 {
        MapFlags::empty()
    } else {
        MapFlags::FIXED
    };
    let (prot, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | fixed,
    );
    // SAFETY: new memory, or in place of this test's own.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::without_provenance_mut(at),
            pages * PAGE,
            prot,
            flags,
        )
    }
    .unwrap();
    start.expose_provenance()
}

fn unmap(at: usize, pages: usize) {
    // SAFETY: this test's own memory.
    unsafe { munmap(std::ptr::with_exposed_provenance_mut(at), pages * PAGE) }.unwrap();
}

/// Uses a range once. Returns true if it was registered for this use.
fn used(cache: &mut Cache, nic: &mut FabricNic, at: usize, length: usize) -> bool {
    let before = cache.stats().registered;
    // SAFETY: the test's own memory.
    let held = unsafe { cache.acquire(nic, at, length) }.unwrap();
    cache.release(nic, held.id);
    cache.stats().registered > before
}

#[test]
fn a_buffer_used_a_thousand_times_is_registered_once() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 64);
    for _ in 0..1000 {
        used(&mut cache, &mut nic, at + 100, 50 * PAGE);
    }
    assert_eq!((fabric.registrations(0), cache.stats().hits), (1, 999));
    unmap(at, 64);
}

#[test]
fn contained_disjoint_and_overlapping_ranges() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 100);
    let page = |number: usize| at + number * PAGE;
    assert!(used(&mut cache, &mut nic, page(10), 10 * PAGE));
    // Inside, up to both limits, and one byte longer.
    for (from, length) in [
        (page(10), 1),
        (page(19), PAGE),
        (page(12) + 5, 3 * PAGE),
        (page(10), 10 * PAGE),
    ] {
        assert!(!used(&mut cache, &mut nic, from, length));
    }
    // Disjoint: before, after, adjacent.
    assert!(
        used(&mut cache, &mut nic, page(5), 5 * PAGE)
            && used(&mut cache, &mut nic, page(20), 5 * PAGE)
    );
    assert_eq!(fabric.registered(0).1, 3);
    // Overlapping two: coexists with them, and all are found.
    assert!(used(&mut cache, &mut nic, page(8), 4 * PAGE));
    assert_eq!(fabric.registered(0).1, 4);
    for (from, pages) in [(5, 5), (10, 10), (20, 5), (8, 4)] {
        assert!(!used(&mut cache, &mut nic, page(from), pages * PAGE));
    }
    // Containing all of them but the last: replaces them.
    assert!(used(&mut cache, &mut nic, page(4), 18 * PAGE));
    assert_eq!(fabric.registered(0).1, 2);
    assert!(
        !used(&mut cache, &mut nic, page(8), 4 * PAGE)
            && !used(&mut cache, &mut nic, page(20), 5 * PAGE)
    );
    unmap(at, 100);
}

/// Only a full device or limit evicts others.
#[test]
fn memory_that_cannot_be_registered_evicts_nothing() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 64);
    assert!(used(&mut cache, &mut nic, at, 10 * PAGE));
    for (errno, kept) in [(libc::EFAULT, 1), (libc::ENOMEM, 0)] {
        fabric.limit(0, 0);
        fabric.refuse_by(0, errno);
        // SAFETY: the test's own memory.
        assert!(unsafe { cache.acquire(&mut nic, at + 20 * PAGE, PAGE) }.is_err());
        assert_eq!(fabric.registered(0).1, kept);
    }
    unmap(at, 64);
}

#[test]
fn a_registration_in_use_outlives_its_tree_entry() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 10);
    // SAFETY: the test's own memory.
    let (one, two) = unsafe {
        (
            cache.acquire(&mut nic, at, PAGE).unwrap(),
            cache.acquire(&mut nic, at, PAGE).unwrap(),
        )
    };
    assert_eq!(one, two);
    assert!(used(&mut cache, &mut nic, at, 10 * PAGE));
    cache.release(&mut nic, one.id);
    assert_eq!(fabric.registered(0).1, 2, "still in use by the second");
    cache.release(&mut nic, two.id);
    assert_eq!(fabric.registered(0).1, 1);
    cache.release(&mut nic, two.id);
    unmap(at, 10);
}

#[test]
fn the_least_recently_used_are_evicted_at_the_limit() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(10 * PAGE as u64) else {
        return;
    };
    let at = map(0, 100);
    let page = |number: usize| at + number * PAGE;
    for number in [0, 10, 20] {
        assert!(used(&mut cache, &mut nic, page(number), 3 * PAGE));
    }
    assert!(!used(&mut cache, &mut nic, page(0), 3 * PAGE));
    assert!(
        used(&mut cache, &mut nic, page(30), 3 * PAGE),
        "the one at 10 is evicted"
    );
    assert!(
        !used(&mut cache, &mut nic, page(0), 3 * PAGE)
            && !used(&mut cache, &mut nic, page(20), 3 * PAGE)
    );
    assert_eq!(
        (cache.stats().evicted, fabric.registered(0).0),
        (1, 9 * PAGE as u64)
    );
    // Longer than the limit: registered for one use.
    assert!(
        used(&mut cache, &mut nic, page(40), 11 * PAGE)
            && used(&mut cache, &mut nic, page(40), 11 * PAGE)
    );
    assert!(fabric.registered(0).0 <= 10 * PAGE as u64);
    unmap(at, 100);
}

#[test]
fn unused_registrations_are_evicted_before_a_refusal_is_reported() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 100);
    fabric.limit(0, 20 * PAGE as u64);
    assert!(used(&mut cache, &mut nic, at, 15 * PAGE));
    assert!(
        used(&mut cache, &mut nic, at + 50 * PAGE, 15 * PAGE),
        "after the first was evicted"
    );
    assert_eq!(cache.stats().evicted, 1);
    // SAFETY: the test's own memory.
    let refused = unsafe { cache.acquire(&mut nic, at, 30 * PAGE) };
    let Err(RegisterError::Refused(text)) = refused else {
        panic!("{refused:?}")
    };
    assert!(text.contains("limit of locked memory"), "{text}");
    unmap(at, 100);
}

/// Five ways to replace the pages at an address between two uses.
#[test]
fn replaced_memory_is_registered_again() {
    let Some((_alone, _, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 16);
    let ways: [(&str, &dyn Fn()); 5] = [
        ("unmapped and mapped", &|| {
            unmap(at, 16);
            map(at, 16);
        }),
        ("mapped over", &|| {
            map(at, 16);
        }),
        ("a page in the middle", &|| {
            map(at + 8 * PAGE, 1);
        }),
        ("emptied", &|| {
            // SAFETY: the test's own memory.
            unsafe {
                madvise(
                    std::ptr::with_exposed_provenance_mut(at),
                    16 * PAGE,
                    Advice::LinuxDontNeed,
                )
            }
            .unwrap();
        }),
        ("a page emptied", &|| {
            let page = std::ptr::with_exposed_provenance_mut(at + 3 * PAGE);
            // SAFETY: the test's own memory.
            unsafe { madvise(page, PAGE, Advice::LinuxDontNeed) }.unwrap();
        }),
    ];
    for (name, way) in ways {
        // Maps everything again.
        map(at, 16);
        assert!(
            used(&mut cache, &mut nic, at, 16 * PAGE),
            "{name}: mapped over"
        );
        assert!(
            !used(&mut cache, &mut nic, at, 16 * PAGE),
            "{name}: nothing happened"
        );
        way();
        assert!(used(&mut cache, &mut nic, at, 16 * PAGE), "{name}");
    }
    unmap(at, 16);
}

/// An unmapped range must not become valid again when a larger range over it is watched.
#[test]
fn a_stale_range_is_not_found_under_a_new_one() {
    let Some((_alone, _, mut nic, mut cache)) = setup(1 << 30) else {
        return;
    };
    let at = map(0, 32);
    assert!(used(&mut cache, &mut nic, at, 4 * PAGE));
    unmap(at, 32);
    map(at, 32);
    assert!(used(&mut cache, &mut nic, at + 2 * PAGE, 20 * PAGE));
    assert!(used(&mut cache, &mut nic, at, 4 * PAGE));
    // The same holds when a neighbour grows into its place.
    let at = map(0, 32);
    unmap(at + 16 * PAGE, 16);
    map(at + 16 * PAGE, 16);
    assert!(
        used(&mut cache, &mut nic, at, 4 * PAGE)
            && used(&mut cache, &mut nic, at + 16 * PAGE, 4 * PAGE)
    );
    unmap(at + 4 * PAGE, 28);
    // SAFETY: the test's own memory; it may only grow in place.
    let grown = unsafe {
        rustix::mm::mremap(
            std::ptr::with_exposed_provenance_mut(at),
            4 * PAGE,
            32 * PAGE,
            rustix::mm::MremapFlags::empty(),
        )
    };
    if grown.is_ok() {
        assert!(used(&mut cache, &mut nic, at + 16 * PAGE, 4 * PAGE));
        unmap(at, 32);
    }
}

/// While another thread frees and allocates all the time, nothing hangs and every use is counted.
#[test]
fn other_threads_may_free_concurrently() {
    let Some((_alone, fabric, mut nic, mut cache)) = setup(1 << 20) else {
        return;
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(std::hint::black_box(vec![1u8; 700_000]));
            }
        });
        for round in 0..300 {
            let buffer = vec![round as u8; 200_000 + round];
            used(
                &mut cache,
                &mut nic,
                buffer.as_ptr().expose_provenance(),
                buffer.len(),
            );
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let stats = cache.stats();
    assert_eq!(stats.registered + stats.hits, 300);
    assert!(fabric.registered(0).0 <= 1 << 20);
}

#[test]
fn without_a_watch_everything_is_registered_for_one_use() {
    let fabric = Fabric::new();
    let (_, mut nic) = fabric.nic().unwrap();
    let mut cache = Cache::new(None, 1 << 30);
    let buffer = [0u8; 100];
    for _ in 0..3 {
        assert!(used(
            &mut cache,
            &mut nic,
            buffer.as_ptr().expose_provenance(),
            100
        ));
    }
    assert_eq!(fabric.registered(0), (0, 0));
}
