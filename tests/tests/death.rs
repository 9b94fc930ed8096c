//! Programs, daemons and links that end abruptly: nothing of them is left, and every other process
//! learns of it by a typed error within a bounded time.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use esp_client::{Client, EdpSocket, EspError, EspListener, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::process::{
    Balance, Daemon, TempFile, bare_lab, configured_lab, daemon_pid, ip, ip_in_switch, output,
    programs,
};
use esp_tests::program::Program;
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, pair, send_pattern, wait_until,
};
use lab::{Lab, LabOptions};

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
/// A short peer timeout.
const IMPATIENT: &str = "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\n";

/// Reads to the end, which must be an error; returns the number of bytes before it, and the error.
#[track_caller]
fn read_to_error(mut stream: &EspStream) -> (usize, EspError) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(n) => panic!("an orderly end after {n} bytes"),
        Err(error) => (bytes.len(), typed(&error)),
    }
}

/// Writes until that fails.
fn write_to_error(mut stream: &EspStream) -> EspError {
    stream
        .set_write_timeout(Some(PATIENCE))
        .expect("a time-out");
    loop {
        if let Err(error) = stream.write_all(&[5; 4096]) {
            return typed(&error);
        }
    }
}

#[track_caller]
fn typed(error: &io::Error) -> EspError {
    EspError::of(error)
        .unwrap_or_else(|| panic!("not one of ours: {error}"))
        .clone()
}

fn nothing_is_open(client: &Client) -> bool {
    let status = client.status().expect("status");
    status.connections.is_empty() && status.listeners.is_empty() && status.edp.is_empty()
}

#[test]
fn a_killed_program_leaves_nothing_and_its_peers_learn() {
    let Some(lab) = lab_or_skip("a_killed_program", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    // It has one of everything: connections of both kinds, a port of both kinds, a pending connect.
    let steps = [
        "listen:7000",
        "edp:9000",
        "start:99:1",
        "connect:1:7100",
        "accept",
        "connect:1:7100",
        "write:1000",
        "hold",
    ];
    let mut program = Program::start(PROGRAM, &lab.socket(0), &steps);
    let (first, _) = listener.accept_timeout(PATIENCE).unwrap();
    program.says("ok listen");
    let accepted = EspStream::builder()
        .connect_at(&there, address(0, 7000))
        .unwrap();
    let (second, _) = listener.accept_timeout(PATIENCE).unwrap();
    for step in &steps[1..7] {
        program.says(&format!("ok {step}"));
    }
    let waiting = EspStream::builder()
        .connect_at(&there, address(0, 7000))
        .unwrap();
    // A reader that sleeps.
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| read_to_error(&first));
        assert_eq!(here.status().unwrap().edp.len(), 1);
        program.kill();
        assert!(matches!(
            sleeper.join().unwrap(),
            (0, EspError::PeerDied { .. })
        ));
    });
    assert!(matches!(
        read_to_error(&accepted),
        (0, EspError::PeerDied { .. })
    ));
    // Written data is delivered first.
    assert!(matches!(
        read_to_error(&second),
        (1000, EspError::PeerDied { .. })
    ));
    // This one had not been accepted.
    assert!(matches!(
        read_to_error(&waiting),
        (0, EspError::Refused { .. })
    ));
    wait_until("nothing of it is left", || nothing_is_open(&here));
    balance.is_kept();
    // Its ports are free.
    EspListener::builder().bind_at(&here, 7000).unwrap();
    EdpSocket::builder().bind_at(&here, 9000).unwrap();
}

