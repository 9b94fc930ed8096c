//! Packets in flight, in one arena.

/// Bytes that Ethernet adds to those after the EtherType: addresses and EtherType (14), check
/// sequence (4), preamble (8) and gap (12).
pub const ETHERNET: u32 = 38;
/// Minimum number of bytes after the EtherType.
const MIN_BODY: u32 = 46;

/// Returns the bytes of link time that a packet takes: `bytes` after the EtherType with the
/// overhead of Ethernet.
pub const fn wire_bytes(bytes: u32) -> u32 {
    let padded = if bytes < MIN_BODY { MIN_BODY } else { bytes };
    padded + ETHERNET
}

/// Header of a packet: the fields that the fabric reads.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Sending node.
    pub src: u32,
    /// Receiving node.
    pub dst: u32,
    /// Bytes of link time, see [`wire_bytes`].
    pub wire: u32,
    /// Hash by which switches choose among equal paths.
    pub hash: u32,
    /// Declares that marks instead of drops are understood (ECT of ECN).
    pub ect: bool,
    /// Was marked (CE of ECN).
    pub ce: bool,
    /// Next stop.
    pub stop: Stop,
}

/// A packet on its way through the fabric.
#[derive(Clone, Debug)]
pub struct Packet<B> {
    /// The fields that the fabric reads.
    pub head: Head,
    /// Payload of the fabric: the packet of the transport.
    pub body: B,
}

/// Place in the fabric at which a packet arrives next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// The sender's leaf switch.
    #[default]
    First,
    /// The spine switch with this number.
    Spine(u16),
    /// The receiver's leaf switch, from the spine switch with this number.
    Last(u16),
    /// The receiver.
    Host,
}

/// Arena of packets, addressed by number. The fabric touches heads only, which lie side by side.
#[derive(Debug)]
pub struct Arena<B> {
    heads: Vec<Head>,
    bodies: Vec<Option<B>>,
    free: Vec<u32>,
}

impl<B> Default for Arena<B> {
    fn default() -> Self {
        Arena {
            heads: Vec::new(),
            bodies: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<B> Arena<B> {
    /// Stores a packet and returns its number.
    pub fn insert(&mut self, packet: Packet<B>) -> u32 {
        if let Some(number) = self.free.pop() {
            self.heads[number as usize] = packet.head;
            self.bodies[number as usize] = Some(packet.body);
            return number;
        }
        self.heads.push(packet.head);
        self.bodies.push(Some(packet.body));
        (self.heads.len() - 1) as u32
    }

    /// Returns the head of a stored packet.
    pub fn head(&mut self, number: u32) -> &mut Head {
        &mut self.heads[number as usize]
    }

    /// Takes a packet out.
    pub fn take(&mut self, number: u32) -> Option<Packet<B>> {
        let body = self.bodies[number as usize].take()?;
        self.free.push(number);
        let head = self.heads[number as usize];
        Some(Packet { head, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused() {
        let head = Head {
            src: 0,
            dst: 1,
            wire: 84,
            hash: 0,
            ect: false,
            ce: false,
            stop: Stop::First,
        };
        let packet = || Packet { head, body: () };
        let mut arena = Arena::default();
        assert_eq!((arena.insert(packet()), arena.insert(packet())), (0, 1));
        assert!(arena.take(0).is_some() && arena.take(0).is_none());
        assert_eq!(arena.head(1).dst, 1);
        assert_eq!((arena.insert(packet()), arena.insert(packet())), (0, 2));
    }

    #[test]
    fn short_packets_are_padded() {
        assert_eq!([1, 46, 1500].map(wire_bytes), [84, 84, 1538]);
    }
}
