//! Holders of leases that are stopped, or send invalid frames.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::control::{Reply, Request};
use esp_client::{EspListener, EspStream, Path};
use esp_tests::frames::{ACK, Dice, EDP, ESP, Frame, RST, SYN, Tap, drops, expect_drops};
use esp_tests::process::{configured_lab, signal};
use esp_tests::program::Program;
use esp_tests::raw::RawProgram;
use esp_tests::{PATIENCE, address, check_pattern, client, send_pattern, wait_until};
use lab::Node;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");

/// Five peer time-outs.
const STOPPED: Duration = Duration::from_secs(10);
const TWO_SECONDS: &str =
    "[timers]\npeer_timeout = \"2s\"\nkeepalive = \"500ms\"\n[lease]\nallow = \"all\"\n";
/// Number of bytes that proves that data flows.
const SOME: u64 = 4_000_000;

#[test]
fn few_frames_are_sent_to_a_holder_stopped_under_load() {
    let Some(lab) = configured_lab("lease_stopped_under_load", 2, TWO_SECONDS) else {
        return;
    };
    for (port, path) in (7000..).zip([Path::Daemon, Path::Lease]) {
        let listen = format!("listen:{port}");
        let holder = Program::start(
            PROGRAM,
            &lab.socket(0),
            &["path:lease", &listen, "accept", "sink"],
        );
        holder.says("ok path");
        holder.says("ok listen");
        let stream = EspStream::builder()
            .path(path)
            .connect_at(&client(&lab, 1), address(0, port))
            .unwrap();
        holder.says("ok accept");
        let mut ear = Tap::of_cable(&lab, 1);
        let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let flows =
            |from: u64| wait_until("data", || written.load(Ordering::Relaxed) > from + SOME);
        thread::scope(|scope| {
            let _ends = Ends(&over);
            scope.spawn(|| {
                let block = [7; 1 << 16];
                while !over.load(Ordering::Relaxed) {
                    (&stream).write_all(&block).expect("write");
                    written.fetch_add(block.len() as u64, Ordering::Relaxed);
                }
                stream.shutdown(std::net::Shutdown::Write).expect("finish");
            });
            flows(0);
            signal(holder.pid(), Signal::STOP);
            // Frames in flight arrive, and the writer fills window and ring.
            thread::sleep(Duration::from_millis(500));
            while ear.hear(Duration::ZERO).is_some() {}
            assert!(stream.unacknowledged() > 0, "nothing is in flight");
            let stuck = written.load(Ordering::Relaxed);
            let (end, mut heard) = (Instant::now() + STOPPED, 0);
            while Instant::now() < end {
                let sent = ear.hear(Duration::from_millis(100));
                heard += u32::from(sent.is_some_and(|frame| frame.src == Node(1).mac()));
            }
            assert_eq!(
                written.load(Ordering::Relaxed),
                stuck,
                "the stopped holder reads"
            );
            // Every 200 ms a retransmission of the four frames that fit into the window after a
            // time-out, and four liveness queries a second.
            assert!(
                heard <= 51 * 4 + 11 * 4,
                "{heard} frames in ten seconds to a stopped holder"
            );
            assert!(heard > 10, "it timed out after {heard} frames");
            signal(holder.pid(), Signal::CONT);
            flows(stuck);
        });
        holder.says("ok sink");
        drop(stream);
    }
}

/// Sets the flag when dropped, so that a failed test does not hang.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends arbitrary bytes over a leased socket.
fn send_raw(socket: impl AsFd, bytes: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match send(&socket, bytes, SendFlags::empty()) {
            Ok(_) => return,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) if Instant::now() < deadline => {
                thread::sleep(Duration::from_micros(100));
            }
            Err(error) => panic!("sending {} bytes: {error}", bytes.len()),
        }
    }
}

