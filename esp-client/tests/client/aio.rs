//! The futures against a daemon inside the test.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::{FakeDaemon, Options, PEER, address, port};
use esp_client::control::Request;
use esp_client::{EdpKind, EspError, aio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

async fn connect(daemon: &FakeDaemon, port: u16) -> aio::EspStream {
    let client = daemon.client();
    let builder = esp_client::EspStream::builder().rings(4096, 4096);
    timeout(LONG, builder.connect_async_at(&client, address(port)))
        .await
        .unwrap()
        .unwrap()
}

async fn echo_much(daemon: &FakeDaemon, bytes: usize) {
    let (mut reader, mut writer) = tokio::io::split(connect(daemon, port::ECHO).await);
    let sent: Vec<u8> = (0..bytes).map(|i| (i / 7 % 251) as u8).collect();
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    timeout(LONG, reader.read_to_end(&mut received))
        .await
        .expect("the echo hangs")
        .unwrap();
    writing.await.unwrap();
    assert!(
        received == expected,
        "{} of {bytes} bytes, or changed ones",
        received.len()
    );
}

#[tokio::test]
async fn echoes_on_a_single_threaded_runtime() {
    echo_much(&FakeDaemon::start(), 1_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_at_once() {
    let daemon = std::sync::Arc::new(FakeDaemon::start());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let daemon = std::sync::Arc::clone(&daemon);
            tokio::spawn(async move { echo_much(&daemon, 100_000).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn refusal_and_reset_are_errors() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let refused = esp_client::EspStream::builder()
        .connect_async_at(&client, address(port::REFUSED))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let mut stream = connect(&daemon, port::DIES).await;
    stream.write_all(b"x").await.unwrap();
    let mut got = Vec::new();
    let error = timeout(LONG, stream.read_to_end(&mut got))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(got, b"x");
    assert!(matches!(
        EspError::of(&error),
        Some(EspError::PeerDied { .. })
    ));
}

#[tokio::test]
async fn a_dropped_connect_is_withdrawn() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let builder = esp_client::EspStream::builder();
    timeout(
        Duration::from_millis(50),
        builder.connect_async_at(&client, address(port::DEAF)),
    )
    .await
    .unwrap_err();
    daemon.wait_for("abort", |request| matches!(request, Request::Abort { .. }));
    daemon.wait_for("close", |request| matches!(request, Request::Close { .. }));
}

#[tokio::test]
async fn dropped_accepts_lose_no_connection() {
    let daemon = FakeDaemon::start();
    let listener = esp_client::EspListener::builder()
        .bind_at(&daemon.client(), 0)
        .unwrap();
    let listener = aio::EspListener::from_std(listener);
    for _ in 0..3 {
        timeout(Duration::from_millis(10), listener.accept())
            .await
            .unwrap_err();
    }
    daemon.let_in(2);
    let (mut stream, peer) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
    assert_eq!(peer.addr, PEER);
    stream.write_all(b"hi").await.unwrap();
    let mut answer = [0; 2];
    timeout(LONG, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&answer, b"hi");
    timeout(LONG, listener.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn several_tasks_accept_from_one_listener() {
    let daemon = FakeDaemon::start();
    let listener = esp_client::EspListener::builder()
        .bind_at(&daemon.client(), 0)
        .unwrap();
    let listener = std::sync::Arc::new(aio::EspListener::from_std(listener));
    let tasks: Vec<_> = (0..5)
        .map(|_| {
            let listener = std::sync::Arc::clone(&listener);
            tokio::spawn(async move { listener.accept().await.map(drop) })
        })
        .collect();
    // All tasks run on this thread, each until it waits.
    tokio::task::yield_now().await;
    daemon.let_in(5);
    for task in tasks {
        timeout(LONG, task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_fastest_of_two_interfaces_is_found_without_blocking() {
    let daemon = FakeDaemon::with(Options {
        two_interfaces: true,
        ..Options::default()
    });
    let stream = connect(&daemon, port::ECHO).await;
    assert_eq!(
        stream.get_ref().peer_addr().interface.as_deref(),
        Some("eth1")
    );
}

#[tokio::test]
async fn datagrams() {
    let daemon = FakeDaemon::start();
    let socket = esp_client::EdpSocket::builder()
        .rings(4096, 65536)
        .bind_at(&daemon.client(), 0)
        .unwrap();
    let socket = aio::EdpSocket::from_std(socket);
    for i in 0..50 {
        socket.send_echo(PEER.into(), i, &[1; 900]).await.unwrap();
        let mut buffer = [0; 1000];
        let (n, info) = timeout(LONG, socket.recv_from(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!((n, info.kind, info.sequence), (900, EdpKind::EchoReply, i));
    }
}

#[tokio::test]
async fn waiting_tasks_end_with_the_daemon() {
    let mut daemon = FakeDaemon::start();
    let mut reader = connect(&daemon, port::SILENT).await;
    let mut writer = connect(&daemon, port::STUCK).await;
    let listener = esp_client::EspListener::builder()
        .bind_at(&daemon.client(), 0)
        .unwrap();
    let listener = aio::EspListener::from_std(listener);
    let reading = tokio::spawn(async move { reader.read(&mut [0; 8]).await.unwrap_err() });
    let writing = tokio::spawn(async move { writer.write_all(&[0; 10_000]).await.unwrap_err() });
    let accepting = tokio::spawn(async move { listener.accept().await.unwrap_err() });
    // All tasks run on this thread, each until it waits.
    tokio::task::yield_now().await;
    tokio::task::spawn_blocking(move || daemon.die())
        .await
        .unwrap();
    for task in [reading, writing, accepting] {
        let error = timeout(LONG, task).await.expect("a task hangs").unwrap();
        assert!(
            matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
            "{error}"
        );
    }
}
