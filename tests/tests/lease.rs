//! Leased ports: an embedded engine over sockets that the daemon opened.

use std::io::{IoSlice, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{Client, EspError, EspListener, EspStream, Interest, Path};
use esp_tests::exchange::both_ways;
use esp_tests::process::{configured_lab, daemon_pid, ip, signal};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, client, counter, wait_until};
use lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";

/// Returns two connected streams with these paths through their nodes.
fn pair(lab: &Lab, port: u16, paths: [Path; 2]) -> (EspStream, EspStream) {
    let (here, there) = (client(lab, 0), client(lab, 1));
    let listener = EspListener::builder()
        .path(paths[1])
        .bind_at(&there, port)
        .expect("listen");
    let left = EspStream::builder()
        .path(paths[0])
        .connect_at(&here, address(1, port))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    assert_eq!([left.path(), right.path()], paths);
    (left, right)
}

#[test]
fn every_mix_of_paths_carries_every_byte() {
    let Some(lab) = configured_lab("lease_mixes", 2, ALL) else {
        return;
    };
    for (port, paths) in (7000..).zip([
        [Path::Lease, Path::Lease],
        [Path::Lease, Path::Daemon],
        [Path::Daemon, Path::Lease],
    ]) {
        let (left, right) = pair(&lab, port, paths);
        both_ways(&left, &right, 3_000_000);
        // One thread alternates between both ends, so that no other thread drives their engines.
        let (mut left, mut right) = pair(&lab, port + 100, paths);
        for round in 0..200u32 {
            left.write_all(&round.to_le_bytes()).unwrap();
            let mut got = [0; 4];
            right.read_exact(&mut got).unwrap();
            right.write_all(&got).unwrap();
            left.read_exact(&mut got).unwrap();
            assert_eq!(got, round.to_le_bytes());
        }
    }
}

#[test]
fn leases_are_shown_and_released() {
    let Some(lab) = configured_lab("lease_shown", 2, ALL) else {
        return;
    };
    let watch = Client::connect(lab.socket(1)).unwrap();
    let paths = || -> Vec<String> {
        watch
            .status()
            .unwrap()
            .connections
            .iter()
            .map(|c| c.path.clone())
            .collect()
    };
    let (left, right) = pair(&lab, 7000, [Path::Daemon, Path::Lease]);
    wait_until("the connection is shown", || paths() == ["lease"]);
    drop((left, right));
    wait_until("nothing is left", || paths().is_empty());
    // The port is free again, and leased again.
    wait_until("the port is free again", || {
        EspListener::builder()
            .path(Path::Lease)
            .bind_at(&watch, 7000)
            .is_ok()
    });
    assert!(counter(&watch, "leases_granted") >= 2);
}

#[test]
fn without_permission_streams_use_the_daemon() {
    let Some(lab) = configured_lab("lease_policy", 2, "[lease]\nallow = \"off\"\n") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let (left, right) = {
        let listener = EspListener::builder()
            .path(Path::Auto)
            .bind_at(&there, 7000)
            .unwrap();
        let left = EspStream::builder()
            .path(Path::Auto)
            .connect_at(&here, address(1, 7000))
            .unwrap();
        (left, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    assert_eq!([left.path(), right.path()], [Path::Daemon, Path::Daemon]);
    both_ways(&left, &right, 100_000);
    // The program knows it from the welcome and requests none.
    assert_eq!(counter(&here, "leases_refused"), 0);
    let error = EspStream::builder()
        .path(Path::Lease)
        .connect_at(&here, address(1, 7000))
        .unwrap_err();
    assert!(
        matches!(EspError::of(&error), Some(EspError::Denied { .. })),
        "{error}"
    );
    let error = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&there, 7001)
        .unwrap_err();
    assert!(
        matches!(EspError::of(&error), Some(EspError::Denied { .. })),
        "{error}"
    );
    assert_eq!(
        [
            counter(&here, "leases_refused"),
            counter(&there, "leases_refused")
        ],
        [1, 1]
    );
    // The failed attempt holds no port.
    EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&there, 7001)
        .unwrap();
}

