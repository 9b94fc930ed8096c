//! Types, constants and signatures of PMIx that the calls need, declared by hand.
//!
//! Sizes and offsets are those of PMIx 3 to 6 on 64-bit systems, asserted at compile time; a test
//! compares them with the headers, where those are installed.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

/// `pmix_status_t`.
pub(super) type Status = c_int;
pub(super) const SUCCESS: Status = 0;
pub(super) const ERR_NOT_FOUND: Status = -46;
pub(super) const ERR_TIMEOUT: Status = -24;
pub(super) const TYPE_BOOL: u16 = 1;
pub(super) const TYPE_STRING: u16 = 3;
pub(super) const TYPE_INT: u16 = 6;
pub(super) const TYPE_UINT32: u16 = 14;
pub(super) const TYPE_BYTE_OBJECT: u16 = 27;
/// `PMIX_GLOBAL`.
pub(super) const GLOBAL: u8 = 3;
/// `PMIX_RANK_WILDCARD`: selects values about the job, not about one process.
pub(crate) const WHOLE_JOB: u32 = u32::MAX - 1;
/// `PMIX_JOB_SIZE`, `PMIX_COLLECT_DATA`, `PMIX_TIMEOUT`, `PMIX_IMMEDIATE`.
pub(crate) const JOB_SIZE: &str = "pmix.job.size";
pub(super) const COLLECT: &str = "pmix.collect";
pub(super) const TIMEOUT: &str = "pmix.timeout";
pub(super) const IMMEDIATE: &str = "pmix.immediate";
pub(super) const NAME_ROOM: usize = 256;
pub(super) const KEY_ROOM: usize = 512;

/// `pmix_proc_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Proc {
    pub(super) nspace: [c_char; NAME_ROOM],
    pub(super) rank: u32,
}

/// `pmix_byte_object_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ByteObject {
    pub(super) bytes: *mut c_char,
    pub(super) size: usize,
}

/// The union in `pmix_value_t`, with the members that are used here.
#[repr(C)]
pub(super) union Data {
    pub(super) flag: bool,
    pub(super) integer: c_int,
    pub(super) uint32: u32,
    pub(super) string: *mut c_char,
    pub(super) bytes: ByteObject,
    /// The longest member has three words.
    pub(super) all: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
pub(super) struct Value {
    pub(super) kind: u16,
    pub(super) data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
pub(super) struct Info {
    pub(super) key: [c_char; KEY_ROOM],
    pub(super) flags: u32,
    pub(super) value: Value,
}

/// Sizes and offsets: process, its rank, byte object, value, its data, info, its flags, its value.
pub(super) const LAYOUT: [usize; 8] = [
    size_of::<Proc>(),
    offset_of!(Proc, rank),
    size_of::<ByteObject>(),
    size_of::<Value>(),
    offset_of!(Value, data),
    size_of::<Info>(),
    offset_of!(Info, flags),
    offset_of!(Info, value),
];

#[cfg(target_pointer_width = "64")]
const _: () = {
    let expected = [260, 256, 16, 32, 8, 552, 512, 520];
    let mut i = 0;
    while i < LAYOUT.len() {
        assert!(LAYOUT[i] == expected[i]);
        i += 1;
    }
};

pub(super) type InitFn = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> Status;
pub(super) type FinalizeFn = unsafe extern "C" fn(*const Info, usize) -> Status;
pub(super) type AbortFn = unsafe extern "C" fn(Status, *const c_char, *mut Proc, usize) -> Status;
pub(super) type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
pub(super) type CommitFn = unsafe extern "C" fn() -> Status;
pub(super) type FenceFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> Status;
pub(super) type GetFn =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;
pub(super) type TextFn = unsafe extern "C" fn(Status) -> *const c_char;

impl Info {
    /// Creates an attribute that is set.
    pub(super) fn flag(name: &str) -> Info {
        // The whole union is written, so that a library that copies it reads no uninitialized byte.
        let mut data = Data { all: [0; 3] };
        data.flag = true;
        Info::new(name, TYPE_BOOL, data)
    }

    /// Creates an attribute with a number.
    pub(super) fn number(name: &str, number: c_int) -> Info {
        let mut data = Data { all: [0; 3] };
        data.integer = number;
        Info::new(name, TYPE_INT, data)
    }

    fn new(name: &str, kind: u16, data: Data) -> Info {
        let mut key = [0; KEY_ROOM];
        // The last byte stays 0 and terminates the key.
        for (slot, byte) in key.iter_mut().take(KEY_ROOM - 1).zip(name.bytes()) {
            *slot = c_char::from_ne_bytes([byte]);
        }
        let value = Value { kind, data };
        Info {
            key,
            flags: 0,
            value,
        }
    }
}
