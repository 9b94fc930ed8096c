//! Listeners against a daemon inside the test.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::support::{FakeDaemon, Options, PEER, blocked, within};
use esp_client::control::{Request, Rings};
use esp_client::{EspError, EspListener};

const LONG: Duration = Duration::from_secs(60);

fn count(daemon: &FakeDaemon, fits: impl Fn(&Request) -> bool) -> usize {
    daemon
        .requests()
        .iter()
        .filter(|request| fits(request))
        .count()
}

#[test]
fn connections_are_accepted_in_order() {
    let daemon = FakeDaemon::with(Options {
        incoming: 3,
        ..Options::default()
    });
    let listener = EspListener::builder()
        .rings(8192, 4096)
        .backlog(7)
        .key(*b"job")
        .bind_at(&daemon.client(), 5000)
        .unwrap();
    assert_eq!(listener.port(), 5000);
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hi").unwrap();
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hi");
    }
    let (stream, peer) = listener.accept().unwrap();
    assert_eq!(peer, stream.peer_addr());
    assert_eq!(peer.addr, PEER);
    let requests = daemon.requests();
    assert!(requests.contains(&Request::Listen {
        interface: None,
        port: 5000,
        backlog: 7,
        key: b"job".to_vec()
    }));
    assert!(requests.contains(&Request::Accept {
        listener: 1,
        rings: Rings { tx: 8192, rx: 4096 }
    }));
}

#[test]
fn refused_port_error_has_the_cause() {
    let daemon = FakeDaemon::start();
    let error = EspListener::builder()
        .bind_at(&daemon.client(), 80)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(error.to_string(), "port 80 is for the superuser");
    let error = EspListener::builder()
        .key([0; 33])
        .bind_at(&daemon.client(), 5000)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn timed_out_accept_loses_no_connection() {
    let daemon = FakeDaemon::start();
    let listener = EspListener::builder().bind_at(&daemon.client(), 0).unwrap();
    assert_eq!(listener.port(), 50000);
    let error = listener
        .accept_timeout(Duration::from_millis(10))
        .unwrap_err();
    assert!(matches!(
        EspError::of(&error),
        Some(EspError::CallTimedOut { .. })
    ));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    daemon.let_in(1);
    let end = Instant::now() + LONG;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(stream.peer_addr().addr, PEER);
    assert_eq!(
        count(&daemon, |request| matches!(request, Request::Accept { .. })),
        1,
        "one request was enough"
    );
    assert_eq!(
        count(&daemon, |request| matches!(
            request,
            Request::CancelAccept { .. }
        )),
        0
    );
}

#[test]
fn threads_share_a_listener() {
    let daemon = FakeDaemon::start();
    let listener = EspListener::builder().bind_at(&daemon.client(), 0).unwrap();
    within(60, "accepting", move || {
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..5)
                            .map(|_| listener.accept().unwrap().0)
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            for _ in 0..20 {
                daemon.let_in(1);
                std::thread::sleep(Duration::from_millis(1));
            }
            let accepted: usize = waiting
                .into_iter()
                .map(|thread| thread.join().unwrap().len())
                .sum();
            assert_eq!(accepted, 20);
        });
    });
}

#[test]
fn dropping_withdraws_the_accept_and_closes_the_port() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let listener = EspListener::builder().bind_at(&client, 0).unwrap();
    listener
        .accept_timeout(Duration::from_millis(10))
        .unwrap_err();
    drop(listener);
    daemon.wait_for("cancel", |request| {
        matches!(request, Request::CancelAccept { .. })
    });
    daemon.wait_for("close", |request| {
        matches!(request, Request::CloseListener { listener: 1 })
    });
}

#[test]
fn unaccepted_connection_is_released() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let listener = EspListener::builder().bind_at(&client, 0).unwrap();
    listener
        .accept_timeout(Duration::from_millis(10))
        .unwrap_err();
    daemon.let_in(1);
    // The reply to a later request proves that the client received the connection.
    daemon.wait_for_accepts(0);
    client.status().unwrap();
    drop(listener);
    daemon.wait_for("abort", |request| matches!(request, Request::Abort { .. }));
    daemon.wait_for("close", |request| matches!(request, Request::Close { .. }));
}

#[test]
fn waiting_accept_fails_with_the_daemon() {
    let mut daemon = FakeDaemon::start();
    let listener = EspListener::builder().bind_at(&daemon.client(), 0).unwrap();
    let error = within(30, "the accept", move || {
        std::thread::scope(|scope| {
            let waiting = blocked(scope, || listener.accept().unwrap_err());
            daemon.wait_for_accepts(1);
            daemon.die();
            waiting.join().unwrap()
        })
    });
    assert!(
        matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
        "{error}"
    );
}
