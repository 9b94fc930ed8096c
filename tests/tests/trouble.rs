//! Trouble without a death: silent partitions, stopped processes, restarts during transfers,
//! colliding ends, shortage.

use std::io::{Read, Write};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use esp_client::control::ErrorKind;
use esp_client::{Client, EdpSocket, EspError, EspListener, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::process::{
    Balance, Daemon, bare_lab, configured_lab, daemon_pid, ip_in_switch, signal,
};
use esp_tests::program::Program;
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{Lab, LabOptions};
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
/// A short peer timeout.
const IMPATIENT: &str = "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"300ms\"\n";

/// Makes the switch drop everything between nodes 0 and 1 silently: both links stay up.
fn partition(lab: &Lab, apart: bool) {
    let state = if apart { "on" } else { "off" };
    for node in [0, 1] {
        ip_in_switch(
            lab,
            &format!("link set dev port{node} type bridge_slave isolated {state}"),
        );
    }
}

#[track_caller]
fn typed(error: &std::io::Error) -> EspError {
    EspError::of(error)
        .unwrap_or_else(|| panic!("not one of ours: {error}"))
        .clone()
}

/// Asserts that data flows both ways and both streams end successfully.
fn works(left: &EspStream, right: &EspStream) {
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, 300_000, 1));
        scope.spawn(|| send_pattern(right, 300_000, 2));
        scope.spawn(|| check_pattern(left, 300_000, 2));
        check_pattern(right, 300_000, 1);
    });
}

#[test]
fn a_silent_partition_that_heals_loses_nothing() {
    let Some(lab) = lab_or_skip("a_silent_partition_that_heals", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    // A side whose data was all acknowledged has nothing to retransmit: it probes, for credit or as
    // keep-alive.
    let repetitions = || {
        let of = |node: &Client| counter(node, "retransmit_timeouts") + counter(node, "tx_probes");
        of(&here) + of(&there)
    };
    Bystander::new(&lab).during(|| {
        for _ in 0..4 {
            let flowed = || counter(&here, "rx_data_bytes").min(counter(&there, "rx_data_bytes"));
            let goal = flowed() + (1 << 20);
            wait_until("bytes flow", || flowed() > goal);
            let repeated = repetitions();
            partition(&lab, true);
            wait_until("repetitions in vain", || repetitions() > repeated + 3);
            partition(&lab, false);
        }
    });
    assert_eq!(
        counter(&here, "connections_timed_out") + counter(&there, "connections_timed_out"),
        0
    );
}

#[test]
fn a_silent_partition_that_stays_ends_both_sides() {
    let Some(lab) = configured_lab("a_silent_partition_that_stays", 2, IMPATIENT) else {
        return;
    };
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (mut busy, busy_peer) = pair(&lab, 0, 1, 7001);
    partition(&lab, true);
    busy.write_all(&[1; 10_000]).unwrap();
    for mut end in [&idle, &idle_peer, &busy, &busy_peer] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = typed(&end.read(&mut [0; 9]).expect_err("no peer"));
        assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
    }
    partition(&lab, false);
    // No old connection returns, and the path is free.
    let (left, right) = pair(&lab, 0, 1, 7000);
    works(&left, &right);
}

#[test]
fn an_idle_connection_outlives_the_peer_timeout() {
    let Some(lab) = configured_lab("an_idle_connection", 2, IMPATIENT) else {
        return;
    };
    let there = client(&lab, 1);
    let (left, right) = pair(&lab, 0, 1, 7000);
    // A stopped program is not dead: its node answers for it.
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    let program = Program::start(
        PROGRAM,
        &lab.socket(0),
        &["connect:1:7100", "read:5", "write:5", "hold"],
    );
    let (mut to_program, _) = listener.accept_timeout(PATIENCE).unwrap();
    program.says("ok connect");
    signal(program.pid(), Signal::STOP);
    let probes = counter(&there, "rx_probes");
    wait_until("twice the peer time-out in probes", || {
        counter(&there, "rx_probes") > probes + 20
    });
    assert_eq!(counter(&there, "connections_timed_out"), 0);
    signal(program.pid(), Signal::CONT);
    to_program.write_all(&[1; 5]).unwrap();
    to_program.read_exact(&mut [0; 5]).unwrap();
    works(&left, &right);
}

#[test]
fn a_stopped_daemon_is_silent_and_then_finds_its_way_back() {
    let Some(lab) = configured_lab("a_stopped_daemon_is_silent", 2, IMPATIENT) else {
        return;
    };
    let here = client(&lab, 0);
    let (mut left, mut right) = pair(&lab, 0, 1, 7000);
    signal(daemon_pid(&lab, 0), Signal::STOP);
    // Each of its threads receives the signal on its own CPU; until then it may still answer.
    let tasks = format!("/proc/{}/task", daemon_pid(&lab, 0));
    wait_until("all its threads have stopped", || {
        let tasks = std::fs::read_dir(&tasks)
            .unwrap()
            .map(|task| task.unwrap().path().join("stat"));
        tasks
            .map(|stat| std::fs::read_to_string(stat).unwrap())
            .all(|stat| stat.contains(") T "))
    });
    // Its own programs see that it does not answer; its peers see silence.
    let silence = here.status();
    assert!(
        matches!(silence, Err(EspError::DaemonSilent { .. })),
        "{silence:?}"
    );
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = typed(&right.read(&mut [0; 9]).expect_err("silence"));
    assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
    signal(daemon_pid(&lab, 0), Signal::CONT);
    // This side learns that the other one has given up.
    left.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = typed(&left.read(&mut [0; 9]).expect_err("given up"));
    assert!(
        matches!(
            error,
            EspError::TimedOut { .. } | EspError::Forgotten { .. }
        ),
        "{error:?}"
    );
    left.write_all(&[1]).expect_err("over");
    let (left, right) = pair(&lab, 0, 1, 7001);
    works(&left, &right);
}

