//! Daemons that are missing, die, or send invalid messages.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::{
    FakeDaemon, SocketFile, address, blocked, port, scripted, socket_name, within,
};
use esp_client::control::codec::{DecodeError, Decoder, encode, receive, send};
use esp_client::control::{Envelope, ErrorReply, Reply, Request, Rings, VERSION};
use esp_client::{Client, EspError, EspListener, EspStream};
use esp_engine::shm::{ClientPage, EnginePage, Region, RingSizes};
use rustix::event::{EventfdFlags, eventfd};

pub(crate) fn read_requests(
    socket: &UnixStream,
    decoder: &mut Decoder<Request>,
) -> Option<(u64, Request)> {
    loop {
        if let Some((envelope, _)) = decoder.next().unwrap() {
            return Some((envelope.id, envelope.body));
        }
        let mut fds = [rustix::event::PollFd::new(
            socket,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        match receive(socket, decoder) {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

pub(crate) fn reply(socket: &UnixStream, id: u64, body: Reply, fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let bytes = encode(&Envelope { id, body }).unwrap();
    assert_eq!(send(socket, &bytes, &fds).unwrap(), bytes.len());
}

fn welcome(version: u16) -> (Reply, Vec<OwnedFd>) {
    let interface = esp_client::control::InterfaceInfo {
        name: "eth0".into(),
        addr: esp_client::MacAddr([2; 6]).into(),
        mtu: 1500,
        up: true,
    };
    let hello = Reply::Hello {
        version,
        daemon: "test".into(),
        client: 1,
        incarnation: 1,
        engine: 0,
        interfaces: vec![interface],
        leases: false,
    };
    (hello, descriptors())
}

/// Returns the descriptors of a welcome.
pub(crate) fn descriptors() -> Vec<OwnedFd> {
    let (_, engine) = EnginePage::create().unwrap();
    let (_, page) = ClientPage::create().unwrap();
    let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    vec![engine, page, event(), event()]
}

/// Starts a daemon that sends a welcome, then answers the first request with these bytes and
/// descriptors, and closes the socket if requested.
fn answering(bytes: Vec<u8>, fds: fn() -> Vec<OwnedFd>, close: bool) -> SocketFile {
    scripted(move |mut socket| {
        let mut decoder = Decoder::new();
        let Some((id, _)) = read_requests(&socket, &mut decoder) else {
            return;
        };
        let (hello, descriptors) = welcome(VERSION);
        reply(&socket, id, hello, &descriptors);
        if read_requests(&socket, &mut decoder).is_none() {
            return;
        }
        let fds = fds();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        assert_eq!(send(&socket, &bytes, &fds).unwrap(), bytes.len());
        if !close {
            let _ = socket.read_to_end(&mut Vec::new());
        }
    })
}

fn status_error(path: SocketFile) -> EspError {
    within(30, "the status", move || {
        let client = Client::connect(&path).unwrap();
        client.set_daemon_wait(Duration::ZERO);
        let error = client.status().unwrap_err();
        assert!(
            client.check().is_err(),
            "the client reports that the daemon is of no use"
        );
        error
    })
}

fn none() -> Vec<OwnedFd> {
    Vec::new()
}

fn framed(text: &[u8]) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_le_bytes(), text].concat()
}

#[test]
fn missing_daemon_error_names_socket_and_remedy() {
    let path = socket_name();
    let error = Client::connect(&path).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(path.to_str().unwrap()) && text.contains("start esp-daemon"),
        "{text}"
    );
    assert_eq!(error.kind(), ErrorKind::NotFound);

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let text = Client::connect(&path).unwrap_err().to_string();
    assert!(text.contains("no esp-daemon is listening"), "{text}");
    std::fs::remove_file(&path).unwrap();

    let long = std::path::PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    assert!(Client::connect(long).is_err());
}

/// Nothing polls for the daemon's death, so a wait that misses it would hang.
#[test]
fn every_wait_ends_when_the_daemon_dies() {
    within(60, "a wait", || {
        let mut daemon = FakeDaemon::start();
        let client = daemon.client();
        let open = |port| {
            EspStream::builder()
                .rings(4096, 4096)
                .connect_at(&client, address(port))
                .unwrap()
        };
        let (reader, stuck, undelivered) =
            (open(port::SILENT), open(port::STUCK), open(port::STUCK));
        let listener = EspListener::builder().bind_at(&client, 0).unwrap();
        (&stuck).write_all(&[0; 4096]).unwrap();
        (&undelivered).write_all(&[0; 4096]).unwrap();
        let errors = std::thread::scope(|scope| {
            let waits = [
                blocked(scope, || {
                    EspStream::builder()
                        .connect_at(&client, address(port::DEAF))
                        .unwrap_err()
                }),
                blocked(scope, || (&reader).read(&mut [0; 8]).unwrap_err()),
                blocked(scope, || (&stuck).write(&[0; 8]).unwrap_err()),
                blocked(scope, || {
                    undelivered.finish(Duration::from_secs(600)).unwrap_err()
                }),
                blocked(scope, || listener.accept().unwrap_err()),
            ];
            daemon.wait_for("connect", |r| {
                matches!(
                    r,
                    Request::Connect {
                        peer_port: port::DEAF,
                        ..
                    }
                )
            });
            daemon.wait_for_accepts(1);
            daemon.die();
            waits.map(|wait| wait.join().unwrap())
        });
        let gone = |error: std::io::Error| {
            matches!(EspError::of(&error), Some(EspError::DaemonGone { .. }))
        };
        assert!(errors.into_iter().all(gone));
        // And everything after it.
        assert!(gone((&reader).read(&mut [0; 8]).unwrap_err()));
        assert!(gone((&reader).write(&[0; 8]).unwrap_err()));
        assert!(gone(
            reader.shutdown(std::net::Shutdown::Write).unwrap_err()
        ));
        assert!(gone(
            EspListener::builder().bind_at(&client, 0).unwrap_err()
        ));
        assert!(matches!(
            client.status().unwrap_err(),
            EspError::DaemonGone { .. }
        ));
    });
}

#[test]
fn bytes_received_before_the_daemon_died_are_readable() {
    let mut daemon = FakeDaemon::start();
    let mut stream = EspStream::builder()
        .connect_at(&daemon.client(), address(port::BYE))
        .unwrap();
    while !stream.is_readable_beyond(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    daemon.die();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"bye");
}

#[test]
fn a_new_daemon_gets_a_new_client() {
    let mut daemon = FakeDaemon::start();
    let old = daemon.client();
    let path = daemon.path().to_owned();
    daemon.die();
    std::fs::remove_file(&path).unwrap();
    let again = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let serving = std::thread::spawn(move || {
        let (socket, _) = again.accept().unwrap();
        let mut decoder = Decoder::new();
        let (id, _) = read_requests(&socket, &mut decoder).unwrap();
        let (hello, descriptors) = welcome(VERSION);
        reply(&socket, id, hello, &descriptors);
        socket
    });
    let new = Client::connect(&path).unwrap();
    assert!(new.check().is_ok());
    // Its reader sees the end of the connection on a thread of its own.
    let end = Instant::now() + Duration::from_secs(10);
    while old.check().is_ok() {
        assert!(
            Instant::now() < end,
            "the old client works without its daemon"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(serving.join().unwrap());
}

#[test]
fn a_daemon_that_does_not_answer_keeps_no_thread_from_another() {
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let slow = scripted(move |socket| {
        let Some((id, _)) = read_requests(&socket, &mut Decoder::new()) else {
            return;
        };
        begun.send(()).unwrap();
        may_go_on.recv().unwrap();
        let (hello, descriptors) = welcome(VERSION);
        reply(&socket, id, hello, &descriptors);
    });
    let other = FakeDaemon::start();
    let connecting = std::thread::spawn(move || Client::connect(&slow).map(drop));
    has_begun.recv().unwrap();
    other.client().status().unwrap();
    go_on.send(()).unwrap();
    // It would have given up if the other had waited for it.
    connecting.join().unwrap().unwrap();
}

#[test]
fn truncated_reply_is_an_error() {
    let whole = encode(&Envelope {
        id: 2,
        body: Reply::Done,
    })
    .unwrap();
    let error = status_error(answering(whole[..7].to_vec(), none, true));
    let EspError::BadControl { source, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(source, &DecodeError::HalfWritten { have: 7 });
}

#[test]
fn oversized_reply_is_an_error() {
    let error = status_error(answering(u32::MAX.to_le_bytes().to_vec(), none, false));
    assert!(
        matches!(
            error,
            EspError::BadControl {
                source: DecodeError::Oversized { .. },
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn garbage_is_an_error() {
    for text in [
        &b"not json"[..],
        b"",
        b"{\"id\":2}",
        b"{\"id\":2,\"body\":{\"type\":\"sing\"}}",
        b"\xff\xff",
    ] {
        let error = status_error(answering(framed(text), none, false));
        assert!(
            matches!(
                error,
                EspError::BadControl {
                    source: DecodeError::Malformed { .. },
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn missing_and_surplus_descriptors_are_errors() {
    let rings = Rings { tx: 4096, rx: 4096 };
    let edp = Reply::Edp {
        slot: 1,
        rings,
        interface: "eth0".into(),
        port: 1,
    };
    let edp = encode(&Envelope { id: 2, body: edp }).unwrap();
    let error = status_error(answering(edp, none, false));
    let EspError::BadControl { source, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        source,
        &DecodeError::MissingDescriptors {
            expected: 1,
            got: 0
        }
    );

    let done = encode(&Envelope {
        id: 77,
        body: Reply::Done,
    })
    .unwrap();
    let surplus = || vec![std::fs::File::open("/dev/null").unwrap().into()];
    let error = status_error(answering(done, surplus, false));
    let EspError::BadControl { source, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(source, &DecodeError::UnexpectedDescriptors { got: 1 });
}

/// A reply of another type ends the call, and its grant is released.
#[test]
fn reply_of_another_type_is_an_error() {
    let answer = encode(&Envelope {
        id: 2,
        body: Reply::Listening {
            listener: 1,
            port: 1,
        },
    })
    .unwrap();
    let path = answering(answer, none, false);
    let error = within(30, "the status", move || {
        Client::connect(&path).unwrap().status().unwrap_err()
    });
    assert!(error.to_string().contains("is not a status"), "{error}");
}

#[test]
fn memory_of_wrong_size_or_type_is_refused() {
    let rings = Rings { tx: 4096, rx: 4096 };
    let stream = Reply::Stream {
        slot: 1,
        rings,
        interface: "eth0".into(),
        local_port: 1,
        peer: esp_client::MacAddr([2; 6]).into(),
        peer_port: 2,
    };
    let not_memory = || vec![std::fs::File::open("/dev/null").unwrap().into()];
    let too_short = || vec![ClientPage::create().unwrap().1];
    let other_sizes = || vec![Region::create(RingSizes { tx: 8192, rx: 4096 }).unwrap().1];
    for fds in [not_memory as fn() -> Vec<OwnedFd>, too_short, other_sizes] {
        let path = answering(
            encode(&Envelope {
                id: 2,
                body: stream.clone(),
            })
            .unwrap(),
            fds,
            false,
        );
        let error = within(30, "the connect", move || {
            let client = Client::connect(&path).unwrap();
            client.set_daemon_wait(Duration::ZERO);
            client.set_daemon_wait(Duration::ZERO);
            // The only reply is that to a connect request.
            EspStream::builder()
                .path(esp_client::Path::Daemon)
                .connect_at(&client, address(7))
                .unwrap_err()
        });
        assert!(
            matches!(EspError::of(&error), Some(EspError::Memory { .. })),
            "{error}"
        );
    }
}

#[test]
fn bad_welcomes_have_distinct_errors() {
    let refusing = scripted(|socket| {
        let Some((id, _)) = read_requests(&socket, &mut Decoder::new()) else {
            return;
        };
        let kind = esp_client::control::ErrorKind::Limit;
        reply(
            &socket,
            id,
            Reply::Error(ErrorReply {
                kind,
                message: "too many programs of yours".into(),
            }),
            &[],
        );
    });
    let error = Client::connect(&refusing).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::QuotaExceeded, "too many programs of yours")
    );

    let newer = scripted(|socket| {
        let Some((id, _)) = read_requests(&socket, &mut Decoder::new()) else {
            return;
        };
        let (hello, descriptors) = welcome(VERSION + 1);
        reply(&socket, id, hello, &descriptors);
    });
    let text = Client::connect(&newer).unwrap_err().to_string();
    let versions = format!("it speaks version {}, this program {VERSION}", VERSION + 1);
    assert!(text.contains(&versions), "{text}");

    let shut = scripted(drop);
    assert!(matches!(
        Client::connect(&shut).unwrap_err(),
        EspError::DaemonGone { .. }
    ));

    let no_pages = scripted(|socket| {
        let Some((id, _)) = read_requests(&socket, &mut Decoder::new()) else {
            return;
        };
        let (hello, _) = welcome(VERSION);
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        reply(&socket, id, hello, &[null(), null(), null(), null()]);
    });
    assert!(matches!(
        Client::connect(&no_pages).unwrap_err(),
        EspError::Memory { .. }
    ));

    let web = scripted(|mut socket| {
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let text = Client::connect(&web).unwrap_err().to_string();
    assert!(
        text.contains("is not an ESP daemon") || text.contains("lost the connection"),
        "{text}"
    );
}

#[test]
fn unsolicited_replies_are_ignored() {
    let mut bytes = Vec::new();
    for id in [0, 1, 99, u64::MAX] {
        bytes.extend(
            encode(&Envelope {
                id,
                body: Reply::Done,
            })
            .unwrap(),
        );
    }
    let status = Reply::Status(Box::default());
    bytes.extend(
        encode(&Envelope {
            id: 2,
            body: status.clone(),
        })
        .unwrap(),
    );
    bytes.extend(
        encode(&Envelope {
            id: 2,
            body: status,
        })
        .unwrap(),
    );
    let path = answering(bytes, none, false);
    let client = Client::connect(&path).unwrap();
    assert_eq!(
        client.status().unwrap(),
        esp_client::control::Status::default()
    );
    assert!(client.check().is_ok());
}