#[test]
fn a_program_killed_in_the_middle_of_a_stream() {
    let Some(lab) = lab_or_skip("killed_in_the_middle", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let bystander = Bystander::new(&lab);
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    bystander.during(|| {
        for reads in [true, false] {
            let mut program = Program::start(PROGRAM, &lab.socket(0), &["connect:1:7100", "flood"]);
            let (mut stream, _) = listener.accept_timeout(PATIENCE).unwrap();
            stream.read_exact(&mut [0; 100_000]).unwrap();
            if reads {
                // Read all the time.
                thread::scope(|scope| {
                    let reader = scope.spawn(|| read_to_error(&stream));
                    program.kill();
                    assert!(matches!(
                        reader.join().unwrap(),
                        (_, EspError::PeerDied { .. })
                    ));
                });
            } else {
                // Not read: data left in the dead program's ring is discarded.
                program.kill();
                wait_until("the connection is gone", || {
                    here.status()
                        .unwrap()
                        .connections
                        .iter()
                        .all(|c| c.peer_port != 7100)
                });
                assert!(matches!(
                    read_to_error(&stream),
                    (_, EspError::PeerDied { .. })
                ));
            }
        }
    });
}

#[test]
fn two_hundred_killed_programs_leave_nothing() {
    let Some(lab) = lab_or_skip("two_hundred_killed_programs", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let balances = [0, 1].map(|node| Balance::of(daemon_pid(&lab, node)));
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    for round in 0..200 {
        let steps: &[&str] = match round % 3 {
            0 => &["connect:1:7100", "hold"],
            1 => &["listen:7000", "connect:1:7100", "write:70000", "hold"],
            _ => &["edp:9000", "connect:1:7100", "flood"],
        };
        let mut program = Program::start(PROGRAM, &lab.socket(0), steps);
        let (stream, _) = listener.accept_timeout(PATIENCE).unwrap();
        program.kill();
        assert!(
            matches!(read_to_error(&stream), (_, EspError::PeerDied { .. })),
            "round {round}"
        );
        // The next one can use the same ports.
        wait_until("nothing of it is left", || nothing_is_open(&here));
    }
    drop(listener);
    wait_until("nothing is left", || nothing_is_open(&there));
    balances.iter().for_each(Balance::is_kept);
}

#[test]
fn a_killed_daemon_is_missed_here_and_there() {
    let Some(lab) = bare_lab("a_killed_daemon_is_missed", 2) else {
        return;
    };
    let (mut daemon, other) = (
        Daemon::start(&lab, 0, IMPATIENT),
        Daemon::start(&lab, 1, IMPATIENT),
    );
    let (here, there) = (daemon.client(), other.client());
    let balance = Balance::of(other.pid());
    here.set_daemon_wait(Duration::ZERO);
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (busy, busy_peer) = pair(&lab, 0, 1, 7001);
    let listener = EspListener::builder().bind_at(&here, 7002).unwrap();
    let datagrams = EdpSocket::builder().bind_at(&here, 9000).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_to_error(&idle));
        let remote_reader = scope.spawn(|| read_to_error(&idle_peer));
        let writer = scope.spawn(|| write_to_error(&busy));
        let remote_writer = scope.spawn(|| write_to_error(&busy_peer));
        let acceptor = scope.spawn(|| {
            typed(
                &listener
                    .accept_timeout(PATIENCE)
                    .expect_err("no connection"),
            )
        });
        let receiver = scope.spawn(|| {
            typed(
                &datagrams
                    .recv_from_timeout(&mut [0; 9], PATIENCE)
                    .expect_err("no datagram"),
            )
        });
        wait_until("bytes flow", || counter(&there, "rx_data_bytes") > 1 << 19);
        daemon.kill();
        for local in [
            reader.join().unwrap().1,
            writer.join().unwrap(),
            acceptor.join().unwrap(),
            receiver.join().unwrap(),
        ] {
            assert!(matches!(local, EspError::DaemonGone { .. }), "{local:?}");
        }
        for remote in [
            remote_reader.join().unwrap().1,
            remote_writer.join().unwrap(),
        ] {
            assert!(matches!(remote, EspError::TimedOut { .. }), "{remote:?}");
        }
    });
    assert!(matches!(here.status(), Err(EspError::DaemonGone { .. })));
    drop((idle_peer, busy_peer));
    wait_until("the other node is rid of them", || nothing_is_open(&there));
    balance.is_kept();

    // A new one replaces the dead one, including its socket.
    assert!(lab.socket(0).exists(), "a killed daemon cannot clean up");
    let again = Daemon::start(&lab, 0, IMPATIENT);
    assert_ne!(again.client().incarnation(), here.incarnation());
    let (left, right) = pair(&lab, 0, 1, 7000);
    send_pattern(&left, 1 << 20, 1);
    check_pattern(&right, 1 << 20, 1);
}

