//! Daemons that take longer to resume a program's sockets than the program waits for other replies.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::control::codec::{Decoder, Message, Received, encode, receive, send};
use esp_client::control::{Reply, Request};
use esp_client::{Client, EdpSocket, EspListener, EspStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::support::{PATIENCE, eventually};
use super::{Cluster, says_hello};

/// Time for which a reply is held back: longer than a program waits for others.
const HELD: Duration = Duration::from_secs(6);

/// Configuration of daemons that keep the connections of an earlier one for longer than that.
const PATIENT: Option<&str> = Some("[lease]\ngrace = \"60s\"\n");

/// Relays between programs and a daemon, and holds back the first reply to a request of one kind.
/// Keeps the connection to the daemon open after the program has closed its own, as if the daemon
/// were still working on the request.
struct Relay {
    daemon: PathBuf,
    is_slow: fn(&Request) -> bool,
    /// The first request of the kind has come.
    begun: AtomicBool,
    /// A reply to a request of the kind was passed on.
    over: AtomicBool,
    left: Mutex<Vec<UnixStream>>,
}

impl Relay {
    fn start(path: &Path, daemon: PathBuf, is_slow: fn(&Request) -> bool) -> Arc<Relay> {
        let listener = UnixListener::bind(path).unwrap();
        let relay = Arc::new(Relay {
            daemon,
            is_slow,
            begun: AtomicBool::new(false),
            over: AtomicBool::new(false),
            left: Mutex::default(),
        });
        let shared = Arc::clone(&relay);
        thread::spawn(move || {
            while let Ok((program, _)) = listener.accept() {
                let relay = Arc::clone(&shared);
                thread::spawn(move || relay.serve(&program));
            }
        });
        relay
    }

    /// Sets whether all replies are passed on at once.
    fn ignore(&self, all: bool) {
        self.begun.store(all, Ordering::SeqCst);
        self.over.store(false, Ordering::SeqCst);
    }

    /// Serves a program until it leaves, or the daemon ends.
    fn serve(&self, program: &UnixStream) {
        let Ok(daemon) = UnixStream::connect(&self.daemon) else {
            return;
        };
        let mut requests = Decoder::<Request>::new();
        let mut replies = Decoder::<Reply>::new();
        let mut slow: Option<(u64, Instant)> = None;
        let mut of_kind = HashSet::new();
        let mut held = VecDeque::new();
        loop {
            let (mut from_program, mut from_daemon) = (Vec::new(), Vec::new());
            if !take(program, &mut requests, &mut from_program) {
                break;
            }
            for request in from_program {
                if (self.is_slow)(&request.0.body) {
                    of_kind.insert(request.0.id);
                    if !self.begun.swap(true, Ordering::SeqCst) {
                        slow = Some((request.0.id, Instant::now() + HELD));
                    }
                }
                pass_on(&daemon, &request);
            }
            if !take(&daemon, &mut replies, &mut from_daemon) {
                return;
            }
            held.extend(from_daemon);
            while let Some(reply) = held.pop_front() {
                let id = reply.0.id;
                if slow.is_some_and(|(slow, until)| slow == id && Instant::now() < until) {
                    held.push_front(reply);
                    break;
                }
                pass_on(program, &reply);
                if of_kind.contains(&id) {
                    self.over.store(true, Ordering::SeqCst);
                }
            }
            wait(program, &daemon);
        }
        if slow.is_some() {
            self.left.lock().unwrap().push(daemon);
        }
    }
}

/// Takes the complete messages; false at the end of the connection.
fn take<T: Message>(
    socket: &UnixStream,
    decoder: &mut Decoder<T>,
    all: &mut Vec<Received<T>>,
) -> bool {
    match receive(socket, decoder) {
        Ok(0) => return false,
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return false,
        Ok(_) | Err(_) => {}
    }
    while let Ok(Some(message)) = decoder.next() {
        all.push(message);
    }
    true
}

fn pass_on<T: Message>(socket: &UnixStream, (envelope, files): &Received<T>) {
    let files: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
    let bytes = encode(envelope).unwrap();
    // An empty socket takes a small message whole; a closed one does not matter.
    if let Ok(sent) = send(socket, &bytes, &files) {
        assert_eq!(sent, bytes.len());
    }
}

/// Waits for a message, or until a reply may have been held back for long enough.
fn wait(program: &UnixStream, daemon: &UnixStream) {
    let a_moment = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut both = [program, daemon].map(|socket| PollFd::new(socket, PollFlags::IN));
    poll(&mut both, Some(&a_moment)).unwrap();
}

/// Returns a client of node 0 whose requests of this kind are answered late.
fn slow_client(cluster: &Cluster, is_slow: fn(&Request) -> bool) -> (Arc<Relay>, Client) {
    let path = cluster.dir.path().join("relay.sock");
    let relay = Relay::start(&path, cluster.socket(0), is_slow);
    (relay, Client::connect(&path).expect("the relay"))
}

/// Checks that a connection works, and still does a moment later.
fn both_say_hello(left: &EspStream, right: &EspStream) {
    for stream in [left, right] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    for _ in 0..100 {
        says_hello((left, right));
        says_hello((right, left));
    }
}

#[test]
fn resuming_the_sockets_of_a_program_may_take_long() {
    let test = "what_a_program_brings";
    let Some(mut cluster) = Cluster::configured_or_skip(test, PATIENT) else {
        return;
    };
    let is_slow = |request: &Request| {
        matches!(
            request,
            Request::ResumeStream { .. } | Request::ResumeEdp { .. } | Request::Listen { .. }
        )
    };
    let (relay, client) = slow_client(&cluster, is_slow);
    // Only requests to the next daemon are slow.
    relay.ignore(true);
    let there = EspListener::builder()
        .path(esp_client::Path::Daemon)
        .bind_at(&cluster.client(1), 7000)
        .expect("listen");
    let connect = |client: &Client, to| {
        let builder = EspStream::builder().path(esp_client::Path::Daemon);
        builder.connect_at(client, to).expect("connect")
    };
    let left = connect(&client, cluster.address(1, 7000));
    let (right, _) = there.accept_timeout(PATIENCE).expect("accept");
    let here = EspListener::builder()
        .path(esp_client::Path::Daemon)
        .bind_at(&client, 7001)
        .expect("listen");
    let datagrams = EdpSocket::builder().bind_at(&client, 9000).expect("bind");
    relay.ignore(false);
    cluster.end(0, Signal::KILL);
    cluster.start(0);
    eventually("the reply comes", || relay.over.load(Ordering::SeqCst));
    both_say_hello(&left, &right);
    let out = connect(&cluster.client(1), cluster.address(0, 7001));
    let (accepted, _) = here.accept_timeout(PATIENCE).expect("accept");
    says_hello((&out, &accepted));
    let own = cluster.address(0, 9000).addr;
    datagrams.send_to(b"own", own, 9000).expect("send");
}

#[test]
fn the_adoption_of_a_lease_may_take_long() {
    let test = "the_adoption_of_a_lease";
    let Some(mut cluster) = Cluster::configured_or_skip(test, PATIENT) else {
        return;
    };
    let is_slow = |request: &Request| matches!(request, Request::Adopt { .. });
    let (relay, client) = slow_client(&cluster, is_slow);
    let there = EspListener::builder()
        .path(esp_client::Path::Daemon)
        .bind_at(&cluster.client(1), 7000)
        .expect("listen");
    let left = EspStream::builder()
        .path(esp_client::Path::Lease)
        .connect_at(&client, cluster.address(1, 7000))
        .expect("connect");
    let (right, _) = there.accept_timeout(PATIENCE).expect("accept");
    cluster.end(0, Signal::KILL);
    cluster.start(0);
    eventually("the reply comes", || relay.over.load(Ordering::SeqCst));
    both_say_hello(&left, &right);
}
