//! The conformance suite over real verbs, each rank a process. Run it where there is an RDMA
//! device: `tests/vm/run` starts it in a guest with soft-RoCE and sets `ESP_TEST_REQUIRE_RDMA`, so
//! that nothing is skipped there.
//!
//! `IB_DEVICES=rxa,rxb`: devices that the ranks use in turn. `IB_MESSAGES`: number of messages of
//! the long cases.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, Rank, SendError, Started, Tx};
use btl_conformance::suite::{self, Options, Place, ProcessHarness};
use ib_btl::{IbBtl, IbConfig};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

struct Guest(&'static str);

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

impl ProcessHarness for Guest {
    fn name(&self) -> String {
        self.0.into()
    }

    fn options(&self) -> Options {
        Options {
            messages: number("IB_MESSAGES", 2000),
            rounds: number("IB_ROUNDS", 100),
            peers: 4,
            limit: Duration::from_secs(60),
            ..Options::default()
        }
    }
}

fn config(place: &Place) -> IbConfig {
    let mut config = IbConfig::new(place.rank, place.size, place.job.as_bytes());
    config.reads = true;
    if let Ok(list) = std::env::var("IB_DEVICES") {
        let names: Vec<&str> = list.split(',').collect();
        config.device = Some(names[place.rank as usize % names.len()].into());
    }
    config
}

fn conforms(test: &'static str, change: fn(IbConfig) -> IbConfig) {
    if let Some(child) = suite::child() {
        child.run(|place| {
            let btl = IbBtl::new(change(config(place))).map_err(|e| e.to_string())?;
            Ok(Box::new(btl) as Box<dyn btl::Btl>)
        });
    }
    if let Err(why) = ib_btl::ports() {
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
            "no RDMA: {why}"
        );
        println!("SKIPPED: {why}");
        return;
    }
    suite::processes(test, &Guest(test))
        .verdict()
        .expect("conforms");
}

#[test]
fn blocks_of_each_peer() {
    conforms("blocks_of_each_peer", |config| IbConfig {
        held_from: Some(2000),
        ..config
    });
}

#[test]
fn shared_blocks() {
    conforms("shared_blocks", IbConfig::shared);
}

/// Numbers that arrived, in order.
#[derive(Default)]
struct Numbers(Vec<u32>, Vec<PeerError>);

impl Events for Numbers {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], body: &[u8]) {
        self.0
            .extend(body.first_chunk().map(|four| u32::from_le_bytes(*four)));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, error: PeerError) {
        self.1.push(error);
    }
}

/// As many messages as there are shared blocks arrive at a process that does not poll: the device
/// has room for all their completions.
#[test]
fn a_late_process_finds_all_its_shared_blocks_filled() {
    if let Err(why) = ib_btl::ports() {
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
            "no RDMA: {why}"
        );
        println!("SKIPPED: {why}");
        return;
    }
    let make = |rank| {
        let place = Place {
            rank,
            size: 2,
            job: format!("late-{}", std::process::id()),
            case: String::new(),
        };
        let mut config = config(&place).shared();
        // Well above the number that devices add to a requested size.
        (config.shared_blocks, config.add_wait) = (2000, Duration::ZERO);
        (
            IbBtl::new(config.clone()).expect("a transport"),
            config.shared_blocks as u32,
        )
    };
    let ((mut early, blocks), (mut late, _)) = (make(0), make(1));
    let addresses = [early.address(), late.address()];
    early.add_peer(1, &addresses[1]).expect("reached");
    late.add_peer(0, &addresses[0]).expect("reached");
    let (mut of_early, mut of_late) = (Numbers::default(), Numbers::default());
    let begin = Instant::now();
    for number in 0..blocks + 10 {
        // It polls once, to connect, and again when all blocks but a few are full.
        let polls = number == 0 || number + 40 > blocks;
        while early.send(1, b"", &[IoSlice::new(&number.to_le_bytes())]) == Err(SendError::Busy) {
            early.progress(&mut of_early);
            if polls {
                late.progress(&mut of_late);
            }
            assert!(
                begin.elapsed().as_secs() < 60,
                "hangs at {number}: {:?} {:?}",
                of_early.1,
                of_late.1
            );
        }
    }
    while of_late.0.len() < blocks as usize + 10 {
        early.progress(&mut of_early);
        late.progress(&mut of_late);
        assert!(
            begin.elapsed().as_secs() < 60,
            "{} arrived: {:?}",
            of_late.0.len(),
            of_late.1
        );
    }
    assert!(of_late.0.iter().copied().eq(0..blocks + 10));
    assert_eq!((of_early.1, of_late.1), (vec![], vec![]));
}

