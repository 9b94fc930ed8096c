//! The types and constants of libfabric's headers that the provider needs, written by hand.
//!
//! The layouts are those of ABI 1.1 (`fi_info` and its parts) and of the tables of functions, which
//! grow only at their end and begin with their size. In structures that the library allocates, only
//! fields that every version has are read and written.
#![allow(
    missing_docs,
    reason = "the names are those of libfabric's manual pages"
)]

use std::ffi::{c_char, c_int, c_void};

pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

// Capabilities and flags of operations.
pub(crate) const FI_MSG: u64 = 1 << 1;
pub(crate) const FI_RMA: u64 = 1 << 2;
pub(crate) const FI_TAGGED: u64 = 1 << 3;
pub(crate) const FI_ATOMIC: u64 = 1 << 4;
pub(crate) const FI_READ: u64 = 1 << 8;
pub(crate) const FI_WRITE: u64 = 1 << 9;
pub(crate) const FI_RECV: u64 = 1 << 10;
pub(crate) const FI_SEND: u64 = 1 << 11;
pub(crate) const FI_REMOTE_READ: u64 = 1 << 12;
pub(crate) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const FI_MULTI_RECV: u64 = 1 << 16;
pub(crate) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const FI_PEEK: u64 = 1 << 19;
pub(crate) const FI_FENCE: u64 = 1 << 21;
pub(crate) const FI_COMPLETION: u64 = 1 << 24;
pub(crate) const FI_INJECT: u64 = 1 << 25;
pub(crate) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const FI_MR_DMABUF: u64 = 1 << 40;
pub(crate) const FI_PEER: u64 = 1 << 43;
pub(crate) const FI_LOCAL_COMM: u64 = 1 << 51;
pub(crate) const FI_REMOTE_COMM: u64 = 1 << 52;
pub(crate) const FI_RMA_EVENT: u64 = 1 << 56;
pub(crate) const FI_SOURCE: u64 = 1 << 57;
pub(crate) const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const FI_COMPARE_ATOMIC: u64 = 1 << 59;
pub(crate) const FI_DIRECTED_RECV: u64 = 1 << 59;
pub(crate) const FI_CLAIM: u64 = 1 << 59;
pub(crate) const FI_DISCARD: u64 = 1 << 58;
pub(crate) const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
pub(crate) const FI_EVENT: u64 = FI_COMPLETION;

pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub(crate) const FI_ORDER_SAS: u64 = 1 << 8;
/// Reads and writes after reads and writes, of both RMA and atomic operations.
pub(crate) const FI_ORDER_ACCESSES: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 0xFF << 32;
/// Provider-specific format of addresses, and protocol.
pub(crate) const PROV_SPECIFIC: u32 = 1 << 31 | 0x4553;
pub(crate) const FI_EP_RDM: c_int = 3;
pub(crate) const FI_EP_UNSPEC: c_int = 0;
pub(crate) const FI_AV_TABLE: c_int = 2;
pub(crate) const FI_PROGRESS_AUTO: c_int = 1;
pub(crate) const FI_PROGRESS_MANUAL: c_int = 2;
pub(crate) const FI_THREAD_SAFE: c_int = 1;
pub(crate) const FI_RM_ENABLED: c_int = 2;
pub(crate) const FI_MR_BASIC: c_int = 1;
pub(crate) const FI_MR_SCALABLE: c_int = 2;
pub(crate) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const FI_MR_PROV_KEY: c_int = 1 << 6;
/// Tag format in which every bit may be a separate field.
pub(crate) const FI_TAG_GENERIC: u64 = 0xAAAA_AAAA_AAAA_AAAA;

pub(crate) const FI_INT8: c_int = 0;
pub(crate) const FI_DOUBLE_COMPLEX: c_int = 11;
pub(crate) const FI_INT128: c_int = 14;
pub(crate) const FI_UINT128: c_int = 15;

pub(crate) const FI_CLASS_FABRIC: usize = 1;
pub(crate) const FI_CLASS_DOMAIN: usize = 2;
pub(crate) const FI_CLASS_EP: usize = 3;
pub(crate) const FI_CLASS_AV: usize = 11;
pub(crate) const FI_CLASS_MR: usize = 12;
pub(crate) const FI_CLASS_EQ: usize = 13;
pub(crate) const FI_CLASS_CQ: usize = 14;
pub(crate) const FI_CLASS_CNTR: usize = 15;

pub(crate) const FI_ENABLE: c_int = 6;
pub(crate) const FI_GETOPSFLAG: c_int = 2;
pub(crate) const FI_GETWAIT: c_int = 5;
pub(crate) const FI_OPT_MIN_MULTI_RECV: c_int = 0;

pub(crate) const FI_CQ_FORMAT_UNSPEC: c_int = 0;
pub(crate) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const FI_WAIT_UNSPEC: c_int = 1;
pub(crate) const FI_WAIT_NONE: c_int = 0;
pub(crate) const FI_WAIT_FD: c_int = 3;
pub(crate) const FI_WAIT_YIELD: c_int = 5;

// Errors: values of errno, and libfabric's own, which start at 256.
pub(crate) const EIO: c_int = 5;
pub(crate) const EAGAIN: c_int = 11;
pub(crate) const EACCES: c_int = 13;
pub(crate) const EBUSY: c_int = 16;
pub(crate) const EINVAL: c_int = 22;
pub(crate) const ENOSYS: c_int = 38;
pub(crate) const ENOMSG: c_int = 42;
pub(crate) const ENODATA: c_int = 61;
pub(crate) const ENOMEM: c_int = 12;
pub(crate) const EMSGSIZE: c_int = 90;
pub(crate) const EOPNOTSUPP: c_int = 95;
pub(crate) const ENOTCONN: c_int = 107;
pub(crate) const ETIMEDOUT: c_int = 110;
pub(crate) const ECANCELED: c_int = 125;
pub(crate) const FI_ENOKEY: c_int = 266;
pub(crate) const FI_ENOAV: c_int = 267;
pub(crate) const FI_ETOOSMALL: c_int = 257;
pub(crate) const FI_EOPBADSTATE: c_int = 258;
pub(crate) const FI_EAVAIL: c_int = 259;
pub(crate) const FI_ENOCQ: c_int = 263;
pub(crate) const FI_ETRUNC: c_int = 265;

