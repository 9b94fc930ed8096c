//! Domains, in which endpoints and other objects are opened.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::ffi::*;
use crate::memory::{self, Regions};
use crate::object::{NONE, Table, body, code, publish, retract};
use crate::{atomic, endpoint, fabric, queues, vector};

static OPS: Table<6> = Table::new([close as _, NONE, NONE, NONE, NONE, NONE]);
static DOMAIN_OPS: Table<11> = Table::new([
    vector::open as _,
    queues::open_queue as _,
    endpoint::open as _,
    NONE,
    queues::open_counter as _,
    NONE,
    NONE,
    NONE,
    atomic::query as _,
    NONE,
    NONE,
]);
static MR_OPS: Table<3> = Table::new([
    memory::register as _,
    memory::register_parts as _,
    memory::register_attr as _,
]);

/// A domain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    pub(crate) regions: Arc<Regions>,
    /// Version of the interface that the program requested.
    pub(crate) version: u32,
}

/// Opens a domain of a fabric.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut c_void,
    info: *mut Info,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the object of the table of fabrics.
    let Ok(version) = (unsafe { fabric::check(fabric) }) else {
        return -EINVAL;
    };
    if info.is_null() || place.is_null() {
        return -EINVAL;
    }
    // SAFETY: the program passes a valid info.
    let mode = unsafe { (*info).domain_attr.as_ref() }.map_or(0, |attr| attr.mr_mode);
    let domain = Domain {
        regions: Arc::new(Regions::new(mode)),
        version,
    };
    let identity = (FI_CLASS_DOMAIN, context);
    let tables = [DOMAIN_OPS.at(), MR_OPS.at()];
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, OPS.at(), tables, domain) }
}

/// Returns the domain of an object.
///
/// # Safety
/// `at` must meet the conditions of `object::body`.
pub(crate) unsafe fn domain<'a>(at: *mut c_void) -> Result<&'a Domain, c_int> {
    // SAFETY: the caller promises it; `open` publishes this type.
    unsafe { body::<2, Domain>(at, FI_CLASS_DOMAIN) }
}

unsafe extern "C" fn close(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let busy = unsafe { domain(at) }.map(|domain| Arc::strong_count(&domain.regions) > 1);
    code(busy.and_then(|busy| {
        if busy {
            return Err(-EBUSY);
        }
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<2, Domain>(at) });
        Ok(0)
    }))
}
