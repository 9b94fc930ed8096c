//! Provider of [libfabric](https://ofiwg.github.io/libfabric/): reliable datagram endpoints over
//! ESP, for MPICH, Intel MPI, Open MPI 5 and other users of libfabric. docs/libfabric.md is the
//! manual.
//!
//! # How it works
//! An endpoint of libfabric is an endpoint of the crate `p2p`, opened over the transports that the
//! crate `job` makes. The provider only translates calls and has no protocol of its own.
//!
//! - *Addresses*: a name (`job::endpoint`) contains the identity of an endpoint and the addresses
//!   of its transports. `fi_av_insert` declares a peer to the layer, which connects to it for the
//!   first message. A peer that connects without having been inserted is admitted by the layer, and
//!   its messages have the source `FI_ADDR_NOTAVAIL`.
//! - *Matching*: tagged messages have one context, untagged messages another. The layer matches
//!   64-bit tags under a mask and by source.
//! - *Remote memory*: registrations of a domain are regions of the layer, which checks and serves
//!   the accesses of peers, RMA and atomic ones.
//! - *Progress* is made by calls that read queues and counters, or wait for them (`MANUAL`), or
//!   by a thread of the endpoint when they do not (`AUTO`). A thread in `fi_cq_sread`, and the
//!   program with a queue's descriptor, sleep on the descriptors of the transports.
//! - *Completions*: the layer reports completed requests in their order, with its lock held.
//!   `completions` passes them on to the queues.
//!
//! # Host
//! The library that calls the entry point is found at load time (`host`): this one is not linked to
//! it, and works with version 1.1 and later. Panics abort the process, because the functions are
//! `extern "C"`.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod atomic;
mod completions;
mod core;
mod domain;
mod endpoint;
mod fabric;
mod ffi;
mod hints;
mod host;
mod info;
mod memory;
mod messages;
mod object;
mod operations;
mod peers;
mod posting;
mod progress;
mod queue;
mod queues;
mod remote;
mod rma;
#[cfg(test)]
mod tests;
mod transfer;
mod vector;
mod wakeups;

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::OnceLock;

use ffi::Provider;

/// Name of the provider, the fabric and the domain.
pub(crate) const NAME: &std::ffi::CStr = c"esp";

/// Holds the description in a static: the host writes its `context`.
struct Static(UnsafeCell<Provider>);

// SAFETY: once it is initialized, only the host accesses it, under the host's lock; its name is
// static.
unsafe impl Sync for Static {}
// SAFETY: as above.
unsafe impl Send for Static {}

/// Returns the description of this provider.
pub(crate) fn provider() -> *mut Provider {
    static PROVIDER: OnceLock<Static> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        Static(UnsafeCell::new(Provider {
            version: ffi::version(0, 1),
            // Hosts skip a provider whose version is lower than the one that the program requests.
            fi_version: host::host_version(),
            context: [std::ptr::null_mut(); 4],
            name: NAME.as_ptr(),
            getinfo: info::getinfo,
            fabric: fabric::open,
            cleanup,
        }))
    });
    provider.0.get()
}

/// Entry point of the library for its host.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    host::note_caller();
    provider()
}

extern "C" fn cleanup() {}

/// Converts a result to a return value of C: `Ok` is 0.
pub(crate) fn done(result: Result<(), c_int>) -> c_int {
    result.map_or_else(|code| code, |()| 0)
}
