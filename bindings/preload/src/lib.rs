//! `libesp_preload.so`: socket calls of unmodified programs that use ESP and EDP, or, started by
//! `esprun --tcp`, TCP.
//!
//! # Design
//!
//! The descriptor that a program holds is always a socket of the kernel whose other end is held by
//! the broker, a process that `esprun` starts beside the program:
//!
//! | the program's socket | is |
//! |---|---|
//! | stream of `AF_ENET` | a stream of `AF_UNIX`, connected to the broker |
//! | listener of `AF_ENET` | a listener of `AF_UNIX`, to which the broker connects |
//! | datagram socket of `AF_ENET` | a datagram socket of `AF_UNIX` |
//! | stream or listener of TCP over ESP | one of TCP, connected to or from the broker on loopback |
//!
//! The broker copies between these and ESP. So everything that moves bytes or waits is the
//! kernel's: `read`, `write`, flags of `recv`, `poll`, `epoll`, `dup`, `fork`, `exec`,
//! `SCM_RIGHTS`, signals, time-outs, `FIONREAD`; it needs no code here, and works from static
//! programs and io_uring that got the descriptor from elsewhere. This costs two copies and two
//! wake-ups of a process on each side.
//!
//! The library interposes what has an address or an option, and keeps no state: the names of
//! sockets say what they are ([`preload_wire`]), and the broker knows the rest. That makes it
//! correct after `fork`, `dup` and `exec`, from any thread, and with descriptors closed twice.
//!
//! Calls that read are interposed for one purpose: where the kernel returns the end of a stream of
//! `AF_ENET`, the broker is asked whether an error ended it.
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `kernel` | the calls of the kernel, without this library |
//! | `memory` | structures of C in the program's memory |
//! | `own` | sockets of `AF_ENET`: their names, and the broker |
//! | `signals` | waits that signals interrupt |
//! | `streams`, `datagrams`, `options` | calls on these |
//! | `tcp` | calls on sockets of TCP |
//! | `interpose`, `many` | the functions that programs call |

/// Reads the environment when the library is loaded: programs may clear theirs (sshd does).
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
pub mod many;
mod memory;
mod options;
mod own;
mod signals;
mod streams;
mod tcp;
