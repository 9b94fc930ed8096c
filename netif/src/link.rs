//! Changes of network interfaces, reported by the kernel (rtnetlink).
//!
//! The socket is rustix's and the few messages are parsed here: one message kind and three of its
//! attributes do not justify a netlink crate and its packet crate.

mod message;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pnet::util::MacAddr;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recvfrom, sendto, socket_with};

use message::{Message, dump_request, messages};

/// Buffer for one datagram. The kernel builds none above 32 KiB.
const DATAGRAM_LEN: usize = 64 * 1024;
/// Maximum number of datagrams read in one call, so that a burst of changes elsewhere does not
/// delay the caller.
const DATAGRAMS_PER_CALL: usize = 32;

/// State of an interface after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    /// Index of the interface.
    pub index: u32,
    /// The administrator has enabled it.
    pub up: bool,
    /// It has a carrier.
    pub running: bool,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its hardware address; all zeros if it has none of 6 bytes.
    pub mac: MacAddr,
    /// It was removed or moved to another namespace; the other fields are its last values.
    pub gone: bool,
}

/// Reports changes of the interfaces of one network namespace: that of the thread that opened it.
/// Never blocks.
///
/// It first reports the state of each existing interface, then each change. When the kernel had to
/// drop messages, it queries the whole state again and reports the differences, so only
/// intermediate states are missed.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Last known state; bounded by the number of interfaces.
    known: BTreeMap<u32, LinkEvent>,
    events: VecDeque<LinkEvent>,
    inventory: Inventory,
    malformed: u64,
    overruns: u64,
}

/// A query for the state of all interfaces.
#[derive(Debug, Default)]
struct Inventory {
    wanted: bool,
    /// Interfaces named so far by the answer that is arriving.
    running: Option<BTreeSet<u32>>,
    sequence: u32,
}

impl LinkMonitor {
    /// Opens a monitor. Needs no privilege.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open() -> io::Result<LinkMonitor> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(
            &socket,
            &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32),
        )?;
        let mut monitor = LinkMonitor {
            socket,
            buffer: vec![0; DATAGRAM_LEN],
            known: BTreeMap::new(),
            events: VecDeque::new(),
            inventory: Inventory {
                wanted: true,
                ..Inventory::default()
            },
            malformed: 0,
            overruns: 0,
        };
        monitor.ask()?;
        Ok(monitor)
    }

    /// Returns the next change, or `None` when there is none now; poll for readability then. Reads
    /// at most 32 datagrams.
    ///
    /// # Errors
    /// Those of the system; lost messages are not an error.
    pub fn next_event(&mut self) -> io::Result<Option<LinkEvent>> {
        for _ in 0..DATAGRAMS_PER_CALL {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            self.ask()?;
            let buffer = self.buffer.as_mut_slice();
            match recvfrom(&self.socket, buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, len, from)) => {
                    let from_kernel = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    match self.buffer.get(..len) {
                        // Port 0 is the kernel; messages of other senders are ignored.
                        Some(_) if from_kernel.is_none_or(|from| from.pid() != 0) => {
                            self.malformed += 1;
                        }
                        Some(_) => self.read(len),
                        None => self.malformed += 1,
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::NOBUFS) => {
                    self.overruns += 1;
                    self.inventory.wanted = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.events.pop_front())
    }

    /// Returns the number of malformed messages that were ignored.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Returns how many times the kernel dropped messages because they were not read in time.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// Queries the state of all interfaces, unless an answer is still arriving.
    fn ask(&mut self) -> io::Result<()> {
        if !self.inventory.wanted || self.inventory.running.is_some() {
            return Ok(());
        }
        self.inventory.sequence = self.inventory.sequence.wrapping_add(1);
        let request = dump_request(self.inventory.sequence);
        match sendto(
            &self.socket,
            &request,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        ) {
            Ok(_) => {
                self.inventory.wanted = false;
                self.inventory.running = Some(BTreeSet::new());
                Ok(())
            }
            // Retried at the next call.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR | Errno::BUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self, len: usize) {
        let buffer = std::mem::take(&mut self.buffer);
        for message in messages(buffer.get(..len).unwrap_or_default()) {
            self.take(message);
        }
        self.buffer = buffer;
    }

    fn take(&mut self, message: Message) {
        let ours = |sequence: u32| sequence == self.inventory.sequence;
        match message {
            Message::Link {
                index,
                flags,
                mtu,
                mac,
                interrupted,
            } => {
                // The list changed while it was made: it may be incomplete.
                self.inventory.wanted |= interrupted;
                if let Some(named) = &mut self.inventory.running {
                    named.insert(index);
                }
                let before = self.known.get(&index).copied();
                let Some(mtu) = mtu.or(before.map(|link| link.mtu)) else {
                    // Describes a detail of an unknown link; the inventory will name it.
                    return;
                };
                let mac = mac.or(before.map(|link| link.mac)).unwrap_or_default();
                let up = flags & libc::IFF_UP as u32 != 0;
                let running = flags & libc::IFF_RUNNING as u32 != 0;
                let link = LinkEvent {
                    index,
                    up,
                    running,
                    mtu,
                    mac,
                    gone: false,
                };
                if self.known.insert(index, link) != Some(link) {
                    self.events.push_back(link);
                }
            }
            Message::Gone { index } => {
                if let Some(named) = &mut self.inventory.running {
                    named.remove(&index);
                }
                self.forget(index);
            }
            Message::Done {
                sequence,
                interrupted,
            } if ours(sequence) => {
                self.inventory.wanted |= interrupted;
                if let Some(named) = self.inventory.running.take() {
                    let lost: Vec<u32> = self
                        .known
                        .keys()
                        .copied()
                        .filter(|index| !named.contains(index))
                        .collect();
                    for index in lost {
                        self.forget(index);
                    }
                }
            }
            Message::Error { sequence } if ours(sequence) => {
                // The kernel is busy with another query of ours, or out of memory: ask again.
                self.inventory.running = None;
                self.inventory.wanted = true;
            }
            Message::Done { .. } | Message::Error { .. } | Message::Other => {}
            Message::Malformed => self.malformed += 1,
        }
    }

    fn forget(&mut self, index: u32) {
        if let Some(last) = self.known.remove(&index) {
            self.events.push_back(LinkEvent {
                up: false,
                running: false,
                gone: true,
                ..last
            });
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
