//! Streams against a daemon inside the test.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::support::{FakeDaemon, OWN, Options, PEER, address, blocked, port, within};
use esp_client::control::Request;
use esp_client::{Client, EspError, EspStream, PeerName, Spin};

const LONG: Duration = Duration::from_secs(60);

fn connect(daemon: &FakeDaemon, port: u16) -> EspStream {
    EspStream::builder()
        .connect_at(&daemon.client(), address(port))
        .unwrap()
}

fn typed(error: &std::io::Error) -> &EspError {
    EspError::of(error).unwrap_or_else(|| panic!("{error} has no EspError inside"))
}

#[test]
fn echo_then_end_of_stream() {
    let daemon = FakeDaemon::start();
    let mut stream = connect(&daemon, port::ECHO);
    assert_eq!(stream.peer_addr(), address(port::ECHO).via("eth0"));
    assert_eq!(stream.local_addr().addr, OWN);
    stream.write_all(b"hello").unwrap();
    let parts = [
        IoSlice::new(b", "),
        IoSlice::new(b"wor"),
        IoSlice::new(b"ld"),
    ];
    assert_eq!(stream.write_vectored(&parts).unwrap(), 7);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello, world");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut answer).unwrap(), 0);
    assert_eq!(stream.read(&mut answer).unwrap(), 0);
    let error = stream.write(b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert!(matches!(typed(&error), EspError::WriteAfterEnd { .. }));
}

#[test]
fn transfers_more_than_the_rings_hold() {
    for spin in [
        Spin::default(),
        Spin {
            spins: 200,
            yields: 5,
        },
    ] {
        let daemon = FakeDaemon::start();
        let client = daemon.client();
        let stream = EspStream::builder()
            .rings(4096, 8192)
            .spin(spin)
            .connect_at(&client, address(port::ECHO))
            .unwrap();
        let sent: Vec<u8> = (0..3_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let received = within(120, "the transfer", move || {
            let mut received = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    (&stream).write_all(&sent).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                (&stream).read_to_end(&mut received).unwrap();
            });
            assert!(
                received == sent,
                "{} of {} bytes, or changed ones",
                received.len(),
                sent.len()
            );
            received.len()
        });
        assert_eq!(received, 3_000_000);
    }
}

#[test]
fn many_streams_share_the_client() {
    let daemon = FakeDaemon::start();
    let mut streams: Vec<_> = (0..100).map(|_| connect(&daemon, port::ECHO)).collect();
    for (i, stream) in streams.iter_mut().enumerate() {
        stream.write_all(format!("stream {i}").as_bytes()).unwrap();
    }
    for (i, stream) in streams.iter_mut().enumerate() {
        let expected = format!("stream {i}");
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, expected.as_bytes());
    }
    drop(streams);
    let closes = |daemon: &FakeDaemon| {
        daemon
            .requests()
            .iter()
            .filter(|request| matches!(request, Request::Close { .. }))
            .count()
    };
    let end = std::time::Instant::now() + LONG;
    while closes(&daemon) < 100 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(closes(&daemon), 100, "each stream is closed once");
    let hellos = daemon
        .requests()
        .iter()
        .filter(|request| matches!(request, Request::Hello { .. }))
        .count();
    assert_eq!(hellos, 1, "the streams keep their client");
}

#[test]
fn one_client_for_each_socket() {
    let daemon = FakeDaemon::start();
    let first = daemon.client();
    let second = daemon.client();
    let _streams = [connect(&daemon, port::ECHO), connect(&daemon, port::ECHO)];
    assert_eq!((first.incarnation(), second.incarnation()), (9, 9));
    let hellos = daemon
        .requests()
        .iter()
        .filter(|request| matches!(request, Request::Hello { .. }))
        .count();
    assert_eq!(hellos, 1);
}

#[test]
fn refusals_have_distinct_errors() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let fail = |port| {
        EspStream::builder()
            .connect_at(&client, address(port))
            .unwrap_err()
    };
    let peer = |port| PeerName {
        addr: PEER.into(),
        port,
    };

    let refused = fail(port::REFUSED);
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(typed(&refused), &EspError::Refused(peer(port::REFUSED)));

    let key = fail(port::BAD_KEY);
    assert_eq!(typed(&key), &EspError::BadKey(peer(port::BAD_KEY)));

    let interface = EspStream::builder()
        .interface("eth9")
        .connect_at(&client, address(port::ECHO))
        .unwrap_err();
    assert_eq!(interface.kind(), ErrorKind::NotFound);
    assert_eq!(interface.to_string(), "there is no interface eth9");

    let long_key = EspStream::builder()
        .key([0; 33])
        .connect_at(&client, address(port::ECHO))
        .unwrap_err();
    assert_eq!(long_key.kind(), ErrorKind::InvalidInput);
    let group = esp_client::EspAddr::new(esp_client::MacAddr::BROADCAST, 7);
    assert_eq!(
        EspStream::builder()
            .connect_at(&client, group)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
}

#[test]
fn unanswered_connect_times_out() {
    let daemon = FakeDaemon::start();
    let error = EspStream::builder()
        .timeout(Duration::from_millis(30))
        .connect_at(&daemon.client(), address(port::DEAF))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(matches!(
        typed(&error),
        EspError::ConnectCallTimedOut { .. }
    ));
    daemon.wait_for("abort", |request| matches!(request, Request::Abort { .. }));
    daemon.wait_for("close", |request| matches!(request, Request::Close { .. }));
}

