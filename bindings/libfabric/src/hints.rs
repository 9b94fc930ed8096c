//! Checks the hints of `fi_getinfo`: whether the provider offers what a program requests.

use std::ffi::{CStr, c_char, c_int};

use p2p::MAX_ATOMIC;

use crate::ffi::*;
use crate::transfer::{INJECT, MAX_MESSAGE, PARTS};
use crate::{NAME, host};

/// Directions of messages, and of accesses to remote memory.
const DIRECTIONS: u64 = FI_SEND | FI_RECV;
const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Capabilities of an endpoint if the hints request none.
const PRIMARY: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | DIRECTIONS
    | ACCESSES
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE;
/// Capabilities that a program may request. Reports of accesses and fences have a cost, so they are
/// not among the default ones.
const OFFERED: u64 = PRIMARY | ALWAYS | FI_RMA_EVENT | FI_FENCE;
/// Capabilities that every endpoint has, even if not requested.
pub(crate) const ALWAYS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SOURCE | FI_MULTI_RECV;
/// Capabilities of each direction.
pub(crate) const TX: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE;
pub(crate) const RX: u64 = FI_MSG
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
    // FI_INJECT_COMPLETE and FI_TRANSMIT_COMPLETE: completed sends of this provider meet both.
    | 1 << 26
    | 1 << 27;
const RX_FLAGS: u64 = FI_MULTI_RECV | FI_COMPLETION;
/// Orders that are kept between two peers: among messages, and among accesses, but not between a
/// message and an access.
pub(crate) const ORDER: u64 = FI_ORDER_SAS | FI_ORDER_ACCESSES;
/// Returns the reference of a pointer of C that may be null.
///
/// # Safety
/// A pointer that is not null must be valid during the call from C.
pub(crate) unsafe fn some<'a, T>(at: *const T) -> Option<&'a T> {
    // SAFETY: the caller promises it.
    unsafe { at.as_ref() }
}

/// Returns true if a C string is null or equals [`NAME`].
///
/// # Safety
/// A string that is not null must end with NUL.
unsafe fn is_ours(text: *const c_char) -> bool {
    // SAFETY: the caller promises it.
    text.is_null() || unsafe { CStr::from_ptr(text) } == NAME
}

/// Checked hints of a program.
pub(crate) struct Asked {
    pub(crate) caps: u64,
    pub(crate) mr_mode: c_int,
    pub(crate) av_type: c_int,
    pub(crate) threading: c_int,
    pub(crate) progress: c_int,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    /// Endpoints of other nodes are requested.
    pub(crate) remote: bool,
}

/// Checks hints. The error names what is not offered.
///
/// # Safety
/// The parts of the hints must be null or valid.
pub(crate) unsafe fn check(api: u32, hints: Option<&Info>) -> Result<Asked, &'static str> {
    let mut asked = Asked {
        caps: PRIMARY,
        // Before version 1.5, the mode was one of two values; this one is the default.
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
        remote: false,
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
        if foreign || ep.max_msg_size > MAX_MESSAGE || ep.tx_ctx_cnt > 1 || ep.rx_ctx_cnt > 1 {
            return Err("a protocol, a length of messages, or several contexts");
        }
        if ep.max_order_raw_size > MAX_MESSAGE
            || ep.max_order_waw_size > MAX_MESSAGE
            || ep.max_order_war_size > MAX_ATOMIC
        {
            return Err("order of longer accesses");
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
        // SAFETY: a C string.
        if !unsafe { is_ours(domain.name) } {
            return Err("another domain");
        }
        if domain.data_progress == FI_PROGRESS_AUTO || domain.control_progress == FI_PROGRESS_AUTO {
            asked.progress = FI_PROGRESS_AUTO;
        }
        if domain.cq_data_size > 8 || domain.mr_key_size > 8 || domain.caps & !ALWAYS != 0 {
            return Err("attributes of the domain");
        }
        asked.remote = domain.caps & FI_REMOTE_COMM != 0;
        asked.mr_mode = match domain.mr_mode {
            FI_MR_BASIC => FI_MR_BASIC,
            FI_MR_SCALABLE => FI_MR_SCALABLE,
            _ => asked.mr_mode,
        };
        // The strongest model includes the weaker ones, and users expect their own model to be
        // returned.
        if domain.threading != 0 {
            asked.threading = domain.threading;
        }
        if domain.av_type != 0 {
            asked.av_type = domain.av_type;
        }
    }
    // SAFETY: see above.
    if let Some(fabric) = unsafe { some(hints.fabric_attr) } {
        // SAFETY: a C string.
        if !unsafe { is_ours(fabric.name) } {
            return Err("another fabric");
        }
    }
    asked.remote |= hints.caps & FI_REMOTE_COMM != 0;
    Ok(asked)
}
