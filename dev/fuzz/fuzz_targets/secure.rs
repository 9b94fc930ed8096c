//! A station on the wire between two nodes with a key: it repeats, changes, cuts, redirects and
//! invents packets, and signs set-up packets with the key. Nodes restart and replace their keys.
//!
//! Whatever it does, a node that requires protection accepts no packet as its peer's that the peer
//! did not send, accepts none twice, and sends few packets in reply to one. With checksums, which
//! the station can make as well, only the latter is promised.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use esp_engine::Aead;
use esp_fuzz::Choices;
use esp_proto::secure::{
    Crypto, DATA_AT, FLAG_SEC, Key, Layer, Opened, SETUP_PACKET, SecureConfig, Suite,
};
use esp_proto::wire::HEADER_LEN;
use esp_proto::{Duration, Instant, MacAddr, NodeAddr};
use libfuzzer_sys::fuzz_target;

const MACS: [MacAddr; 3] = [
    MacAddr([2, 0, 0, 0, 0, 1]),
    MacAddr([2, 0, 0, 0, 0, 2]),
    MacAddr([2, 0, 0, 0, 0, 3]),
];
/// Maximum number of packets in reply to one: an answer, a HELLO, and those that waited (at most
/// 64).
const ANSWERS: usize = 66;
/// Maximum number of packets that the station remembers.
const RECORDED: usize = 256;
const KEY: [u8; 32] = [7; 32];
/// The public key of checksums (W-148).
const PUBLIC: [u8; 32] = *b"esp checksum, no authentication.";

/// A packet on the wire: source, destination, and its bytes, which start with the packet type.
type Recorded = (NodeAddr, NodeAddr, Vec<u8>);

struct Node {
    layer: Layer<Aead>,
    own: NodeAddr,
    require: bool,
    /// Numbers of the packets that it has taken for the other node's.
    taken: BTreeSet<u32>,
}

/// Both nodes, and the packets that the station has seen.
struct Wire {
    nodes: [Node; 2],
    recorded: Vec<Recorded>,
    /// Packets that no node has received yet.
    fresh: Vec<Recorded>,
    /// Packets that the nodes' endpoints sent, by number: source, destination and content.
    sent: BTreeMap<u32, Recorded>,
    suite: Suite,
    seed: u32,
    now: Instant,
}

fn addr(which: u8) -> NodeAddr {
    match MACS.get(usize::from(which % 4)) {
        Some(mac) => (*mac).into(),
        None => NodeAddr::BROADCAST,
    }
}

fn node(own: NodeAddr, require: bool, suite: Suite, seed: u32) -> Node {
    let config = match suite {
        Suite::CHECKSUM => SecureConfig::checksum(require, 0x88b6),
        suite => SecureConfig {
            keys: vec![Key::new(KEY)],
            require,
            suite,
            edp_ethertype: 0x88b6,
        },
    };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_be_bytes());
    Node {
        layer: Layer::new(config, Aead, own, bytes),
        own,
        require,
        taken: BTreeSet::new(),
    }
}

impl Wire {
    /// Makes a node send a packet that its number identifies.
    fn send(&mut self, from: usize, dst: NodeAddr, len: usize) {
        let number = self.sent.len() as u32;
        let mut content = vec![0x88, 0xb5, 0, 1, 0, 2, 0, 3, 0, 4, 0, 4 + len as u8, 2];
        content.extend(number.to_be_bytes());
        content.resize(content.len() + len, 0x5a);
        let Some(node) = self.nodes.get_mut(from) else {
            return;
        };
        let sent = (node.own, dst, content.clone());
        self.sent.insert(number, sent);
        if node.layer.protects(self.now, dst) {
            content.splice(HEADER_LEN..HEADER_LEN, [0; DATA_AT - HEADER_LEN]);
            let sealed = node.layer.seal(self.now, dst, content);
            self.fresh
                .extend(sealed.map(|sealed| (node.own, dst, sealed)));
        } else {
            self.fresh.push((node.own, dst, content));
        }
        self.collect(from);
    }

    /// Records the packets that a node's layer sends by itself.
    fn collect(&mut self, of: usize) {
        let Some(node) = self.nodes.get_mut(of) else {
            return;
        };
        let mut sent = 0;
        while let Some((dst, packet)) = node.layer.poll_transmit() {
            self.fresh.push((node.own, dst, packet));
            sent += 1;
        }
        assert!(sent <= ANSWERS, "{sent} answers to one packet");
    }

    /// Delivers a packet to both nodes, as a segment without a switch would.
    fn deliver(&mut self, (src, dst, body): Recorded) {
        for at in 0..self.nodes.len() {
            self.receive(at, src, dst, &body);
            self.collect(at);
        }
    }

    fn receive(&mut self, at: usize, src: NodeAddr, dst: NodeAddr, body: &[u8]) {
        let Some(node) = self.nodes.get_mut(at) else {
            return;
        };
        let (dst, packet) = match node.layer.open(self.now, src, dst, body) {
            Opened::Packet(packet) => (dst, packet),
            Opened::Broadcast(packet) => (NodeAddr::BROADCAST, packet),
            Opened::Nothing => return,
        };
        if !node.require {
            return;
        }
        assert_eq!(packet[HEADER_LEN - 1] & FLAG_SEC, 0, "the flag is removed");
        if self.suite == Suite::CHECKSUM {
            return;
        }
        let number = packet[HEADER_LEN..].first_chunk().copied();
        let number = u32::from_be_bytes(number.expect("a packet of this test"));
        let (sender, receiver, content) = &self.sent[&number];
        assert_eq!((*sender, &content[..]), (src, packet), "as it was sent");
        // A broadcast may be repeated within a second to a node that has restarted.
        if receiver.is_group() {
            assert_eq!(*receiver, dst, "to all");
        } else {
            assert_eq!((*receiver, dst), (node.own, node.own), "to this node");
            assert!(node.taken.insert(number), "packet {number} twice");
        }
    }