/// Two transports of one process, used in turn.
struct Pair {
    ends: [IbBtl; 2],
    done: Vec<u64>,
    failed: Vec<PeerError>,
}

struct Collect<'a>(&'a mut Vec<u64>, &'a mut Vec<PeerError>);

impl Events for Collect<'_> {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, _: &[u8], _: &[u8]) {}
    fn completed(&mut self, _: &mut dyn Tx, token: u64, result: Result<(), PeerError>) {
        self.0.push(token);
        self.1.extend(result.err());
    }
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, error: PeerError) {
        self.1.push(error);
    }
}

impl Pair {
    fn progress(&mut self) {
        for end in &mut self.ends {
            end.progress(&mut Collect(&mut self.done, &mut self.failed));
        }
        assert!(self.failed.is_empty(), "{:?}", self.failed);
    }

    /// Puts `from` of the first into `to` of the second, and waits.
    fn put(&mut self, from: (*mut u8, usize), to: (*mut u8, usize)) {
        let begin = Instant::now();
        // SAFETY: this test's own memory, which stays until the put completes.
        let region = unsafe { self.ends[1].register(to.0, to.1) }.expect("registers");
        // SAFETY: likewise.
        let put =
            |pair: &mut Pair| unsafe { pair.ends[0].put(1, from.0, from.1, &region.key, 0, 1) };
        loop {
            match put(self) {
                Ok(Started::Pending) => break,
                Err(SendError::Busy) => self.progress(),
                other => panic!("{other:?}"),
            }
        }
        while self.done.pop().is_none() {
            self.progress();
            assert!(begin.elapsed().as_secs() < 60, "hangs");
        }
        self.ends[1].deregister(region.handle);
    }
}

const PAGE: usize = 4096;

/// Maps pages of this process, at a given address if it is not null.
fn map(at: *mut u8, pages: usize) -> *mut u8 {
    let fixed = if at.is_null() {
        MapFlags::empty()
    } else {
        MapFlags::FIXED
    };
    let (prot, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | fixed,
    );
    // SAFETY: new memory, or in place of this test's own.
    unsafe { mmap_anonymous(at.cast(), pages * PAGE, prot, flags) }
        .expect("maps")
        .cast()
}

/// Returns two connected transports of this process.
fn pair(name: &str) -> Pair {
    let make = |rank| {
        let job = format!("{name}-{}", std::process::id());
        let mut config = config(&Place {
            rank,
            size: 2,
            job,
            case: String::new(),
        });
        (config.cache_bytes, config.add_wait) = (8 << 20, Duration::ZERO);
        IbBtl::new(config).expect("a transport")
    };
    let mut pair = Pair {
        ends: [make(0), make(1)],
        done: Vec::new(),
        failed: Vec::new(),
    };
    let addresses = [pair.ends[0].address(), pair.ends[1].address()];
    pair.ends[0].add_peer(1, &addresses[1]).expect("reached");
    pair.ends[1].add_peer(0, &addresses[0]).expect("reached");
    pair
}

