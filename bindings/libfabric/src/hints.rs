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

impl Asked {
    /// Adopts what the attributes of a domain request.
    fn follow_domain(&mut self, domain: &DomainAttr) {
        if domain.data_progress == FI_PROGRESS_AUTO || domain.control_progress == FI_PROGRESS_AUTO {
            self.progress = FI_PROGRESS_AUTO;
        }
        self.remote = domain.caps & FI_REMOTE_COMM != 0;
        if domain.mr_mode == FI_MR_BASIC || domain.mr_mode == FI_MR_SCALABLE {
            self.mr_mode = domain.mr_mode;
        }
        // The strongest model includes the weaker ones, and users expect their own model to be
        // returned.
        if domain.threading != 0 {
            self.threading = domain.threading;
        }
        if domain.av_type != 0 {
            self.av_type = domain.av_type;
        }
    }
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
    asked.caps = capabilities(hints.caps)?;
    if hints.addr_format != 0 && hints.addr_format != PROV_SPECIFIC {
        return Err("an address format");
    }
    // SAFETY: the parts are valid or null, as the caller promises.
    let (ep, tx, rx, domain, fabric) = unsafe {
        (
            some(hints.ep_attr),
            some(hints.tx_attr),
            some(hints.rx_attr),
            some(hints.domain_attr),
            some(hints.fabric_attr),
        )
    };
    if let Some(ep) = ep {
        check_endpoint(ep)?;
    }
    if let Some(tx) = tx {
        check_transmission(tx)?;
        asked.tx_flags = tx.op_flags;
    }
    if let Some(rx) = rx {
        check_reception(rx)?;
        asked.rx_flags = rx.op_flags;
    }
    if let Some(domain) = domain {
        // SAFETY: the name is a C string or null.
        unsafe { check_domain(domain)? };
        asked.follow_domain(domain);
    }
    // SAFETY: see above.
    if fabric.is_some_and(|fabric| !unsafe { is_ours(fabric.name) }) {
        return Err("another fabric");
    }
    asked.remote |= hints.caps & FI_REMOTE_COMM != 0;
    Ok(asked)
}

/// Returns the capabilities of an endpoint for those of the hints, which may omit the kinds of
/// operations and their directions.
fn capabilities(hinted: u64) -> Result<u64, &'static str> {
    if hinted & !OFFERED != 0 {
        return Err("capabilities");
    }
    if hinted == 0 {
        return Ok(PRIMARY);
    }
    let mut caps = hinted;
    if hinted & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC) == 0 {
        caps |= FI_MSG | FI_TAGGED;
    }
    if caps & (FI_MSG | FI_TAGGED) != 0 && hinted & DIRECTIONS == 0 {
        caps |= DIRECTIONS;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && hinted & ACCESSES == 0 {
        caps |= ACCESSES;
    }
    Ok(caps)
}

fn check_endpoint(ep: &EpAttr) -> Result<(), &'static str> {
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
    Ok(())
}

fn check_transmission(tx: &TxAttr) -> Result<(), &'static str> {
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
    Ok(())
}

fn check_reception(rx: &RxAttr) -> Result<(), &'static str> {
    if rx.caps & !OFFERED != 0
        || rx.op_flags & !RX_FLAGS != 0
        || rx.msg_order & !ORDER != 0
        || rx.comp_order != 0
        || rx.iov_limit > PARTS
    {
        return Err("attributes of reception");
    }
    Ok(())
}

/// Checks the attributes of a domain.
///
/// # Safety
/// The name must be null or a C string.
unsafe fn check_domain(domain: &DomainAttr) -> Result<(), &'static str> {
    // SAFETY: the caller promises it.
    if !unsafe { is_ours(domain.name) } {
        return Err("another domain");
    }
    if domain.cq_data_size > 8 || domain.mr_key_size > 8 || domain.caps & !ALWAYS != 0 {
        return Err("attributes of the domain");
    }
    Ok(())
}
