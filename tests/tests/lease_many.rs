//! Many leased ports on a node share one demultiplexing point, even when leases, holders and
//! daemons end.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use esp_client::control::{Reply, Request};
use esp_client::{Client, EspListener, EspStream, Path};
use esp_tests::process::{Daemon, bare_lab, configured_lab, daemon_pid, signal};
use esp_tests::program::Program;
use esp_tests::raw::RawProgram;
use esp_tests::{PATIENCE, address, byte, client, wait_until};
use lab::Lab;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal};

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";
/// Bytes of one round: several frames in each direction.
const ROUND: usize = 5000;
/// Serializes the tests, which inspect the sockets of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the fan-out groups of this process's packet sockets, with the number of members here.
/// Sockets of a group share one entry in the kernel's list of receivers.
fn groups() -> BTreeMap<u16, usize> {
    let this = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .expect("this process");
    let mut groups = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .flatten()
    {
        let number = entry
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("a number");
        // Other threads open and close descriptors at the same time.
        let Ok(copy) = rustix::process::pidfd_getfd(&this, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let Ok(socket) = netif::PacketSocket::from_fd(copy) else {
            continue;
        };
        if let Some(group) = socket.fanout().expect("its group") {
            *groups.entry(group).or_default() += 1;
        }
    }
    groups
}

/// Returns true if there is one group for each protocol, with this number of leases.
fn in_two_groups(leases: usize) -> bool {
    groups().into_values().collect::<Vec<_>>() == [leases; 2]
}

/// Returns the number of packet sockets of all processes of the node.
fn packet_sockets(lab: &Lab, node: usize) -> usize {
    let output = lab
        .command(node, "cat")
        .unwrap()
        .arg("/proc/net/packet")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count() - 1
}

fn joined(from: &Client, to: &Client, port: u16) -> (EspStream, EspStream) {
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(to, port)
        .expect("listen");
    let left = EspStream::builder()
        .path(Path::Lease)
        .connect_at(from, address(1, port))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    for stream in [&left, &right] {
        assert_eq!(stream.path(), Path::Lease);
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    }
    (left, right)
}

/// Sends bytes that are specific to the stream there and back, and checks them at both ends.
fn round(pair: &(EspStream, EspStream), salt: u64) {
    let sent: Vec<u8> = (0..ROUND as u64).map(|at| byte(at, salt)).collect();
    let mut got = vec![0; ROUND];
    (&pair.0).write_all(&sent).expect("write");
    (&pair.1).read_exact(&mut got).expect("read");
    assert!(got == sent, "bytes of another stream");
    (&pair.1).write_all(&got).expect("write back");
    got.fill(0);
    (&pair.0).read_exact(&mut got).expect("read back");
    assert!(got == sent, "bytes of another stream");
}

#[test]
fn all_leases_share_two_fanout_groups() {
    let _turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lab) = configured_lab("lease_groups", 2, ALL) else {
        return;
    };
    let alone = packet_sockets(&lab, 1);
    assert!(alone > 0);
    let holders: Vec<Client> = (0..4).map(|_| client(&lab, 1)).collect();
    let lease = |port: u16| {
        let holder = &holders[usize::from(port) % holders.len()];
        EspListener::builder()
            .path(Path::Lease)
            .bind_at(holder, port)
            .expect("listen")
    };
    let mut listeners = vec![lease(7000)];
    wait_until("the first one is in a group", || in_two_groups(1));
    listeners.extend((7001..7064).map(lease));
    wait_until("all are", || in_two_groups(64));
    // Each accepts.
    let from = client(&lab, 0);
    for (port, listener) in (7000..).zip(&listeners) {
        let left = EspStream::builder()
            .path(Path::Lease)
            .connect_at(&from, address(1, port))
            .unwrap();
        let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
        round(&(left, right), u64::from(port));
    }
    drop(listeners);
    drop(holders);
    wait_until("the groups are released", || {
        packet_sockets(&lab, 1) <= alone
    });
}

#[test]
fn daemon_closes_the_sockets_of_a_dead_holder_last() {
    let _turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lab) = configured_lab("lease_close", 1, ALL) else {
        return;
    };
    let daemon = daemon_pid(&lab, 0);
    // The last close of a packet socket, even of a spare one, blocks for about 15 ms in the kernel.
    // The daemon has copies, so that the block is its own.
    let kept = |file: &u64| {
        let files = std::fs::read_dir(format!("/proc/{daemon}/fd"))
            .expect("descriptors")
            .flatten();
        files
            .filter_map(|entry| rustix::fs::stat(entry.path()).ok())
            .any(|found| found.st_ino == *file)
    };
    let holders = [(); 2].map(|()| {
        let (mut holder, _) = RawProgram::welcomed(&lab.socket(0));
        let request = Request::Lease {
            interface: Some("eth0".into()),
            listener: None,
            count: 1,
        };
        let (Reply::Lease { .. }, sockets) = holder.ask(request) else {
            panic!("no lease")
        };
        let files: Vec<u64> = sockets
            .iter()
            .map(|one| rustix::fs::fstat(one).expect("a file").st_ino)
            .collect();
        (holder, sockets, files)
    });
    for (_, sockets, files) in &holders {
        assert_eq!(sockets.len(), 4);
        assert!(
            files.iter().all(kept),
            "the daemon does not keep all of {files:?}"
        );
    }
    let [(holder, sockets, ended), (_other, _, files)] = holders;
    drop((holder, sockets));
    // Members of a group stay while it is used; spares are in none.
    wait_until("the spares of the ended holder are closed", || {
        !ended[2..].iter().any(kept)
    });
    assert!(files.iter().all(kept), "those of the other one are open");
}