/// A process that forks keeps the pages known to the device, and its child gets copies: data
/// written afterwards is the data that arrives, visibly to this process. The transport's own blocks
/// behave alike.
#[test]
fn a_fork_leaves_registered_memory_with_its_process() {
    if let Err(why) = ib_btl::ports() {
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
            "no RDMA: {why}"
        );
        println!("SKIPPED: {why}");
        return;
    }
    const PAGES: usize = 8;
    let (from, to) = (
        map(std::ptr::null_mut(), PAGES),
        map(std::ptr::null_mut(), PAGES),
    );
    let mut pair = pair("fork");
    pair.put((from, PAGES * PAGE), (to, PAGES * PAGE));
    // SAFETY: the child only waits for its end, which comes at the latest with the end of this
    // thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is passed.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            // SAFETY: likewise.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0, "forks");
    let before = pair.ends.each_ref().map(|end| end.stats().cache.registered);
    for round in 1..4u8 {
        // SAFETY: this test's own memory; no operation is in flight.
        unsafe {
            from.write_bytes(round, PAGES * PAGE);
            to.write_bytes(0, PAGES * PAGE);
        }
        pair.put((from, PAGES * PAGE), (to, PAGES * PAGE));
        // SAFETY: likewise.
        let arrived = unsafe { std::slice::from_raw_parts(to, PAGES * PAGE) };
        assert!(
            arrived.iter().all(|byte| *byte == round),
            "round {round}: {:?}",
            &arrived[..8]
        );
    }
    assert_eq!(
        pair.ends.each_ref().map(|end| end.stats().cache.registered),
        before
    );
    // SAFETY: the child created above, killed and reaped once.
    let ended = unsafe {
        libc::kill(child, libc::SIGKILL) + (libc::waitpid(child, std::ptr::null_mut(), 0) - child)
    };
    assert_eq!(ended, 0);
    pair.ends.iter_mut().for_each(|end| end.close());
}

/// Registered memory whose pages are replaced between two uses, in every way: the data last written
/// is the data that arrives.
#[test]
fn replaced_memory_never_transfers_stale_data() {
    if let Err(why) = ib_btl::ports() {
        assert!(
            std::env::var_os("ESP_TEST_REQUIRE_RDMA").is_none(),
            "no RDMA: {why}"
        );
        println!("SKIPPED: {why}");
        return;
    }
    let mut pair = pair("churn");
    const PAGES: usize = 40;
    let (from, to) = (
        map(std::ptr::null_mut(), PAGES),
        map(std::ptr::null_mut(), PAGES),
    );
    let mut random = 7u64;
    for round in 0..number("IB_CHURN", 300) {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let choose = |shift: u32, below: usize| (random >> shift) as usize % below;
        let (first, pages) = (choose(20, PAGES - 1), 1 + choose(30, 8));
        let pages = pages.min(PAGES - first);
        for start in [from, to] {
            // SAFETY: within the mapping.
            let at = unsafe { start.add(first * PAGE) };
            // SAFETY: this test's own memory; no operation is in flight.
            match choose(40, 5) {
                0 => drop(map(at, pages)),
                // SAFETY: likewise.
                1 => unsafe { madvise(at.cast(), pages * PAGE, Advice::LinuxDontNeed) }
                    .expect("empties"),
                2 => {
                    // SAFETY: likewise; mapped again at once.
                    unsafe { munmap(at.cast(), pages * PAGE) }.expect("unmaps");
                    map(at, pages);
                }
                _ => {}
            }
        }
        let offset = choose(44, PAGES * PAGE / 2);
        let length = 1 + choose(8, PAGES * PAGE - offset);
        // SAFETY: within the mappings, and no operation is in flight.
        unsafe {
            from.add(offset).write_bytes(round as u8, length);
            to.write_bytes(!(round as u8), PAGES * PAGE);
            pair.put((from.add(offset), length), (to.add(offset), length));
        }
        // SAFETY: as above; copied, since no operation is in flight.
        let arrived = unsafe { std::slice::from_raw_parts(to, PAGES * PAGE) };
        let wrong = (0..PAGES * PAGE).find(|at| {
            let inside = (offset..offset + length).contains(at);
            arrived[*at] != if inside { round as u8 } else { !(round as u8) }
        });
        assert_eq!(wrong, None, "round {round}, {length} bytes at {offset}");
    }
    // Once more, undisturbed: one registration for a thousand uses.
    let before = pair.ends[0].stats().cache.registered;
    for _ in 0..number("IB_CHURN", 300) {
        pair.put((from, PAGES * PAGE), (to, PAGES * PAGE));
    }
    let stats = pair.ends[0].stats().cache;
    println!("{stats:?}");
    assert!(stats.registered - before <= 1, "{stats:?}");
    assert!(stats.stale > 0, "{stats:?}");
    pair.ends.iter_mut().for_each(|end| end.close());
}
