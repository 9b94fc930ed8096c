//! The image of a stream's connection in its region, from which the next engine resumes the
//! connection, at whatever instruction this one has ended.
//!
//! The engine writes an image into the place that is not in use and then switches the two, so a
//! reader finds the old or the new one. The region belongs to the program, so an image that is read
//! back is hostile input: [`ConnImage`] is checked by the endpoint, the port by the host.
//!
//! The words of an image. Its version is that of the control protocol, which every program and
//! engine of a region have in common.
//!
//! | word | bits, lowest first |
//! |---|---|
//! | 0 | local port, peer's port, payload in bytes, maximum acknowledgement delay in µs: 16 each |
//! | 1 | epoch: 32; ECN in force: 1 |
//! | 2, 3 | own nonce, peer's nonce |
//! | 4–7 | peer's address: kind (1 MAC, 2 IPv4, 3 IPv6) and UDP port, 16 each; MAC address, IPv4 address, or the upper half of an IPv6 address; its lower half; scope and flow information, 32 each |
//! | 8–11 | own address, in this form |
//! | 12–19 | other MAC addresses of the peer's node, 0 for none |

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use esp_proto::wire::MAX_RAILS;
use esp_proto::{ConnImage, MacAddr, NodeAddr};

use super::layout::{IMAGE_WORDS, ImageWords, Word};
use super::region::Region;
use shmem::sync::Ordering;

/// Bit of the second word: ECN is in force.
const ECN: u64 = 1 << 32;
/// Kinds of addresses.
const MAC: u64 = 1;
const V4: u64 = 2;
const V6: u64 = 3;
/// Words of an address.
const ADDR_WORDS: usize = 4;
/// First word of the two addresses and of the others of the peer.
const PEER: usize = 4;
const OWN: usize = PEER + ADDR_WORDS;
const RAILS: usize = OWN + ADDR_WORDS;

/// An image as stored in memory.
type Words = [u64; IMAGE_WORDS];

impl ImageWords {
    /// Returns the stores that replace the image, in order.
    fn stores(&self, new: &Words) -> impl Iterator<Item = (&Word, u64)> {
        // Only this side writes `active`, but the program could.
        let other = usize::from(self.active.load(Ordering::Relaxed) == 1);
        let place = &self.places[other];
        let words = place.iter().zip(*new);
        words.chain([(&self.active, other as u64 + 1)])
    }

    fn load(&self) -> Option<Words> {
        // SYNC POINT image
        let place = match self.active.load(Ordering::Acquire) {
            1 => &self.places[0],
            2 => &self.places[1],
            _ => return None,
        };
        let mut words = [0; IMAGE_WORDS];
        for (word, shared) in words.iter_mut().zip(place) {
            *word = shared.load(Ordering::Relaxed);
        }
        Some(words)
    }
}

impl Region {
    /// Stores the image of the stream's connection, which runs at the endpoint `own`. Call it
    /// before a frame of this epoch is sent. The engine's end.
    pub fn keep_image(&self, image: &ConnImage, own: NodeAddr) {
        for (word, value) in self.words().image.0.stores(&to_words(image, own)) {
            // SYNC POINT image: the reader that sees `active` sees the words; all other readers
            // come after this process.
            word.store(value, Ordering::Release);
        }
    }

    /// Returns the image of the stream's connection and its own address, as the last engine left
    /// it; `None` if there is none, or none of this form.
    pub fn image(&self) -> Option<(ConnImage, NodeAddr)> {
        of_words(&self.words().image.0.load()?)
    }
}

fn to_words(image: &ConnImage, own: NodeAddr) -> Words {
    let mut words = [0; IMAGE_WORDS];
    words[0] = u64::from(image.local_port)
        | u64::from(image.peer_port) << 16
        | u64::from(image.payload) << 32
        | u64::from(image.max_ack_delay) << 48;
    words[1] = u64::from(image.epoch) | if image.ecn { ECN } else { 0 };
    words[2] = image.nonce;
    words[3] = image.peer_nonce;
    words[PEER..OWN].copy_from_slice(&addr_words(image.peer));
    words[OWN..RAILS].copy_from_slice(&addr_words(own));
    for (word, mac) in words[RAILS..].iter_mut().zip(image.rails) {
        *word = mac_word(mac);
    }
    words
}

fn of_words(words: &Words) -> Option<(ConnImage, NodeAddr)> {
    let [ports, epoch, nonce, peer_nonce, rest @ ..] = *words;
    let (peer, rest) = rest.split_first_chunk::<ADDR_WORDS>()?;
    let (own, rest) = rest.split_first_chunk::<ADDR_WORDS>()?;
    let mut rails = [MacAddr::default(); MAX_RAILS];
    for (mac, word) in rails.iter_mut().zip(rest) {
        *mac = word_mac(*word);
    }
    let image = ConnImage {
        local_port: ports as u16,
        peer: addr_of(peer)?,
        peer_port: (ports >> 16) as u16,
        nonce,
        peer_nonce,
        epoch: epoch as u32,
        payload: (ports >> 32) as u16,
        max_ack_delay: (ports >> 48) as u16,
        ecn: epoch & ECN != 0,
        rails,
    };
    Some((image, addr_of(own)?))
}

