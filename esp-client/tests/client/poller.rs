//! Many streams served from one thread: event bits, one descriptor, records read in place.

use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::support::{FakeDaemon, Options, address, port};
use esp_client::{Client, EspError, EspListener, EspStream, Interest, Poller};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LONG: Duration = Duration::from_secs(60);

fn readable(fd: BorrowedFd<'_>, wait: Duration) -> bool {
    let time = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap() > 0
}

/// Polls, and sleeps in between, until `done`.
fn until(poller: &mut Poller, mut done: impl FnMut(&[u16], bool) -> bool) {
    let end = Instant::now() + LONG;
    loop {
        let mut slots = Vec::new();
        let answers = poller.poll(|slot| slots.push(slot));
        if done(&slots, answers) {
            return;
        }
        if poller.try_sleep() {
            assert!(readable(poller.fd(), LONG), "the sleeper was not woken");
        }
        assert!(Instant::now() < end, "no event in time");
    }
}

fn begun(client: &Client, poller: &mut Poller, to: u16) -> EspStream {
    let mut begun = EspStream::builder().begin_at(client, address(to)).unwrap();
    let mut stream = None;
    until(poller, |_, _| {
        stream = begun.poll();
        stream.is_some()
    });
    stream.unwrap().unwrap()
}

/// Arms an event and waits for it.
fn notified(
    poller: &mut Poller,
    stream: &EspStream,
    interest: Interest,
    mut there: impl FnMut() -> bool,
) {
    stream.arm(interest);
    if there() {
        return;
    }
    let mut seen = false;
    until(poller, |slots, _| {
        seen |= slots.contains(&stream.slot());
        if seen && !there() {
            seen = false;
            stream.arm(interest);
        }
        there()
    });
}

#[test]
fn nonblocking_connect_completes_by_an_event() {
    let daemon = FakeDaemon::start();
    let (client, mut poller) = Client::polled(daemon.path()).unwrap();
    let streams: Vec<_> = (0..3)
        .map(|_| begun(&client, &mut poller, port::ECHO))
        .collect();
    for stream in &streams {
        notified(&mut poller, stream, Interest::State, || {
            stream.is_connected().unwrap()
        });
    }
    for (n, stream) in streams.iter().enumerate() {
        let (head, body) = ([n as u8; 3], [7; 5]);
        stream
            .try_write_whole(&[IoSlice::new(&head), IoSlice::new(&body)], 0)
            .unwrap();
        notified(&mut poller, stream, Interest::Readable, || {
            stream.is_readable_beyond(7)
        });
        // The first read leaves the last byte; nothing more has arrived.
        let taken = stream.try_read_with(0, |bytes| {
            assert_eq!(bytes, [&head[..], &body[..]].concat());
            7
        });
        assert_eq!(taken.unwrap(), 7);
        assert!(!stream.is_readable_beyond(1));
        let again = stream.try_read_with(1, |_| panic!("nothing new"));
        assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(stream.try_read_with(0, |bytes| bytes.len()).unwrap(), 1);
        let nothing = stream.try_read_with(0, |_| panic!("nothing there"));
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_message_is_written_whole_or_not_at_all() {
    let daemon = FakeDaemon::start();
    let (client, _poller) = Client::polled(daemon.path()).unwrap();
    let stream = EspStream::builder()
        .rings(4096, 4096)
        .connect_at(&client, address(port::STUCK))
        .unwrap();
    assert_eq!(stream.ring_sizes(), (4096, 4096));
    let part = [1; 2000];
    let both = [IoSlice::new(&part), IoSlice::new(&part)];
    let refused = |result: std::io::Result<()>| result.unwrap_err().kind() == ErrorKind::WouldBlock;
    assert!(refused(stream.try_write_whole(&both, 97)));
    assert_eq!(stream.unacknowledged(), 0);
    stream.try_write_whole(&both, 96).unwrap();
    assert!(refused(
        stream.try_write_whole(&[IoSlice::new(&part[..97])], 0)
    ));
    stream
        .try_write_whole(&[IoSlice::new(&part[..96])], 0)
        .unwrap();
    assert_eq!(stream.unacknowledged(), 4096);
    assert!(refused(
        stream.try_write_whole(&[IoSlice::new(&part)], usize::MAX)
    ));
}

#[test]
fn end_of_stream_is_an_event() {
    let daemon = FakeDaemon::start();
    let (client, mut poller) = Client::polled(daemon.path()).unwrap();
    let bye = begun(&client, &mut poller, port::BYE);
    notified(&mut poller, &bye, Interest::Readable, || {
        bye.is_readable_beyond(3)
    });
    // Unread bytes precede the end.
    let end = bye.try_read_with(3, |_| panic!("the end"));
    assert_eq!(end.unwrap(), 0);
    assert_eq!(bye.try_read_with(0, |bytes| bytes.len()).unwrap(), 3);
    assert_eq!((&bye).read(&mut [0; 1]).unwrap(), 0);

    let refused = begun(&client, &mut poller, port::REFUSED);
    notified(&mut poller, &refused, Interest::State, || {
        refused.is_connected().is_err()
    });
    let error = refused.is_connected().unwrap_err();
    assert!(
        matches!(EspError::of(&error), Some(EspError::Refused { .. })),
        "{error}"
    );
    let error = refused
        .try_read_with(0, |_| panic!("no bytes"))
        .unwrap_err();
    assert!(
        matches!(EspError::of(&error), Some(EspError::Refused { .. })),
        "{error}"
    );
}

#[test]
fn incoming_connection_is_reported() {
    let daemon = FakeDaemon::with(Options::default());
    let (client, mut poller) = Client::polled(daemon.path()).unwrap();
    let listener = EspListener::builder().bind_at(&client, 5000).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    daemon.let_in(1);
    until(&mut poller, |_, answers| {
        answers && listener.accept().is_ok()
    });
}

#[test]
fn daemons_death_wakes_a_sleeping_poller() {
    let mut daemon = FakeDaemon::start();
    let (client, mut poller) = Client::polled(daemon.path()).unwrap();
    client.set_daemon_wait(Duration::ZERO);
    let stream = begun(&client, &mut poller, port::SILENT);
    while !poller.try_sleep() {
        poller.poll(|_| ());
    }
    assert!(
        !readable(poller.fd(), Duration::from_millis(20)),
        "nothing has happened"
    );
    daemon.die();
    assert!(readable(poller.fd(), LONG));
    until(&mut poller, |_, answers| answers && client.check().is_err());
    let error = stream.try_read_with(0, |_| 0).unwrap_err();
    assert!(
        matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
        "{error}"
    );
}

#[test]
fn polled_connections_are_not_shared() {
    let daemon = FakeDaemon::start();
    let (first, _) = Client::polled(daemon.path()).unwrap();
    let shared = daemon.client();
    drop(first);
    shared.check().unwrap();
    EspStream::builder()
        .connect_at(&shared, address(port::ECHO))
        .unwrap();
}
