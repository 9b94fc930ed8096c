//! Buffer that a caller posts for one poll: received bytes of a stream are copied there instead of
//! to the ring.

use esp_proto::ConnId;

use crate::command::LinkId;

/// A posted buffer. Takes the next bytes of its stream while there is room.
#[derive(Debug)]
pub(super) struct Posted<'b> {
    conn: ConnId,
    /// Stream offset of the buffer's first byte.
    start: u64,
    buffer: &'b mut [u8],
    filled: usize,
}

/// Returns the buffer if it is for a stream of this link.
pub(super) fn posted_of<'p, 'b>(
    posted: &'p mut Option<(LinkId, &mut Posted<'b>)>,
    link: LinkId,
) -> Option<&'p mut Posted<'b>> {
    let (of, posted) = posted.as_mut()?;
    (*of == link).then_some(&mut **posted)
}

impl<'b> Posted<'b> {
    pub(super) fn new(conn: ConnId, start: u64, buffer: &'b mut [u8]) -> Posted<'b> {
        Posted {
            conn,
            start,
            buffer,
            filled: 0,
        }
    }

    /// Copies the first of `bytes` and returns their number.
    #[inline]
    pub(super) fn take(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) -> usize {
        // Once bytes went to the ring, later ones must follow there.
        if conn != self.conn || offset != self.start + self.filled as u64 {
            return 0;
        }
        let room = &mut self.buffer[self.filled..];
        let n = bytes.len().min(room.len());
        shmem::copy_slice(&bytes[..n], &mut room[..n]);
        self.filled += n;
        n
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_the_next_bytes_of_its_stream() {
        let (conn, other) = (
            ConnId {
                slot: 1,
                generation: 7,
            },
            ConnId {
                slot: 1,
                generation: 8,
            },
        );
        let mut buffer = [0; 6];
        let mut posted = Posted::new(conn, 100, &mut buffer);
        assert_eq!(posted.take(conn, 101, b"no"), 0, "not the next");
        assert_eq!(posted.take(other, 100, b"no"), 0, "another's");
        assert_eq!(posted.take(conn, 100, b"abcd"), 4);
        assert_eq!(posted.take(conn, 104, b""), 0);
        assert_eq!(
            posted.take(conn, 104, b"efgh"),
            2,
            "as much as there is room"
        );
        assert_eq!(posted.take(conn, 106, b"gh"), 0);
        assert_eq!(posted.take(conn, 108, b"ij"), 0);
        assert_eq!((posted.filled(), &buffer), (6, b"abcdef"));
    }
}
