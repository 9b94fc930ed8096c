//! Tests with real memory.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{
    Access, Bytes, FileError, FutexSleeper, FutexWord, Mapping, RingBytes, Shared, SharedFile,
    Spin, page_size,
};

fn mapped(len: usize) -> Arc<Mapping> {
    let file = SharedFile::create("shmem-test", len).expect("a memory file");
    file.map(0, len, Access::Write).expect("a mapping")
}

#[test]
fn the_length_never_changes() {
    let page = page_size();
    let file = SharedFile::create("shmem-test", page).expect("a memory file");
    assert!(SharedFile::open(file.as_fd(), page).is_ok());
    for len in [0, page - 1, 2 * page] {
        assert!(rustix::fs::ftruncate(&file, len as u64).is_err(), "{len}");
    }
    let found = SharedFile::open(file.as_fd(), 2 * page).expect_err("another length");
    let (expected, page) = (2 * page as u64, page as u64);
    assert_eq!(
        found,
        FileError::WrongLength {
            expected,
            found: page
        }
    );
}

#[test]
fn files_that_could_shrink_are_refused() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("unsealed", flags).expect("a memory file");
    rustix::fs::ftruncate(&fd, 4096).expect("room");
    assert_eq!(
        SharedFile::open(&fd, 4096).err(),
        Some(FileError::NotSealed)
    );
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    assert_eq!(
        SharedFile::open(&pipe, 4096).err(),
        Some(FileError::NotSealed)
    );
}

#[test]
fn a_private_file_is_written_through_one_mapping() {
    let (file, map) = SharedFile::create_private("shmem-test", page_size()).expect("a file");
    assert!(file.map(0, page_size(), Access::Write).is_err());
    let other = file
        .map(0, page_size(), Access::Read)
        .expect("a readable mapping");
    let mine = Shared::<AtomicU64>::new(&map, 8);
    // SAFETY: nothing is stored through it.
    let theirs = unsafe { Shared::<AtomicU64>::read_only(&other, 8) };
    mine.store(5, Ordering::Release);
    assert_eq!(theirs.load(Ordering::Acquire), 5);
    assert!(rustix::io::pwrite(&file, &[1], 0).is_err());
}

#[test]
fn references_outside_of_a_mapping_panic() {
    let (_file, map) = SharedFile::create_private("shmem-test", page_size()).expect("a file");
    for offset in [page_size(), page_size() - 4, 4, usize::MAX - 7] {
        let map = map.clone();
        let made = std::panic::catch_unwind(move || Shared::<AtomicU64>::new(&map, offset));
        assert!(made.is_err(), "offset {offset}");
    }
    let file = SharedFile::create("shmem-test", page_size()).expect("a file");
    let read_only = file.map(0, page_size(), Access::Read).expect("a mapping");
    let made = std::panic::catch_unwind(move || Shared::<AtomicU64>::new(&read_only, 0));
    assert!(
        made.is_err(),
        "words of a read-only mapping could be written"
    );
    assert!(file.map(page_size(), page_size(), Access::Read).is_err());
    assert!(file.map(usize::MAX, 2, Access::Read).is_err());
}

#[test]
fn a_ring_is_contiguous_across_its_end() {
    let page = page_size();
    let file = SharedFile::create("shmem-test", page).expect("a file");
    let map = file
        .map_parts(&[(0, page), (0, page)], Access::Write)
        .expect("a mapping");
    let ring = RingBytes::new(&map, 0, page);
    let index = 10 * page as u64 - 3;
    let mut read = [0; 6];
    // SAFETY: within the capacity, and no other thread has the ring.
    unsafe {
        ring.store(index, b"abcdef");
        ring.load(index, &mut read);
    }
    assert_eq!(&read, b"abcdef");
    // SAFETY: as above.
    unsafe { ring.load(index + 3, &mut read[..3]) };
    assert_eq!(&read[..3], b"def");
}

