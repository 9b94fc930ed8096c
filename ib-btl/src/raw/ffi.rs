//! The part of libibverbs' interface (`infiniband/verbs.h`, stable since version 1.1, 64-bit
//! systems) that this transport uses. Every layout is asserted below; the numbers were printed by a
//! C program with the header of rdma-core 44.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: only its names are read.
#[repr(C)]
pub(super) struct Device {
    _ops: [*const c_void; 2],
    _node_type: c_int,
    _transport_type: c_int,
    pub(super) name: [c_char; 64],
    _rest: [u8; 664 - 88],
}

/// `struct ibv_context`; the functions of the data path are called through it, not through the
/// library's symbols.
#[repr(C)]
pub(super) struct Context {
    _device: *mut Device,
    pub(super) ops: Ops,
    _cmd_fd: c_int,
    _async_fd: c_int,
    _rest: [u64; 7],
}

type Post<Queue, Wr> = unsafe extern "C" fn(*mut Queue, *mut Wr, *mut *mut Wr) -> c_int;

/// `struct ibv_context_ops`
#[repr(C)]
pub(super) struct Ops {
    _before: [*const c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _cq: [*const c_void; 7],
    pub(super) post_srq_recv: Option<Post<Srq, RecvWr>>,
    _qp: [*const c_void; 4],
    pub(super) post_send: Option<Post<Qp, SendWr>>,
    pub(super) post_recv: Option<Post<Qp, RecvWr>>,
    _after: [*const c_void; 5],
}

/// `struct ibv_device_attr`: the limits that are used here.
#[repr(C)]
pub(super) struct DeviceAttr {
    _before: [u8; 132],
    pub(super) max_cqe: c_int,
    _mr_pd: [c_int; 2],
    pub(super) max_qp_rd_atom: c_int,
    _ee: [c_int; 2],
    pub(super) max_qp_init_rd_atom: c_int,
    _rest: [u8; 232 - 160],
}

/// `struct ibv_port_attr`
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_int,
    _max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    _port_cap_flags: u32,
    _max_msg_sz: u32,
    _keys: [u8; 10],
    pub(super) lid: u16,
    _sm: [u8; 7],
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    _phys_state: u8,
    pub(super) link_layer: u8,
    _rest: [u8; 5],
}

/// `struct ibv_mr`
#[repr(C)]
pub(super) struct Mr {
    _before: [u64; 4],
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
    _pad: u32,
}

/// `struct ibv_qp`
#[repr(C)]
pub(super) struct Qp {
    _before: [u8; 52],
    pub(super) qp_num: u32,
    _rest: [u8; 160 - 56],
}

/// `struct ibv_comp_channel`
#[repr(C)]
pub(super) struct CompChannel {
    _context: *mut Context,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

macro_rules! opaque {
    ($($name:ident)*) => {
        $(/// Passed on, never looked into.
        #[repr(C)]
        pub(super) struct $name(c_int);)*
    };
}

opaque! { Pd Cq Srq Ah }

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Big-endian.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    _pkey_index: u16,
    pub(super) slid: u16,
    _sl: [u8; 4],
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the bytes.
    pub address: u64,
    /// Number of bytes.
    pub length: u32,
    /// Local key of the registration that covers them.
    pub lkey: u32,
}

/// `struct ibv_send_wr`. Its union is read as RDMA (address, rkey) or datagram (address handle,
/// queue pair, qkey).
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    /// Big-endian.
    pub(super) imm_data: u32,
    /// `wr.rdma.remote_addr` or `wr.ud.ah`
    pub(super) target: u64,
    /// `wr.rdma.rkey` or `wr.ud.remote_qpn`
    pub(super) key: u32,
    /// `wr.ud.remote_qkey`
    pub(super) qkey: u32,
    pub(super) rest: [u64; 9],
}

/// `struct ibv_recv_wr`
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_srq_init_attr`
#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// `struct ibv_ah_attr` with its `struct ibv_global_route`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) _pad: u8,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
    pub(super) _pad2: u8,
}

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_int,
    pub(super) _cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) _path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) _cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) _alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) _alt_pkey_index: u16,
    pub(super) _en_sqd_async_notify: u8,
    pub(super) _sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) _alt: [u8; 2],
    pub(super) _rate_limit: u32,
}

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UD: c_int = 4;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;

/// Bits of `enum ibv_qp_attr_mask`.
pub(super) mod mask {
    use std::ffi::c_int;
    pub(crate) const STATE: c_int = 1;
    pub(crate) const ACCESS: c_int = 8;
    pub(crate) const PKEY_INDEX: c_int = 16;
    pub(crate) const PORT: c_int = 32;
    pub(crate) const QKEY: c_int = 64;
    pub(crate) const AV: c_int = 128;
    pub(crate) const PATH_MTU: c_int = 256;
    pub(crate) const TIMEOUT: c_int = 512;
    pub(crate) const RETRY_CNT: c_int = 1024;
    pub(crate) const RNR_RETRY: c_int = 2048;
    pub(crate) const RQ_PSN: c_int = 4096;
    pub(crate) const MAX_RD_ATOMIC: c_int = 8192;
    pub(crate) const MIN_RNR_TIMER: c_int = 32768;
    pub(crate) const SQ_PSN: c_int = 65536;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 131_072;
    pub(crate) const DEST_QPN: c_int = 1_048_576;
}

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_SEND_WITH_IMM: c_int = 3;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const SEND_INLINE: c_uint = 8;
/// Bit set in the opcode of every receive.
pub(super) const WC_RECV: c_int = 128;
pub(super) const WC_GRH: c_uint = 1;
pub(super) const WC_WITH_IMM: c_uint = 2;
/// Local write, remote write, remote read.
pub(super) const ACCESS_ALL: c_int = 1 | 2 | 4;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

/// Asserts the size of a structure and the offsets of some fields.
macro_rules! layout {
    ($($type:ident = $size:literal { $($field:ident: $offset:literal),* })*) => {
        $(const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(std::mem::offset_of!($type, $field) == $offset);)*
        };)*
    };
}

layout! {
    Device = 664 { name: 24 }
    Context = 328 { ops: 8 }
    Ops = 256 { poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208 }
    DeviceAttr = 232 { max_cqe: 132, max_qp_rd_atom: 144, max_qp_init_rd_atom: 156 }
    PortAttr = 52 { lid: 34, active_width: 43, link_layer: 46 }
    Mr = 48 { lkey: 36, rkey: 40 }
    Qp = 160 { qp_num: 52 }
    CompChannel = 16 { fd: 8 }
    Wc = 48 { byte_len: 20, imm_data: 24, qp_num: 28, wc_flags: 36, slid: 42 }
    Sge = 16 { length: 8, lkey: 12 }
    SendWr = 128 { send_flags: 32, imm_data: 36, target: 40, key: 48, qkey: 52 }
    RecvWr = 32 { num_sge: 24 }
    QpInitAttr = 64 { cap: 32, qp_type: 52 }
    SrqInitAttr = 24 { max_wr: 8 }
    AhAttr = 32 { sgid_index: 20, dlid: 24, is_global: 29, port_num: 30 }
    QpAttr = 144 { qkey: 16, qp_access_flags: 32, ah_attr: 56, pkey_index: 120, max_rd_atomic: 126,
        port_num: 129, timeout: 130, rnr_retry: 132 }
}
