//! Daemons that end while their programs transfer: a killed, stopped or replaced daemon is a pause
//! for streams, listeners and datagram sockets, and every byte arrives once and in order.

mod begun;
mod ended;
mod numbers;
mod slow;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use esp_client::control::{Reply, Request};
use esp_client::{Client, EdpSocket, EspAddr, EspError, EspListener, EspStream, Path};
use esp_engine::shm::{Region, RingSizes, StreamState};
use esp_proto::{CloseReason, ConnImage, MacAddr, NodeAddr, ResetReason};
use netns::TwoNodes;
use rustix::process::{Pid, Signal, kill_process};
use support::program::{Program, RINGS};
use support::{PATIENCE, TempDir, eventually, image};

/// Minimum number of bytes of a checked transfer, in each direction.
const MIN_BYTES: u64 = 4 << 20;

/// Two nodes with a daemon each, which can be replaced.
struct Cluster {
    nodes: TwoNodes,
    dir: TempDir,
    /// Configuration of both daemons.
    config: Option<PathBuf>,
    daemons: [Option<Child>; 2],
}

impl Cluster {
    fn new_or_skip(test: &str) -> Option<Cluster> {
        Cluster::configured_or_skip(test, None)
    }

    fn configured_or_skip(test: &str, config: Option<&str>) -> Option<Cluster> {
        let nodes = TwoNodes::new_or_skip(test)?;
        let dir = TempDir::new();
        let config = config.map(|text| {
            let path = dir.path().join("config.toml");
            std::fs::write(&path, text).unwrap();
            path
        });
        let mut cluster = Cluster {
            nodes,
            dir,
            config,
            daemons: [None, None],
        };
        (0..2).for_each(|node| cluster.start(node));
        Some(cluster)
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("{node}.sock"))
    }

    fn start(&mut self, node: usize) {
        let socket = self.socket(node);
        let at = [&self.nodes.a, &self.nodes.b][node];
        let mut command = Command::new(env!("CARGO_BIN_EXE_esp-daemon"));
        command
            .env_remove("NOTIFY_SOCKET")
            .args(["--interface", at.name(), "--socket"])
            .arg(&socket)
            .args(
                self.config
                    .iter()
                    .flat_map(|path| ["--config".as_ref(), path.as_os_str()]),
            )
            .stdin(Stdio::null());
        let daemon = at.namespace().start(&mut command).unwrap();
        self.daemons[node] = Some(daemon);
        eventually("the daemon serves", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
    }

    fn end(&mut self, node: usize, by: Signal) {
        let mut daemon = self.daemons[node].take().expect("it runs");
        kill_process(Pid::from_child(&daemon), by).unwrap();
        let status = daemon.wait().unwrap();
        assert!(status.success() || by == Signal::KILL, "{status}");
    }

    fn client(&self, node: usize) -> Client {
        Client::connect(self.socket(node)).expect("the daemon")
    }

    fn address(&self, node: usize, port: u16) -> EspAddr {
        let at = [&self.nodes.a, &self.nodes.b][node];
        EspAddr::new(MacAddr(at.interface().mac.octets()), port)
    }

    /// Returns two connected streams.
    fn pair(&self, from: usize, to: usize, port: u16) -> (EspStream, EspStream) {
        let listener = EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&self.client(to), port)
            .expect("listen");
        let left = EspStream::builder()
            .path(Path::Daemon)
            .connect_at(&self.client(from), self.address(to, port))
            .expect("connect");
        let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
        (left, right)
    }

    fn counter(&self, node: usize, name: &str) -> u64 {
        let status = self.client(node).status().expect("status");
        let counters = status.counters.iter().filter(|c| c.name == name);
        counters.map(|c| c.value).sum()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Returns byte `index` of the test pattern `salt`.
fn byte(index: u64, salt: u64) -> u8 {
    ((index ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends the pattern until `stop`, at least [`MIN_BYTES`] bytes; returns their number.
fn send_until(mut stream: &EspStream, salt: u64, stop: &AtomicBool) -> u64 {
    let mut at = 0;
    let mut block = [0; 5000];
    while at < MIN_BYTES || !stop.load(Ordering::Relaxed) {
        for (slot, i) in block.iter_mut().zip(at..) {
            *slot = byte(i, salt);
        }
        stream.write_all(&block).expect("write");
        at += block.len() as u64;
    }
    stream.shutdown(Shutdown::Write).expect("shutdown");
    at
}

/// Reads the pattern to its end; returns the number of bytes.
fn check_to_end(mut stream: &EspStream, salt: u64) -> u64 {
    let mut at = 0;
    let mut block = [0; 7000];
    loop {
        let n = stream.read(&mut block).expect("read");
        if n == 0 {
            return at;
        }
        for (found, i) in block[..n].iter().zip(at..) {
            assert_eq!(*found, byte(i, salt), "byte {i}");
        }
        at += n as u64;
    }
}

#[test]
fn transfers_continue_when_daemons_are_killed_and_replaced() {
    let Some(mut cluster) = Cluster::new_or_skip("transfers_go_on") else {
        return;
    };
    let (left, right) = cluster.pair(0, 1, 7000);
    // Both ends at one daemon.
    let (own, own_peer) = cluster.pair(0, 0, 7001);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let flows = [
            (&left, &right, 1),
            (&right, &left, 2),
            (&own, &own_peer, 3),
            (&own_peer, &own, 4),
        ];
        let stop = &stop;
        let ends: Vec<_> = flows
            .iter()
            .map(|&(from, to, salt)| {
                let sender = scope.spawn(move || send_until(from, salt, stop));
                let reader = scope.spawn(move || check_to_end(to, salt));
                (sender, reader)
            })
            .collect();
        for (nodes, by) in [
            (&[0][..], Signal::KILL),
            (&[0], Signal::TERM),
            (&[1], Signal::KILL),
            (&[0, 1], Signal::KILL),
            (&[1, 0], Signal::TERM),
        ] {
            nodes.iter().for_each(|node| cluster.end(*node, by));
            nodes.iter().for_each(|node| cluster.start(*node));
            // Node 0 has three connections, node 1 one.
            let resumed = if nodes[0] == 0 { 3 } else { 1 };
            eventually("the connections are resumed", || {
                cluster.counter(nodes[0], "connections_resumed") >= resumed
            });
            let before = cluster.counter(1, "rx_data_bytes");
            eventually("bytes flow again", || {
                cluster.counter(1, "rx_data_bytes") > before + (1 << 19)
            });
        }
        stop.store(true, Ordering::Relaxed);
        for (sender, reader) in ends {
            assert_eq!(sender.join().unwrap(), reader.join().unwrap());
        }
    });
    for stream in [&left, &right, &own, &own_peer] {
        stream.finish(PATIENCE).expect("all is acknowledged");
    }
}

fn write_pattern(mut stream: &EspStream, from: u64, to: u64, salt: u64) {
    let bytes: Vec<u8> = (from..to).map(|i| byte(i, salt)).collect();
    stream.write_all(&bytes).expect("write");
}

#[track_caller]
fn says_hello((mut from, mut to): (&EspStream, &EspStream)) {
    from.write_all(b"hello").expect("write");
    let mut hello = [0; 5];
    to.read_exact(&mut hello).expect("read");
    assert_eq!(&hello, b"hello");
}

#[test]
fn a_late_daemon_finds_bytes_and_ends_written_before_it_came() {
    let Some(mut cluster) = Cluster::new_or_skip("a_daemon_that_comes_late") else {
        return;
    };
    let (left, right) = cluster.pair(0, 1, 7000);
    let (closed, closed_peer) = cluster.pair(0, 1, 7001);
    let (idle, idle_peer) = cluster.pair(0, 1, 7002);
    write_pattern(&left, 0, 1000, 1);
    cluster.end(0, Signal::KILL);
    eventually("the program notices", || left.client().check().is_err());
    write_pattern(&left, 1000, 5000, 1);
    left.shutdown(Shutdown::Write).unwrap();
    write_pattern(&closed, 0, 3000, 2);
    drop(closed);
    cluster.start(0);
    assert_eq!(check_to_end(&right, 1), 5000);
    assert_eq!(check_to_end(&closed_peer, 2), 3000);
    // The slot of the closed stream is free again, and those of others are not taken.
    let (new, new_peer) = cluster.pair(0, 1, 7003);
    says_hello((&new, &new_peer));
    says_hello((&idle, &idle_peer));
}

/// An accepted stream gets a receive ring of at least four packets, whatever the administrator
/// allows.
#[test]
fn a_ring_that_is_larger_than_allowed_is_resumed_if_the_daemon_chose_it() {
    let config = "[rings]\ndefault = 4096\nmax = 4096\n";
    let test = "a_ring_larger_than_allowed";
    let Some(mut cluster) = Cluster::configured_or_skip(test, Some(config)) else {
        return;
    };
    let (left, right) = cluster.pair(0, 1, 7000);
    cluster.end(1, Signal::KILL);
    cluster.start(1);
    says_hello((&left, &right));
    says_hello((&right, &left));
}

#[test]
fn listeners_and_datagram_sockets_are_found_again() {
    let Some(mut cluster) = Cluster::new_or_skip("listeners_are_found_again") else {
        return;
    };
    let (here, there) = (cluster.client(0), cluster.client(1));
    let listen = |port| {
        let builder = EspListener::builder().path(Path::Daemon);
        builder.bind_at(&here, port).expect("listen")
    };
    let connect = |to| {
        let builder = EspStream::builder().path(Path::Daemon);
        builder.connect_at(&there, to).expect("connect")
    };
    let connect = &connect;
    let (listener, any) = (listen(7000), listen(0));
    let datagrams = EdpSocket::builder().bind_at(&here, 9000).unwrap();
    let sender = EdpSocket::builder().bind_at(&there, 9001).unwrap();
    for by in [Signal::KILL, Signal::TERM] {
        thread::scope(|scope| {
            let acceptor = scope.spawn(|| listener.accept_timeout(PATIENCE).expect("accept").0);
            let receiver = scope.spawn(|| {
                let mut bytes = [0; 9];
                let got = datagrams.recv_from_timeout(&mut bytes, PATIENCE);
                got.expect("a datagram");
                bytes
            });
            cluster.end(0, by);
            // A connection attempt before the next daemon waits for the listener.
            let to = cluster.address(0, 7000);
            let early = scope.spawn(move || connect(to));
            cluster.start(0);
            says_hello((&early.join().unwrap(), &acceptor.join().unwrap()));
            eventually("a datagram arrives", || {
                let to = cluster.address(0, 9000).addr;
                sender.send_to(b"datagram!", to, 9000).expect("send");
                receiver.is_finished()
            });
            assert_eq!(&receiver.join().unwrap(), b"datagram!");
        });
        // The port that the first daemon chose.
        let out = connect(cluster.address(0, any.port()));
        let (accepted, _) = any.accept_timeout(PATIENCE).unwrap();
        says_hello((&out, &accepted));
    }
}

#[test]
fn a_daemon_that_ends_for_good_notifies_the_peers() {
    let Some(mut cluster) = Cluster::new_or_skip("a_daemon_that_ends_for_good") else {
        return;
    };
    let (_left, right) = cluster.pair(0, 1, 7000);
    cluster.end(0, Signal::INT);
    let error = (&right).read(&mut [0; 9]).expect_err("an error");
    assert!(
        matches!(EspError::of(&error), Some(EspError::PeerShutdown { .. })),
        "{error}"
    );
}

#[test]
fn without_a_next_daemon_the_wait_ends() {
    let Some(mut cluster) = Cluster::new_or_skip("without_a_next_daemon") else {
        return;
    };
    let (left, _right) = cluster.pair(0, 1, 7000);
    left.client().set_daemon_wait(Duration::from_millis(300));
    cluster.end(0, Signal::KILL);
    let error = (&left).read(&mut [0; 9]).expect_err("an error");
    assert!(
        matches!(EspError::of(&error), Some(EspError::DaemonGone { .. })),
        "{error}"
    );
}

/// Offsets of the indices in a region: TX head, RX tail, TX tail, RX head.
const INDICES: [u64; 4] = [128, 192, 256, 320];

#[test]
fn lies_of_a_program_hurt_no_other() {
    let Some(cluster) = Cluster::new_or_skip("lies_of_a_program") else {
        return;
    };
    let (left, right) = cluster.pair(0, 1, 7000);
    let mac = |node| cluster.address(node, 0).addr;
    let image = image(40_000, mac(1));
    let mut liar = Program::connect(&cluster.socket(0));
    liar.hello("liar");
    let mut bring = |slot, image: &ConnImage, indices: [u64; 4]| {
        let (region, file) = Region::create(RingSizes { tx: 4096, rx: 4096 }).unwrap();
        region.keep_image(image, mac(0));
        let file = std::fs::File::from(file);
        for (at, index) in INDICES.iter().zip(indices) {
            file.write_all_at(&index.to_ne_bytes(), *at).unwrap();
        }
        let rings = RINGS;
        let reply = liar.ask_with(Request::ResumeStream { slot, rings }, file.as_fd());
        (reply, region)
    };
    for indices in [
        [u64::MAX, 0, 0, 0],
        [5000, 0, 0, 0],
        [10, 0, 11, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 5000],
        [0, u64::MAX, 0, 0],
        [0, 0, u64::MAX, 0],
        [1 << 62, 0, 1 << 63, 0],
    ] {
        let (reply, _) = bring(0, &image, indices);
        assert!(matches!(reply, Reply::Error(_)), "{indices:?}: {reply:?}");
    }
    for lie in [
        ConnImage { nonce: 0, ..image },
        ConnImage {
            payload: 1,
            ..image
        },
        ConnImage {
            epoch: u32::MAX,
            ..image
        },
        ConnImage {
            peer_port: 0,
            ..image
        },
        ConnImage {
            peer: NodeAddr::BROADCAST,
            ..image
        },
    ] {
        let (reply, _) = bring(0, &lie, [0; 4]);
        assert!(matches!(reply, Reply::Error(_)), "{lie:?}: {reply:?}");
    }
    // A connection that never existed: the peer's node answers with a reset.
    let (reply, region) = bring(0, &image, [100, 0, 0, 0]);
    assert_eq!(reply, Reply::Done);
    let status = esp_engine::shm::Status::new(region);
    eventually("it ends", || {
        status.state() == StreamState::Closed(CloseReason::Reset(ResetReason::Unknown))
    });
    says_hello((&left, &right));
    says_hello((&right, &left));
}
