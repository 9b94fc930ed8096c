//! Frames of the loop. After the EtherType: kind (1), run (2), number (4), payload length (2), two
//! unused bytes.

use pnet::util::MacAddr;

use super::HEADER_LEN;

/// Minimum length of a frame.
const MIN_FRAME: usize = 60;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    /// Request.
    Ping = 1,
    /// Reply to `Ping`.
    Pong = 2,
    /// Part of a stream.
    Data = 3,
    /// Part of a stream, to be acknowledged immediately.
    DataNow = 4,
    /// Acknowledges everything below the number.
    Ack = 5,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: PacketKind,
    pub(super) run: u16,
    pub(super) number: u32,
    pub(super) len: u16,
}

/// Returns the constant front of frames: addresses and EtherType.
pub(super) fn ethernet(to: MacAddr, from: MacAddr, ethertype: u16) -> [u8; 14] {
    let mut front = [0; 14];
    front[..6].copy_from_slice(&to.octets());
    front[6..12].copy_from_slice(&from.octets());
    front[12..].copy_from_slice(&ethertype.to_be_bytes());
    front
}

impl Header {
    /// Writes the header after the front.
    #[inline]
    pub(super) fn write(self, front: &[u8; 14], head: &mut [u8; netif::HEAD_LEN]) {
        let [a, b, c, d] = self.number.to_be_bytes();
        let ([r, s], [l, m]) = (self.run.to_be_bytes(), self.len.to_be_bytes());
        head[..14].copy_from_slice(front);
        head[14..HEADER_LEN].copy_from_slice(&[self.kind as u8, r, s, a, b, c, d, l, m, 0, 0]);
    }

    #[inline]
    pub(super) fn read(frame: &[u8]) -> Option<Header> {
        let &[kind, r, s, a, b, c, d, l, m, _, _] = frame.get(14..HEADER_LEN)? else {
            return None;
        };
        let kind = match kind {
            1 => PacketKind::Ping,
            2 => PacketKind::Pong,
            3 => PacketKind::Data,
            4 => PacketKind::DataNow,
            5 => PacketKind::Ack,
            _ => return None,
        };
        let number = u32::from_be_bytes([a, b, c, d]);
        Some(Header {
            kind,
            run: u16::from_be_bytes([r, s]),
            number,
            len: u16::from_be_bytes([l, m]),
        })
    }
}

/// Returns the number of zeros after the payload that pad a frame to the minimum.
pub(super) fn padding(payload: usize) -> usize {
    MIN_FRAME.saturating_sub(HEADER_LEN + payload)
}

/// Returns the sender's address of a frame.
pub(super) fn source(frame: &[u8]) -> Option<MacAddr> {
    let octets: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_nonsense_is_none() {
        let header = Header {
            kind: PacketKind::DataNow,
            run: 0x1234,
            number: 0x89ab_cdef,
            len: 8989,
        };
        let front = ethernet(
            MacAddr::new(1, 2, 3, 4, 5, 6),
            MacAddr::new(7, 8, 9, 10, 11, 12),
            0x9000,
        );
        let mut head = [0xff; netif::HEAD_LEN];
        header.write(&front, &mut head);
        assert_eq!(head[..14], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x90, 0]);
        assert_eq!(Header::read(&head), Some(header));
        assert_eq!(Header::read(&head[..HEADER_LEN - 1]), None);
        assert_eq!(source(&head), Some(MacAddr::new(7, 8, 9, 10, 11, 12)));
        head[14] = 6;
        assert_eq!(Header::read(&head), None);
        assert_eq!(
            [padding(0), padding(35), padding(36), padding(9000)],
            [35, 0, 0, 0]
        );
    }
}
