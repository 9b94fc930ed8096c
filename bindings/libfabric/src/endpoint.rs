//! C interface of endpoints: opening, binding, enabling, options.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::atomic::ATOMIC_OPS;
use crate::core::{Bound, Core, lock};
use crate::domain::domain;
use crate::ffi::*;
use crate::host;
use crate::info::options;
use crate::messages::{MSG_OPS, TAGGED_OPS};
use crate::object::{NONE, Table, body, code, long, publish, retract};
use crate::progress::ProgressThread;
use crate::queues::{counter, queue};
use crate::rma::RMA_OPS;
use crate::transfer::set_minimum;
use crate::vector::{Vector, copy_name, vector};

/// Objects bound to an endpoint before it is enabled.
#[derive(Debug, Default)]
struct Early {
    bound: Bound,
    vector: Option<Arc<Vector>>,
}

/// Object of an endpoint.
#[derive(Debug)]
pub(crate) struct EndpointObject {
    pub(crate) core: Arc<Core>,
    /// Flags of operations that specify none.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    early: Mutex<Early>,
    /// Progress is made without calls (`FI_PROGRESS_AUTO`).
    auto: bool,
    thread: Mutex<Option<ProgressThread>>,
    vector: Mutex<Option<Arc<Vector>>>,
}

static OPS: Table<6> = Table::new([close as _, bind as _, control as _, NONE, NONE, NONE]);
static EP_OPS: Table<7> = Table::new([
    cancel as _,
    getopt as _,
    setopt as _,
    NONE,
    NONE,
    NONE,
    NONE,
]);
static CM_OPS: Table<9> =
    Table::new([NONE, getname as _, NONE, NONE, NONE, NONE, NONE, NONE, NONE]);
static NO_COLLECTIVES: Table<11> = Table::new([NONE; 11]);

pub(crate) unsafe extern "C" fn open(
    domain_at: *mut c_void,
    info: *mut Info,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the object of the table of domains.
    let Ok(domain) = (unsafe { domain(domain_at) }) else {
        return -EINVAL;
    };
    // SAFETY: null, or the program's info.
    let Some(info) = (unsafe { info.as_ref() }) else {
        return -EINVAL;
    };
    // SAFETY: its parts are valid or null.
    let (ep, tx, rx) = unsafe {
        (
            info.ep_attr.as_ref(),
            info.tx_attr.as_ref(),
            info.rx_attr.as_ref(),
        )
    };
    if place.is_null() || ep.is_some_and(|ep| ep.kind != FI_EP_RDM) {
        return -EINVAL;
    }
    // SAFETY: valid or null.
    let attr = unsafe { info.domain_attr.as_ref() };
    let directed = info.caps & FI_DIRECTED_RECV != 0;
    let body = EndpointObject {
        core: Arc::new(Core::new(directed, Arc::clone(&domain.regions))),
        tx_flags: tx.map_or(0, |tx| tx.op_flags),
        rx_flags: rx.map_or(0, |rx| rx.op_flags),
        early: Mutex::default(),
        auto: attr.is_some_and(|attr| attr.data_progress == FI_PROGRESS_AUTO),
        thread: Mutex::default(),
        vector: Mutex::default(),
    };
    domain.regions.join(&body.core);
    let tables = [
        EP_OPS.at(),
        CM_OPS.at(),
        MSG_OPS.at(),
        RMA_OPS.at(),
        TAGGED_OPS.at(),
        ATOMIC_OPS.at(),
        NO_COLLECTIVES.at(),
    ];
    // SAFETY: `place` is writable.
    unsafe { publish(place, (FI_CLASS_EP, context), OPS.at(), tables, body) }
}

/// Returns the endpoint of an object.
///
/// # Safety
/// `at` must meet the conditions of `object::body`.
#[inline]
pub(crate) unsafe fn endpoint<'a>(at: *mut c_void) -> Result<&'a EndpointObject, c_int> {
    // SAFETY: the caller promises it; `open` publishes this type.
    unsafe { body::<7, EndpointObject>(at, FI_CLASS_EP) }
}

unsafe extern "C" fn close(at: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    crate::done(unsafe { endpoint(at) }.map(|found| {
        drop(lock(&found.thread).take());
        if let Ok(layer) = found.core.layer() {
            if let Err(error) = layer.close() {
                host::warn(&format!("closing an endpoint: {error}"));
            }
            // Discards the completions of the operations: closing returns their buffers to the
            // program.
            layer.poll(|_| ());
        }
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<7, EndpointObject>(at) });
    }))
}

unsafe extern "C" fn bind(at: *mut c_void, other: *mut c_void, flags: u64) -> c_int {
    // SAFETY: the object of this table, and one of the program.
    code(unsafe { endpoint(at).and_then(|found| bind_to(found, other, flags)) })
}