    /// Records the fresh packets, and lets them pass if `pass` is set.
    fn forward(&mut self, pass: bool) {
        for packet in std::mem::take(&mut self.fresh) {
            self.recorded.push(packet.clone());
            if pass {
                self.deliver(packet);
            }
        }
        let excess = self.recorded.len().saturating_sub(RECORDED);
        self.recorded.drain(..excess);
    }

    /// Lets all packets pass, until sessions are set up.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.forward(true);
        }
    }

    /// Changes a recorded packet as the fuzzer decides, and delivers it.
    fn attack(&mut self, choices: &mut Choices<'_>) {
        self.forward(false);
        let which = usize::from(choices.word()) % self.recorded.len().max(1);
        let Some((mut src, mut dst, mut body)) = self.recorded.get(which).cloned() else {
            return;
        };
        let what = choices.byte();
        for _ in 0..what >> 6 {
            let at = choices.below(65536) as usize % body.len().max(1);
            let mask = choices.byte();
            if let Some(byte) = body.get_mut(at) {
                *byte ^= mask;
            }
        }
        if what & 1 != 0 {
            body.truncate(choices.byte().into());
        }
        if what & 2 != 0 {
            body.extend_from_slice(choices.bytes(20));
        }
        if what & 4 != 0 {
            src = addr(choices.byte());
        }
        if what & 8 != 0 {
            dst = addr(choices.byte());
        }
        self.deliver((src, dst, body));
    }
}

/// Returns a set-up packet of chosen fields with a valid tag: that of a node with the key.
fn signed_setup(
    choices: &mut Choices<'_>,
    recorded: &[Recorded],
    key: &[u8; 32],
) -> Option<Recorded> {
    let (src, dst) = (addr(choices.byte() % 3), addr(choices.byte() % 3));
    let mut body = vec![0x88, 0xb6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, FLAG_SEC];
    body.extend([0; 4]);
    body.extend(choices.bytes(2));
    // Key id, run, broadcast counter and nonces of a recorded one, or any.
    let which = usize::from(choices.byte());
    let known = recorded.iter().filter(|(_, _, b)| b.len() == SETUP_PACKET);
    let known: Vec<&Recorded> = known.collect();
    let fields = known
        .get(which)
        .and_then(|(_, _, b)| b.get(body.len()..SETUP_PACKET - 32));
    match fields {
        Some(fields) => body.extend_from_slice(fields),
        None => body.extend_from_slice(choices.bytes(60)),
    }
    body.resize(SETUP_PACKET - 32, 0);
    for _ in 0..choices.byte() % 4 {
        let at = 17 + choices.below(62) as usize;
        *body.get_mut(at)? ^= choices.byte();
    }
    let mut setup = [0; 32];
    Aead.derive(key, &[], &[b"esp auth 1 set-up"], &mut setup);
    let bytes = |addr: NodeAddr| addr.mac().map(|mac| [&[1][..], &mac.octets()].concat());
    let tag = Aead.mac(&setup, &[&bytes(src)?, &bytes(dst)?, &body]);
    body.extend(tag);
    Some((src, dst, body))
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let mode = choices.byte();
    let suites = [
        Suite::INTEGRITY,
        Suite::ENCRYPT,
        Suite::CHACHA,
        Suite::CHECKSUM,
    ];
    let suite = suites[usize::from(mode % 4)];
    let key = match suite {
        Suite::CHECKSUM => PUBLIC,
        _ => KEY,
    };
    let require = [mode & 64 == 0, mode & 128 == 0];
    let mut wire = Wire {
        nodes: [0, 1].map(|at| node(addr(at), require[usize::from(at)], suite, u32::from(at) + 1)),
        recorded: Vec::new(),
        fresh: Vec::new(),
        sent: BTreeMap::new(),
        suite,
        seed: 3,
        now: Instant::from_nanos(1_000_000_000),
    };
    wire.send(0, addr(1), 10);
    wire.settle();
    while !choices.is_empty() {
        match choices.byte() % 16 {
            0..=2 => {
                let from = usize::from(choices.byte() % 2);
                let dst = addr(choices.byte());
                wire.send(from, dst, usize::from(choices.byte() % 40));
            }
            3 => wire.settle(),
            4..=8 => wire.attack(&mut choices),
            9 | 10 => {
                if let Some(packet) = signed_setup(&mut choices, &wire.recorded, &key) {
                    wire.deliver(packet);
                }
            }
            11 | 12 => {
                let (src, dst) = (addr(choices.byte()), addr(choices.byte()));
                let len = choices.below(128) as usize;
                let mut body = choices.bytes(len).to_vec();
                if let Some(flags) = body.get_mut(HEADER_LEN - 1) {
                    *flags |= FLAG_SEC;
                }
                wire.deliver((src, dst, body));
            }
            13 => wire.now = wire.now + Duration::from_millis(choices.below(3000).into()),
            14 => {
                let at = choices.byte() % 2;
                wire.seed += 1;
                let (seed, require) = (wire.seed, require[usize::from(at)]);
                let taken = std::mem::take(&mut wire.nodes[usize::from(at)].taken);
                let node = node(addr(at), require, suite, seed);
                wire.nodes[usize::from(at)] = Node { taken, ..node };
            }
            _ => {
                let keys = [vec![], vec![KEY], vec![[8; 32], KEY]];
                let keys = keys[usize::from(choices.byte() % 3)].clone();
                let keys = keys.into_iter().map(Key::new).collect();
                wire.nodes[usize::from(choices.byte() % 2)]
                    .layer
                    .set_keys(keys);
            }
        }
    }
});