#[test]
fn nonblocking_calls_return_at_once() {
    let daemon = FakeDaemon::start();
    let mut stream = EspStream::builder()
        .rings(4096, 4096)
        .connect_at(&daemon.client(), address(port::STUCK))
        .unwrap();
    let mut buffer = [0; 8];
    assert_eq!(
        stream.try_read(&mut buffer).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(stream.try_read(&mut []).unwrap(), 0);
    stream.set_nonblocking(true).unwrap();
    assert_eq!(
        stream.read(&mut buffer).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(
        stream.write(&[1; 5000]).unwrap(),
        4096,
        "what fits is taken"
    );
    assert_eq!(
        stream.write(&[1]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(
        stream.try_write(&[1]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(stream.try_write(&[]).unwrap(), 0);
    assert_eq!(stream.unacknowledged(), 4096);
}

#[test]
fn waits_end_at_their_time_out() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let stream = EspStream::builder()
        .rings(4096, 4096)
        .connect_at(&client, address(port::STUCK))
        .unwrap();
    assert_eq!(
        stream
            .set_read_timeout(Some(Duration::ZERO))
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidInput
    );
    let short = Some(Duration::from_millis(20));
    stream.set_read_timeout(short).unwrap();
    stream.set_write_timeout(short).unwrap();
    let read = (&stream).read(&mut [0; 8]).unwrap_err();
    assert_eq!(read.kind(), ErrorKind::TimedOut);
    assert!(matches!(
        typed(&read),
        EspError::CallTimedOut { what: "reading" }
    ));
    let write = (&stream).write_all(&[0; 10000]).unwrap_err();
    assert!(matches!(
        typed(&write),
        EspError::CallTimedOut { what: "writing" }
    ));
    let delivered = stream.finish(Duration::from_millis(20)).unwrap_err();
    assert_eq!(delivered.kind(), ErrorKind::TimedOut);
}

#[test]
fn finish_waits_for_delivery() {
    let daemon = FakeDaemon::start();
    let mut stream = connect(&daemon, port::SILENT);
    stream.write_all(&[7; 100_000]).unwrap();
    stream.finish(LONG).unwrap();
    assert_eq!(stream.unacknowledged(), 0);
}

#[test]
fn the_peers_end_leaves_the_other_direction_open() {
    let daemon = FakeDaemon::start();
    let mut stream = connect(&daemon, port::BYE);
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    stream.write_all(b"still here").unwrap();
    stream.finish(LONG).unwrap();
}

#[test]
fn bytes_before_a_reset_are_read_first() {
    let daemon = FakeDaemon::start();
    let mut stream = connect(&daemon, port::DIES);
    stream.write_all(b"last words").unwrap();
    let mut got = [0; 10];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"last words");
    let error = stream.read(&mut got).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(
        typed(&error),
        &EspError::PeerDied(PeerName {
            addr: PEER.into(),
            port: port::DIES
        })
    );
    let write = stream.write(b"x").unwrap_err();
    assert!(
        matches!(typed(&write), EspError::PeerDied { .. }),
        "{write}"
    );
}

#[test]
fn shutting_the_reading_side_wakes_the_reader() {
    let daemon = FakeDaemon::start();
    let stream = connect(&daemon, port::SILENT);
    within(30, "the read", move || {
        std::thread::scope(|scope| {
            let reader = blocked(scope, || (&stream).read(&mut [0; 8]));
            stream.shutdown(Shutdown::Read).unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 0);
        });
    });
}

#[test]
fn a_dropped_attempt_is_withdrawn() {
    let daemon = FakeDaemon::start();
    let mut attempt = EspStream::builder()
        .begin_at(&daemon.client(), address(port::DEAF))
        .unwrap();
    let stream = loop {
        if let Some(stream) = attempt.poll() {
            break stream.unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(!stream.is_connected().unwrap());
    drop(stream);
    daemon.wait_for("abort", |request| matches!(request, Request::Abort { .. }));
    daemon.wait_for("close", |request| matches!(request, Request::Close { .. }));
}

#[test]
fn of_two_interfaces_the_faster_one_is_taken() {
    let daemon = FakeDaemon::with(Options {
        two_interfaces: true,
        ..Options::default()
    });
    let client = daemon.client();
    let stream = EspStream::builder()
        .connect_at(&client, address(port::ECHO))
        .unwrap();
    assert_eq!(stream.peer_addr().interface.as_deref(), Some("eth1"));
    let named = EspStream::builder()
        .connect_at(&client, address(port::ECHO).via("eth0"))
        .unwrap();
    assert_eq!(named.peer_addr().interface.as_deref(), Some("eth0"));
    assert_eq!(client.route(OWN.into()).unwrap(), "eth0");
}

#[test]
fn no_route_without_an_answer_on_any_interface() {
    let daemon = FakeDaemon::with(Options {
        two_interfaces: true,
        deaf_to_echo: true,
        ..Options::default()
    });
    let client = daemon.client();
    let error = EspStream::builder()
        .connect_at(&client, address(port::ECHO))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    assert!(
        error
            .to_string()
            .contains("no answer to an EDP echo on eth0, eth1"),
        "{error}"
    );
}

#[test]
fn status_is_typed() {
    let daemon = FakeDaemon::start();
    let status = Client::connect(daemon.path()).unwrap().status().unwrap();
    assert_eq!(
        (status.daemon.as_str(), status.interfaces[0].name.as_str()),
        ("test", "eth0")
    );
}
