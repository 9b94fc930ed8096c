//! The vectors of `docs/wire-format.md`, section 15, and packets of all sizes with the engine's
//! cryptography.

use esp_engine::Aead;
use esp_proto::secure::{DATA_AT, Key, Layer, OVERHEAD, Opened, SecureConfig, Suite};
use esp_proto::{Instant, MacAddr, NodeAddr};

const PAGE: &str = include_str!("../../docs/wire-format.md");
const A: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));
const B: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 2]));
const NOW: Instant = Instant::from_nanos(1_000_000_000);

fn layer(own: NodeAddr, suite: Suite, seed: u8) -> Layer<Aead> {
    let config = SecureConfig {
        keys: vec![Key::new(std::array::from_fn(|at| at as u8))],
        require: true,
        suite,
        edp_ethertype: 0x88b6,
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

fn broadcast() -> Vec<u8> {
    let mut packet = vector("V-15");
    packet.resize(48, 0);
    let sealed = layer(A, Suite::INTEGRITY, 1).seal(NOW, NodeAddr::BROADCAST, with_room(&packet));
    sealed.expect("sealed")
}

#[test]
fn packets_are_those_of_the_vectors() {
    let [encrypt, integrity] = [Suite::ENCRYPT, Suite::INTEGRITY].map(session);
    let packets = encrypt.into_iter().chain(integrity).chain([broadcast()]);
    let made: Vec<String> = packets.map(|packet| hex(&packet)).collect();
    let ids = (1..=made.len()).map(|number| format!("S-0{number}"));
    let expected: Vec<String> = ids.map(|id| hex(&vector(&id))).collect();
    assert_eq!(made, expected);
}

#[test]
fn packets_of_every_size_in_every_suite() {
    for suite in [
        Suite::INTEGRITY,
        Suite::ENCRYPT,
        Suite::CHACHA,
        Suite::ENCRYPT.union(Suite::CHACHA),
    ] {
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
