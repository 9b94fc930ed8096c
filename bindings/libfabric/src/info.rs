//! `fi_getinfo`: describes the offers of the provider.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use job::endpoint::{Reach, unopened};
use p2p::MAX_ATOMIC;

use crate::ffi::*;
use crate::hints::{ALWAYS, Asked, ORDER, RX, TX, check, some};
use crate::memory::MAX_REGIONS;
use crate::transfer::{INJECT, MAX_MESSAGE, PARTS};
use crate::vector::{NAME as NAME_LENGTH, Name, named, padded};
use crate::{NAME, host};

/// Reported depth of the send and receive queues: an endpoint accepts at least this number of
/// operations of each direction.
const DEPTH: usize = 1024;

/// `fi_getinfo` of the provider.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    _service: *const c_char,
    flags: u64,
    hints: *const Info,
    place: *mut *mut Info,
) -> c_int {
    if place.is_null() {
        return -EINVAL;
    }
    // SAFETY: null or the program's hints, and null or a C string.
    let offer = match unsafe { offer(version, (node, flags), some(hints)) } {
        Ok(offer) => offer,
        Err(code) => return code,
    };
    let info = host::allocate_info();
    // SAFETY: the host's allocation has all parts, or is null.
    let Some(filled) = (unsafe { info.as_mut() }) else {
        return -ENOMEM;
    };
    // SAFETY: as above.
    if !unsafe { fill(filled, &offer) } {
        host::free_info(info);
        return -ENODATA;
    }
    // SAFETY: not null.
    unsafe { *place = info };
    0
}

/// An offer to a program, which `fi_getinfo` describes.
struct Offer {
    asked: Asked,
    destination: Option<Name>,
    /// Endpoints of other nodes can be reached.
    remote: bool,
}

/// Returns an offer, or -FI_ENODATA.
///
/// # Safety
/// The node must be null or a C string; the parts of the hints must be null or valid.
unsafe fn offer(
    version: u32,
    (node, flags): (*const c_char, u64),
    hints: Option<&Info>,
) -> Result<Offer, c_int> {
    // SAFETY: the caller promises it.
    let asked = unsafe { check(version, hints) }.map_err(|what| {
        let caps = hints.map_or(0, |hints| hints.caps);
        host::inform(&format!("not offered: {what} (caps {caps:#x})"));
        -ENODATA
    })?;
    // SAFETY: as above.
    let destination = unsafe { destination((node, flags), hints)? };
    let remote = is_remote_possible()?;
    if asked.remote && !remote {
        return Err(-ENODATA);
    }
    Ok(Offer {
        asked,
        destination,
        remote,
    })
}

/// Returns whether endpoints can reach those of other nodes; an error if no endpoint is possible.
fn is_remote_possible() -> Result<bool, c_int> {
    match options().and_then(|options| job::endpoint::check(&options)) {
        Ok(Reach::Network) => Ok(true),
        Ok(Reach::Node(why)) => {
            host::warn(&format!("only peers of this node can be reached: {why}"));
            Ok(false)
        }
        Err(why) => {
            host::warn(&format!("no endpoint is possible: {why}"));
            Err(-ENODATA)
        }
    }
}

/// Returns the name of the peer that a program requests.
///
/// # Safety
/// As for [`offer`].
unsafe fn destination(
    (node, flags): (*const c_char, u64),
    hints: Option<&Info>,
) -> Result<Option<Name>, c_int> {
    let of_source = flags & FI_SOURCE != 0;
    // SAFETY: the program passes addresses with their lengths.
    let (from, to) = hints.map_or((None, None), |hints| unsafe {
        (
            hinted(hints.src_addr, hints.src_addrlen),
            hinted(hints.dest_addr, hints.dest_addrlen),
        )
    });
    if !of_source && from.is_some_and(|name| name != padded(&unopened())) {
        host::inform("not offered: a source address");
        return Err(-ENODATA);
    }
    if node.is_null() || of_source {
        return Ok(to);
    }
    // SAFETY: the caller promises it.
    let text = unsafe { CStr::from_ptr(node) };
    // A host name or IP address does not identify an endpoint; only names of endpoints do.
    let found = text.to_str().ok().and_then(named).ok_or(-ENODATA)?;
    Ok(Some(found))
}

/// Returns an address of hints, if it has the length of a name.
///
/// # Safety
/// `at` must be null or valid for reads of `length` bytes.
unsafe fn hinted(at: *const c_void, length: usize) -> Option<Name> {
    if at.is_null() || length != NAME_LENGTH {
        return None;
    }
    // SAFETY: the caller promises it.
    Some(unsafe { at.cast::<Name>().read_unaligned() })
}

