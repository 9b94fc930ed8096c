//! The vectors of `docs/wire-format.md`, section 15, and packets of all sizes with the engine's
//! cryptography. Damage to every bit of every kind of packet.

use esp_engine::Aead;
use esp_proto::secure::{DATA_AT, Key, Layer, OVERHEAD, Opened, SecureConfig, Suite};
use esp_proto::{Instant, MacAddr, NodeAddr};

const PAGE: &str = include_str!("../../docs/wire-format.md");
const A: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
const B: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 2]));
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn layer(own: NodeAddr, suite: Suite, seed: u8) -> Layer<Aead> {
    let config = match suite {
        Suite::CHECKSUM => SecureConfig::checksum(true, 0x88b6),
        suite => SecureConfig {
            keys: vec![Key::new(std::array::from_fn(|at| at as u8))],
            require: true,
            suite,
            edp_ethertype: 0x88b6,
        },
    };
    Layer::new(config, Aead, own, [seed; 32])
}

/// Returns a packet with room for protection.
fn with_room(packet: &[u8]) -> Vec<u8> {
    let (header, content) = packet.split_at(13);
    [header, &[0; DATA_AT - 13], content].concat()
}

fn vector(id: &str) -> Vec<u8> {
    let row = PAGE
        .lines()
        .find(|line| line.starts_with(&format!("| {id} |")));
    let row = row.unwrap_or_else(|| panic!("no vector {id}"));
    let hex: Vec<u8> = row
        .split('`')
        .rfind(|part| part.len() > 8)
        .expect("bytes")
        .bytes()
        .filter(|byte| *byte != b' ')
        .collect();
    hex.chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// V-04 with its padding.
fn data() -> Vec<u8> {
    let mut packet = vector("V-04");
    packet.resize(48, 0);
    packet
}

fn hex(bytes: &[u8]) -> String {
    let words = bytes.chunks(4).map(|word| {
        word.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the packets of a session: HELLO, ACCEPT, and V-04.
fn session(suite: Suite) -> [Vec<u8>; 3] {
    let (mut a, mut b) = (layer(A, suite, 1), layer(B, suite, 2));
    assert!(a.seal(NOW, B, with_room(&data())).is_none(), "it waits");
    let (_, hello) = a.poll_transmit().expect("HELLO");
    assert_eq!(b.open(NOW, A, B, &hello), Opened::Nothing);
    let (_, accept) = b.poll_transmit().expect("ACCEPT");
    assert_eq!(a.open(NOW, B, A, &accept), Opened::Nothing);
    let (_, sealed) = a.poll_transmit().expect("the packet");
    assert_eq!(b.open(NOW, A, B, &sealed), Opened::Packet(&data()));
    [hello, accept, sealed]
}

fn broadcast(suite: Suite) -> Vec<u8> {
    let mut packet = vector("V-15");
    packet.resize(48, 0);
    let sealed = layer(A, suite, 1).seal(NOW, NodeAddr::BROADCAST, with_room(&packet));
    sealed.expect("sealed")
}

#[test]
fn packets_are_those_of_the_vectors() {
    let [encrypt, integrity, checksum] =
        [Suite::ENCRYPT, Suite::INTEGRITY, Suite::CHECKSUM].map(session);
    let packets = (encrypt.into_iter())
        .chain(integrity)
        .chain([broadcast(Suite::INTEGRITY)])
        .chain(checksum)
        .chain([broadcast(Suite::CHECKSUM)]);
    let made: Vec<String> = packets.map(|packet| hex(&packet)).collect();
    let ids = (1..=made.len()).map(|number| format!("S-{number:02}"));
    let expected: Vec<String> = ids.map(|id| hex(&vector(&id))).collect();
    assert_eq!(made, expected);
}

/// Returns two layers with a session.
fn with_session(suite: Suite) -> (Layer<Aead>, Layer<Aead>) {
    let (mut a, mut b) = (layer(A, suite, 1), layer(B, suite, 2));
    a.seal(NOW, B, with_room(&data()));
    for _ in 0..2 {
        if let Some((_, packet)) = a.poll_transmit() {
            b.open(NOW, A, B, &packet);
        }
        if let Some((_, packet)) = b.poll_transmit() {
            a.open(NOW, B, A, &packet);
        }
    }
    (a, b)
}

/// Suites whose packets must not be accepted after damage.
const SUITES: [Suite; 5] = [
    Suite::INTEGRITY,
    Suite::ENCRYPT,
    Suite::CHACHA,
    Suite::ENCRYPT.union(Suite::CHACHA),
    Suite::CHECKSUM,
];

/// Returns copies of a packet with each bit flipped, and with each byte replaced by its inverse.
fn damaged(packet: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let masks = (0..8).map(|bit| 1u8 << bit).chain([0xff]);
    (0..packet.len()).flat_map(move |at| {
        masks.clone().map(move |mask| {
            let mut copy = packet.to_vec();
            copy[at] ^= mask;
            (at, copy)
        })
    })
}

#[test]
fn no_packet_is_accepted_after_damage() {
    for suite in SUITES {
        let [hello, accept, sealed] = session(suite);
        // HELLO, ACCEPT, a packet, and a broadcast: each by a node that would accept it.
        let mut b = layer(B, suite, 2);
        for (at, packet) in damaged(&hello) {
            assert_eq!(b.open(NOW, A, B, &packet), Opened::Nothing);
            assert!(!b.wants_transmit(), "HELLO, byte {at}, {suite:?}");
        }
        let mut a = layer(A, suite, 1);
        a.seal(NOW, B, with_room(&data()));
        a.poll_transmit().expect("HELLO");
        for (at, packet) in damaged(&accept) {
            assert_eq!(a.open(NOW, B, A, &packet), Opened::Nothing);
            assert!(!a.wants_transmit(), "ACCEPT, byte {at}, {suite:?}");
        }
        b.open(NOW, A, B, &hello);
        for (at, packet) in damaged(&sealed) {
            assert_eq!(
                b.open(NOW, A, B, &packet),
                Opened::Nothing,
                "{at}, {suite:?}"
            );
        }
        assert_eq!(b.open(NOW, A, B, &sealed), Opened::Packet(&data()));
        let broadcast = broadcast(suite);
        for (at, packet) in damaged(&broadcast) {
            let opened = b.open(NOW, A, NodeAddr::BROADCAST, &packet);
            assert_eq!(opened, Opened::Nothing, "broadcast, {at}, {suite:?}");
        }
        let opened = b.open(NOW, A, NodeAddr::BROADCAST, &broadcast);
        assert!(matches!(opened, Opened::Packet(_)));
    }
}

/// W-146: a broadcast from a node without a session waits, and is still a broadcast.
#[test]
fn a_broadcast_that_has_waited_is_a_broadcast() {
    for suite in SUITES {
        let (mut a, mut b) = (layer(A, suite, 1), layer(B, suite, 2));
        let mut packet = vector("V-15");
        packet.resize(48, 0);
        let all = NodeAddr::BROADCAST;
        let sealed = a.seal(NOW, all, with_room(&packet)).expect("a broadcast");
        assert_eq!(b.open(NOW, A, all, &sealed), Opened::Nothing);
        let (_, hello) = b.poll_transmit().expect("HELLO");
        assert_eq!(a.open(NOW, B, A, &hello), Opened::Nothing);
        let (_, accept) = a.poll_transmit().expect("ACCEPT");
        assert_eq!(b.open(NOW, A, B, &accept), Opened::Broadcast(&packet));
    }
}

/// Long packets, damage to several bytes and to the addresses of a frame, and packets that were cut
/// or lengthened.
#[test]
fn a_checksum_covers_long_packets_addresses_and_lengths() {
    let (mut a, mut b) = with_session(Suite::CHECKSUM);
    let mut packet = data()[..13].to_vec();
    packet.extend((0..1489u32).map(|at| (at * 7) as u8));
    let sealed = a.seal(NOW, B, with_room(&packet)).expect("sealed");
    let mut refused = |src, dst, body: &[u8], what: &str| {
        assert_eq!(b.open(NOW, src, dst, body), Opened::Nothing, "{what}");
    };
    for bit in 0..sealed.len() * 8 {
        let mut copy = sealed.clone();
        copy[bit / 8] ^= 1 << (bit % 8);
        refused(A, B, &copy, &format!("bit {bit}"));
    }
    for at in 0..sealed.len() - 4 {
        for len in [2, 3, 4] {
            let mut copy = sealed.clone();
            copy[at..at + len]
                .iter_mut()
                .for_each(|byte| *byte = !*byte);
            refused(A, B, &copy, &format!("{len} bytes, starting at {at}"));
        }
    }
    for len in 0..sealed.len() {
        refused(A, B, &sealed[..len], &format!("cut to {len}"));
    }
    for more in 1..64 {
        let longer = [&sealed[..], &vec![0; more]].concat();
        refused(A, B, &longer, &format!("{more} zeros more"));
    }
    for bit in 0..48 {
        let flipped = |mac: [u8; 6]| {
            let mut mac = mac;
            mac[bit / 8] ^= 1 << (bit % 8);
            NodeAddr::Mac(MacAddr(mac))
        };
        refused(flipped([2, 0, 0, 0, 0, 1]), B, &sealed, "source");
        refused(A, flipped([2, 0, 0, 0, 0, 2]), &sealed, "destination");
    }
    assert_eq!(b.open(NOW, A, B, &sealed), Opened::Packet(&packet));
    let drops = b
        .named_counters()
        .filter(|(name, ..)| name.contains("drop"));
    assert!(drops.map(|(_, _, value)| value).sum::<u64>() > 10_000);
}

#[test]
fn packets_of_every_size_in_every_suite() {
    for suite in SUITES {
        let (mut a, mut b) = with_session(suite);
        for len in (0..200).chain([1489, 8989, 65000]) {
            let mut packet = data()[..13].to_vec();
            packet.extend((0..len).map(|at| at as u8));
            let mut sealed = a.seal(NOW, B, with_room(&packet)).expect("sealed");
            assert_eq!(sealed.len(), packet.len() + OVERHEAD);
            let at = sealed.len() - 1 - len % 16;
            sealed[at] ^= 1;
            assert_eq!(b.open(NOW, A, B, &sealed), Opened::Nothing);
            sealed[at] ^= 1;
            assert_eq!(b.open(NOW, A, B, &sealed), Opened::Packet(&packet), "{len}");
            assert_eq!(b.open(NOW, A, B, &sealed), Opened::Nothing);
        }
    }
}
