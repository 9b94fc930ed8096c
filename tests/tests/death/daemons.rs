//! Daemons that are killed, restarted or stopped, and a second one that is refused.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use esp_client::{EdpSocket, EspError, EspListener};
use esp_tests::process::{Balance, Daemon, TempFile, bare_lab, output, programs};
use esp_tests::{PATIENCE, check_pattern, counter, pair, send_pattern, wait_until};

use super::{IMPATIENT, nothing_is_open, read_to_error, typed, write_to_error};

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