#[test]
fn a_restarted_daemon_does_not_know_old_connections() {
    let Some(lab) = bare_lab("a_restarted_daemon", 2) else {
        return;
    };
    let (mut daemon, other) = (Daemon::start(&lab, 0, ""), Daemon::start(&lab, 1, ""));
    let (left, right) = pair(&lab, 0, 1, 7000);
    left.client().set_daemon_wait(Duration::ZERO);
    daemon.kill();
    wait_until("its program gives up", || left.is_connected().is_err());
    let daemon = Daemon::start(&lab, 0, "");
    // Long before the peer timeout.
    let error = write_to_error(&right);
    assert!(matches!(error, EspError::Forgotten { .. }), "{error:?}");
    assert!(counter(&daemon.client(), "rx_drop_no_connection") > 0);
    drop(right);
    wait_until("the old connection is gone", || {
        nothing_is_open(&other.client())
    });
    // The same ports again.
    pair(&lab, 0, 1, 7000);
}

#[test]
fn a_stopped_daemon_says_goodbye() {
    let Some(lab) = bare_lab("a_stopped_daemon", 2) else {
        return;
    };
    let (mut daemon, other) = (Daemon::start(&lab, 0, ""), Daemon::start(&lab, 1, ""));
    let here = daemon.client();
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (busy, busy_peer) = pair(&lab, 0, 1, 7001);
    let listener = EspListener::builder().bind_at(&here, 7002).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_to_error(&idle));
        let writer = scope.spawn(|| write_to_error(&busy));
        let drain = scope.spawn(|| read_to_error(&busy_peer));
        let acceptor = scope.spawn(|| {
            typed(
                &listener
                    .accept_timeout(PATIENCE)
                    .expect_err("no connection"),
            )
        });
        wait_until("bytes flow", || {
            counter(&other.client(), "rx_data_bytes") > 1 << 19
        });
        assert_eq!(daemon.interrupt().code(), Some(0));
        for local in [reader.join().unwrap().1, writer.join().unwrap()] {
            assert!(
                matches!(local, EspError::EndedHere { what, .. } if what.contains("is stopping")),
                "{local:?}"
            );
        }
        assert!(matches!(
            drain.join().unwrap(),
            (_, EspError::PeerShutdown { .. })
        ));
        use esp_client::control::ErrorKind::Unavailable;
        let accept = acceptor.join().unwrap();
        assert!(
            matches!(
                accept,
                EspError::Denied {
                    kind: Unavailable,
                    ..
                } | EspError::DaemonGone { .. }
            ),
            "{accept:?}"
        );
    });
    assert!(matches!(
        read_to_error(&idle_peer),
        (0, EspError::PeerShutdown { .. })
    ));
    let left: Vec<PathBuf> = files_beside(daemon.socket());
    assert!(
        !left
            .iter()
            .any(|f| f.to_string_lossy().contains("esp.sock")),
        "left behind: {left:?}"
    );
    drop((idle_peer, busy_peer));
    wait_until("the other node is rid of them", || {
        nothing_is_open(&other.client())
    });
}

