//! `fi_getinfo`: what the provider offers, and whether it is what a program asks for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use p2p::MAX_ATOMIC;

use crate::ffi::*;
use crate::memory::MAX_REGIONS;
use crate::transfer::{INJECT, LONGEST, PARTS};
use crate::vector::{NAME as NAME_LENGTH, named};
use crate::{NAME, host};

/// Directions of messages, and of accesses to remote memory.
const DIRECTIONS: u64 = FI_SEND | FI_RECV;
const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities of an endpoint of which nothing was asked.
const PRIMARY: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | DIRECTIONS
    | ACCESSES
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE;
/// Capabilities that a program may ask for: reports of accesses cost something.
const OFFERED: u64 = PRIMARY | ALWAYS | FI_RMA_EVENT;
/// Capabilities that are there without being asked for.
const ALWAYS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SOURCE | FI_MULTI_RECV;
/// Those of either direction.
const TX: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE;
const RX: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_RMA_EVENT
    | FI_SOURCE;
/// Flags that an endpoint may have for all its operations.
const TX_FLAGS: u64 = FI_INJECT
    | FI_COMPLETION
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    // Injected and transmitted in the sense of libfabric are sends that are over.
    | 1 << 26
    | 1 << 27;
const RX_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;
/// Ordered are messages, and accesses, of one peer to another; not one kind against the other.
const ORDER: u64 = FI_ORDER_SAS | FI_ORDER_ACCESSES;
/// Operations under way of one direction, at least.
const DEPTH: usize = 1024;

/// Returns the reference of a pointer of C that may be null.
///
/// # Safety
/// A pointer that is not null is valid during the call of C.
unsafe fn some<'a, T>(at: *const T) -> Option<&'a T> {
    // SAFETY: the caller promises it.
    unsafe { at.as_ref() }
}

/// Returns true if a text of C is null, or is this name.
///
/// # Safety
/// A text that is not null ends with NUL.
unsafe fn is_ours(text: *const c_char) -> bool {
    // SAFETY: the caller promises it.
    text.is_null() || unsafe { CStr::from_ptr(text) } == NAME
}

/// Checked hints of a program.
struct Asked {
    caps: u64,
    mr_mode: c_int,
    av_type: c_int,
    threading: c_int,
    progress: c_int,
    tx_flags: u64,
    rx_flags: u64,
}

