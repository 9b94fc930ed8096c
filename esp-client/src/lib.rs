//! What a program links to speak ESP: `EspStream`, `EspListener`, `EdpSocket`.

pub mod addr;
pub mod control;
mod error;
pub mod io;

pub use addr::{EspAddr, ToEspAddr, resolve};
pub use error::{EspError, PeerName};
