//! Several threads of one program on the same leased stream.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{Client, EspListener, EspStream, Interest, Path, Spin};
use esp_tests::process::{configured_lab, waits_in};
use esp_tests::{PATIENCE, address, client, wait_until};
use lab::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::gettid;

const ALL: &str = "[lease]\nallow = \"all\"\n";

/// Returns two connected streams over leases, with small rings.
fn pair(lab: &Lab, port: u16) -> (EspStream, EspStream) {
    let (here, there) = (client(lab, 0), client(lab, 1));
    let (lease, ring) = (Path::Lease, 1 << 16);
    let listener = EspListener::builder()
        .path(lease)
        .rings(ring, ring)
        .bind_at(&there, port)
        .unwrap();
    let builder = EspStream::builder().path(lease).rings(ring, ring);
    let left = builder.connect_at(&here, address(1, port)).unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    (left, right)
}

/// One thread waits for bytes and has the engine; another reads in place and writes an answer that
/// is longer than the ring. Neither may wait for the other.
#[test]
fn read_with_may_write_while_another_thread_waits() {
    const ROUNDS: u64 = 300;
    const ANSWER: usize = 200_000;
    let Some(lab) = configured_lab("lease_two_readers", 2, ALL) else {
        return;
    };
    let (left, right) = pair(&lab, 7000);
    let (seen, in_place, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    left.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0];
            while (&right).read(&mut byte).unwrap() > 0 {
                // Both threads give the same answer.
                (&right).write_all(&vec![byte[0]; ANSWER]).unwrap();
                seen.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Reads in place.
        scope.spawn(|| {
            let answer = |bytes: &[u8]| {
                assert!(right.is_readable_beyond(0), "it is not consumed yet");
                (&right).write_all(&vec![bytes[0]; ANSWER]).unwrap();
                in_place.fetch_add(1, Ordering::SeqCst);
                1
            };
            while !over.load(Ordering::SeqCst) {
                match right.try_read_with(0, answer) {
                    Ok(1) => {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                }
            }
        });
        let mut got = vec![0; ANSWER];
        for round in 0..ROUNDS {
            let byte = round.to_le_bytes()[0];
            (&left).write_all(&[byte]).unwrap();
            (&left).read_exact(&mut got).unwrap();
            assert!(got.iter().all(|b| *b == byte), "round {round}");
        }
        left.shutdown(Shutdown::Write).unwrap();
        over.store(true, Ordering::SeqCst);
    });
    assert_eq!(seen.into_inner(), ROUNDS);
    assert!(
        in_place.into_inner() > 0,
        "the waiting thread was faster each time: nothing is tested"
    );
}

/// A waiting thread checks by itself once a second. That would take too long for all rounds here.
#[test]
fn shutdown_of_reading_wakes_all_readers_at_once() {
    let Some(lab) = configured_lab("lease_shut_read", 2, ALL) else {
        return;
    };
    let deadline = Instant::now() + PATIENCE;
    for round in 0..100 {
        let (_left, right) = pair(&lab, 7000 + round);
        thread::scope(|scope| {
            // One of them drives the engine and sleeps in epoll, the other one is parked.
            for _ in 0..2 {
                scope.spawn(|| assert_eq!((&right).read(&mut [0; 8]).unwrap(), 0));
            }
            thread::sleep(Duration::from_millis(5));
            right.shutdown(Shutdown::Read).unwrap();
        });
        assert!(
            Instant::now() < deadline,
            "only {round} of 100 rounds in time"
        );
    }
}

#[test]
fn a_time_out_ends_a_wait_that_never_sleeps() {
    let Some(lab) = configured_lab("lease_spins", 2, ALL) else {
        return;
    };
    for (port, path) in (7000..).zip([Path::Lease, Path::Daemon]) {
        let listener = EspListener::builder()
            .path(path)
            .bind_at(&client(&lab, 1), port)
            .unwrap();
        let spin = Spin {
            spins: 0,
            yields: u32::MAX,
        };
        let stream = EspStream::builder()
            .path(path)
            .spin(spin)
            .connect_at(&client(&lab, 0), address(1, port))
            .unwrap();
        let _silent = listener.accept_timeout(PATIENCE).unwrap();
        let limit = Some(Duration::from_millis(100));
        stream.set_read_timeout(limit).unwrap();
        let error = (&stream).read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    }
}

#[test]
fn a_poller_sleeps_while_another_thread_reads() {
    let Some(lab) = configured_lab("lease_poller_sleeps", 2, ALL) else {
        return;
    };
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&client(&lab, 1), 7000)
        .unwrap();
    let (polled, mut poller) = Client::polled_by(lab.socket(0), Path::Lease).unwrap();
    let connect = || {
        let builder = EspStream::builder().path(Path::Lease);
        let stream = builder.connect_at(&polled, address(1, 7000)).unwrap();
        (stream, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    let (read, far_read) = connect();
    let (other, far_other) = connect();
    read.set_read_timeout(Some(PATIENCE)).unwrap();
    thread::scope(|scope| {
        let ((send, thread), mut read) = (channel(), &read);
        scope.spawn(move || {
            send.send(gettid()).expect("the test listens");
            read.read_exact(&mut [0; 4]).expect("read");
        });
        let thread = thread.recv().expect("the thread's number");
        // As the driver of the engine, in its epoll set.
        wait_until("the thread waits", || waits_in(thread, "poll"));
        wait_until("the poller may sleep", || {
            poller.poll(|_| ());
            other.arm(Interest::Readable);
            poller.try_sleep()
        });
        (&far_other).write_all(b"here").unwrap();
        let fd = poller.fd();
        let limit = Timespec::try_from(PATIENCE).unwrap();
        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(woken, 1, "nothing wakes the poller");
        let mut changed = Vec::new();
        wait_until("the event", || {
            poller.poll(|slot| changed.push(slot));
            changed.contains(&other.slot())
        });
        (&far_read).write_all(b"done").unwrap();
    });
}
