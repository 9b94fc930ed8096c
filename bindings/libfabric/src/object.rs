//! Objects that C code holds: a head that libfabric's inline functions read, followed by a body of
//! the provider.

use std::ffi::{c_int, c_void};

use crate::ffi::{EINVAL, ENOSYS, Fid};

/// A table of functions. Its size tells the host which functions it contains.
#[repr(C)]
pub(crate) struct Table<const N: usize> {
    size: usize,
    calls: [*const c_void; N],
}

// SAFETY: it is never changed, and any thread may call the functions.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    pub(crate) const fn new(calls: [*const c_void; N]) -> Table<N> {
        Table {
            size: size_of::<Table<N>>(),
            calls,
        }
    }

    pub(crate) fn at(&'static self) -> *const c_void {
        (&raw const *self).cast()
    }
}

/// A function that the provider does not have.
pub(crate) extern "C" fn no_call() -> isize {
    -(ENOSYS as isize)
}

/// Address of [`no_call`] in a table.
pub(crate) const NONE: *const c_void = no_call as *const c_void;

/// Head of an object: the parts that libfabric declares, in the order of the largest (`fid_ep`).
#[repr(C)]
pub(crate) struct Head<const N: usize> {
    pub(crate) fid: Fid,
    pub(crate) tables: [*const c_void; N],
}

/// An object.
#[repr(C)]
pub(crate) struct Object<const N: usize, T> {
    pub(crate) head: Head<N>,
    pub(crate) body: T,
}

/// Creates an object and stores its address at `place`. Returns 0.
///
/// # Safety
/// `place` must be valid for writes.
pub(crate) unsafe fn publish<const N: usize, T>(
    place: *mut *mut c_void,
    (class, context): (usize, *mut c_void),
    ops: *const c_void,
    tables: [*const c_void; N],
    body: T,
) -> c_int {
    let fid = Fid {
        class,
        context,
        ops,
    };
    let head = Head { fid, tables };
    let object = Box::into_raw(Box::new(Object { head, body }));
    // SAFETY: the caller promises it.
    unsafe { *place = object.cast() };
    0
}

/// Returns the body of an object, or -EINVAL for null and for objects of another class.
///
/// # Safety
/// `at` must be null or an object of libfabric that was not closed; one of this class must have
/// been created by [`publish`] with these types.
#[inline]
pub(crate) unsafe fn body<'a, const N: usize, T>(
    at: *mut c_void,
    class: usize,
) -> Result<&'a T, c_int> {
    let object = at.cast::<Object<N, T>>();
    // SAFETY: the caller promises it; every object begins with a `Fid`.
    if object.is_null() || unsafe { (*object).head.fid.class } != class {
        return Err(-EINVAL);
    }
    // SAFETY: the class is the one that was published with these types.
    Ok(unsafe { &(*object).body })
}

/// Takes an object back from its user, who closes it.
///
/// # Safety
/// As for [`body`]; in addition, the object must be of this class and must not be used afterwards.
pub(crate) unsafe fn retract<const N: usize, T>(at: *mut c_void) -> T {
    // SAFETY: it came from a box in `publish`, and `body` has checked its class.
    let object = unsafe { Box::from_raw(at.cast::<Object<N, T>>()) };
    object.body
}

/// Converts a result to a return value of C.
#[inline]
pub(crate) fn code(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|code| code)
}

/// Converts a result to a return value of C.
#[inline]
pub(crate) fn long(result: Result<isize, c_int>) -> isize {
    result.unwrap_or_else(|code| code as isize)
}
