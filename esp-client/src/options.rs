//! Options that the builders of streams, listeners and datagram sockets share.

use esp_engine::shm::Spin;

use crate::control::Rings;
use crate::error::EspError;
use crate::path::Path;

/// Default size of each ring of a stream, in bytes.
pub const DEFAULT_RING: u32 = 1 << 20;
/// Maximum length of a job key, in bytes.
pub const MAX_KEY: usize = 32;

/// Options of a socket. The builders offer those that apply to their type.
#[derive(Clone, Debug)]
pub(crate) struct SocketOptions {
    pub(crate) interface: Option<String>,
    pub(crate) rings: Rings,
    pub(crate) spin: Option<Spin>,
    pub(crate) key: Vec<u8>,
    pub(crate) path: Option<Path>,
}

impl SocketOptions {
    /// Returns the defaults, with rings of `size` bytes.
    pub(crate) fn new(size: u32) -> SocketOptions {
        SocketOptions {
            interface: None,
            rings: Rings { tx: size, rx: size },
            spin: None,
            key: Vec::new(),
            path: None,
        }
    }

    pub(crate) fn check_key(&self) -> Result<(), EspError> {
        if self.key.len() > MAX_KEY {
            let text = format!("the job key is longer than {MAX_KEY} bytes");
            return Err(EspError::BadArgument(text));
        }
        Ok(())
    }

    /// Returns the data path: the one that was set, else that of the environment.
    pub(crate) fn path(&self) -> Result<Path, EspError> {
        self.path.map_or_else(Path::from_environment, Ok)
    }
}

/// Adds the setters of all builders to one with a field `options: SocketOptions`.
macro_rules! socket_options {
    ($builder:ty, interface: $interface:literal) => {
        impl $builder {
            #[doc = $interface]
            #[must_use]
            pub fn interface(mut self, name: impl Into<String>) -> Self {
                self.options.interface = Some(name.into());
                self
            }

            /// Sets the sizes of the send and receive rings in bytes: powers of two, 4 KiB to
            /// 64 MiB. Default: [`DEFAULT_RING`](crate::DEFAULT_RING) each for a stream,
            /// [`DEFAULT_EDP_RING`](crate::DEFAULT_EDP_RING) each for a datagram socket. The daemon
            /// may grant less.
            #[must_use]
            pub fn rings(mut self, tx: u32, rx: u32) -> Self {
                self.options.rings = crate::control::Rings { tx, rx };
                self
            }

            /// Sets how long blocking calls spin before they sleep. The default depends on the
            /// number of processors this process may use; with one or two it does not spin.
            #[must_use]
            pub fn spin(mut self, spin: esp_engine::shm::Spin) -> Self {
                self.options.spin = Some(spin);
                self
            }
        }
    };
}

/// Adds the setters of streams and listeners to a builder with a field `options: SocketOptions`.
macro_rules! stream_options {
    ($builder:ty) => {
        impl $builder {
            /// Sets the job key, at most [`MAX_KEY`](crate::MAX_KEY) bytes. Both ends must have the
            /// same key.
            #[must_use]
            pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
                self.options.key = key.into();
                self
            }

            /// Sets the data path within this node. Default: the value of
            /// [`PATH_VARIABLE`](crate::PATH_VARIABLE), else [`Path::Auto`](crate::Path::Auto).
            /// Streams with a chosen local port, streams within this node, and streams that the
            /// `aio` module opens always use the daemon.
            #[must_use]
            pub fn path(mut self, path: crate::path::Path) -> Self {
                self.options.path = Some(path);
                self
            }
        }
    };
}

pub(crate) use {socket_options, stream_options};
