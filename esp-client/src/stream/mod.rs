//! Byte streams.

mod builder;
mod close_error;
mod connecting;
#[cfg(feature = "tokio")]
mod futures;
mod halves;
mod io;
mod read;
mod rings;
mod socket;
mod write;

pub use builder::StreamBuilder;
pub use connecting::Connecting;
pub use halves::{ReadHalf, WriteHalf};
pub use rings::Interest;
pub(crate) use rings::StreamRings;
pub use socket::EspStream;
