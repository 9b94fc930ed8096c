//! Slots and listeners of a daemon that has ended: at the next one their numbers denote other
//! objects, which late requests about the earlier ones must not end.

use std::time::Duration;

use esp_client::{Client, Connecting, EspError, EspListener, EspStream, Path};
use rustix::process::Signal;

use super::support::{PATIENCE, eventually};
use super::{Cluster, says_hello};

/// Returns the stream of the daemon's reply, which may still be connecting.
fn granted(mut begun: Connecting) -> EspStream {
    let mut stream = None;
    eventually("the daemon's reply", || {
        stream = begun.poll();
        stream.is_some()
    });
    stream.expect("a reply").expect("a stream")
}

fn listen(client: &Client, port: u16) -> std::io::Result<EspListener> {
    let builder = EspListener::builder().path(Path::Daemon);
    builder.bind_at(client, port)
}

/// A stream that was not connected yet is closed, and another begun, before the next daemon comes.
#[test]
fn a_stream_given_up_without_a_daemon_does_not_end_the_next_one() {
    let Some(mut cluster) = Cluster::new_or_skip("a_stream_given_up") else {
        return;
    };
    cluster.end(1, Signal::KILL);
    let (client, address) = (cluster.client(0), cluster.address(1, 7000));
    let builder = EspStream::builder().path(Path::Daemon);
    let first = granted(builder.begin_at(&client, &address).unwrap());
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    drop(first);
    let second = builder.begin_at(&client, &address).unwrap();
    cluster.start(1);
    let listener = listen(&cluster.client(1), 7000).expect("listen");
    cluster.start(0);
    let left = granted(second);
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    says_hello((&left, &right));
}

/// Replaces the daemon of `client`, and returns two streams connected by the next one.
fn connected_by_the_next(cluster: &mut Cluster, client: &Client) -> (EspStream, EspStream) {
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    cluster.start(1);
    let listener = listen(&cluster.client(1), 7000).expect("listen");
    cluster.start(0);
    let builder = EspStream::builder().path(Path::Daemon);
    let left = builder.connect_at(client, cluster.address(1, 7000));
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    (left.expect("connect"), right)
}

#[test]
fn an_abort_of_a_lost_stream_ends_no_other() {
    let Some(mut cluster) = Cluster::new_or_skip("an_abort_of_a_lost_stream") else {
        return;
    };
    cluster.end(1, Signal::KILL);
    let client = cluster.client(0);
    let builder = EspStream::builder().path(Path::Daemon);
    let first = granted(
        builder
            .begin_at(&client, cluster.address(1, 7000))
            .expect("begin"),
    );
    let (left, right) = connected_by_the_next(&mut cluster, &client);
    assert_eq!(first.slot(), left.slot());
    first.abort();
    client
        .status()
        .expect("the daemon has processed the earlier requests");
    says_hello((&left, &right));
    says_hello((&right, &left));
}

#[test]
fn a_reply_dropped_late_ends_no_stream() {
    let Some(mut cluster) = Cluster::new_or_skip("a_reply_dropped_late") else {
        return;
    };
    cluster.end(1, Signal::KILL);
    let client = cluster.client(0);
    let builder = EspStream::builder().path(Path::Daemon);
    let first = builder.begin_at(&client, cluster.address(1, 7000));
    client.status().expect("a reply after that of the connect");
    let (left, right) = connected_by_the_next(&mut cluster, &client);
    drop(first);
    client
        .status()
        .expect("the daemon has processed the earlier requests");
    says_hello((&left, &right));
    says_hello((&right, &left));
}

#[test]
fn a_listener_closed_without_a_daemon_is_not_opened_by_the_next() {
    let Some(mut cluster) = Cluster::new_or_skip("a_listener_closed_without_a_daemon") else {
        return;
    };
    let client = cluster.client(0);
    let (closed, kept) = (listen(&client, 7000), listen(&client, 7001));
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    drop(closed.expect("listen"));
    cluster.start(0);
    eventually("the client has found it", || client.check().is_ok());
    let _again = listen(&cluster.client(0), 7000).expect("a free port");
    drop(kept.expect("listen"));
    let _there = listen(&client, 7001).expect("a closed port");
}

/// Replaces the daemon until another program listens on port 7000 before `client` does again.
fn taken_by_another(cluster: &mut Cluster, client: &Client) -> EspListener {
    // Both race for the port; the other one wins within thirty attempts.
    let taken = (0..30).find_map(|_| {
        cluster.end(0, Signal::KILL);
        eventually("the client waits", || client.check().is_err());
        cluster.start(0);
        let other = listen(&cluster.client(0), 7000).ok();
        eventually("the client has found it", || client.check().is_ok());
        other
    });
    taken.expect("the other program wins once")
}

#[track_caller]
fn assert_is_gone<T>(accepted: std::io::Result<T>) {
    let error = accepted.map(drop).expect_err("no listener");
    assert!(
        matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
        "{error}"
    );
}

/// An accept fails if the next daemon did not open its listener because another program came first.
#[test]
fn accepts_of_a_refused_listener_fail() {
    let Some(mut cluster) = Cluster::new_or_skip("accepts_of_a_refused_listener") else {
        return;
    };
    let client = cluster.client(0);
    let listener = listen(&client, 7000).expect("listen");
    let _other = taken_by_another(&mut cluster, &client);
    assert_is_gone(listener.accept_timeout(Duration::from_secs(20)));
}

#[test]
fn an_accept_that_waits_fails_when_its_listener_is_refused() {
    let Some(mut cluster) = Cluster::new_or_skip("an_accept_that_waits") else {
        return;
    };
    let client = cluster.client(0);
    let listener = listen(&client, 7000).expect("listen");
    let accepting = std::thread::spawn(move || listener.accept_timeout(PATIENCE));
    client.status().expect("a reply");
    let _other = taken_by_another(&mut cluster, &client);
    assert_is_gone(accepting.join().expect("the thread"));
}

/// The limit is longer than the time that a daemon has for a reply.
#[test]
fn the_time_to_connect_is_limited_without_a_daemon() {
    let Some(mut cluster) = Cluster::new_or_skip("the_time_to_connect") else {
        return;
    };
    let client = cluster.client(0);
    client.set_daemon_wait(PATIENCE);
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    let builder = EspStream::builder().path(Path::Daemon);
    let limited = builder.timeout(Duration::from_secs(6));
    let address = cluster.address(1, 7000);
    let error = limited.connect_at(&client, address).map(drop).unwrap_err();
    assert!(
        matches!(
            EspError::of(&error),
            Some(EspError::ConnectCallTimedOut { .. })
        ),
        "{error}"
    );
}