#[test]
fn stores_past_the_caches_are_stores() {
    let whole = Bytes::new(&mapped(8192), 0, 8192);
    let source: Vec<u8> = (0..4200u32).map(|i| (i % 251) as u8 | 1).collect();
    for (offset, from, length) in [
        (2048, 0, 4096),
        (2048, 3, 4096),
        (2112, 1, 64),
        (2112, 1, 63),
        (2064, 5, 4100),
        (2049, 0, 1000),
        (4096, 0, 0),
        (8192 - 192, 7, 192),
    ] {
        let body = &source[from..from + length];
        // SAFETY: no other thread or process has the bytes.
        let now = unsafe {
            whole.store(0, &[0; 8192]);
            whole.store_uncached(offset, body);
            whole.view(0, 8192).expect("inside")
        };
        assert_eq!(&now[offset..offset + length], body, "{length} at {offset}");
        let around = now[..offset].iter().chain(&now[offset + length..]);
        let changed = around.filter(|byte| **byte != 0).count();
        assert_eq!(changed, 0, "{length} at {offset}: nothing else");
    }
}

/// More threads than one call of the publisher wakes; they are all asleep before the only one.
#[test]
fn one_publication_wakes_all_sleepers() {
    let map = mapped(page_size());
    let waiting = Shared::<AtomicU32>::new(&map, 0);
    let wakes = Shared::<FutexWord>::new(&map, 64);
    let (value, checks, done) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let sleeper = FutexSleeper {
        waiting: &waiting,
        bit: 1,
        wakes: &wakes,
    };
    let reaches = |count: &AtomicU32, threads| {
        let limit = Instant::now() + Duration::from_secs(20);
        while count.load(Ordering::Acquire) < threads && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        count.load(Ordering::Acquire) >= threads
    };
    let condition = || {
        checks.fetch_add(1, Ordering::AcqRel);
        value.load(Ordering::Acquire) == 1
    };
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| {
                sleeper.wait(Spin::default(), condition, None);
                done.fetch_add(1, Ordering::AcqRel);
            });
        }
        // The second check of each is the last before it sleeps.
        let asleep = reaches(&checks, 400);
        std::thread::sleep(Duration::from_millis(100));
        value.store(1, Ordering::Release);
        wakes.bump_and_wake();
        let all = reaches(&done, 200);
        let woken = done.load(Ordering::Acquire);
        while done.load(Ordering::Acquire) < 200 {
            wakes.bump_and_wake();
            std::thread::yield_now();
        }
        assert!(asleep && all, "{woken} of 200 were woken");
    });
}

/// Only `sync.rs` and the model-only code name atomics; the models would not see others.
#[test]
fn atomics_are_named_in_one_place() {
    for (name, text) in sources() {
        let own = ["sync.rs", "tests.rs", "models.rs", "model.rs"].contains(&name.as_str());
        assert!(own || !text.contains("sync::atomic"), "{name}");
    }
}

/// Every `SYNC POINT` name of this crate occurs at least twice: once at each end.
#[test]
fn sync_points_have_two_ends() {
    let mut names = std::collections::BTreeMap::<String, usize>::new();
    for (_, text) in sources() {
        for (_, rest) in text
            .lines()
            .filter_map(|line| line.split_once("SYNC POINT "))
        {
            let name = rest.split([':', ' ', '`']).next().unwrap_or_default();
            *names.entry(name.to_owned()).or_default() += 1;
        }
    }
    for name in ["sleep", "wake-count", "asleep"] {
        assert!(
            names.get(name).is_some_and(|ends| *ends >= 2),
            "{name}: {names:?}"
        );
    }
}

fn sources() -> Vec<(String, String)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(folder).expect("the sources");
    files
        .map(|entry| {
            let entry = entry.expect("an entry");
            let text = std::fs::read_to_string(entry.path()).expect("a source file");
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect()
}

#[test]
fn shared_memory_is_not_in_core_dumps() {
    let file = SharedFile::create("not-in-core", 8192).unwrap();
    let _map = file.map(0, 8192, Access::Write).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut ours = maps
        .lines()
        .skip_while(|line| !line.contains("not-in-core"));
    let flags = ours.find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
}
