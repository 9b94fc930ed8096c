//! Relative sequence numbers: those on the wire have 16 bits and begin with any value.

use std::collections::HashMap;

use esp_client::NodeAddr;
use esp_proto::{Port, Seq};

use super::decode::{Content, Packet};

/// Maximum number of remembered connections. If there are more, the least recently used half is
/// forgotten, and its relative numbers restart.
const MAX_STREAMS: usize = 4096;

/// One end of a connection.
type End = (NodeAddr, Port);

/// The connections that were seen.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: HashMap<(End, End), Stream>,
    /// Number of packets so far.
    packets: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Directions from the lower end and from the higher one.
    directions: [Option<Direction>; 2],
    last_used: u64,
}

/// Numbering of a direction.
#[derive(Clone, Copy, Debug)]
struct Direction {
    /// Number on the wire that corresponds to `highest`.
    raw: u16,
    /// Highest number so far, relative to the SYN.
    highest: i64,
}

/// Numbers of a packet relative to the SYN of its direction, which has 0. If the SYN was not seen,
/// the first number that is seen is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Relative {
    pub(super) seq: i64,
    pub(super) ack: i64,
}

impl Direction {
    fn from(raw: Seq, number: i64) -> Direction {
        Direction {
            raw: raw.0,
            highest: number,
        }
    }

    /// Returns the relative number that is nearest to the highest one.
    fn number(&mut self, raw: Seq) -> i64 {
        let ahead = i64::from(raw.0.wrapping_sub(self.raw) as i16);
        let number = self.highest + ahead;
        if ahead > 0 {
            *self = Direction::from(raw, number);
        }
        number
    }
}

impl Streams {
    /// Returns the relative numbers of a packet of a stream. `ack` is 0 if the packet has none.
    pub(super) fn follow(&mut self, packet: &Packet<'_>) -> Relative {
        let Some(frame) = packet.content.as_ref().ok().and_then(Content::stream) else {
            return Relative::default();
        };
        self.packets += 1;
        let src = (packet.src, frame.src_port);
        let dst = (packet.dst, frame.dst_port);
        let (ends, side) = if src <= dst {
            ((src, dst), 0)
        } else {
            ((dst, src), 1)
        };
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&ends) {
            self.forget();
        }
        let stream = self.streams.entry(ends).or_default();
        stream.last_used = self.packets;
        let [low, high] = &mut stream.directions;
        let (own, other) = if side == 0 { (low, high) } else { (high, low) };
        if matches!(packet.content, Ok(Content::SetUp(..))) {
            *own = Some(Direction::from(frame.seq, 0));
        }
        let has_ack = packet
            .header
            .is_some_and(|header| header.flags & esp_proto::wire::FLAG_ACK != 0);
        // A reset or a move need not contain valid numbers.
        let numbered = !matches!(packet.content, Ok(Content::Reset(..) | Content::Move(..)));
        let number = |direction: &mut Option<Direction>, raw: Seq| {
            if numbered {
                direction
                    .get_or_insert_with(|| Direction::from(raw, 1))
                    .number(raw)
            } else {
                direction.map_or(raw.0.into(), |mut known| known.number(raw))
            }
        };
        Relative {
            seq: number(own, frame.seq),
            ack: if has_ack { number(other, frame.ack) } else { 0 },
        }
    }

    /// Forgets the least recently used half.
    fn forget(&mut self) {
        let mut used: Vec<u64> = self.streams.values().map(|s| s.last_used).collect();
        used.sort_unstable();
        let median = used.get(used.len() / 2).copied().unwrap_or(u64::MAX);
        self.streams.retain(|_, stream| stream.last_used > median);
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Types, decode};
    use super::*;

    const TYPES: Types = Types {
        esp: 0x88b5,
        edp: 0x88b6,
    };

    /// Returns a frame between two stations, in the other direction if `back`.
    fn frame(
        back: bool,
        ports: (u16, u16),
        seq: u16,
        ack: u16,
        flags: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if back {
            frame.swap(5, 11);
        }
        for word in [0x88b5, ports.0, ports.1, seq, ack, payload.len() as u16] {
            frame.extend(word.to_be_bytes());
        }
        frame.push(flags);
        frame.extend(payload);
        frame
    }

    fn follow(streams: &mut Streams, frame: &[u8]) -> (i64, i64) {
        let (_, packets) = decode(frame, frame.len(), TYPES).expect("a packet");
        let Relative { seq, ack } = streams.follow(&packets[0]);
        (seq, ack)
    }

    fn setup() -> Vec<u8> {
        let mut block = vec![1, 0, 5, 209, 0, 0, 0, 0];
        block.extend([7; 8]);
        block.extend([0; 12]);
        block
    }

    #[test]
    fn numbers_begin_at_the_syn_and_do_not_wrap() {
        let mut streams = Streams::default();
        let (to, back) = ((1000, 5000), (5000, 1000));
        let mut go = |back_wards, ports, seq, ack, flags, payload: &[u8]| {
            follow(
                &mut streams,
                &frame(back_wards, ports, seq, ack, flags, payload),
            )
        };
        assert_eq!(go(false, to, 65534, 0, 1, &setup()), (0, 0));
        assert_eq!(go(true, back, 7, 65535, 3, &setup()), (0, 1));
        assert_eq!(go(false, to, 65535, 8, 2, b"x"), (1, 1));
        assert_eq!(go(false, to, 0, 8, 2, b"x"), (2, 1));
        assert_eq!(go(true, back, 8, 1, 2, b""), (1, 3));
        assert_eq!(go(false, to, 65535, 8, 2, b"x"), (1, 1), "once more");
        for seq in 1..70_000u32 {
            let wire = (seq % 65536) as u16;
            assert_eq!(go(false, to, wire, 8, 2, b"x").0, i64::from(seq) + 2);
        }
        // A connection whose start was not seen.
        assert_eq!(go(false, (1000, 5001), 500, 900, 2, b"x"), (1, 1));
    }

    #[test]
    fn memory_is_bounded() {
        let mut streams = Streams::default();
        for port in 1..=20_000 {
            follow(&mut streams, &frame(false, (port, 5000), 1, 1, 2, b"x"));
            assert!(streams.streams.len() <= MAX_STREAMS);
        }
        // The last one is still known.
        assert_eq!(
            follow(&mut streams, &frame(false, (20_000, 5000), 2, 1, 2, b"x")),
            (2, 1)
        );
    }
}
