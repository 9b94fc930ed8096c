//! Hand-made frames, sent and received without the daemons, as a hostile or broken station could.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use esp_client::Client;
use lab::{Lab, Node};
use netif::{Interface, PacketSocket, RecvBatch, SocketOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wait_until;

/// EtherType of streams.
pub const ESP: u16 = 0x88b5;
/// EtherType of datagrams.
pub const EDP: u16 = 0x88b6;
/// Every EtherType (`ETH_P_ALL`).
const ALL: u16 = 3;

/// SYN.
pub const SYN: u8 = 0x01;
/// ACK.
pub const ACK: u8 = 0x02;
/// FIN.
pub const FIN: u8 = 0x04;
/// RST.
pub const RST: u8 = 0x08;
/// An extension block follows the payload.
pub const EXT: u8 = 0x10;
/// Probe.
pub const PRB: u8 = 0x20;
/// EDP: control datagram.
pub const CTL: u8 = 0x01;

/// A frame, field by field; nothing is checked, so every invalid one can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of docs/wire-format.md
pub struct Frame {
    pub dst: [u8; 6],
    pub src: [u8; 6],
    pub packet_type: u16,
    pub dst_port: u16,
    pub src_port: u16,
    pub seq: u16,
    pub ack: u16,
    pub len: u16,
    pub flags: u8,
    /// Bytes after the header.
    pub rest: Vec<u8>,
}

impl Frame {
    /// An ESP frame without payload.
    pub fn new(src: usize, dst: usize, flags: u8) -> Frame {
        Frame {
            dst: Node(dst).mac(),
            src: Node(src).mac(),
            packet_type: ESP,
            dst_port: 0,
            src_port: 0,
            seq: 0,
            ack: 0,
            len: 0,
            flags,
            rest: Vec::new(),
        }
    }

    /// Sets the ports.
    #[must_use]
    pub fn ports(mut self, src: u16, dst: u16) -> Frame {
        (self.src_port, self.dst_port) = (src, dst);
        self
    }

    /// Sets sequence and ack sequence.
    #[must_use]
    pub fn numbers(mut self, seq: u16, ack: u16) -> Frame {
        (self.seq, self.ack) = (seq, ack);
        self
    }

    /// Sets the payload and its length in the header.
    #[must_use]
    pub fn payload(mut self, bytes: &[u8]) -> Frame {
        self.len = u16::try_from(bytes.len()).expect("a payload");
        self.rest = bytes.to_vec();
        self
    }

    /// Appends bytes that the header does not count.
    #[must_use]
    pub fn trailing(mut self, bytes: &[u8]) -> Frame {
        self.rest.extend_from_slice(bytes);
        self
    }

    /// Sets the EtherType.
    #[must_use]
    pub fn packet_type(mut self, packet_type: u16) -> Frame {
        self.packet_type = packet_type;
        self
    }

    /// Returns the bytes, without padding.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(25 + self.rest.len());
        bytes.extend(self.dst);
        bytes.extend(self.src);
        for word in [
            self.packet_type,
            self.dst_port,
            self.src_port,
            self.seq,
            self.ack,
            self.len,
        ] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.push(self.flags);
        bytes.extend(&self.rest);
        bytes
    }

    /// Parses bytes; returns `None` when they are too short.
    pub fn parse(bytes: &[u8]) -> Option<Frame> {
        let (head, rest) = bytes.split_first_chunk::<25>()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        Some(Frame {
            dst: head[..6].try_into().ok()?,
            src: head[6..12].try_into().ok()?,
            packet_type: word(12),
            dst_port: word(14),
            src_port: word(16),
            seq: word(18),
            ack: word(20),
            len: word(22),
            flags: head[24],
            rest: rest.to_vec(),
        })
    }

    /// Returns the sequence that its sender uses next.
    pub fn next_seq(&self) -> u16 {
        let data = self.flags & (ACK | PRB | SYN | RST) == ACK && self.len > 0;
        self.seq
            .wrapping_add(u16::from(data || self.flags & (SYN | FIN) != 0))
    }
}

