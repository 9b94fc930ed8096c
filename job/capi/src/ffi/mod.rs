//! The functions of esp.h. Each checks its arguments, does its work inside [`guard`], and returns a
//! code.
//!
//! # Safety
//! For all functions: pointers must be null or valid as esp.h requires, for the length it
//! specifies, and buffers of non-blocking calls must stay valid until the request completes. There
//! are no other conditions; these cannot be checked here.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

mod check;
mod collective;
mod life;
mod nonblocking;
mod point;
mod poller;
mod stream;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use p2p::Status;

use crate::code::{self, Code, Fault};

/// `esp_status_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CStatus {
    source: i32,
    tag: i32,
    length: i64,
    error: i32,
    reserved: i32,
}

const _: () = assert!(size_of::<CStatus>() == 24);

impl CStatus {
    /// Status of a null request.
    const EMPTY: CStatus = CStatus {
        source: -1,
        tag: -1,
        length: 0,
        error: 0,
        reserved: 0,
    };

    fn of(result: &Result<Status, Fault>) -> CStatus {
        let (about, error) = match result {
            Ok(status) => (Some(*status), Code::Success),
            Err(fault) => (fault.about, fault.code),
        };
        let Some(status) = about else {
            return CStatus {
                error: error as i32,
                ..CStatus::EMPTY
            };
        };
        CStatus {
            source: i32::try_from(status.source).unwrap_or(i32::MAX),
            tag: status.tag,
            length: i64::try_from(status.length).unwrap_or(i64::MAX),
            error: error as i32,
            reserved: 0,
        }
    }
}

/// Runs the work of a function and converts its error or panic to a code.
fn guard(work: impl FnOnce() -> Result<(), Fault>) -> c_int {
    // State that a panic leaves incomplete is protected by locks that ignore poisoning, or is in
    // the engine, which checks itself.
    let fault = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Code::Success as c_int,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(
            Code::Internal,
            "a bug in the library (its message is on standard error)",
        ),
    };
    code::set_last_error(&fault.text);
    fault.code as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(
            guard(|| panic!("a test of panics")),
            Code::Internal as c_int
        );
        assert_eq!(guard(|| Ok(())), 0);
        assert_eq!(
            guard(|| Err(Fault::new(Code::Tag, "x"))),
            Code::Tag as c_int
        );
    }
}