#[test]
fn invalid_frames_of_a_holder_are_counted_and_harmless() {
    let Some(lab) = configured_lab("lease_invalid_frames", 2, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    let (mut holder, _welcome) = RawProgram::welcomed(&lab.socket(0));
    let request = Request::Lease {
        interface: Some("eth0".into()),
        listener: None,
        count: 1,
    };
    let (Reply::Lease { port, .. }, sockets) = holder.ask(request) else {
        panic!("no lease")
    };
    let socket = &sockets[0];
    let (here, there) = (client(&lab, 0), client(&lab, 1));

    // One kind after the other: each has its own counter. (Frames from a group address do not pass
    // the switch.)
    let frame = || Frame::new(0, 1, ACK).ports(port, 9);
    let other = |src: [u8; 6]| Frame { src, ..frame() };
    let kinds: [(&str, &str, Vec<u8>); 5] = [
        (
            "rx_drop_no_connection",
            "a frame for no connection",
            frame().bytes(),
        ),
        (
            "rx_drop_no_connection",
            "one from a port that is not leased",
            frame().ports(port ^ 1, 9).bytes(),
        ),
        (
            "rx_drop_no_connection",
            "one from another station",
            other([2, 0, 0, 0, 7, 7]).bytes(),
        ),
        ("rx_drop_flag_combination", "invalid flags", {
            Frame {
                flags: SYN | RST,
                ..frame()
            }
            .bytes()
        }),
        ("rx_drop_edp_port", "a datagram for an unbound port", {
            Frame {
                flags: 0,
                ..frame()
            }
            .packet_type(EDP)
            .bytes()
        }),
    ];
    for (name, what, bytes) in kinds {
        expect_drops(&there, name, 20, what, || {
            (0..20).for_each(|_| send_raw(socket, &bytes));
        });
    }

    // Then all kinds at once, while streams over both paths run between the same nodes.
    let mut dice = Dice::new();
    let before: u64 = drops(&there).values().sum();
    let over = AtomicBool::new(false);
    let pairs: Vec<_> = (7000..)
        .zip([[Path::Daemon; 2], [Path::Lease; 2]])
        .map(|(port, paths)| {
            let listener = EspListener::builder()
                .path(paths[1])
                .bind_at(&there, port)
                .unwrap();
            let left = EspStream::builder()
                .path(paths[0])
                .connect_at(&here, address(1, port))
                .unwrap();
            (left, listener.accept_timeout(PATIENCE).unwrap().0)
        })
        .collect();
    let mut sent = 0;
    thread::scope(|scope| {
        let streams = pairs.iter().map(|(left, right)| {
            scope.spawn(move || {
                thread::scope(|scope| {
                    scope.spawn(|| send_pattern(left, 8_000_000, 1));
                    scope.spawn(|| send_pattern(right, 8_000_000, 2));
                    scope.spawn(|| check_pattern(left, 8_000_000, 2));
                    check_pattern(right, 8_000_000, 1);
                });
            })
        });
        let streams: Vec<_> = streams.collect();
        let over = &over;
        scope.spawn(move || {
            streams
                .into_iter()
                .for_each(|stream| stream.join().expect("a stream"));
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) || sent < 2000 {
            let mut bytes = Frame::new(0, 1, 0).trailing(&dice.bytes(1400)).bytes();
            // Random bytes after the addresses. Every second frame has a random source that no node
            // has.
            let types = [ESP, EDP, 0x0800, dice.word() as u16];
            let packet_type = types[dice.below(types.len())];
            dice.fill(&mut bytes[12..25]);
            bytes[12..14].copy_from_slice(&packet_type.to_be_bytes());
            if sent % 2 == 0 {
                dice.fill(&mut bytes[6..12]);
                bytes[6] = 0x06;
            }
            send_raw(socket, &bytes);
            sent += 1;
        }
    });
    wait_until("the invalid frames are counted", || {
        drops(&there).values().sum::<u64>() > before + sent / 4
    });
    drop(pairs);
    // The daemon still serves the sender.
    let (reply, _) = holder.ask(Request::Status);
    assert!(matches!(reply, Reply::Status(_)), "{reply:?}");
}