fn files_beside(socket: &Path) -> Vec<PathBuf> {
    let folder = socket.parent().expect("a folder");
    std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

#[test]
fn a_second_daemon_is_refused_with_the_name_of_the_first() {
    let Some(lab) = bare_lab("a_second_daemon", 2) else {
        return;
    };
    let daemon = Daemon::start(&lab, 0, "");
    let config = TempFile::new("");
    let start = |node: usize, socket: &Path| -> Command {
        let mut command = lab.command(node, programs().join("esp-daemon")).unwrap();
        command
            .args(["--interface", "eth0", "--config"])
            .arg(config.path())
            .arg("--socket")
            .arg(socket);
        command.env("ESP_LOG", "off");
        command
    };
    let holder = format!("process {}", daemon.pid());
    // The same interface, another socket.
    let refused = output(&mut start(0, &lab.dir().join("other.sock")));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let text = refused.complaint();
    assert!(text.contains("eth0") && text.contains(&holder), "{text}");
    assert!(!lab.dir().join("other.sock").exists());
    // The same socket, another interface: that of the other node.
    let refused = output(&mut start(1, daemon.socket()));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let text = refused.complaint();
    assert!(
        text.contains("esp.sock") && text.contains(&holder),
        "{text}"
    );
    // The first daemon is not affected.
    daemon.client().status().unwrap();
    let other = Daemon::start(&lab, 1, "");
    pair(&lab, 0, 1, 7000);
    drop(other);
}

fn is_up(client: &Client) -> bool {
    client.status().expect("status").interfaces[0].up
}

#[test]
fn a_link_that_goes_down_and_comes_back_loses_nothing() {
    let Some(lab) = lab_or_skip("a_link_that_comes_back", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let bystander = Bystander::new(&lab);
    bystander.during(|| {
        for round in 0..4 {
            let flowed = || counter(&here, "rx_data_bytes").min(counter(&there, "rx_data_bytes"));
            let goal = flowed() + (1 << 20);
            wait_until("bytes flow", || flowed() > goal);
            // Unplugged at the node, and at the switch.
            let set = |state: &str| match round % 2 {
                0 => ip(&lab, 0, &format!("link set dev eth0 {state}")),
                _ => ip_in_switch(&lab, &format!("link set dev port0 {state}")),
            };
            set("down");
            wait_until("the daemon sees it", || !is_up(&here));
            if round == 0 {
                let error = EspStream::builder()
                    .connect_at(&here, address(1, 7009))
                    .expect_err("no link");
                assert!(matches!(typed(&error), EspError::Denied { .. }), "{error}");
            }
            set("up");
            wait_until("the daemon sees it", || is_up(&here));
            let goal = flowed() + (1 << 20);
            wait_until("bytes flow again", || flowed() > goal);
        }
    });
}

#[test]
fn a_link_that_stays_down_is_noticed() {
    let Some(lab) = configured_lab("a_link_that_stays_down", 2, IMPATIENT) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let (idle, idle_peer) = pair(&lab, 0, 1, 7000);
    let (busy, busy_peer) = pair(&lab, 0, 1, 7001);
    thread::scope(|scope| {
        let ends = [
            scope.spawn(|| read_to_error(&idle).1),
            scope.spawn(|| read_to_error(&idle_peer).1),
            scope.spawn(|| write_to_error(&busy)),
            scope.spawn(|| read_to_error(&busy_peer).1),
        ];
        wait_until("bytes flow", || counter(&there, "rx_data_bytes") > 1 << 19);
        ip_in_switch(&lab, "link set dev port1 down");
        for end in ends {
            let error = end.join().unwrap();
            assert!(matches!(error, EspError::TimedOut { .. }), "{error:?}");
        }
    });
    for client in [&here, &there] {
        wait_until("the connections are gone", || {
            client.status().unwrap().connections.is_empty()
        });
        assert_eq!(counter(client, "connections_timed_out"), 2);
    }
}

/// Creates a lab with jumbo frames whose daemons have a short peer timeout.
fn jumbo_lab(test: &str) -> Option<Lab> {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    options.daemon_config = IMPATIENT.into();
    lab_or_skip(test, &options)
}

fn payload(client: &Client, peer_port: u16) -> u16 {
    let status = client.status().expect("status");
    status
        .connections
        .iter()
        .find(|c| c.peer_port == peer_port)
        .and_then(|c| c.payload)
        .unwrap_or(0)
}

/// W-53, W-46: data cut for a larger MTU cannot be cut again; the connection times out, a new one
/// works.
#[test]
fn a_path_that_becomes_narrower_ends_what_was_cut_too_long() {
    let Some(lab) = jumbo_lab("a_path_that_becomes_narrower") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    for (from, to) in [(0, 1), (1, 0)] {
        ip_in_switch(&lab, "link set dev port1 mtu 9000");
        let (sender, receiver) = pair(&lab, from, to, 7000);
        let (me, other) = if from == 0 {
            (&here, &there)
        } else {
            (&there, &here)
        };
        thread::scope(|scope| {
            let writer = scope.spawn(|| write_to_error(&sender));
            let reader = scope.spawn(|| read_to_error(&receiver).1);
            wait_until("full frames flow", || payload(me, 7000) == 8989);
            let goal = counter(other, "rx_data_bytes") + (1 << 20);
            wait_until("bytes flow", || counter(other, "rx_data_bytes") > goal);
            ip_in_switch(&lab, "link set dev port1 mtu 1500");
            let (wrote, read) = (writer.join().unwrap(), reader.join().unwrap());
            assert!(matches!(wrote, EspError::TimedOut { .. }), "{wrote:?}");
            assert!(matches!(read, EspError::TimedOut { .. }), "{read:?}");
        });
        // New connections do not wait: they use smaller packets.
        let (sender, receiver) = pair(&lab, from, to, 7001);
        thread::scope(|scope| {
            scope.spawn(|| send_pattern(&sender, 4 << 20, 1));
            check_pattern(&receiver, 4 << 20, 1);
        });
    }
}

/// W-53: both ends detect that the switch between them does not carry their MTU.
#[test]
fn a_path_narrower_than_its_ends_carries_smaller_frames() {
    let Some(lab) = jumbo_lab("a_path_narrower_than_its_ends") else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    ip_in_switch(&lab, "link set dev port1 mtu 1500");
    let (left, right) = pair(&lab, 0, 1, 7000);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&left, 4 << 20, 1));
        scope.spawn(|| send_pattern(&right, 4 << 20, 2));
        scope.spawn(|| check_pattern(&left, 4 << 20, 2));
        check_pattern(&right, 4 << 20, 1);
    });
    for client in [&here, &there] {
        assert!(
            counter(client, "tx_probes") > 0,
            "the larger size was tried"
        );
        assert_eq!(counter(client, "connections_timed_out"), 0);
        assert_eq!(counter(client, "rx_drop_too_long"), 0);
    }
    // W-53 holds for the connection's life: a repaired path is used after a while, or by the next
    // connection.
    ip_in_switch(&lab, "link set dev port1 mtu 9000");
    let (again, _peer) = pair(&lab, 0, 1, 7002);
    (&again).write_all(&[1]).unwrap();
    wait_until("full frames", || payload(&here, 7002) == 8989);
}

#[test]
fn an_interface_with_a_smaller_mtu_ends_what_does_not_fit() {
    let Some(lab) = jumbo_lab("an_interface_with_a_smaller_mtu") else {
        return;
    };
    let here = client(&lab, 0);
    let (left, right) = pair(&lab, 0, 1, 7000);
    (&left).write_all(&[1; 100_000]).unwrap();
    (&right).read_exact(&mut [0; 100_000]).unwrap();
    ip(&lab, 0, "link set dev eth0 mtu 1500");
    wait_until("the daemon sees it", || {
        here.status().unwrap().interfaces[0].mtu == 1500
    });
    assert!(matches!(read_to_error(&left).1, EspError::EndedHere { .. }));
    assert!(matches!(
        read_to_error(&right).1,
        EspError::PeerLimit { .. }
    ));
    // The other end could send more, but knows the limit of this one.
    let (left, right) = pair(&lab, 0, 1, 7001);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&right, 4 << 20, 1));
        check_pattern(&left, 4 << 20, 1);
    });
    left.shutdown(Shutdown::Write).unwrap();
}
