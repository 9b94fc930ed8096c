//! Memory registrations, whose memory peers may read and write. Messages need none.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use p2p::Exposure;

use crate::core::{Core, lock};
use crate::domain::domain;
use crate::ffi::*;
use crate::object::{NONE, Table, body, code, publish, retract};
use crate::queue::{Counter, Sources};
use crate::queues::counter;

/// Maximum number of registrations of a domain.
pub(crate) const MAX_REGIONS: usize = 64 << 10;

/// Counters of accesses to a registration, with the kinds that they count.
type Counters = Vec<(Arc<Counter>, u64)>;

#[derive(Debug, Default)]
struct Keys {
    /// The keys in use.
    counters: HashMap<u64, Counters>,
    /// The last key that the provider has chosen.
    last: u64,
}

/// The registrations of a domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    keys: Mutex<Keys>,
    /// The provider chooses the keys.
    own_keys: bool,
    /// Peers use the addresses of the program, not offsets.
    virtual_addresses: bool,
    /// Memory that the peers of the domain's endpoints may access.
    pub(crate) exposed: Arc<p2p::Regions>,
    /// Endpoints of the domain: a thread that waits for a counter of accesses makes their progress.
    endpoints: Sources,
}

/// Arguments of a registration.
#[derive(Clone, Copy)]
struct Request {
    part: libc::iovec,
    access: u64,
    key: u64,
    context: *mut c_void,
}

impl Regions {
    pub(crate) fn new(mode: c_int) -> Regions {
        Regions {
            own_keys: mode & (FI_MR_BASIC | FI_MR_PROV_KEY) != 0,
            virtual_addresses: mode & (FI_MR_BASIC | FI_MR_VIRT_ADDR) != 0,
            ..Regions::default()
        }
    }

    /// Registers memory. Returns the key.
    ///
    /// # Safety
    /// The request must meet the conditions of `p2p::Regions::expose`.
    unsafe fn add(&self, request: &Request) -> Result<u64, c_int> {
        let mut keys = lock(&self.keys);
        if keys.counters.len() >= MAX_REGIONS {
            return Err(-EAGAIN);
        }
        let key = if self.own_keys {
            keys.last += 1;
            keys.last
        } else {
            request.key
        };
        let start = request.part.iov_base.expose_provenance();
        let exposure = Exposure {
            at: request.part.iov_base.cast(),
            length: request.part.iov_len,
            address: if self.virtual_addresses {
                start as u64
            } else {
                0
            },
            readable: request.access & FI_REMOTE_READ != 0,
            writable: request.access & FI_REMOTE_WRITE != 0,
        };
        if start.checked_add(exposure.length).is_none() {
            return Err(-EINVAL);
        }
        // SAFETY: the caller promises it.
        if !unsafe { self.exposed.expose(key, exposure) } {
            return Err(-FI_ENOKEY);
        }
        keys.counters.insert(key, Vec::new());
        Ok(key)
    }

    /// Adds an endpoint of the domain.
    pub(crate) fn join(&self, core: &Arc<Core>) {
        self.endpoints.add(core);
        let all: Vec<Arc<Counter>> = {
            let keys = lock(&self.keys);
            let all = keys.counters.values().flatten();
            all.map(|(counter, _)| Arc::clone(counter)).collect()
        };
        for counter in all {
            counter.sources.add(core);
        }
    }

    fn remove(&self, key: u64) {
        self.exposed.withdraw(key);
        lock(&self.keys).counters.remove(&key);
    }

    /// Binds a counter, which counts the accesses to a registration from now on.
    fn count_by(&self, key: u64, counter: &Arc<Counter>, flags: u64) {
        match lock(&self.keys).counters.get_mut(&key) {
            Some(counters) => counters.push((Arc::clone(counter), flags)),
            None => return,
        }
        // An endpoint that joins in the meantime finds the counter.
        self.endpoints.each(|core| counter.sources.add(core));
        self.exposed.report(key);
    }

    /// Counts an access of a kind.
    pub(crate) fn count(&self, key: u64, kind: u64) {
        if let Some(counters) = lock(&self.keys).counters.get(&key) {
            for (counter, _) in counters.iter().filter(|one| one.1 & kind != 0) {
                counter.count(false);
            }
        }
    }
}

/// The body of a `fid_mr`: after its fid and its descriptor, which is the head's table, it has the
/// key.
#[repr(C)]
struct Registration {
    key: u64,
    regions: Arc<Regions>,
}

static OPS: Table<6> = Table::new([close as _, bind as _, control as _, NONE, NONE, NONE]);

/// # Safety
/// `domain_at` must meet the conditions of `object::body`, `place` must be null or valid for
/// writes, and the memory of the request must stay valid until the registration is closed.
unsafe fn add(domain_at: *mut c_void, request: &Request, place: *mut *mut c_void) -> c_int {
    // SAFETY: the object of the table of domains.
    let found = unsafe { domain(domain_at) };
    code(found.and_then(|domain| {
        if place.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: the caller promises it.
        let key = unsafe { domain.regions.add(request)? };
        let regions = Arc::clone(&domain.regions);
        let registration = Registration { key, regions };
        let identity = (FI_CLASS_MR, request.context);
        // SAFETY: `place` is writable. The table is where `fid_mr` has its descriptor: null.
        Ok(unsafe { publish(place, identity, OPS.at(), [std::ptr::null()], registration) })
    }))
}

pub(crate) unsafe extern "C" fn register(
    domain: *mut c_void,
    at: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    let request = Request {
        part: libc::iovec {
            iov_base: at.cast_mut(),
            iov_len: length,
        },
        access,
        key,
        context,
    };
    // SAFETY: the program passes valid arguments.
    unsafe { add(domain, &request, place) }
}

pub(crate) unsafe extern "C" fn register_parts(
    domain: *mut c_void,
    parts: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    if parts.is_null() || count != 1 {
        return -EINVAL;
    }
    let request = Request {
        // SAFETY: the program passes one part.
        part: unsafe { *parts },
        access,
        key,
        context,
    };
    // SAFETY: the program passes valid arguments.
    unsafe { add(domain, &request, place) }
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
    if flags & FI_MR_DMABUF != 0 {
        return -ENOSYS;
    }
    // SAFETY: the program passes valid arguments.
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

/// # Safety
/// `at` must meet the conditions of `object::body`.
unsafe fn registration<'a>(at: *mut c_void) -> Result<&'a Registration, c_int> {
    // SAFETY: the caller promises it; `add` publishes this type.
    unsafe { body::<1, Registration>(at, FI_CLASS_MR) }
}

unsafe extern "C" fn close(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    code(unsafe { registration(at) }.map(|found| {
        found.regions.remove(found.key);
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<1, Registration>(at) });
        0
    }))
}

/// Binds a counter of accesses. A registration belongs to its domain, so binding it to an endpoint
/// changes nothing.
unsafe extern "C" fn bind(at: *mut c_void, other: *mut c_void, flags: u64) -> c_int {
    // SAFETY: the object of this table, and null or one of libfabric.
    let (found, counter) = unsafe { (registration(at), counter(other)) };
    code(found.map(|found| {
        if let Ok(counter) = counter {
            found.regions.count_by(found.key, counter, flags);
        }
        0
    }))
}

unsafe extern "C" fn control(at: *mut c_void, command: c_int, _: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { registration(at) };
    code(found.and(if command == FI_ENABLE {
        Ok(0)
    } else {
        Err(-ENOSYS)
    }))
}
