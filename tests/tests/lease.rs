//! Leased ports: the engine in the program, over sockets that the daemon opened for it.

use std::io::{IoSlice, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{Client, EspError, EspListener, EspStream, Interest, Path};
use esp_tests::process::{configured_lab, daemon_pid, ip, signal};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, check_pattern, client, counter, send_pattern, wait_until};
use lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";

/// Two joined streams, each with its way through its node.
fn pair(lab: &Lab, port: u16, ways: [Path; 2]) -> (EspStream, EspStream) {
    let (here, there) = (client(lab, 0), client(lab, 1));
    let listener = EspListener::builder()
        .path(ways[1])
        .bind_at(&there, port)
        .expect("listen");
    let left = EspStream::builder()
        .path(ways[0])
        .connect_at(&here, address(1, port))
        .expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    assert_eq!([left.path(), right.path()], ways);
    (left, right)
}

/// Patterns both ways at the same time.
fn exchange(left: &EspStream, right: &EspStream, len: u64) {
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, len, 1));
        scope.spawn(|| send_pattern(right, len, 2));
        scope.spawn(|| check_pattern(left, len, 2));
        check_pattern(right, len, 1);
    });
}

#[test]
fn every_mix_of_ways_carries_every_byte() {
    let Some(lab) = configured_lab("lease_mixes", 2, ALL) else {
        return;
    };
    for (port, ways) in (7000..).zip([
        [Path::Lease, Path::Lease],
        [Path::Lease, Path::Daemon],
        [Path::Daemon, Path::Lease],
    ]) {
        let (left, right) = pair(&lab, port, ways);
        exchange(&left, &right, 3_000_000);
        // One thread that does both ends in turn: neither end has anybody else to drive it.
        let (mut left, mut right) = pair(&lab, port + 100, ways);
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
fn leases_are_shown_and_given_back() {
    let Some(lab) = configured_lab("lease_shown", 2, ALL) else {
        return;
    };
    let watch = Client::connect(lab.socket(1)).unwrap();
    let ways = || -> Vec<String> {
        watch
            .status()
            .unwrap()
            .connections
            .iter()
            .map(|c| c.path.clone())
            .collect()
    };
    let (left, right) = pair(&lab, 7000, [Path::Daemon, Path::Lease]);
    wait_until("the connection is shown", || ways() == ["lease"]);
    drop((left, right));
    wait_until("nothing is left", || ways().is_empty());
    // The port is free again, and leased again.
    wait_until("the port comes back", || {
        EspListener::builder()
            .path(Path::Lease)
            .bind_at(&watch, 7000)
            .is_ok()
    });
    assert!(counter(&watch, "leases_granted") >= 2);
}

#[test]
fn policy_refuses_and_the_daemon_carries() {
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
    exchange(&left, &right, 100_000);
    // Nobody asked: the welcome said it.
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
    // What failed holds nothing.
    EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&there, 7001)
        .unwrap();
}

#[test]
fn a_leased_listener_is_found_from_its_own_node() {
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
    exchange(&left, &right, 100_000);
}

/// Reads to the end, which must be an error.
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
fn the_peers_of_a_killed_holder_learn_and_its_port_comes_back() {
    let Some(lab) = configured_lab("lease_killed", 2, ALL) else {
        return;
    };
    let there = client(&lab, 1);
    for way in [Path::Daemon, Path::Lease] {
        let listener = EspListener::builder()
            .path(way)
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
            .path(way)
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
        // The port is the daemon's again: nobody listens there, and that is said.
        let error = EspStream::builder()
            .path(way)
            .connect_at(&there, address(0, 7000))
            .unwrap_err();
        assert!(
            matches!(EspError::of(&error), Some(EspError::Refused { .. })),
            "{error}"
        );
        drop(listener);
        wait_until("the port comes back", || {
            EspListener::builder()
                .path(Path::Daemon)
                .bind_at(&client(&lab, 0), 7000)
                .is_ok()
        });
    }
}

#[test]
fn a_stopped_holder_is_neither_given_up_nor_flooded() {
    let impatient =
        "[timers]\npeer_timeout = \"1s\"\nkeepalive = \"300ms\"\n[lease]\nallow = \"all\"\n";
    let Some(lab) = configured_lab("lease_stopped", 2, impatient) else {
        return;
    };
    let there = client(&lab, 1);
    // Two ports: the remains of a connection through the daemon keep a port from being leased.
    for (port, way) in (7100..).zip([Path::Daemon, Path::Lease]) {
        let listener = EspListener::builder()
            .path(way)
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
        // Data that nobody acknowledges, for four times the peer time-out.
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
        if way == Path::Daemon {
            let status = there.status().unwrap();
            let sent = status
                .connections
                .iter()
                .find(|c| c.local_port == port)
                .unwrap();
            assert!(
                sent.retransmits < 100,
                "{} repetitions in 4 s",
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
    exchange(&left, &right, 500_000);
}

#[test]
fn root_and_members_of_a_group_may() {
    let config =
        "[lease]\nallow = \"root\"\nusers = [4001]\ngroups = [\"4002\", \"no-such-group\"]\n";
    let Some(lab) = configured_lab("lease_groups", 1, config) else {
        return;
    };
    let node = &lab.socket(0);
    // (steps before listening, may it?); each on a port of its own: the daemon may still be taking
    // back the last one's.
    for (who, listen, may) in [
        (None, "listen:7000", true),
        (Some("uid:4001"), "listen:7001", true),
        (Some("uid:4000"), "listen:7002", false),
        (Some("uid:4000:4002"), "listen:7003", true),
    ] {
        let steps: Vec<&str> = who.into_iter().chain(["path:lease", listen]).collect();
        let mut program = Program::start(PROGRAM, node, &steps);
        if who.is_some() {
            program.says("ok uid");
        }
        program.says("ok path");
        let line = program.line().expect("its word");
        assert_eq!(line.starts_with("ok listen"), may, "{who:?}: {line}");
        program.kill();
    }
}

/// A rank's way of life: begins streams, looks for news, sleeps on the descriptor.
#[test]
fn one_thread_serves_begun_and_accepted_streams() {
    let Some(lab) = configured_lab("lease_polled", 2, ALL) else {
        return;
    };
    let (near, mut near_news) = Client::polled(lab.socket(0)).unwrap();
    let (far, mut far_news) = Client::polled(lab.socket(1)).unwrap();
    let listener = EspListener::builder().bind_at(&far, 7000).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let mut begun: Vec<_> = (0..40)
        .map(|_| {
            EspStream::builder()
                .begin_at(&near, address(1, 7000))
                .unwrap()
        })
        .collect();
    assert!(near_news.poll(|_| ()), "a begun stream is an answer");
    let left: Vec<_> = begun
        .iter_mut()
        .map(|begun| begun.poll().unwrap().unwrap())
        .collect();
    assert!(
        begun.iter_mut().all(|begun| begun.poll().is_none()),
        "given out once"
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
        near_news.poll(|_| ());
        if far_news.poll(|_| ()) {
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
    // The far side sleeps; what is sent wakes it, by the slot of the stream.
    for (number, stream) in (0u8..).zip(&left) {
        let to = right
            .iter()
            .find(|r| r.peer_addr().port == stream.local_addr().port)
            .unwrap();
        to.arm(Interest::Readable);
        assert!(!to.has_news(0));
        while !far_news.try_sleep() {
            far_news.poll(|_| ());
        }
        stream
            .try_write_whole(&[IoSlice::new(&[number; 3])], 0)
            .unwrap();
        let (mut slots, mut sleeps) = (Vec::new(), 0);
        while !slots.contains(&to.slot()) {
            assert!(Instant::now() < deadline, "no news of {}", to.slot());
            if sleeps > 0 && !far_news.try_sleep() {
                far_news.poll(|slot| slots.push(slot));
                continue;
            }
            sleeps += 1;
            let wait = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let fd = far_news.fd();
            assert_eq!(
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap(),
                1,
                "nobody woke it"
            );
            far_news.poll(|slot| slots.push(slot));
            near_news.poll(|_| ());
        }
        assert_eq!(to.try_read_with(0, |bytes| bytes.len()).unwrap(), 3);
    }
}

#[test]
fn a_link_that_goes_down_and_up_is_only_a_pause() {
    let Some(lab) = configured_lab("lease_link", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    ip(&lab, 0, "link set eth0 down");
    (&left).write_all(b"while it is down").unwrap();
    thread::sleep(Duration::from_millis(300));
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
    // The engine in the program hears of no link events: the kernel's refusals tell it.
    ip(&lab, 0, "link set eth0 mtu 1000");
    (&left).write_all(&[0; 100_000]).unwrap();
    // As on the daemon's path: both agreed on longer segments than fit now.
    let (_, error) = read_to_error(&right);
    assert!(matches!(error, EspError::PeerLimit { .. }), "{error:?}");
    let (_, error) = read_to_error(&left);
    assert!(
        matches!(error, EspError::EndedHere { .. }) && error.to_string().contains("MTU"),
        "{error:?}"
    );
    // The next one fits.
    let (left, right) = pair(&lab, 7001, [Path::Lease, Path::Lease]);
    exchange(&left, &right, 100_000);
}

#[test]
fn connections_that_follow_each_other_closely_are_told_apart() {
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
        // Gone at once, and the next one takes its place.
        last.0.abort().unwrap();
        last = connect();
    }
    let watch = Client::connect(lab.socket(0)).unwrap();
    let shown = || watch.status().unwrap().connections.len();
    wait_until("the living one alone is shown", || shown() == 1);
    // Nor does a late word about its forerunners remove it.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(shown(), 1);
    drop(last);
    wait_until("nothing is left", || shown() == 0);
}

#[test]
fn bytes_held_back_by_the_window_arrive_though_the_program_makes_no_call() {
    let Some(lab) = configured_lab("lease_away", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000, [Path::Lease, Path::Lease]);
    left.set_nonblocking(true).unwrap();
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    // The second round begins when the progress thread has slept and the program has come back.
    for _ in 0..2 {
        let mut sent = 0;
        // No reads: the window closes, and the ring fills.
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
fn a_write_with_more_to_follow_is_sent_by_flush_the_next_write_or_8_kib() {
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
        // Longer than the progress thread takes to look.
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
