//! Address vectors: the names that a program has inserted, and their numbers.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use job::endpoint::{MAX_NAME, from_text, parse, to_text};

use crate::core::Core;
use crate::ffi::{AvAttr, EINVAL, ENOSYS, FI_ADDR_UNSPEC, FI_CLASS_AV, FI_EVENT, FI_PEER};
use crate::host;
use crate::object::{NONE, Table, body, code, publish, retract};

/// Length of a name in the C interface, in bytes: shorter names are padded with zeros.
pub(crate) const NAME: usize = MAX_NAME;
/// Maximum number of addresses.
const MAX_ADDRESSES: usize = 1 << 20;

/// A name in the C interface.
pub(crate) type Name = [u8; NAME];

/// An address vector.
#[derive(Debug, Default)]
pub(crate) struct Vector {
    /// Names by address; `None` if removed.
    names: RwLock<Vec<Option<Name>>>,
    /// Endpoints that use it.
    cores: Mutex<Vec<Weak<Core>>>,
}

/// Pads a name with zeros. Names need no length: no transport begins with zero interfaces, so the
/// zeros can be removed again.
pub(crate) fn padded(name: &[u8]) -> Name {
    let mut padded = [0; NAME];
    let length = name.len().min(NAME);
    padded[..length].copy_from_slice(&name[..length]);
    padded
}

/// Decodes a name that [`padded`] made.
pub(crate) fn decode(name: &Name) -> Option<(u64, Vec<p2p::TransportAddress>)> {
    // The last byte of a name may be zero, so all lengths are tried, starting at the last nonzero
    // byte.
    let end = name.iter().rposition(|byte| *byte != 0)? + 1;
    (end..=NAME).find_map(|end| parse(&name[..end]))
}

impl Vector {
    /// Binds an endpoint and passes it all addresses.
    pub(crate) fn bind(&self, core: &Arc<Core>) {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        for (address, name) in names.iter().enumerate() {
            if let Some(name) = name {
                core.learn(address as u64, name);
            }
        }
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.push(Arc::downgrade(core));
    }

    fn insert(&self, name: &Name) -> Option<u64> {
        if decode(name).is_none() {
            host::warn(&format!("not the name of an endpoint: {}", to_text(name)));
            return None;
        }
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_ADDRESSES {
            return None;
        }
        names.push(Some(*name));
        let address = names.len() as u64 - 1;
        drop(names);
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.retain(|core| core.strong_count() != 0);
        for core in cores.iter().filter_map(Weak::upgrade) {
            core.learn(address, name);
        }
        Some(address)
    }

    fn name_of(&self, address: u64) -> Option<Name> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        *names.get(usize::try_from(address).ok()?)?
    }

    fn remove(&self, address: u64) -> bool {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let name = usize::try_from(address)
            .ok()
            .and_then(|at| names.get_mut(at));
        let removed = name.is_some_and(|name| name.take().is_some());
        drop(names);
        let cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        for core in cores.iter().filter_map(Weak::upgrade).filter(|_| removed) {
            core.forget(address);
        }
        removed
    }
}

static OPS: Table<6> = Table::new([close as _, NONE, NONE, NONE, NONE, NONE]);
static AV_OPS: Table<7> = Table::new([
    insert as _,
    NONE,
    NONE,
    remove as _,
    lookup as _,
    straddr as _,
    NONE,
]);

/// Opens an address vector of a domain.
pub(crate) unsafe extern "C" fn open(
    domain: *mut c_void,
    attr: *mut AvAttr,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    if domain.is_null() || attr.is_null() || place.is_null() {
        return -EINVAL;
    }
    // SAFETY: the caller passes a valid attribute.
    let attr = unsafe { &*attr };
    if attr.flags & (FI_EVENT | FI_PEER) != 0 || !attr.name.is_null() || attr.rx_ctx_bits != 0 {
        return -ENOSYS;
    }
    let vector = Arc::new(Vector::default());
    let identity = (FI_CLASS_AV, context);
    // SAFETY: `place` is writable.
    unsafe { publish(place, identity, OPS.at(), [AV_OPS.at()], vector) }
}

