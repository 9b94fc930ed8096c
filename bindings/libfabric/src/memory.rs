//! Memory registrations. Messages need none: the layer uses any memory of the process.

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::core::lock;
use crate::domain::domain;
use crate::ffi::*;
use crate::object::{NONE, Table, body, code, publish, retract};

/// Maximum number of registrations of a domain.
const MAX_REGIONS: usize = 64 << 10;

/// The registrations of a domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// The keys in use, and the last one that the provider has chosen.
    keys: Mutex<(HashSet<u64>, u64)>,
    /// The provider chooses the keys.
    own_keys: bool,
}

impl Regions {
    pub(crate) fn new(mode: c_int) -> Regions {
        Regions {
            own_keys: mode == FI_MR_BASIC || mode & FI_MR_PROV_KEY != 0,
            ..Regions::default()
        }
    }

    fn add(&self, requested: u64) -> Result<u64, c_int> {
        let (keys, next) = &mut *lock(&self.keys);
        if keys.len() >= MAX_REGIONS {
            return Err(-EAGAIN);
        }
        let key = if self.own_keys {
            *next += 1;
            *next
        } else {
            requested
        };
        if keys.insert(key) {
            Ok(key)
        } else {
            Err(-FI_ENOKEY)
        }
    }

    fn remove(&self, key: u64) {
        lock(&self.keys).0.remove(&key);
    }
}

/// `fid_mr` goes on with the descriptor and the key, which are the first fields of the body.
#[repr(C)]
struct Registration {
    key: u64,
    regions: Arc<Regions>,
}

static OPS: Table<6> = Table::new([close as _, bind as _, control as _, NONE, NONE, NONE]);

/// # Safety
/// As `object::body`; `place` is null or writable.
unsafe fn add(
    domain_at: *mut c_void,
    key: u64,
    (place, context): (*mut *mut c_void, *mut c_void),
) -> c_int {
    // SAFETY: the object of the table of domains.
    let found = unsafe { domain(domain_at) };
    code(found.and_then(|domain| {
        if place.is_null() {
            return Err(-EINVAL);
        }
        let key = domain.regions.add(key)?;
        let regions = Arc::clone(&domain.regions);
        let registration = Registration { key, regions };
        let identity = (FI_CLASS_MR, context);
        // SAFETY: `place` is writable. The table is where `fid_mr` has its descriptor: null.
        Ok(unsafe { publish(place, identity, OPS.at(), [std::ptr::null()], registration) })
    }))
}

pub(crate) unsafe extern "C" fn register(
    domain: *mut c_void,
    _at: *const c_void,
    _length: usize,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller of this call promises.
    unsafe { add(domain, key, (place, context)) }
}

pub(crate) unsafe extern "C" fn register_parts(
    domain: *mut c_void,
    parts: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    if parts.is_null() || count != 1 {
        return -EINVAL;
    }
    // SAFETY: the program passes one part.
    let part = unsafe { *parts };
    // SAFETY: as the caller of this call promises.
    unsafe {
        register(
            domain,
            part.iov_base,
            part.iov_len,
            access,
            offset,
            key,
            flags,
            place,
            context,
        )
    }
}

pub(crate) unsafe extern "C" fn register_attr(
    domain: *mut c_void,
    attr: *const MrAttr,
    flags: u64,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: null, or the program's attribute.
    let Some(attr) = (unsafe { attr.as_ref() }) else {
        return -EINVAL;
    };
    // SAFETY: as the caller of this call promises.
    unsafe {
        register_parts(
            domain,
            attr.iov,
            attr.iov_count,
            attr.access,
            attr.offset,
            attr.requested_key,
            flags,
            place,
            attr.context,
        )
    }
}

unsafe extern "C" fn close(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { body::<1, Registration>(at, FI_CLASS_MR) };
    code(found.map(|registration| {
        registration.regions.remove(registration.key);
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<1, Registration>(at) });
        0
    }))
}

/// A registration is of its domain; binding it to an endpoint changes nothing.
unsafe extern "C" fn bind(at: *mut c_void, _: *mut c_void, _: u64) -> c_int {
    // SAFETY: the object of this table.
    code(unsafe { body::<1, Registration>(at, FI_CLASS_MR) }.map(|_| 0))
}

unsafe extern "C" fn control(at: *mut c_void, command: c_int, _: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { body::<1, Registration>(at, FI_CLASS_MR) };
    code(found.and(if command == FI_ENABLE {
        Ok(0)
    } else {
        Err(-ENOSYS)
    }))
}