/// W-27: the peer still has the connection of the daemon's previous run when a program opens it
/// again.
#[test]
fn a_restarted_node_takes_the_same_ports_again() {
    let Some(lab) = bare_lab("a_restarted_node", 2) else {
        return;
    };
    let (mut daemon, other) = (Daemon::start(&lab, 0, ""), Daemon::start(&lab, 1, ""));
    let listener = EspListener::builder()
        .bind_at(&other.client(), 7000)
        .unwrap();
    let connect = |client: &Client| {
        // The next daemon does not get its connections.
        client.set_daemon_wait(Duration::ZERO);
        EspStream::builder()
            .local_port(8000)
            .connect_at(client, address(1, 7000))
    };
    let _old = connect(&daemon.client()).unwrap();
    let (old_peer, _) = listener.accept_timeout(PATIENCE).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        daemon.kill();
        daemon = Daemon::start(&lab, 0, "");
        let left = connect(&daemon.client()).expect("the stale connection gives way");
        let (right, from) = listener.accept_timeout(PATIENCE).unwrap();
        assert_eq!(from.port, 8000);
        works(&left, &right);
        drop((left, right));
        // The next round finds this connection stale.
        wait_until("the connection has ended", || {
            daemon.client().status().unwrap().connections.is_empty()
        });
        held.push(connect(&daemon.client()).unwrap());
        held.push(listener.accept_timeout(PATIENCE).unwrap().0);
    }
    assert!(
        counter(&other.client(), "rx_drop_stale_setup") > 0,
        "nothing was stale"
    );
    let mut old_peer = old_peer;
    old_peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = typed(&old_peer.read(&mut [0; 9]).expect_err("of a former life"));
    assert!(matches!(error, EspError::Forgotten { .. }), "{error:?}");
}