/// Checks hints. The error says what is not offered.
///
/// # Safety
/// The parts of the hints are null or valid.
unsafe fn check(api: u32, hints: Option<&Info>) -> Result<Asked, &'static str> {
    let mut asked = Asked {
        caps: PRIMARY,
        // Before version 1.5 the mode was one of two.
        mr_mode: if api < version(1, 5) {
            FI_MR_SCALABLE
        } else {
            0
        },
        av_type: FI_AV_TABLE,
        threading: FI_THREAD_SAFE,
        progress: FI_PROGRESS_MANUAL,
        tx_flags: 0,
        rx_flags: 0,
    };
    let Some(hints) = hints else {
        return Ok(asked);
    };
    if hints.caps & !OFFERED != 0 {
        return Err("capabilities");
    }
    if hints.caps != 0 {
        asked.caps = hints.caps;
        let kinds = hints.caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
        if kinds == 0 {
            asked.caps |= FI_MSG | FI_TAGGED;
        }
        if asked.caps & (FI_MSG | FI_TAGGED) != 0 && hints.caps & DIRECTIONS == 0 {
            asked.caps |= DIRECTIONS;
        }
        if asked.caps & (FI_RMA | FI_ATOMIC) != 0 && hints.caps & ACCESSES == 0 {
            asked.caps |= ACCESSES;
        }
    }
    if hints.addr_format != 0 && hints.addr_format != PROV_SPECIFIC {
        return Err("an address format");
    }
    // SAFETY: the parts are valid or null, as the caller promises.
    if let Some(ep) = unsafe { some(hints.ep_attr) } {
        if ep.kind != FI_EP_UNSPEC && ep.kind != FI_EP_RDM {
            return Err("an endpoint type other than FI_EP_RDM");
        }
        let foreign = ep.protocol != 0 && ep.protocol != PROV_SPECIFIC;
        if foreign || ep.max_msg_size > LONGEST || ep.tx_ctx_cnt > 1 || ep.rx_ctx_cnt > 1 {
            return Err("a protocol, a length of messages, or several contexts");
        }
    }
    // SAFETY: see above.
    if let Some(tx) = unsafe { some(hints.tx_attr) } {
        if tx.caps & !OFFERED != 0
            || tx.op_flags & !TX_FLAGS != 0
            || tx.msg_order & !ORDER != 0
            || tx.comp_order != 0
            || tx.inject_size > INJECT
            || tx.iov_limit > PARTS
            || tx.rma_iov_limit > 1
        {
            let TxAttr {
                caps,
                op_flags,
                msg_order,
                comp_order,
                ..
            } = tx;
            host::inform(&format!(
                "asked of transmission: caps {caps:#x}, flags {op_flags:#x}, order {msg_order:#x}, \
                 order of completions {comp_order:#x}, inject {}, parts {} and {}",
                tx.inject_size, tx.iov_limit, tx.rma_iov_limit
            ));
            return Err("attributes of transmission");
        }
        asked.tx_flags = tx.op_flags;
    }
    // SAFETY: see above.
    if let Some(rx) = unsafe { some(hints.rx_attr) } {
        if rx.caps & !OFFERED != 0
            || rx.op_flags & !RX_FLAGS != 0
            || rx.msg_order & !ORDER != 0
            || rx.comp_order != 0
            || rx.iov_limit > PARTS
        {
            return Err("attributes of reception");
        }
        asked.rx_flags = rx.op_flags;
    }
    // SAFETY: see above.
    if let Some(domain) = unsafe { some(hints.domain_attr) } {
        // SAFETY: a text of C.
        if !unsafe { is_ours(domain.name) } {
            return Err("another domain");
        }
        if domain.data_progress == FI_PROGRESS_AUTO || domain.control_progress == FI_PROGRESS_AUTO {
            asked.progress = FI_PROGRESS_AUTO;
        }
        if domain.cq_data_size > 8 || domain.mr_key_size > 8 || domain.caps & !ALWAYS != 0 {
            return Err("attributes of the domain");
        }
        asked.mr_mode = match domain.mr_mode {
            FI_MR_BASIC => FI_MR_BASIC,
            FI_MR_SCALABLE => FI_MR_SCALABLE,
            _ => asked.mr_mode,
        };
        // A weaker model is part of the strongest one, and users want theirs back.
        if domain.threading != 0 {
            asked.threading = domain.threading;
        }
        if domain.av_type != 0 {
            asked.av_type = domain.av_type;
        }
    }
    // SAFETY: see above.
    if let Some(fabric) = unsafe { some(hints.fabric_attr) } {
        // SAFETY: a text of C.
        if !unsafe { is_ours(fabric.name) } {
            return Err("another fabric");
        }
    }
    Ok(asked)
}

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
    // SAFETY: null or the program's hints.
    let hints = unsafe { some(hints) };
    // SAFETY: their parts are valid or null.
    let asked = match unsafe { check(version, hints) } {
        Ok(asked) => asked,
        Err(what) => {
            let caps = hints.map_or(0, |hints| hints.caps);
            host::inform(&format!("not offered: {what} (caps {caps:#x})"));
            return -ENODATA;
        }
    };
    let mut destination = None;
    if !node.is_null() && flags & FI_SOURCE == 0 {
        // SAFETY: a text of C.
        let text = unsafe { CStr::from_ptr(node) };
        destination = text.to_str().ok().and_then(named);
        if destination.is_none() {
            // Hosts have no endpoint of a known address.
            return -ENODATA;
        }
    }
    if let Err(why) = options().and_then(|options| job::endpoint::check(&options)) {
        host::warn(&format!("no endpoint is possible: {why}"));
        return -ENODATA;
    }
    if let Some(hints) = hints
        && destination.is_none()
        && hints.dest_addrlen == NAME_LENGTH
        && !hints.dest_addr.is_null()
    {
        // SAFETY: the program passes as many bytes.
        destination = Some(unsafe { hints.dest_addr.cast::<[u8; NAME_LENGTH]>().read_unaligned() });
    }
    let info = host::allocate_info();
    // SAFETY: the host's allocation has all parts, or is null.
    let Some(filled) = (unsafe { info.as_mut() }) else {
        return -ENOMEM;
    };
    // SAFETY: as above.
    if !unsafe { fill(filled, &asked, destination.as_ref()) } {
        host::free_info(info);
        return -ENODATA;
    }
    // SAFETY: not null.
    unsafe { *place = info };
    0
}

/// Returns the options of the environment.
pub(crate) fn options() -> Result<job::Options, String> {
    job::Options::from_env().map_err(|error| error.to_string())
}

/// Copies a text for the host, which frees it.
fn text(text: &CStr) -> *mut c_char {
    // SAFETY: it ends with NUL.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Fills in an allocation of the host. Returns false if it lacks a part.
///
/// # Safety
/// The parts are null or valid.
unsafe fn fill(info: &mut Info, asked: &Asked, destination: Option<&[u8; NAME_LENGTH]>) -> bool {
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
    info.caps = asked.caps | ALWAYS;
    (info.mode, info.addr_format) = (0, PROV_SPECIFIC);
    if let Some(name) = destination {
        // SAFETY: allocated for the host, which frees it.
        let copy = unsafe { libc::malloc(NAME_LENGTH) };
        if !copy.is_null() {
            // SAFETY: as long as the name.
            unsafe { copy.cast::<u8>().copy_from(name.as_ptr(), NAME_LENGTH) };
            (info.dest_addr, info.dest_addrlen) = (copy.cast::<c_void>(), NAME_LENGTH);
        }
    }
    tx.caps = info.caps & TX;
    (tx.op_flags, tx.msg_order) = (asked.tx_flags, ORDER);
    (tx.inject_size, tx.size, tx.iov_limit) = (INJECT, DEPTH, PARTS);
    tx.rma_iov_limit = 1;
    rx.caps = info.caps & RX;
    (rx.op_flags, rx.msg_order) = (asked.rx_flags, ORDER);
    (rx.size, rx.iov_limit) = (DEPTH, PARTS);
    (ep.kind, ep.protocol, ep.protocol_version) = (FI_EP_RDM, PROV_SPECIFIC, 1);
    (ep.max_msg_size, ep.mem_tag_format) = (LONGEST, FI_TAG_GENERIC);
    (ep.max_order_raw_size, ep.max_order_waw_size) = (LONGEST, LONGEST);
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
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    fabric.name = text(NAME);
    fabric.prov_version = version(0, 1);
    fabric.api_version = host::host_version();
    true
}

/// Writes a text for `fi_*_strerror`. Returns where it is.
///
/// # Safety
/// `room` bytes at `place` are writable.
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
