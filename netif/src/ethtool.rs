//! Settings of a network device that ethtool(8) shows (`ethtool -g`, `ethtool -c`).

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

use crate::Interface;

/// Requests of `SIOCETHTOOL`.
const GET_COALESCING: u32 = 0x0e;
const GET_RINGS: u32 = 0x10;
/// Number of words of `struct ethtool_coalesce`, and the positions of its fields.
const COALESCING_WORDS: usize = 23;
const RX_USECS: usize = 1;
const ADAPTIVE_RX: usize = 10;
/// Number of words of `struct ethtool_ringparam`, and the positions of its fields.
const RINGS_WORDS: usize = 9;
const RX_MAX: usize = 1;
const RX: usize = 5;

/// Size of the receive ring of a device, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    /// Current size.
    pub rx: u32,
    /// Maximum size that the device supports.
    pub rx_max: u32,
}

/// How a device delays interrupts of received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Maximum delay in microseconds.
    pub rx_usecs: u32,
    /// The device adapts the delay to the load.
    pub adaptive_rx: bool,
}

impl Interface {
    /// Returns the size of the receive ring. The interface must be one of the calling thread's
    /// network namespace.
    ///
    /// # Errors
    /// `Unsupported` for devices without rings, such as virtual ones; else that of the system.
    pub fn ring_size(&self) -> io::Result<RingSize> {
        let words: [u32; RINGS_WORDS] = ask(&self.name, GET_RINGS)?;
        Ok(RingSize {
            rx: words[RX],
            rx_max: words[RX_MAX],
        })
    }

    /// Returns the delay of interrupts; see [`Interface::ring_size`].
    ///
    /// # Errors
    /// `Unsupported` for devices without interrupts, such as virtual ones; else that of the system.
    pub fn coalescing(&self) -> io::Result<Coalescing> {
        let words: [u32; COALESCING_WORDS] = ask(&self.name, GET_COALESCING)?;
        Ok(Coalescing {
            rx_usecs: words[RX_USECS],
            adaptive_rx: words[ADAPTIVE_RX] != 0,
        })
    }
}

/// Performs a request, whose structure consists of words; the first is the request itself.
fn ask<const WORDS: usize>(name: &str, request: u32) -> io::Result<[u32; WORDS]> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    let mut words = [0u32; WORDS];
    words[0] = request;
    // SAFETY: all zeros is a valid value of this plain C structure.
    let mut ifreq: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= ifreq.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the socket is open; the request reads and writes one `ifreq` and the structure that
    // it points to, which has `WORDS` words. Both outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut ifreq) } {
        0.. => Ok(words),
        _ => match io::Error::last_os_error() {
            // The standard library maps only one of the two error numbers to `Unsupported`.
            error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netns::TwoNodes;

    #[test]
    fn unknown_interfaces_are_errors() {
        for name in ["", "no-such-if0", &"y".repeat(4000)] {
            assert!(ask::<RINGS_WORDS>(name, GET_RINGS).is_err(), "{name}");
        }
    }

    #[test]
    fn a_virtual_device_answers_or_has_no_such_setting() {
        let Some(nodes) = TwoNodes::new_or_skip("a_virtual_device_answers") else {
            return;
        };
        let interface = nodes.a.interface();
        nodes.a.run(|| {
            for result in [
                interface.ring_size().map(drop),
                interface.coalescing().map(drop),
            ] {
                if let Err(error) = result {
                    assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                }
            }
        });
    }
}