/// Returns a set-up block.
pub fn setup(nonce: u64, peer_nonce: u64, credit: u16, key: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, u8::try_from(key.len()).expect("a key")];
    bytes.extend(1489u16.to_be_bytes());
    bytes.extend(0u32.to_be_bytes());
    bytes.extend(nonce.to_be_bytes());
    bytes.extend(peer_nonce.to_be_bytes());
    bytes.extend(credit.to_be_bytes());
    bytes.extend(200u16.to_be_bytes());
    bytes.extend(key);
    bytes
}

/// Returns a reset block.
pub fn reset(reason: u8, nonce: u64) -> Vec<u8> {
    let mut bytes = vec![reason, 0];
    bytes.extend(nonce.to_be_bytes());
    bytes
}

/// A point in the network where frames are sent and received.
pub struct Tap {
    socket: PacketSocket,
    batch: RecvBatch,
    heard: VecDeque<Vec<u8>>,
}

impl Tap {
    /// Opens the station of a node: sends through its `eth0` and receives what arrives there.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub fn of_node(lab: &Lab, node: usize) -> Tap {
        lab.run_in(node, || Tap::open("eth0"))
            .expect("enter the node")
    }

    /// Opens the switch's end of a node's cable: frames sent here arrive at the node, whatever
    /// their addresses are, and the switch learns nothing from them. Receives what the node sends.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub fn of_cable(lab: &Lab, node: usize) -> Tap {
        in_switch(lab, || Tap::open(&format!("port{node}")))
    }

    fn open(interface: &str) -> Tap {
        let interface = Interface::by_name(interface).expect("the interface");
        let frame = usize::try_from(interface.mtu).expect("an MTU") + 64;
        // All types: the switch removes frames of single types before their sockets see them.
        let socket = PacketSocket::open(&interface, ALL, &SocketOptions::default())
            .expect("a packet socket");
        Tap {
            socket,
            batch: RecvBatch::new(64, frame),
            heard: VecDeque::new(),
        }
    }

    /// Sends a raw frame: from 14 bytes to the interface's MTU plus 14.
    ///
    /// # Panics
    /// When the kernel does not accept it.
    pub fn send(&self, bytes: &[u8]) {
        let deadline = Instant::now() + crate::PATIENCE;
        while !self.offer(bytes) {
            assert!(
                Instant::now() < deadline,
                "{} bytes cannot be sent",
                bytes.len()
            );
            let _ = poll(
                &mut [PollFd::new(&self.socket, PollFlags::OUT)],
                Some(&span(1)),
            );
        }
    }

    /// Tries to send a frame; returns false when the device did not accept it.
    ///
    /// # Panics
    /// When the kernel refuses it for another reason.
    pub fn offer(&self, bytes: &[u8]) -> bool {
        match send(&self.socket, bytes, SendFlags::empty()) {
            Ok(_) => true,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => false,
            Err(error) => panic!("sending {} bytes: {error}", bytes.len()),
        }
    }

    /// Returns the next received frame of our EtherTypes; `None` when none arrives within
    /// `patience`.
    ///
    /// # Panics
    /// When the socket fails.
    pub fn hear(&mut self, patience: Duration) -> Option<Frame> {
        let deadline = Instant::now() + patience;
        loop {
            while let Some(bytes) = self.heard.pop_front() {
                let frame = Frame::parse(&bytes).filter(|f| matches!(f.packet_type, ESP | EDP));
                if frame.is_some() {
                    return frame;
                }
            }
            // An interface that was down reports an error once.
            if self.socket.recv_batch(&mut self.batch).unwrap_or(0) > 0 {
                self.heard
                    .extend(self.batch.frames().map(|frame| frame.bytes.to_vec()));
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let wait = u64::try_from(left.as_millis())
                .unwrap_or(u64::MAX)
                .clamp(1, 100);
            let _ = poll(
                &mut [PollFd::new(&self.socket, PollFlags::IN)],
                Some(&span(wait)),
            );
        }
    }

    /// Returns the bytes of all frames received so far, of all types.
    ///
    /// # Panics
    /// When the socket fails.
    pub fn all(&mut self) -> Vec<Vec<u8>> {
        while self.socket.recv_batch(&mut self.batch).expect("receive") > 0 {
            let frames = self.batch.frames().map(|frame| frame.bytes.to_vec());
            self.heard.extend(frames);
        }
        self.heard.drain(..).collect()
    }

    /// Returns the next frame for which `wanted` is true.
    ///
    /// # Panics
    /// When none arrives.
    pub fn await_frame(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        let deadline = Instant::now() + crate::PATIENCE;
        while Instant::now() < deadline {
            if let Some(frame) = self
                .hear(Duration::from_millis(100))
                .filter(|frame| wanted(frame))
            {
                return frame;
            }
        }
        panic!("no such frame arrived: {what}");
    }
}

