//! Two processes: this one is the engine; the program is the test binary started again.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::super::layout::{FIN, RegionHeader};
use super::super::{RingSizes, Spin, Wake};
use super::Random;
use super::echo::{Descriptors, EchoEngine, PATIENCE, Program};
use super::hostile::Victim;
use super::pair;

/// Environment variable with the role and the descriptors of the child.
const ROLE: &str = "ESP_SHM_TEST_ROLE";
const SIZES: RingSizes = RingSizes {
    tx: 65536,
    rx: 131_072,
};
const TOTAL: u64 = 64 << 20;

/// Child process, killed on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this test binary again as `role` with these descriptors.
fn start(role: &str, fds: &[&OwnedFd]) -> Guard {
    // Unlike the originals, these duplicates survive the exec.
    let inherited: Vec<OwnedFd> = fds
        .iter()
        .map(|fd| rustix::io::dup(fd).expect("a descriptor"))
        .collect();
    let numbers: Vec<String> = inherited
        .iter()
        .map(|fd| fd.as_raw_fd().to_string())
        .collect();
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([
        "--exact",
        "shm::tests::process::the_other_process",
        "--ignored",
        "--nocapture",
    ]);
    command.env(ROLE, format!("{role} {}", numbers.join(" ")));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Guard(command.spawn().expect("the test binary starts"))
}

/// Entry of the child process; has no effect in the parent.
#[test]
#[ignore = "started by the other tests of this file, in a process of its own"]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ');
    let role = words.next().unwrap_or_default();
    let mut fds = words.map(|n| {
        let fd: RawFd = n.parse().expect("a number");
        // SAFETY: the parent duplicated the descriptor for this process alone, and lists each
        // number once.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let mut next = || fds.next().expect("a descriptor");
    if role == "corruption" {
        return corruption(&File::from(next()));
    }
    let fds = Descriptors {
        region: next(),
        client: next(),
        engine: next(),
        eventfd: next(),
    };
    let mut program = Program::open(fds, SIZES);
    match role {
        "echo" => program.exchange(
            TOTAL,
            Spin {
                spins: 50,
                yields: 10,
            },
        ),
        "hang" => {
            program.tx.write(b"last words");
            program.bell.ring();
            program.status.wait(
                Wake::Readable,
                Spin::default(),
                || false,
                Some(Instant::now() + PATIENCE),
            );
        }
        other => panic!("unknown role {other}"),
    }
}

#[test]
fn a_stream_passes_between_two_processes() {
    let (mut engine, fds) = EchoEngine::new(SIZES);
    let mut child = start(
        "echo",
        &[&fds.region, &fds.client, &fds.engine, &fds.eventfd],
    );
    engine.run();
    assert!(
        child.0.wait().expect("the child").success(),
        "the child checked every byte"
    );
    assert_eq!(engine.echoed, TOTAL);
}

#[test]
fn a_killed_program_leaves_nothing() {
    let (mut engine, fds) = EchoEngine::new(SIZES);
    let mut child = start(
        "hang",
        &[&fds.region, &fds.client, &fds.engine, &fds.eventfd],
    );
    while engine.echoed < 10 {
        engine.poll();
    }
    child.0.kill().expect("running");
    assert!(!child.0.wait().expect("the child").success());
    // The engine can still send the bytes that it wrote.
    assert_eq!(engine.tx.poll_written().expect("as it was left").total, 10);
    engine.rx.poll_consumed().expect("as it was left");

    let inode = File::from(fds.region.try_clone().expect("a descriptor"))
        .metadata()
        .expect("a file")
        .ino();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
        maps.lines()
            .filter(|l| l.contains("memfd:esp-region") && l.contains(&format!(" {inode} ")))
            .count()
    };
    assert_eq!(mapped(), 3, "three mappings for a region");
    drop(engine);
    assert_eq!(mapped(), 0);
    // The descriptor is the last reference to the memory: the file has no name.
    let left = File::from(fds.region);
    assert_eq!(left.metadata().expect("a file").nlink(), 0);
}

/// Writes garbage over the whole region until killed; half of the values are close to valid ones.
fn corruption(file: &File) {
    let mut random = Random(0x5eed);
    let len = file.metadata().expect("a file").len();
    let header = size_of::<RegionHeader>() as u64;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        for _ in 0..1000 {
            let at = match random.below(4) {
                0 => random.below(len - 8),
                1 => 4096 + random.below(256) * 8,
                2 => 128 + random.below(2) * 64,
                _ => random.below(header / 8) * 8,
            };
            let value = match random.below(4) {
                0 => random.next(),
                1 => random.below(1 << 18),
                2 => random.below(1 << 18) | FIN,
                _ => random.below(64),
            };
            file.write_all_at(&value.to_le_bytes(), at)
                .expect("our own memory");
        }
        // A hole makes pages zero again; the engine must not fault on them.
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, hole, random.below(len / 4096) * 4096, 4096)
            .expect("memory files have holes");
    }
}

#[test]
fn a_hostile_process_is_harmless_to_the_engine() {
    let (region, fd) = super::super::Region::create(RingSizes {
        tx: 16384,
        rx: 16384,
    })
    .expect("memory");
    let mut child = start("corruption", &[&fd]);
    let mut victim = Victim::new(region);
    // Until every kind of corruption was found; bounded by the child's timeout.
    while !victim.found_every_corruption() {
        assert!(
            child.0.try_wait().expect("the child").is_none(),
            "the child gave up: {victim:?}"
        );
        for _ in 0..1000 {
            victim.poll();
        }
    }
}

#[test]
fn descriptors_are_not_left_to_children() {
    let (_engine, fds) = EchoEngine::new(RingSizes { tx: 4096, rx: 4096 });
    for fd in [&fds.region, &fds.client, &fds.engine] {
        let flags = rustix::io::fcntl_getfd(fd).expect("a descriptor");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    drop(pair(4096, 4096));
}