#[test]
fn leased_listener_accepts_from_its_own_node() {
    let Some(lab) = configured_lab("lease_own_node", 2, ALL) else {
        return;
    };
    let there = client(&lab, 1);
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&there, 7000)
        .unwrap();
    let left = EspStream::builder()
        .path(Path::Lease)
        .connect_at(&there, address(1, 7000))
        .unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!([left.path(), right.path()], [Path::Daemon, Path::Daemon]);
    both_ways(&left, &right, 100_000);
}

/// Reads to the end, which must be an error. Returns the number of bytes, too.
#[track_caller]
fn read_to_error(mut stream: &EspStream) -> (usize, EspError) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(n) => panic!("an orderly end after {n} bytes"),
        Err(error) => (
            bytes.len(),
            EspError::of(&error).expect("one of ours").clone(),
        ),
    }
}

#[test]
fn killed_holder_resets_its_peers_and_frees_its_port() {
    let Some(lab) = configured_lab("lease_killed", 2, ALL) else {
        return;
    };
    let there = client(&lab, 1);
    for path in [Path::Daemon, Path::Lease] {
        let listener = EspListener::builder()
            .path(path)
            .bind_at(&there, 7100)
            .unwrap();
        let steps = [
            "path:lease",
            "listen:7000",
            "connect:1:7100",
            "write:1000",
            "accept",
            "hold",
        ];
        let mut program = Program::start(PROGRAM, &lab.socket(0), &steps);
        let (first, _) = listener.accept_timeout(PATIENCE).unwrap();
        program.says("ok path");
        program.says("ok listen");
        let second = EspStream::builder()
            .path(path)
            .connect_at(&there, address(0, 7000))
            .unwrap();
        for step in &steps[2..5] {
            program.says(&format!("ok {step}"));
        }
        (&first).read_exact(&mut [0; 1000]).unwrap();
        program.kill();
        assert!(matches!(
            read_to_error(&first),
            (0, EspError::PeerDied { .. })
        ));
        assert!(matches!(
            read_to_error(&second),
            (0, EspError::PeerDied { .. })
        ));
        // The port is the daemon's again, which refuses the connection.
        let error = EspStream::builder()
            .path(path)
            .connect_at(&there, address(0, 7000))
            .unwrap_err();
        assert!(
            matches!(EspError::of(&error), Some(EspError::Refused { .. })),
            "{error}"
        );
        drop(listener);
        wait_until("the port is free again", || {
            EspListener::builder()
                .path(Path::Daemon)
                .bind_at(&client(&lab, 0), 7000)
                .is_ok()
        });
    }
}

#[test]
fn stopped_holder_is_neither_timed_out_nor_flooded() {
    let impatient =
        "[timers]\npeer_timeout = \"1s\"\nkeepalive = \"300ms\"\n[lease]\nallow = \"all\"\n";
    let Some(lab) = configured_lab("lease_stopped", 2, impatient) else {
        return;
    };
    let there = client(&lab, 1);
    // Two ports, because a connection in TIME-WAIT at the daemon keeps a port from being leased.
    for (port, path) in (7100..).zip([Path::Daemon, Path::Lease]) {
        let listener = EspListener::builder()
            .path(path)
            .bind_at(&there, port)
            .unwrap();
        let connect = format!("connect:1:{port}");
        let steps = ["path:lease", &connect, "echo"];
        let mut program = Program::start(PROGRAM, &lab.socket(0), &steps);
        let (mut stream, _) = listener.accept_timeout(PATIENCE).unwrap();
        program.says("ok path");
        program.says("ok connect");
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        signal(program.pid(), Signal::STOP);
        // No acknowledgement for four peer time-outs.
        stream.write_all(b"there").unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(4)))
            .unwrap();
        let error = stream.read(&mut got).unwrap_err();
        assert!(
            matches!(EspError::of(&error), Some(EspError::CallTimedOut { .. })),
            "{error}"
        );
        signal(program.pid(), Signal::CONT);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there");
        if path == Path::Daemon {
            let status = there.status().unwrap();
            let sent = status
                .connections
                .iter()
                .find(|c| c.local_port == port)
                .unwrap();
            assert!(
                sent.retransmits.is_some_and(|n| n < 100),
                "{:?} repetitions in 4 s",
                sent.retransmits
            );
        }
        drop(stream);
        program.kill();
    }
}

