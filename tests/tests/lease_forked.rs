//! A forked child does not use its parent's engine.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{Client, EspError, EspListener, EspStream, Path, Poller};
use esp_tests::process::configured_lab;
use esp_tests::{PATIENCE, address};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ALL: &str = "[lease]\nallow = \"all\"\n";
const ROUNDS: u32 = 200;

/// Runs in a child, which ends with 0 if it returns true. The child's only thread is this one, and
/// the test harness is the parent's.
fn fork(run: impl FnOnce() -> bool) -> Pid {
    // SAFETY: other threads may hold locks for ever in the child: it uses only the objects under
    // test and ends without unwinding or destructors of the process.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Parent { child } => Pid::from_raw(child.as_raw()).unwrap(),
        nix::unistd::ForkResult::Child => {
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(false);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
    }
}

/// Returns the exit status of a child; kills it if it hangs.
fn wait(child: Pid) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            return status.exit_status();
        }
        if Instant::now() > deadline {
            kill_process(child, Signal::KILL).unwrap();
            waitpid(Some(child), WaitOptions::empty()).unwrap();
            panic!("the child hangs");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Calls everything that could use the parent's engine. Returns true if all is refused.
fn use_parents_objects(mut poller: Poller, listener: EspListener, stream: &EspStream) -> bool {
    let forked = |error: &std::io::Error| matches!(EspError::of(error), Some(EspError::Forked));
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        // Both results are possible; no event is for the child.
        let _ = poller.try_sleep();
        let _ = poller.poll(|_| ());
    }
    let refused = [
        listener.accept().map(drop).unwrap_err(),
        listener.accept_timeout(PATIENCE).map(drop).unwrap_err(),
        stream.try_write(b"x").map(drop).unwrap_err(),
        EspListener::builder()
            .path(Path::Lease)
            .bind_at(listener.client(), 7100)
            .map(drop)
            .unwrap_err(),
        EspStream::builder()
            .path(Path::Lease)
            .connect_at(listener.client(), address(0, 7000))
            .map(drop)
            .unwrap_err(),
    ];
    listener.set_nonblocking(true).unwrap();
    let nonblocking = listener.accept().map(drop).unwrap_err();
    drop(listener);
    refused.iter().all(forked) && forked(&nonblocking)
}

#[test]
fn forked_child_neither_drives_the_engine_nor_waits_for_it() {
    let Some(lab) = configured_lab("lease_forked", 2, ALL) else {
        return;
    };
    let far = Client::connect(lab.socket(0)).unwrap();
    let (near, poller) = Client::polled(lab.socket(1)).unwrap();
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&near, 7000)
        .unwrap();
    let mut left = EspStream::builder()
        .path(Path::Lease)
        .connect_at(&far, address(1, 7000))
        .unwrap();
    let (mut right, _) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!([left.path(), right.path()], [Path::Lease; 2]);
    left.set_read_timeout(Some(PATIENCE)).unwrap();
    right.set_read_timeout(Some(PATIENCE)).unwrap();
    // The driver of the parent's engine sleeps during the fork. In the child that thread does not
    // exist, so its lock is never released.
    let (child, kept) = thread::scope(|scope| {
        let waiting = scope.spawn(|| (&right).read_exact(&mut [0; 1]).unwrap());
        thread::sleep(Duration::from_millis(50));
        let mut taken = Some((poller, listener));
        let child = fork(|| {
            let (poller, listener) = taken.take().unwrap();
            use_parents_objects(poller, listener, &right)
        });
        (&left).write_all(&[1]).unwrap();
        waiting.join().unwrap();
        (child, taken)
    });
    // Only the progress thread drives the engine now. A frame that the child took would be missing.
    for round in 0..ROUNDS {
        left.write_all(&round.to_le_bytes()).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    for round in 0..ROUNDS {
        let mut got = [0; 4];
        right.read_exact(&mut got).unwrap();
        assert_eq!(got, round.to_le_bytes());
    }
    assert_eq!(wait(child), Some(0), "a call of the child was not refused");
    let (mut poller, listener) = kept.expect("the parent's stay");
    // The child's drops had no effect here.
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    poller.poll(|_| ());
    right.write_all(b"still there").unwrap();
    let mut got = [0; 11];
    left.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still there");
}