/// Returns the vector of an object.
///
/// # Safety
/// `av` must meet the conditions of `object::body`.
pub(crate) unsafe fn vector<'a>(av: *mut c_void) -> Result<&'a Arc<Vector>, c_int> {
    // SAFETY: the caller promises it; `open` publishes this type.
    unsafe { body::<1, Arc<Vector>>(av, FI_CLASS_AV) }
}

unsafe extern "C" fn close(av: *mut c_void) -> c_int {
    // SAFETY: the object of this table.
    code(unsafe { vector(av) }.map(|_| {
        // SAFETY: the caller does not use it afterwards.
        drop(unsafe { retract::<1, Arc<Vector>>(av) });
        0
    }))
}

unsafe extern "C" fn insert(
    av: *mut c_void,
    addresses: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the object of this table.
    let vector = match unsafe { vector(av) } {
        Ok(vector) if !addresses.is_null() || count == 0 => vector,
        _ => return -EINVAL,
    };
    if flags & FI_EVENT != 0 {
        return -ENOSYS;
    }
    let mut inserted = 0;
    for place in 0..count {
        // SAFETY: the caller passes `count` names of the length that `fi_getname` returns.
        let name = unsafe { addresses.cast::<Name>().add(place).read_unaligned() };
        let number = vector.insert(&name);
        inserted += c_int::from(number.is_some());
        if !numbers.is_null() {
            // SAFETY: the caller passes room for `count` numbers.
            unsafe { *numbers.add(place) = number.unwrap_or(FI_ADDR_UNSPEC) };
        }
    }
    inserted
}

unsafe extern "C" fn remove(
    av: *mut c_void,
    numbers: *const u64,
    count: usize,
    _flags: u64,
) -> c_int {
    // SAFETY: the object of this table.
    let vector = match unsafe { vector(av) } {
        Ok(vector) if !numbers.is_null() || count == 0 => vector,
        _ => return -EINVAL,
    };
    for place in 0..count {
        // SAFETY: the caller passes `count` numbers.
        if !vector.remove(unsafe { *numbers.add(place) }) {
            return -EINVAL;
        }
    }
    0
}

unsafe extern "C" fn lookup(
    av: *mut c_void,
    number: u64,
    place: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: the object of this table.
    let name = unsafe { vector(av) }.and_then(|vector| vector.name_of(number).ok_or(-EINVAL));
    if length.is_null() {
        return -EINVAL;
    }
    code(name.map(|name| {
        // SAFETY: the caller passes the room at `place` in `length`.
        unsafe { copy_name(&name, place, length) };
        0
    }))
}

/// Copies the part of a name that fits, and sets the length to that of the whole.
///
/// # Safety
/// `length` must be valid, and `place` valid for writes of `*length` bytes.
pub(crate) unsafe fn copy_name(name: &Name, place: *mut c_void, length: *mut usize) {
    // SAFETY: the caller promises it.
    unsafe {
        let fits = (*length).min(NAME);
        if fits != 0 && !place.is_null() {
            place.cast::<u8>().copy_from(name.as_ptr(), fits);
        }
        *length = NAME;
    }
}

unsafe extern "C" fn straddr(
    _av: *mut c_void,
    address: *const c_void,
    place: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    if address.is_null() || length.is_null() {
        return place;
    }
    // SAFETY: the caller passes a name.
    let name = unsafe { address.cast::<Name>().read_unaligned() };
    let text = to_text(&name);
    // SAFETY: the caller passes the room at `place` in `length`.
    unsafe {
        let room = *length;
        if room != 0 && !place.is_null() {
            let fits = text.len().min(room - 1);
            place.cast::<u8>().copy_from(text.as_ptr(), fits);
            *place.add(fits) = 0;
        }
        *length = text.len() + 1;
    }
    place
}

/// Returns the name of a text of [`straddr`].
pub(crate) fn named(text: &str) -> Option<Name> {
    let name = padded(&from_text(text)?);
    decode(&name).map(|_| name)
}
