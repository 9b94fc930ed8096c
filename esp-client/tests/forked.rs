//! A forked child, which shares its parent's memory. One test only, because the child has no other
//! thread of the process.

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use esp_client::{EdpSocket, EspError, EspStream};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::ForkResult;
use support::{FakeDaemon, PEER, address, port};

/// Timeout of the calls; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs in a child, which ends with 0 if it returns true; returns the child's status.
fn in_child(run: impl FnOnce() -> bool) -> WaitStatus {
    // SAFETY: locks of other threads stay locked in the child: it uses only the objects of this
    // test, and ends without unwinding or destructors of the process.
    match unsafe { nix::unistd::fork() }.unwrap() {
        ForkResult::Parent { child } => waitpid(child, None).unwrap(),
        ForkResult::Child => {
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(false);
            // SAFETY: ends the process at once.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
    }
}

/// Calls all functions that take from the rings or put into them. Returns true if all refuse.
fn is_refused(mut stream: &EspStream, datagrams: &EdpSocket) -> bool {
    let bytes = &mut [0; 64];
    let refused = [
        stream.try_read(bytes).map(drop),
        stream.read(bytes).map(drop),
        stream.try_read_with(0, |bytes| bytes.len()).map(drop),
        stream.try_write(b"child").map(drop),
        stream.write(b"child").map(drop),
        stream.shutdown(Shutdown::Write),
        stream.finish(PATIENCE),
        datagrams.try_recv_from(bytes).map(drop),
        datagrams.recv_from(bytes).map(drop),
        datagrams.recv_from_timeout(bytes, PATIENCE).map(drop),
        datagrams.send_to(b"child", PEER, 9).map(drop),
    ];
    let is_forked = |result: &std::io::Result<()>| {
        let error = result.as_ref().err();
        matches!(error.and_then(EspError::of), Some(EspError::Forked))
    };
    refused.iter().all(is_forked)
}

#[test]
fn a_forked_child_takes_nothing_of_its_parent() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let stream = EspStream::builder()
        .connect_at(&client, address(port::BYE))
        .unwrap();
    let datagrams = EdpSocket::builder()
        .interface("eth1")
        .bind_at(&client, 0)
        .unwrap();
    datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
    datagrams.send_echo(PEER, 1, b"echo").unwrap();
    let (mut read, mut bytes) = (&stream, [0; 64]);
    while !stream.is_readable_beyond(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = in_child(|| is_refused(&stream, &datagrams));
    assert!(matches!(ended, WaitStatus::Exited(_, 0)), "{ended:?}");
    let mut all = Vec::new();
    read.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye");
    let (len, _) = datagrams.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"echo");
}