fn mac_word(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

fn word_mac(word: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// Returns kind and port, address, and for IPv6 flow information and scope.
fn addr_words(addr: NodeAddr) -> [u64; ADDR_WORDS] {
    match addr {
        NodeAddr::Mac(mac) => [MAC, mac_word(mac), 0, 0],
        NodeAddr::Udp(SocketAddr::V4(at)) => {
            let kind = V4 | u64::from(at.port()) << 16;
            [kind, at.ip().to_bits().into(), 0, 0]
        }
        NodeAddr::Udp(SocketAddr::V6(at)) => {
            let bits = at.ip().to_bits();
            let scope = u64::from(at.scope_id()) | u64::from(at.flowinfo()) << 32;
            let kind = V6 | u64::from(at.port()) << 16;
            [kind, (bits >> 64) as u64, bits as u64, scope]
        }
    }
}

fn addr_of(&[kind, high, low, scope]: &[u64; ADDR_WORDS]) -> Option<NodeAddr> {
    let port = (kind >> 16) as u16;
    match kind & 0xffff {
        MAC => Some(NodeAddr::Mac(word_mac(high))),
        V4 => {
            let ip = IpAddr::V4((high as u32).into());
            Some(NodeAddr::Udp(SocketAddr::new(ip, port)))
        }
        V6 => {
            let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            let at = SocketAddrV6::new(ip, port, (scope >> 32) as u32, scope as u32);
            Some(NodeAddr::Udp(SocketAddr::V6(at)))
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::RingSizes;

    fn image(epoch: u32, peer: &str) -> ConnImage {
        let mut rails = [MacAddr::default(); MAX_RAILS];
        rails[0] = MacAddr([2, 3, 4, 5, 6, 7]);
        rails[7] = MacAddr([8, 9, 10, 11, 12, 13]);
        ConnImage {
            local_port: 65535,
            peer: peer.parse().unwrap(),
            peer_port: 1,
            nonce: u64::MAX,
            peer_nonce: 0x0102_0304_0506_0708,
            epoch,
            payload: 8989,
            max_ack_delay: 200,
            ecn: epoch % 2 == 1,
            rails,
        }
    }

    const PEERS: [&str; 3] = ["02:00:00:00:01:0a", "10.1.2.3@2805", "[fe80::1]@2806"];

    #[test]
    fn images_come_back_as_they_were() {
        let sizes = RingSizes { tx: 4096, rx: 4096 };
        let (region, _) = Region::create(sizes).unwrap();
        assert_eq!(region.image(), None);
        for (epoch, peer) in PEERS.iter().enumerate() {
            let image = image(epoch as u32, peer);
            for own in PEERS {
                let own = own.parse().unwrap();
                region.keep_image(&image, own);
                assert_eq!(region.image(), Some((image, own)));
            }
        }
    }

    /// The engine may be killed between any two stores.
    #[test]
    fn a_reader_finds_the_old_or_the_new_image_after_each_store() {
        let sizes = RingSizes { tx: 4096, rx: 4096 };
        let own: NodeAddr = PEERS[0].parse().unwrap();
        for before in 0..3 {
            for done in 0..=IMAGE_WORDS + 1 {
                let (region, _) = Region::create(sizes).unwrap();
                for epoch in 0..before {
                    region.keep_image(&image(epoch, PEERS[0]), own);
                }
                let old = region.image();
                let new = image(77, PEERS[2]);
                let words = to_words(&new, own);
                for (word, value) in region.words().image.0.stores(&words).take(done) {
                    word.store(value, Ordering::Release);
                }
                let complete = done == IMAGE_WORDS + 1;
                let expected = if complete { Some((new, own)) } else { old };
                assert_eq!(region.image(), expected, "{before} {done}");
                // The next engine writes over whatever is left.
                let last = image(78, PEERS[1]);
                region.keep_image(&last, own);
                assert_eq!(region.image(), Some((last, own)));
            }
        }
    }

    #[test]
    fn words_of_a_program_are_never_trusted() {
        let (region, _) = Region::create(RingSizes { tx: 4096, rx: 4096 }).unwrap();
        let words = &region.words().image.0;
        for active in [3, u64::MAX] {
            words.active.store(active, Ordering::Relaxed);
            assert_eq!(region.image(), None);
        }
        region.keep_image(&image(1, PEERS[0]), PEERS[0].parse().unwrap());
        for place in &words.places {
            place[PEER].store(9, Ordering::Relaxed);
        }
        assert_eq!(region.image(), None, "an unknown kind of address");
    }
}