#[test]
fn a_lease_goes_on_without_the_daemon() {
    let Some(lab) = configured_lab("lease_no_daemon", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    for node in 0..2 {
        signal(daemon_pid(&lab, node), Signal::KILL);
    }
    let deadline = Instant::now() + PATIENCE;
    while left.client().check().is_ok() || right.client().check().is_ok() {
        assert!(Instant::now() < deadline, "the programs do not notice");
        thread::sleep(Duration::from_millis(2));
    }
    both_ways(&left, &right, 500_000);
}

#[test]
fn root_and_members_of_a_group_get_leases() {
    let config =
        "[lease]\nallow = \"root\"\nusers = [4001]\ngroups = [\"4002\", \"no-such-group\"]\n";
    let Some(lab) = configured_lab("lease_groups", 1, config) else {
        return;
    };
    let node = &lab.socket(0);
    // User, listening step, and whether it may. Each has its own port, because the daemon may still
    // hold that of the last one.
    for (user, listen, may) in [
        (None, "listen:7000", true),
        (Some("uid:4001"), "listen:7001", true),
        (Some("uid:4000"), "listen:7002", false),
        (Some("uid:4000:4002"), "listen:7003", true),
    ] {
        let steps: Vec<&str> = user.into_iter().chain(["path:lease", listen]).collect();
        let mut program = Program::start(PROGRAM, node, &steps);
        if user.is_some() {
            program.says("ok uid");
        }
        program.says("ok path");
        let line = program.line().expect("its word");
        assert_eq!(line.starts_with("ok listen"), may, "{user:?}: {line}");
        program.kill();
    }
}

/// Works as a rank does: connects without blocking, polls for events, sleeps on the descriptor.
#[test]
fn one_thread_serves_connecting_and_accepted_streams() {
    let Some(lab) = configured_lab("lease_polled", 2, ALL) else {
        return;
    };
    let (near, mut near_poller) = Client::polled(lab.socket(0)).unwrap();
    let (far, mut far_poller) = Client::polled(lab.socket(1)).unwrap();
    let listener = EspListener::builder().bind_at(&far, 7000).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let mut connecting: Vec<_> = (0..40)
        .map(|_| {
            EspStream::builder()
                .begin_at(&near, address(1, 7000))
                .unwrap()
        })
        .collect();
    assert!(near_poller.poll(|_| ()), "a connecting stream is an answer");
    let left: Vec<_> = connecting
        .iter_mut()
        .map(|connecting| connecting.poll().unwrap().unwrap())
        .collect();
    assert!(
        connecting
            .iter_mut()
            .all(|connecting| connecting.poll().is_none()),
        "returned once"
    );
    let mut right = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while right.len() < left.len() {
        assert!(
            Instant::now() < deadline,
            "{} of {}",
            right.len(),
            left.len()
        );
        near_poller.poll(|_| ());
        if far_poller.poll(|_| ()) {
            while let Ok((stream, _)) = listener.accept() {
                right.push(stream);
            }
        }
    }
    assert!(
        left.iter()
            .chain(&right)
            .all(|stream| stream.path() == Path::Lease)
    );
    // A message wakes the sleeping far side with an event for the slot of its stream.
    for (number, stream) in (0u8..).zip(&left) {
        let to = right
            .iter()
            .find(|r| r.peer_addr().port == stream.local_addr().port)
            .unwrap();
        to.arm(Interest::Readable);
        assert!(!to.is_readable_beyond(0));
        while !far_poller.try_sleep() {
            far_poller.poll(|_| ());
        }
        stream
            .try_write_whole(&[IoSlice::new(&[number; 3])], 0)
            .unwrap();
        let (mut slots, mut sleeps) = (Vec::new(), 0);
        while !slots.contains(&to.slot()) {
            assert!(Instant::now() < deadline, "no event of {}", to.slot());
            if sleeps > 0 && !far_poller.try_sleep() {
                far_poller.poll(|slot| slots.push(slot));
                continue;
            }
            sleeps += 1;
            let wait = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let fd = far_poller.fd();
            assert_eq!(
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap(),
                1,
                "not woken"
            );
            far_poller.poll(|slot| slots.push(slot));
            near_poller.poll(|_| ());
        }
        assert_eq!(to.try_read_with(0, |bytes| bytes.len()).unwrap(), 3);
    }
}

#[test]
fn streams_survive_a_link_that_goes_down_and_up() {
    let Some(lab) = configured_lab("lease_link", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    ip(&lab, 0, "link set eth0 down");
    (&left).write_all(b"while it is down").unwrap();
    let daemon = client(&lab, 0);
    wait_until("the link is seen to be down", || {
        !daemon.status().expect("status").interfaces[0].up
    });
    ip(&lab, 0, "link set eth0 up");
    let mut got = [0; 16];
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    (&right).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"while it is down");
}

#[test]
fn a_lowered_mtu_ends_connections_of_longer_frames() {
    let Some(lab) = configured_lab("lease_mtu", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    (&left).write_all(b"before").unwrap();
    (&right).read_exact(&mut [0; 6]).unwrap();
    // The embedded engine gets no link events; it learns the MTU from errors of the kernel.
    ip(&lab, 0, "link set eth0 mtu 1000");
    (&left).write_all(&[0; 100_000]).unwrap();
    // As through the daemon: both agreed on longer segments than fit now.
    let (_, error) = read_to_error(&right);
    assert!(matches!(error, EspError::PeerLimit { .. }), "{error:?}");
    let (_, error) = read_to_error(&left);
    assert!(
        matches!(error, EspError::EndedHere { .. }) && error.to_string().contains("MTU"),
        "{error:?}"
    );
    // The next one fits.
    let (left, right) = pair(&lab, 7001, [Path::Lease, Path::Lease]);
    both_ways(&left, &right, 100_000);
}

#[test]
fn connections_in_quick_succession_are_distinguished() {
    let Some(lab) = configured_lab("lease_follow", 2, ALL) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let listener = EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&there, 7000)
        .unwrap();
    let connect = || {
        let left = EspStream::builder()
            .path(Path::Lease)
            .connect_at(&here, address(1, 7000))
            .unwrap();
        (left, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    let mut last = connect();
    for _ in 0..100 {
        // The next connection reuses the slot at once.
        last.0.abort();
        last = connect();
    }
    let watch = Client::connect(lab.socket(0)).unwrap();
    let shown = || watch.status().unwrap().connections.len();
    wait_until("only the open one is shown", || shown() == 1);
    // A late report about earlier ones does not remove it.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(shown(), 1);
    drop(last);
    wait_until("nothing is left", || shown() == 0);
}

#[test]
fn bytes_beyond_the_window_arrive_while_the_program_makes_no_call() {
    let Some(lab) = configured_lab("lease_away", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    left.set_nonblocking(true).unwrap();
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    // The second round begins after the progress thread has slept and the program polls again.
    for _ in 0..2 {
        let mut sent = 0;
        // Without reads the window closes and the ring fills.
        while let Ok(more) = left.try_write(&[7; 4096]) {
            sent += more;
        }
        assert!(left.unacknowledged() > 0, "{left:?}");
        let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
        while got < sent {
            got += (&right).read(&mut buffer).unwrap();
        }
        assert!(got == sent && buffer.iter().all(|byte| [0, 7].contains(byte)));
    }
}

#[test]
fn held_writes_are_sent_by_flush_by_the_next_write_and_at_8_kib() {
    for path in [Path::Lease, Path::Daemon] {
        let Some(lab) = configured_lab("lease_more", 2, ALL) else {
            return;
        };
        let (left, right) = pair(&lab, 7000, [path, path]);
        right.set_read_timeout(Some(PATIENCE)).unwrap();
        let more = |bytes: &[u8]| left.try_write_more(&[IoSlice::new(bytes)]).unwrap();
        let read = |length: usize| {
            let mut buffer = vec![0; length];
            (&right).read_exact(&mut buffer).unwrap();
            buffer
        };
        more(b"one ");
        more(b"two ");
        // Longer than the progress thread's interval.
        thread::sleep(Duration::from_millis(50));
        right.set_nonblocking(true).unwrap();
        let early = right.try_read(&mut [0; 8]);
        assert!(early.is_err(), "{path:?}: {early:?} before the flush");
        right.set_nonblocking(false).unwrap();
        (&left).flush().unwrap();
        assert_eq!(read(8), b"one two ");
        more(b"three ");
        (&left).write_all(b"four ").unwrap();
        assert_eq!(read(11), b"three four ");
        for _ in 0..8 {
            more(&[5; 1024]);
        }
        assert_eq!(read(8192), [5; 8192]);
        more(b"last");
        left.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read(4), b"last");
    }
}
