//! `libesp_preload.so`: interposes the socket calls of unmodified programs that use ESP and EDP,
//! or, under `esprun --tcp`, TCP.
//!
//! # Design
//!
//! The descriptor that a program holds is always a socket of the kernel. Its other end is held by
//! the broker, a process that `esprun` starts in addition to the program:
//!
//! | the program's socket | is |
//! |---|---|
//! | stream of `AF_ENET` | a stream of `AF_UNIX`, connected to the broker |
//! | listener of `AF_ENET` | a listener of `AF_UNIX`, to which the broker connects |
//! | datagram socket of `AF_ENET` | a datagram socket of `AF_UNIX` |
//! | stream or listener of TCP over ESP | a TCP socket on loopback, connected to or by the broker |
//!
//! The broker copies between these and ESP. So the kernel does everything that moves bytes or
//! waits: `read`, `write`, flags of `recv`, `poll`, `epoll`, `dup`, `fork`, `exec`, `SCM_RIGHTS`,
//! signals, time-outs, `FIONREAD`. It needs no code here, and works from io_uring, too, and from
//! static programs that got the descriptor from elsewhere. This costs two copies and two wake-ups
//! of a process on each side.
//!
//! The library interposes calls that have an address or an option, and keeps no state: the names of
//! sockets identify them ([`preload_wire`]), and the broker knows the rest. That makes it correct
//! after `fork`, `dup` and `exec`, in any thread, and with descriptors that are closed twice.
//!
//! Calls that read are interposed for one purpose: if the kernel returns the end of a stream of
//! `AF_ENET`, the broker is asked whether an error ended it.
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `kernel` | system calls that bypass this library |
//! | `memory` | C structures in the program's memory |
//! | `own` | sockets of `AF_ENET`: their names, and the broker |
//! | `signals` | waits that signals interrupt |
//! | `streams`, `datagrams`, `options` | calls on these |
//! | `tcp` | calls on sockets of TCP |
//! | `interpose`, `mmsg` | the functions that programs call |

/// Reads the environment when the library is loaded: programs may clear theirs, as sshd does.
#[used]
// SAFETY: the dynamic linker calls the functions of this section once, before the program runs.
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    own::broker();
}

mod datagrams;
pub mod interpose;
mod kernel;
mod memory;
pub mod mmsg;
mod options;
mod own;
mod signals;
mod streams;
mod tcp;
