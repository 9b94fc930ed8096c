//! Connects that the daemon has begun when it ends, and programs that start before the next one.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use esp_client::{Client, EspAddr, EspListener, EspStream, Path, aio};
use rustix::process::Signal;

use super::support::{PATIENCE, eventually};
use super::{Cluster, says_hello};

#[test]
fn a_connect_that_the_daemon_began_is_repeated_by_the_next() {
    let connect = |client: Client, address| {
        let builder = EspStream::builder().path(Path::Daemon).timeout(PATIENCE);
        builder.connect_at(&client, address)
    };
    is_repeated_by_the_next("a_connect_is_repeated", connect, |stream| stream);
}

#[test]
fn an_asynchronous_connect_is_repeated_by_the_next() {
    let connect = |client: Client, address: EspAddr| {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let builder = EspStream::builder();
        runtime.block_on(builder.connect_async_at(&client, address))
    };
    is_repeated_by_the_next("an_asynchronous_connect", connect, aio::EspStream::get_ref);
}

/// Checks that this call connects although the daemon ends after its first SYN.
fn is_repeated_by_the_next<S: Send + 'static>(
    test: &str,
    connect: impl FnOnce(Client, EspAddr) -> std::io::Result<S> + Send + 'static,
    blocking: impl Fn(&S) -> &EspStream,
) {
    let Some(mut cluster) = Cluster::new_or_skip(test) else {
        return;
    };
    // Without a daemon, the peer's node answers no SYN.
    cluster.end(1, Signal::KILL);
    let (client, address) = (cluster.client(0), cluster.address(1, 7000));
    let connect = thread::spawn(move || connect(client, address));
    eventually("a SYN is sent", || cluster.counter(0, "tx_syns") > 0);
    cluster.end(0, Signal::KILL);
    cluster.start(1);
    let listener = EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&cluster.client(1), 7000)
        .expect("listen");
    cluster.start(0);
    let left = connect.join().expect("no panic").expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    says_hello((blocking(&left), &right));
    says_hello((&right, blocking(&left)));
}

/// More than the buffers of a control socket hold: the daemon reads no request while its replies
/// are unread.
#[test]
fn thousands_of_requests_begun_without_a_daemon_are_answered_by_the_next() {
    const REQUESTS: usize = 1500;
    let Some(mut cluster) = Cluster::new_or_skip("thousands_of_requests") else {
        return;
    };
    let (left, right) = cluster.pair(0, 1, 7000);
    let client = left.client().clone();
    cluster.end(0, Signal::KILL);
    eventually("the client waits", || client.check().is_err());
    let builder = EspStream::builder().path(Path::Daemon);
    // Nothing listens there.
    let address = cluster.address(0, 7001);
    let begin = |_| builder.begin_at(&client, &address).expect("begin");
    let mut begun: Vec<_> = (0..REQUESTS).map(begin).collect();
    cluster.start(0);
    says_hello((&left, &right));
    eventually("all requests are answered", || {
        begun.retain_mut(|connecting| connecting.poll().is_none());
        begun.is_empty()
    });
    says_hello((&right, &left));
}

#[test]
fn a_program_that_starts_between_two_daemons_waits_for_the_next() {
    let Some(mut cluster) = Cluster::new_or_skip("a_start_between_daemons") else {
        return;
    };
    for signal in [Signal::KILL, Signal::TERM] {
        cluster.end(0, signal);
        let socket = cluster.socket(0);
        assert!(UnixStream::connect(&socket).is_err(), "a daemon still runs");
        let client = thread::spawn(move || Client::connect(socket));
        // The program tries at least once before.
        thread::sleep(Duration::from_millis(100));
        assert!(!client.is_finished(), "it does not wait");
        cluster.start(0);
        let client = client.join().expect("no panic").expect("the next daemon");
        client.status().expect("a status");
    }
}