#[test]
fn the_same_ports_again_and_again() {
    let Some(lab) = lab_or_skip("the_same_ports_again", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let listener = EspListener::builder().bind_at(&there, 7000).unwrap();
    for round in 0..60 {
        let mut left = None;
        wait_until("the ports are free", || {
            match EspStream::builder()
                .local_port(8000)
                .connect_at(&here, address(1, 7000))
            {
                Ok(stream) => left = Some(stream),
                Err(error) => {
                    // Its last frames are in flight.
                    let kind = typed(&error);
                    assert!(
                        matches!(
                            kind,
                            EspError::Denied {
                                kind: ErrorKind::InUse,
                                ..
                            }
                        ),
                        "{kind:?}"
                    );
                }
            }
            left.is_some()
        });
        let (left, right) = (left.unwrap(), listener.accept_timeout(PATIENCE).unwrap().0);
        // One side ends first, then the other, then both at once.
        match round % 3 {
            0 => {
                send_pattern(&left, 1000, round);
                check_pattern(&right, 1000, round);
                drop(right);
                check_pattern(&left, 0, 0);
            }
            1 => {
                drop(right);
                check_pattern(&left, 0, 0);
            }
            _ => works(&left, &right),
        }
    }
    assert!(counter(&here, "time_wait_reclaimed") + counter(&there, "time_wait_reclaimed") > 0);
}

/// W-28: simultaneous open.
#[test]
fn both_sides_connect_to_each_other_at_once() {
    let Some(lab) = lab_or_skip("both_sides_connect", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    for round in 0..5 {
        let (a, b) = (8000 + round, 8100 + round);
        // Until both have started, no SYN passes; a SYN that arrives first is refused.
        partition(&lab, true);
        let syns = [&here, &there].map(|client| counter(client, "tx_syns"));
        let (left, right) = thread::scope(|scope| {
            let connect = |client, from, to| {
                let builder = EspStream::builder().local_port(from);
                move || builder.connect_at(client, to)
            };
            let left = scope.spawn(connect(&here, a, address(1, b)));
            let right = scope.spawn(connect(&there, b, address(0, a)));
            for (client, before) in [&here, &there].into_iter().zip(syns) {
                wait_until("a SYN was sent", || counter(client, "tx_syns") > before);
            }
            partition(&lab, false);
            (
                left.join().unwrap().expect("connected"),
                right.join().unwrap().expect("connected"),
            )
        });
        works(&left, &right);
    }
}

#[test]
fn a_whole_job_connects_at_once() {
    const MANY: usize = 120;
    const BACKLOG: u16 = 8;
    let Some(lab) = lab_or_skip("a_whole_job_connects_at_once", &LabOptions::new(4)) else {
        return;
    };
    let listener = EspListener::builder()
        .backlog(BACKLOG)
        .bind_at(&client(&lab, 0), 7000)
        .unwrap();
    let clients: Vec<_> = (1..4).map(|node| client(&lab, node)).collect();
    let barrier = Barrier::new(MANY);
    thread::scope(|scope| {
        for number in 0..MANY {
            let (client, barrier) = (&clients[number % clients.len()], &barrier);
            scope.spawn(move || {
                barrier.wait();
                let builder = EspStream::builder().rings(1 << 14, 1 << 14);
                let mut stream = builder
                    .connect_at(client, address(0, 7000))
                    .expect("room in the end");
                stream.write_all(&[number as u8]).unwrap();
                let mut echo = [0];
                stream.read_exact(&mut echo).unwrap();
                assert_eq!(echo, [number as u8]);
            });
        }
        for _ in 0..MANY {
            let (mut stream, _) = listener.accept_timeout(PATIENCE).expect("all come");
            scope.spawn(move || {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                stream.write_all(&byte).unwrap();
            });
        }
    });
}

#[test]
fn an_interface_that_vanishes() {
    let Some(lab) = bare_lab("an_interface_that_vanishes", 2) else {
        return;
    };
    let (daemon, other) = (
        Daemon::start(&lab, 0, IMPATIENT),
        Daemon::start(&lab, 1, IMPATIENT),
    );
    let here = daemon.client();
    let (mut left, mut right) = pair(&lab, 0, 1, 7000);
    let listener = EspListener::builder().bind_at(&here, 7001).unwrap();
    // The cable is removed: its other end disappears, too.
    ip_in_switch(&lab, "link del dev port0");
    wait_until("the daemon sees it", || {
        !here.status().unwrap().interfaces[0].up
    });
    for stream in [&mut left, &mut right] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = typed(&stream.read(&mut [0; 9]).expect_err("no interface"));
        assert!(
            matches!(
                error,
                EspError::TimedOut { .. }
                    | EspError::EndedHere { .. }
                    | EspError::PeerShutdown { .. }
            ),
            "{error:?}"
        );
    }
    let refused = EspStream::builder()
        .connect_at(&here, address(1, 7000))
        .expect_err("no interface");
    assert!(
        matches!(
            typed(&refused),
            EspError::Denied {
                kind: ErrorKind::LinkDown,
                ..
            }
        ),
        "{refused}"
    );
    drop(listener);
    // The other node continues alone.
    let (left, right) = {
        let there = other.client();
        let listener = EspListener::builder().bind_at(&there, 7002).unwrap();
        let left = EspStream::builder()
            .connect_at(&there, address(1, 7002))
            .unwrap();
        (left, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    works(&left, &right);
    let mut daemon = daemon;
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_daemon_short_of_descriptors_refuses_some_and_serves_the_others() {
    let Some(lab) = bare_lab("a_daemon_short_of_descriptors", 2) else {
        return;
    };
    if !std::path::Path::new("/usr/bin/prlimit").exists() {
        return netns::skip("a_daemon_short_of_descriptors", "no prlimit");
    }
    let daemon = Daemon::start_by(&lab, 0, "", &["prlimit", "--nofile=80:80"]);
    let other = Daemon::start(&lab, 1, "");
    let balance = Balance::of(daemon.pid());
    let here = daemon.client();
    let bystander = Bystander::new(&lab);
    bystander.during(|| {
        for _ in 0..3 {
            // More programs than it has descriptors for: each is served, refused, or delayed.
            let crowd: Vec<_> = (0..60)
                .map(|_| esp_tests::raw::RawProgram::new(&lab.socket(0)))
                .collect();
            for mut program in crowd {
                let hello = esp_client::control::Request::Hello {
                    version: esp_client::control::VERSION,
                    program: "crowd".into(),
                    engine: None,
                };
                program.post(hello);
            }
        }
        wait_until("it serves again", || {
            EdpSocket::builder().bind_at(&here, 0).is_ok()
        });
    });
    let (left, right) = pair(&lab, 0, 1, 7000);
    works(&left, &right);
    drop((left, right, here));
    balance.is_kept();
    drop(other);
}

/// The error is in the log, and the daemon continues without the file.
#[test]
fn a_pcap_file_on_a_full_disk_is_reported() {
    let config = "pcap = \"/dev/full\"\n";
    let Some(lab) = configured_lab("a_pcap_file_on_a_full_disk", 2, config) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    // More than the writer's buffer.
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 1 << 20, 5));
        check_pattern(&right, 1 << 20, 5);
    });
    for node in [0, 1] {
        let log = lab.socket(node).with_file_name("daemon.log");
        wait_until("the log names the file", || {
            let text = std::fs::read_to_string(&log).expect("the log");
            let line = text.lines().find(|line| line.contains("pcap file"));
            line.is_some_and(|line| line.contains("/dev/full") && line.contains("No space left"))
        });
    }
}
