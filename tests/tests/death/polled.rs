//! Programs with a poller, whose daemon ends and is followed by another one.

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::Instant;

use esp_client::{Client, EspListener, EspStream, Interest, Path, Poller};
use esp_tests::process::{Daemon, bare_lab};
use esp_tests::{PATIENCE, address};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BYTES: usize = 3000;

fn wait_readable(fd: BorrowedFd<'_>) {
    let time = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).expect("poll");
    assert!(ready > 0, "the poller was not woken");
}

/// Writes a record, and sleeps on the poller until its echo has come. Calls `sleeps` before.
fn exchange(poller: &mut Poller, mut stream: &EspStream, round: u8, sleeps: impl Fn()) {
    stream.write_all(&[round; BYTES]).expect("write");
    let begin = Instant::now();
    let mut has_event = false;
    while !stream.is_readable_beyond(BYTES - 1) {
        assert!(begin.elapsed() < PATIENCE, "round {round}: no echo");
        stream.arm(Interest::Readable);
        while !has_event && !stream.is_readable_beyond(BYTES - 1) {
            if poller.try_sleep() {
                sleeps();
                wait_readable(poller.fd());
            }
            poller.poll(|slot| has_event |= slot == stream.slot());
        }
        has_event = false;
    }
    let mut echo = [0; BYTES];
    stream.read_exact(&mut echo).expect("read");
    assert_eq!(echo, [round; BYTES]);
}

#[test]
fn a_poller_outlives_its_daemon() {
    let Some(lab) = bare_lab("a_poller_outlives", 2) else {
        return;
    };
    let (mut near, far) = (Daemon::start(&lab, 0, ""), Daemon::start(&lab, 1, ""));
    let listener = EspListener::builder()
        .bind_at(&far.client(), 7000)
        .expect("listen");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept_timeout(PATIENCE).expect("accept");
        let mut bytes = [0; BYTES];
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    });
    let (client, mut poller) = Client::polled_by(near.socket(), Path::Daemon).expect("a poller");
    let stream = EspStream::builder()
        .path(Path::Daemon)
        .connect_at(&client, address(1, 7000))
        .expect("connect");
    exchange(&mut poller, &stream, 0, || ());
    for round in 1..4 {
        near.kill();
        near = std::thread::scope(|scope| {
            let lab = &lab;
            let (asleep, sleeps) = mpsc::channel();
            let next = scope.spawn(move || {
                sleeps.recv().expect("the poller sleeps");
                Daemon::start(lab, 0, "")
            });
            exchange(&mut poller, &stream, round, || {
                // It sleeps again for each event.
                let _ = asleep.send(());
            });
            next.join().expect("the next daemon")
        });
        exchange(&mut poller, &stream, 100 + round, || ());
    }
    client.check().expect("the session goes on");
}