fn span(millis: u64) -> Timespec {
    Timespec::try_from(Duration::from_millis(millis)).expect("a short time")
}

/// Runs `work` on a thread in the network namespace of the lab's switch.
///
/// # Panics
/// When it cannot be entered, and when `work` panics.
pub fn in_switch<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> T {
    let switch = lab.state().switch.expect("a switch");
    let enter_and_work = || {
        let namespace =
            File::open(format!("/proc/{}/ns/net", switch.pid)).expect("the switch's namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("enter it");
        work()
    };
    thread::scope(|scope| scope.spawn(enter_and_work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Random numbers that repeat with the seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator from `ESP_TEST_SEED` or the clock; prints the seed on standard error,
    /// for a second run.
    ///
    /// # Panics
    /// When `ESP_TEST_SEED` is not a number.
    pub fn new() -> Dice {
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = match std::env::var("ESP_TEST_SEED") {
            Ok(text) => text.parse().expect("ESP_TEST_SEED is a number"),
            Err(_) => clock().map_or(0, |time| time.subsec_nanos().into()),
        };
        eprintln!("ESP_TEST_SEED={seed} makes the same numbers again");
        Dice(seed)
    }

    /// Returns 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    /// Fills `bytes` randomly.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns between 0 and `most` random bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most + 1)];
        self.fill(&mut bytes);
        bytes
    }
}

impl Default for Dice {
    fn default() -> Dice {
        Dice::new()
    }
}

/// Returns the numbers of frames dropped by a node, by the name of the counter.
///
/// # Panics
/// When the daemon does not answer.
pub fn drops(client: &Client) -> BTreeMap<String, u64> {
    const OF_THE_LINK: [&str; 4] = [
        "link_rx_foreign",
        "link_rx_unparsable",
        "link_rx_truncated",
        "link_rx_vlan",
    ];
    let status = client.status().expect("status");
    let counters = status.counters.into_iter();
    let counters =
        counters.filter(|c| c.name.starts_with("rx_drop_") || OF_THE_LINK.contains(&&*c.name));
    counters.map(|c| (c.name, c.value)).collect()
}

/// Runs `send`, which sends `count` frames that must be dropped under this name and no other.
///
/// # Panics
/// When they are not.
#[track_caller]
pub fn expect_drops(client: &Client, name: &str, count: u64, what: &str, send: impl FnOnce()) {
    let before = drops(client);
    assert!(before.contains_key(name), "no counter {name}");
    send();
    let mut moved = Vec::new();
    wait_until(&format!("{what} to be counted under {name}"), || {
        let now = drops(client).into_iter();
        moved = now
            .map(|(name, value)| (value - before[&name], name))
            .filter(|(n, _)| *n > 0)
            .collect();
        // A node under load may retransmit a frame that was in flight.
        moved.retain(|(_, moved)| moved != "rx_drop_duplicate" || moved == name);
        moved.iter().map(|(n, _)| n).sum::<u64>() >= count
    });
    assert_eq!(moved, [(count, name.to_owned())], "{what}");
}