/// Head of every object.
#[repr(C)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const c_void,
}

#[repr(C)]
pub struct Provider {
    pub(crate) version: u32,
    pub(crate) fi_version: u32,
    pub(crate) context: [*mut c_void; 4],
    pub(crate) name: *const c_char,
    pub(crate) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub(crate) fabric:
        unsafe extern "C" fn(*mut FabricAttr, *mut *mut c_void, *mut c_void) -> c_int,
    pub(crate) cleanup: unsafe extern "C" fn(),
}

#[repr(C)]
pub(crate) struct Info {
    pub(crate) next: *mut Info,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addrlen: usize,
    pub(crate) dest_addrlen: usize,
    pub(crate) src_addr: *mut c_void,
    pub(crate) dest_addr: *mut c_void,
    pub(crate) handle: *mut c_void,
    pub(crate) tx_attr: *mut TxAttr,
    pub(crate) rx_attr: *mut RxAttr,
    pub(crate) ep_attr: *mut EpAttr,
    pub(crate) domain_attr: *mut DomainAttr,
    pub(crate) fabric_attr: *mut FabricAttr,
}

#[repr(C)]
pub(crate) struct TxAttr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) inject_size: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
    pub(crate) rma_iov_limit: usize,
}

#[repr(C)]
pub(crate) struct RxAttr {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) total_buffered_recv: usize,
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
}

#[repr(C)]
pub(crate) struct EpAttr {
    pub(crate) kind: c_int,
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) max_msg_size: usize,
    pub(crate) msg_prefix_size: usize,
    pub(crate) max_order_raw_size: usize,
    pub(crate) max_order_war_size: usize,
    pub(crate) max_order_waw_size: usize,
    pub(crate) mem_tag_format: u64,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
}

#[repr(C)]
pub(crate) struct DomainAttr {
    pub(crate) domain: *mut c_void,
    pub(crate) name: *mut c_char,
    pub(crate) threading: c_int,
    pub(crate) control_progress: c_int,
    pub(crate) data_progress: c_int,
    pub(crate) resource_mgmt: c_int,
    pub(crate) av_type: c_int,
    pub(crate) mr_mode: c_int,
    pub(crate) mr_key_size: usize,
    pub(crate) cq_data_size: usize,
    pub(crate) cq_cnt: usize,
    pub(crate) ep_cnt: usize,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) max_ep_tx_ctx: usize,
    pub(crate) max_ep_rx_ctx: usize,
    pub(crate) max_ep_stx_ctx: usize,
    pub(crate) max_ep_srx_ctx: usize,
    pub(crate) cntr_cnt: usize,
    pub(crate) mr_iov_limit: usize,
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) auth_key: *mut u8,
    pub(crate) auth_key_size: usize,
    pub(crate) max_err_data: usize,
    pub(crate) mr_cnt: usize,
}

#[repr(C)]
pub(crate) struct FabricAttr {
    pub(crate) fabric: *mut c_void,
    pub(crate) name: *mut c_char,
    pub(crate) prov_name: *mut c_char,
    pub(crate) prov_version: u32,
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct AvAttr {
    pub(crate) kind: c_int,
    pub(crate) rx_ctx_bits: c_int,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

#[repr(C)]
pub(crate) struct CqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: c_int,
    pub(crate) wait_obj: c_int,
}

#[repr(C)]
pub(crate) struct CntrAttr {
    pub(crate) events: c_int,
    pub(crate) wait_obj: c_int,
    pub(crate) wait_set: *mut c_void,
    pub(crate) flags: u64,
}

/// `fi_cq_tagged_entry`; the shorter formats are prefixes of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CqTagged {
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    pub(crate) buffer: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
}

/// The part of `fi_cq_err_entry` that every version has.
#[repr(C)]
pub(crate) struct CqError {
    pub(crate) entry: CqTagged,
    pub(crate) olen: usize,
    pub(crate) err: c_int,
    pub(crate) prov_errno: c_int,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
}

#[repr(C)]
pub(crate) struct Msg {
    pub(crate) iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct MsgTagged {
    pub(crate) iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct MrAttr {
    pub(crate) iov: *const libc::iovec,
    pub(crate) iov_count: usize,
    pub(crate) access: u64,
    pub(crate) offset: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: *mut c_void,
}

/// Part of the remote memory of an access.
#[repr(C)]
pub(crate) struct RmaIov {
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct MsgRma {
    pub(crate) iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const RmaIov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// Values in local memory.
#[repr(C)]
pub(crate) struct Ioc {
    pub(crate) at: *mut c_void,
    pub(crate) count: usize,
}

/// Values in remote memory.
#[repr(C)]
pub(crate) struct RmaIoc {
    pub(crate) address: u64,
    pub(crate) count: usize,
    pub(crate) key: u64,
}

#[repr(C)]
pub(crate) struct MsgAtomic {
    pub(crate) iov: *const Ioc,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const RmaIoc,
    pub(crate) rma_iov_count: usize,
    pub(crate) datatype: c_int,
    pub(crate) op: c_int,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

#[repr(C)]
pub(crate) struct AtomicAttr {
    pub(crate) count: usize,
    pub(crate) size: usize,
}