#[test]
fn adopted_leases_join_the_groups_of_the_next_daemon() {
    let _turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lab) = bare_lab("adopt_groups", 2) else {
        return;
    };
    let _far = Daemon::start(&lab, 0, ALL);
    let mut near = Daemon::start(&lab, 1, ALL);
    let holders: Vec<Client> = (0..4).map(|_| client(&lab, 1)).collect();
    let listeners: Vec<_> = (7000..7032)
        .map(|port| {
            let holder = &holders[usize::from(port) % holders.len()];
            EspListener::builder()
                .path(Path::Lease)
                .bind_at(holder, port)
                .expect("listen")
        })
        .collect();
    wait_until("all are in a group", || in_two_groups(listeners.len()));
    for round_of_daemons in 0..3u64 {
        near.kill();
        wait_until("all use their spares", || groups().is_empty());
        near = Daemon::start(&lab, 1, ALL);
        wait_until("all are in the next daemon's group", || {
            in_two_groups(listeners.len())
        });
        let from = client(&lab, 0);
        for (port, listener) in (7000..).zip(&listeners) {
            let left = EspStream::builder()
                .path(Path::Lease)
                .connect_at(&from, address(1, port))
                .unwrap();
            let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
            round(&(left, right), u64::from(port) + round_of_daemons);
        }
    }
}

#[test]
fn many_leases_receive_their_own_frames_under_churn() {
    let _turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lab) = configured_lab("lease_many", 2, ALL) else {
        return;
    };
    let near: Vec<Client> = (0..8).map(|_| client(&lab, 0)).collect();
    let far: Vec<Client> = (0..8).map(|_| client(&lab, 1)).collect();
    let mut programs = Vec::new();
    let pairs: Vec<_> = (0..64usize)
        .map(|n| {
            // Between the others, holders that are killed after the daemons.
            if n % 16 == 0 {
                for node in 0..2 {
                    let listen = format!("listen:{}", 6000 + n);
                    let program = Program::start(
                        PROGRAM,
                        &lab.socket(node),
                        &["path:lease", &listen, "hold"],
                    );
                    program.says("ok path");
                    program.says("ok listen");
                    programs.push(program);
                }
            }
            joined(&near[n / 8], &far[n % 8], 7000 + n as u16)
        })
        .collect();
    let (stop, quiet) = (AtomicBool::new(false), AtomicBool::new(false));
    let rounds: Vec<AtomicUsize> = pairs.iter().map(|_| AtomicUsize::new(0)).collect();
    let churned = AtomicUsize::new(0);
    let all_advance = |what: &str, by: usize| {
        let before: Vec<_> = rounds
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        let advanced = || {
            rounds
                .iter()
                .zip(&before)
                .all(|(now, was)| now.load(Ordering::Relaxed) >= was + by)
        };
        while !advanced() {
            assert!(
                Instant::now() < deadline,
                "{what}: a stream makes no progress"
            );
            thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    thread::scope(|scope| {
        // Ends the threads if the test fails.
        let _end = StopOnDrop(&stop);
        for (n, (pair, count)) in pairs.iter().zip(&rounds).enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    round(pair, (n * 1_000_000 + count.load(Ordering::Relaxed)) as u64);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (quiet, stop, churned, lab) = (&quiet, &stop, &churned, &lab);
        let churn: Vec<_> = (0..2u16)
            .map(|n| {
                scope.spawn(move || {
                    let mut kept = std::collections::VecDeque::new();
                    for port in (9000 + 500 * n..9500 + 500 * n).cycle() {
                        if quiet.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed) {
                            return;
                        }
                        // A program starts, and an earlier one ends.
                        let (here, there) = (client(lab, 0), client(lab, 1));
                        let pair = joined(&here, &there, port);
                        round(&pair, u64::from(port));
                        kept.push_back((pair, here, there));
                        if kept.len() > usize::from(port % 5) {
                            kept.pop_front();
                        }
                        churned.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        all_advance("at first", 3);
        wait_until("leases start and end", || {
            churned.load(Ordering::Relaxed) >= 20
        });
        all_advance("while others start and end", 3);
        quiet.store(true, Ordering::Relaxed);
        churn
            .into_iter()
            .for_each(|thread| thread.join().expect("a churning thread"));
        for node in 0..2 {
            signal(daemon_pid(lab, node), Signal::KILL);
        }
        all_advance("without daemons", 3);
        programs.iter_mut().for_each(Program::kill);
        all_advance("without daemons, and other holders killed", 3);
    });
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
