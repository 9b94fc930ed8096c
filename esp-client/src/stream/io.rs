//! `Read` and `Write` of the stream types.

use std::io::{self, IoSlice, Read, Write};

use super::halves::{ReadHalf, WriteHalf};
use super::socket::EspStream;

/// Implements `Write` for a type with a field `rings`.
macro_rules! write_to_rings {
    ($($type:ty),*) => {$(
        impl Write for $type {
            #[inline]
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.rings.write(&[IoSlice::new(bytes)])
            }

            fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
                self.rings.write(buffers)
            }

            /// Sends what [`EspStream::try_write_more`] holds back. No other write is held back.
            fn flush(&mut self) -> io::Result<()> {
                self.rings.flush();
                Ok(())
            }
        }
    )*};
}
write_to_rings!(EspStream, &EspStream, WriteHalf);

/// Implements `Read` for a type with a field `rings`.
macro_rules! read_from_rings {
    ($($type:ty),*) => {$(
        impl Read for $type {
            #[inline]
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.rings.read(buffer)
            }
        }
    )*};
}
read_from_rings!(EspStream, &EspStream, ReadHalf);