/// Copies an address for the host, which frees it. Null if there is no memory.
fn address(name: &Name) -> (*mut c_void, usize) {
    // SAFETY: `malloc` has no preconditions.
    let copy = unsafe { libc::malloc(NAME_LENGTH) };
    if copy.is_null() {
        return (copy, 0);
    }
    // SAFETY: as long as the name.
    unsafe { copy.cast::<u8>().copy_from(name.as_ptr(), NAME_LENGTH) };
    (copy, NAME_LENGTH)
}

/// Reads the options from the environment.
pub(crate) fn options() -> Result<job::Options, String> {
    job::Options::from_env().map_err(|error| error.to_string())
}

/// Copies a string for the host, which frees it.
fn text(text: &CStr) -> *mut c_char {
    // SAFETY: it ends with NUL.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Fills in an allocation of the host. Returns false if it lacks a part.
///
/// # Safety
/// The parts of `info` must be null or valid.
unsafe fn fill(info: &mut Info, offer: &Offer) -> bool {
    let asked = &offer.asked;
    // SAFETY: the caller promises it.
    let parts = unsafe {
        (
            info.tx_attr.as_mut(),
            info.rx_attr.as_mut(),
            info.ep_attr.as_mut(),
            info.domain_attr.as_mut(),
            info.fabric_attr.as_mut(),
        )
    };
    let (Some(tx), Some(rx), Some(ep), Some(domain), Some(fabric)) = parts else {
        return false;
    };
    let unreached = if offer.remote { 0 } else { FI_REMOTE_COMM };
    info.caps = (asked.caps | ALWAYS) & !unreached;
    (info.mode, info.addr_format) = (0, PROV_SPECIFIC);
    // An endpoint gets its identity when it is enabled, as a socket gets its port when it is bound.
    (info.src_addr, info.src_addrlen) = address(&padded(&unopened()));
    if let Some(name) = &offer.destination {
        (info.dest_addr, info.dest_addrlen) = address(name);
    }
    tx.caps = info.caps & TX;
    (tx.op_flags, tx.msg_order) = (asked.tx_flags, ORDER);
    (tx.inject_size, tx.size, tx.iov_limit) = (INJECT, DEPTH, PARTS);
    tx.rma_iov_limit = 1;
    rx.caps = info.caps & RX;
    (rx.op_flags, rx.msg_order) = (asked.rx_flags, ORDER);
    (rx.size, rx.iov_limit) = (DEPTH, PARTS);
    (ep.kind, ep.protocol, ep.protocol_version) = (FI_EP_RDM, PROV_SPECIFIC, 1);
    (ep.max_msg_size, ep.mem_tag_format) = (MAX_MESSAGE, FI_TAG_GENERIC);
    (ep.max_order_raw_size, ep.max_order_waw_size) = (MAX_MESSAGE, MAX_MESSAGE);
    // Longer reads are served while later writes arrive.
    ep.max_order_war_size = MAX_ATOMIC;
    (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (1, 1);
    domain.name = text(NAME);
    domain.threading = asked.threading;
    (domain.control_progress, domain.data_progress) = (asked.progress, asked.progress);
    domain.resource_mgmt = FI_RM_ENABLED;
    (domain.av_type, domain.mr_mode) = (asked.av_type, asked.mr_mode);
    (domain.mr_key_size, domain.cq_data_size) = (8, 8);
    (domain.cq_cnt, domain.ep_cnt, domain.cntr_cnt) = (1024, 256, 1024);
    (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (256, 256);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    (domain.mr_iov_limit, domain.mr_cnt) = (1, MAX_REGIONS);
    domain.caps = (FI_LOCAL_COMM | FI_REMOTE_COMM) & !unreached;
    fabric.name = text(NAME);
    fabric.prov_version = version(0, 1);
    fabric.api_version = host::host_version();
    true
}

/// Writes a text for `fi_*_strerror`. Returns the address of the text.
///
/// # Safety
/// `place` must be null or valid for writes of `room` bytes.
pub(crate) unsafe fn write_text(text: &CString, place: *mut c_char, room: usize) -> *const c_char {
    if place.is_null() || room == 0 {
        return c"see the log".as_ptr();
    }
    let bytes = text.as_bytes();
    let fits = bytes.len().min(room - 1);
    // SAFETY: the caller promises it.
    unsafe {
        place.cast::<u8>().copy_from(bytes.as_ptr(), fits);
        *place.add(fits) = 0;
    }
    place
}
