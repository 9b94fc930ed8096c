//! [`ReadHalf`] and [`WriteHalf`]: the two directions of a stream.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rings::StreamRings;

/// Reading half of a stream.
pub struct ReadHalf {
    pub(crate) rings: Arc<StreamRings>,
}

impl ReadHalf {
    /// See [`EspStream::try_read`](crate::EspStream::try_read).
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.rings.try_read(buffer)
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf")
            .field("peer", &self.rings.peer)
            .finish_non_exhaustive()
    }
}

/// Writing half of a stream. Dropping it ends the sending direction.
pub struct WriteHalf {
    pub(crate) rings: Arc<StreamRings>,
}

impl WriteHalf {
    /// See [`EspStream::try_write`](crate::EspStream::try_write).
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.rings.try_write(bytes)
    }

    /// See [`EspStream::finish`](crate::EspStream::finish).
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.rings.finish_writing();
        self.rings
            .wait_delivered(Instant::now().checked_add(timeout))
    }

    /// Resets the connection for both halves; see [`EspStream::abort`](crate::EspStream::abort).
    pub fn abort(self) -> io::Result<()> {
        Ok(self.rings.abort()?)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.rings.client.session().is_forked() {
            self.rings.finish_writing();
        }
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf")
            .field("peer", &self.rings.peer)
            .finish_non_exhaustive()
    }
}
