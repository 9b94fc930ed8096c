//! Opens the objects of an endpoint as a program does.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use job::endpoint::OpenEndpoint;
use p2p::Regions;

use super::{close, own_name};
use crate::core::{Bound, Core};
use crate::ffi::*;
use crate::queue::deadline;
use crate::{domain, endpoint, fabric, memory, queues};

/// An endpoint with a queue, and the objects that it needs.
pub(super) struct Own {
    pub(super) endpoint: *mut c_void,
    pub(super) queue: *mut c_void,
    pub(super) domain: *mut c_void,
    pub(super) fabric: *mut c_void,
}

/// A call of an object's table of calls, as C makes it.
macro_rules! call {
    ($object:expr, $table:expr, $place:expr, ($($t:ty),*) -> $r:ty, $($argument:expr),*) => {{
        let object = $object.cast::<crate::object::Object<7, ()>>();
        // SAFETY: the object has this table, and the call these arguments.
        unsafe {
            let table: *const *const c_void = (*object).head.tables[$table].cast();
            let at = *table.add(1 + $place);
            let f: unsafe extern "C" fn(*mut c_void, $($t),*) -> $r = std::mem::transmute(at);
            f($object, $($argument),*)
        }
    }};
}
pub(super) use call;

impl Own {
    /// Opens an endpoint that reaches only itself, by address 0.
    pub(super) fn open(mode: i32) -> Own {
        let own = Own::open_with(mode, |exposed| {
            let config = p2p::Config::default();
            let endpoint = p2p::Endpoint::open(Vec::new(), 7, exposed, &config).unwrap();
            OpenEndpoint {
                endpoint,
                name: Vec::new(),
            }
        });
        own.core().learn(0, &own_name());
        assert_eq!(own.core().peer(0), Ok(0));
        own
    }

    /// Opens the objects. `open` opens the layer, whose peers access the regions passed to it.
    pub(super) fn open_with(mode: i32, open: impl FnOnce(Arc<Regions>) -> OpenEndpoint) -> Own {
        let (mut fabric, mut domain, mut queue, mut endpoint) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        let none = null_mut();
        // SAFETY: zeros are valid for all fields, and the objects are open.
        unsafe {
            let mut info: Info = std::mem::zeroed();
            let mut attr: DomainAttr = std::mem::zeroed();
            attr.mr_mode = mode;
            info.domain_attr = &raw mut attr;
            let info = &raw mut info;
            let mut cq: CqAttr = std::mem::zeroed();
            cq.format = 4;
            assert_eq!(fabric::open(null_mut(), &raw mut fabric, none), 0);
            assert_eq!(domain::open(fabric, info, &raw mut domain, none), 0);
            assert_eq!(
                queues::open_queue(domain, &raw mut cq, &raw mut queue, none),
                0
            );
            assert_eq!(endpoint::open(domain, info, &raw mut endpoint, none), 0);
            let found = endpoint::endpoint(endpoint).unwrap();
            let own = queues::queue(queue).unwrap();
            own.queue.sources.add(&found.core);
            let open = open(Arc::clone(&found.core.regions.exposed));
            let bound = Bound {
                tx: Some(Arc::clone(&own.queue)),
                rx: Some(Arc::clone(&own.queue)),
                ..Bound::default()
            };
            found.core.enable(open, bound).unwrap();
        }
        Own {
            endpoint,
            queue,
            domain,
            fabric,
        }
    }

    pub(super) fn core(&self) -> &Core {
        // SAFETY: an open endpoint.
        &unsafe { endpoint::endpoint(self.endpoint) }.unwrap().core
    }

    /// Registers memory. Returns the object and its key.
    pub(super) fn register(&self, memory: &mut [u64], access: u64, key: u64) -> (*mut c_void, u64) {
        let mut place = null_mut();
        let at = memory.as_mut_ptr().cast();
        let length = size_of_val(memory);
        // SAFETY: the tests keep the memory until they close the object.
        unsafe {
            let domain = self.domain;
            let none = null_mut();
            let done =
                memory::register(domain, at, length, access, 0, key, 0, &raw mut place, none);
            assert_eq!(done, 0);
            // struct fid_mr: fid, descriptor, key.
            (place, *place.cast::<u64>().add(4))
        }
    }

    pub(super) fn write(&self, from: &[u64], address: u64, key: u64) -> isize {
        let (at, length) = (from.as_ptr().cast::<c_void>(), size_of_val(from));
        let none = null_mut::<c_void>();
        call!(self.endpoint, 3, 3,
            (*const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
            at, length, none, 0, address, key, none)
    }

    pub(super) fn read(&self, into: &mut [u64], address: u64, key: u64) -> isize {
        let (at, length) = (into.as_mut_ptr().cast::<c_void>(), size_of_val(into));
        let none = null_mut::<c_void>();
        call!(self.endpoint, 3, 0,
            (*mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
            at, length, none, 0, address, key, none)
    }

    /// Returns the flags of the next completion, or its error.
    pub(super) fn completion(&self) -> Result<u64, i32> {
        // SAFETY: an open queue.
        let queue = unsafe { queues::queue(self.queue) }.unwrap();
        assert!(queue.queue.wait(deadline(10_000)));
        let mut flags = 0;
        match queue.queue.read(1, |_, entry| flags = entry.flags) {
            Some(_) => Ok(flags),
            None => Err(queue.queue.read_error().unwrap().error),
        }
    }

    pub(super) fn close(self) {
        for object in [self.endpoint, self.queue, self.domain, self.fabric] {
            assert_eq!(close(object), 0);
        }
    }
}