/// Binds an endpoint to another object.
///
/// # Safety
/// `other` must be null or an object of libfabric.
unsafe fn bind_to(found: &EndpointObject, other: *mut c_void, flags: u64) -> Result<c_int, c_int> {
    let mut early = lock(&found.early);
    if found.core.open.get().is_some() {
        return Err(-FI_EOPBADSTATE);
    }
    // SAFETY: the caller promises it.
    let (vector, counter, queue) = unsafe { (vector(other), counter(other), queue(other)) };
    if let Ok(vector) = vector {
        early.vector = Some(Arc::clone(vector));
    } else if let Ok(counter) = counter {
        counter.sources.add(&found.core);
        let counter = (Arc::clone(counter), flags);
        early.bound.counters.push(counter);
    } else if let Ok(queue) = queue {
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        queue.queue.sources.add(&found.core);
        if flags & FI_SEND != 0 {
            early.bound.tx = Some(Arc::clone(&queue.queue));
            early.bound.tx_selective = selective;
        }
        if flags & FI_RECV != 0 {
            early.bound.rx = Some(Arc::clone(&queue.queue));
            early.bound.rx_selective = selective;
        }
        if flags & (FI_SEND | FI_RECV) == 0 {
            return Err(-EINVAL);
        }
    } else {
        // Event queues report nothing; objects of other classes cannot be bound.
        let at = other.cast::<Fid>();
        // SAFETY: the caller promises it.
        if at.is_null() || unsafe { (*at).class } != FI_CLASS_EQ {
            return Err(-EINVAL);
        }
    }
    Ok(0)
}

unsafe extern "C" fn control(at: *mut c_void, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    let found = unsafe { endpoint(at) };
    code(found.and_then(|found| match command {
        FI_ENABLE => enable(found),
        FI_GETOPSFLAG if !argument.is_null() => {
            // SAFETY: the program passes flags, whose input value selects the direction.
            unsafe {
                let flags = argument.cast::<u64>();
                let receives = *flags & FI_RECV != 0;
                *flags = if receives {
                    found.rx_flags
                } else {
                    found.tx_flags
                };
            }
            Ok(0)
        }
        _ => Err(-ENOSYS),
    }))
}

/// Opens the layer of an endpoint. After an error, the bound objects stay bound.
fn enable(found: &EndpointObject) -> Result<c_int, c_int> {
    let mut early = lock(&found.early);
    if found.core.open.get().is_some() {
        return Ok(0);
    }
    let vector = early.vector.clone().ok_or(-FI_ENOAV)?;
    if early.bound.tx.is_none() && early.bound.rx.is_none() && early.bound.counters.is_empty() {
        return Err(-FI_ENOCQ);
    }
    let exposed = Arc::clone(&found.core.regions.exposed);
    let open = options().and_then(|options| job::endpoint::open(&options, exposed));
    let open = open.map_err(|why| {
        host::warn(&format!("cannot enable the endpoint: {why}"));
        -ENODATA
    })?;
    let bound = std::mem::take(&mut *early).bound;
    found.core.enable(open, bound)?;
    vector.bind(&found.core);
    *lock(&found.vector) = Some(vector);
    if found.auto {
        let thread = ProgressThread::start(&found.core).map_err(|error| {
            host::warn(&format!("cannot start the progress thread: {error}"));
            -ENOMEM
        })?;
        *lock(&found.thread) = Some(thread);
    }
    Ok(0)
}

unsafe extern "C" fn getname(at: *mut c_void, place: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: the object of this table.
    let name = unsafe { endpoint(at) }.and_then(|found| found.core.name());
    code(name.and_then(|name| {
        if length.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: the program passes the room at `place`.
        let room = unsafe { *length };
        // SAFETY: as above.
        unsafe { copy_name(&name, place, length) };
        let fits = room >= name.len() && !place.is_null();
        if fits { Ok(0) } else { Err(-FI_ETOOSMALL) }
    }))
}

unsafe extern "C" fn cancel(at: *mut c_void, context: *mut c_void) -> isize {
    // SAFETY: the object of this table.
    let found = unsafe { endpoint(at) };
    long(found.and_then(|found| {
        found.core.cancel(context.expose_provenance())?;
        Ok(0)
    }))
}

unsafe extern "C" fn getopt(
    at: *mut c_void,
    level: c_int,
    option: c_int,
    place: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: the object of this table.
    let Ok(found) = (unsafe { endpoint(at) }) else {
        return -EINVAL;
    };
    if level != 0 || option != FI_OPT_MIN_MULTI_RECV {
        return -ENOPROTOOPT;
    }
    // SAFETY: the program passes the room at `place`.
    unsafe {
        if place.is_null() || length.is_null() || *length < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        let minimum = found
            .core
            .minimum
            .load(std::sync::atomic::Ordering::Relaxed);
        place.cast::<usize>().write_unaligned(minimum);
        *length = size_of::<usize>();
    }
    0
}

unsafe extern "C" fn setopt(
    at: *mut c_void,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the object of this table.
    let Ok(found) = (unsafe { endpoint(at) }) else {
        return -EINVAL;
    };
    if level != 0 || option != FI_OPT_MIN_MULTI_RECV {
        return -ENOPROTOOPT;
    }
    if value.is_null() || length != size_of::<usize>() {
        return -EINVAL;
    }
    // SAFETY: the program passes a number.
    set_minimum(&found.core, unsafe {
        value.cast::<usize>().read_unaligned()
    });
    0
}

/// Error of an option that this provider does not have.
const ENOPROTOOPT: c_int = 92;
