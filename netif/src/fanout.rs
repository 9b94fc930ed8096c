//! One demultiplexer for many sockets of one EtherType on one interface (`PACKET_FANOUT_CBPF`,
//! packet(7)).
//!
//! Without it, the kernel runs the filter of every socket for each frame, at a cost of about 100 ns
//! per socket whether or not it matches. The members of a group count as one socket, and a program
//! selects the member by the destination port.
//!
//! The program identifies members by their *slots*. A socket gets the next slot when it joins, and
//! keeps it as long as no member before it leaves: the kernel then moves the last member into the
//! empty slot. A member leaves when the last descriptor of its socket is closed, in any process,
//! and in no other way. So the owner of a group keeps a descriptor of every member until the group
//! is closed. When the interface goes down and up, members rejoin in the order in which their
//! sockets were *created*, so sockets should join in that order. (`__fanout_link` and
//! `packet_notifier` of Linux 6.18. Members' own filters stay in force, so a wrong slot loses a
//! frame but never delivers one too many.)

use std::io;
use std::ops::RangeInclusive;

use crate::filter::{Filter, FilterTooLong, choose};
use crate::socket::set;
use crate::{Interface, OpenError, PacketSocket, SocketOptions};

/// Maximum number of members of a group (kernels before 5.11 accept no more).
pub const MAX_MEMBERS: usize = 256;

/// A fan-out group and its first member, which gets the frames without a route.
#[derive(Debug)]
pub struct FanoutGroup {
    first: PacketSocket,
    id: u16,
}

/// Mapping of destination ports to slots.
#[derive(Clone, Debug)]
pub struct Routes {
    program: Filter,
}

impl Routes {
    /// Creates routes. A port in several ranges belongs to the first of them.
    ///
    /// # Errors
    /// [`FilterTooLong`] above about 600 separate ranges.
    pub fn new(
        routes: impl IntoIterator<Item = (RangeInclusive<u16>, u16)>,
    ) -> Result<Routes, FilterTooLong> {
        choose(&disjoint(routes)).map(|program| Routes { program })
    }
}

/// Returns disjoint ranges, sorted by port: (first port, last port, slot).
fn disjoint(routes: impl IntoIterator<Item = (RangeInclusive<u16>, u16)>) -> Vec<(u16, u16, u16)> {
    let mut taken: Vec<(u16, u16, u16)> = Vec::new();
    for (ports, slot) in routes {
        let (mut low, end) = (u32::from(*ports.start()), u32::from(*ports.end()));
        // The parts of it that earlier ranges do not cover; those are sorted.
        let mut left = Vec::new();
        for &(first, last, _) in &taken {
            if low < u32::from(first) && low <= end {
                left.push((low, end.min(u32::from(first) - 1)));
            }
            low = low.max(u32::from(last) + 1);
        }
        if low <= end {
            left.push((low, end));
        }
        // Both ends are valid ports.
        taken.extend(
            left.into_iter()
                .map(|(low, high)| (low as u16, high as u16, slot)),
        );
        taken.sort_unstable();
    }
    taken
}

impl FanoutGroup {
    /// Creates a group for sockets of this EtherType on this interface, whose first member accepts
    /// no frame.
    ///
    /// # Errors
    /// See [`OpenError`]. The interface must be up, and the kernel 4.12 or later.
    pub fn open(interface: &Interface, ethertype: u16) -> Result<FanoutGroup, OpenError> {
        let options = SocketOptions {
            filter: Some(Filter::nothing()),
            receive_buffer: 0,
            send_buffer: 0,
        };
        let first = PacketSocket::open(interface, ethertype, &options)?;
        FanoutGroup::of(first, interface)
    }

    /// Creates a group whose first member is this socket, bound to this interface.
    ///
    /// # Errors
    /// As for [`FanoutGroup::open`].
    pub fn of(first: PacketSocket, interface: &Interface) -> Result<FanoutGroup, OpenError> {
        let kind = libc::PACKET_FANOUT_CBPF | libc::PACKET_FANOUT_FLAG_UNIQUEID;
        let id = set_fanout(&first, kind << 16).and_then(|()| first.fanout());
        match id.and_then(|id| id.ok_or_else(|| io::ErrorKind::InvalidInput.into())) {
            Ok(id) => Ok(FanoutGroup { first, id }),
            Err(source) => Err(OpenError::System {
                interface: interface.name.clone(),
                step: "fan-out group",
                source,
            }),
        }
    }

    /// Adds a socket in the next slot: 1 for the first that joins. It must be bound to the
    /// interface and EtherType of the group.
    ///
    /// # Errors
    /// `EINVAL` when it is not bound so, or the interface is down; `ENOSPC` with [`MAX_MEMBERS`]
    /// members; `EALREADY` when it is in a group. The socket then continues to receive on its own.
    pub fn join(&self, socket: &PacketSocket) -> io::Result<()> {
        set_fanout(socket, u32::from(self.id) | libc::PACKET_FANOUT_CBPF << 16)
    }

    /// Replaces the routes atomically. Returns only when no frame is processed with the old ones
    /// any more (about 15 ms). Frames for slots that do not exist (yet) go to the first member.
    ///
    /// # Errors
    /// Those of the system.
    pub fn route(&self, routes: &Routes) -> io::Result<()> {
        let mut program = routes.program.kernel_program();
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // The kernel copies the program during the call and does not write to it.
        let program = libc::sock_fprog {
            len,
            filter: program.as_mut_ptr().cast(),
        };
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_FANOUT_DATA);
        set(&self.first.socket, level, option, &program)
    }
}

fn set_fanout(socket: &PacketSocket, group: u32) -> io::Result<()> {
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_FANOUT);
    set(&socket.socket, level, option, &group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_ranges_win() {
        assert_eq!(
            disjoint([(5..=9, 1), (0..=20, 2), (9..=9, 3)]),
            [(0, 4, 2), (5, 9, 1), (10, 20, 2)]
        );
        assert_eq!(
            disjoint([(0..=u16::MAX, 1), (7..=7, 2)]),
            [(0, u16::MAX, 1)]
        );
        assert_eq!(
            disjoint([(7..=7, 2), (0..=u16::MAX, 1)]),
            [(0, 6, 1), (7, 7, 2), (8, u16::MAX, 1)]
        );
        #[expect(clippy::reversed_empty_ranges, reason = "an empty range")]
        let empty = 9..=3;
        assert_eq!(disjoint([(empty, 1)]), []);
    }
}
