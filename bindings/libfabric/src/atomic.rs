//! `fi_atomic`, `fi_fetch_atomic` and `fi_compare_atomic`, as C sees them.

use std::ffi::{c_int, c_void};

use p2p::{AtomicOp, AtomicType, MAX_ATOMIC};

use crate::domain::domain;
use crate::endpoint::endpoint;
use crate::ffi::*;
use crate::messages::{context, one};
use crate::object::{Table, code, long};
use crate::remote::{Access, AtomicAccess};
use crate::transfer::PARTS;

pub(crate) static ATOMIC_OPS: Table<13> = Table::new([
    write as _,
    writev as _,
    writemsg as _,
    inject as _,
    readwrite as _,
    readwritev as _,
    readwritemsg as _,
    compwrite as _,
    compwritev as _,
    compwritemsg as _,
    writevalid as _,
    readwritevalid as _,
    compwritevalid as _,
]);

/// The kinds of calls, which have different operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Plain,
    Fetch,
    Compare,
}

/// Returns the operation and type of C's numbers, if the calls of this family have them.
fn known(family: Family, datatype: c_int, op: c_int) -> Option<(AtomicOp, AtomicType)> {
    let op = *AtomicOp::ALL.get(usize::try_from(op).ok()?)?;
    let number = *AtomicType::ALL.get(usize::try_from(datatype).ok()?)?;
    let fits = match family {
        Family::Compare => op.compares(),
        Family::Fetch => !op.compares(),
        Family::Plain => !op.compares() && op != AtomicOp::Read,
    };
    (fits && number.supports(op)).then_some((op, number))
}

/// Values in local memory: a pointer and a number of them, or a list of such.
#[derive(Clone, Copy)]
enum Values {
    None,
    One(*const c_void, usize),
    Many(*const Ioc, usize),
}

/// Parts in bytes, of which the first are used.
type Parts = ([libc::iovec; PARTS], usize);

impl Values {
    /// Returns the parts in bytes, and the number of values.
    ///
    /// # Safety
    /// A list that is not null has as many entries as it says.
    unsafe fn parts(self, size: usize) -> Result<(Parts, usize), c_int> {
        let mut parts = [one(std::ptr::null(), 0); PARTS];
        let mut sum = 0usize;
        let used = match self {
            Values::None => 0,
            Values::One(at, count) => {
                parts[0] = one(at, count.checked_mul(size).ok_or(-EINVAL)?);
                sum = count;
                1
            }
            Values::Many(_, count) if count > PARTS => return Err(-EINVAL),
            Values::Many(list, count) if list.is_null() && count != 0 => return Err(-EINVAL),
            Values::Many(list, count) => {
                for (place, part) in parts.iter_mut().take(count).enumerate() {
                    // SAFETY: the caller promises it.
                    let entry = unsafe { &*list.add(place) };
                    *part = one(entry.at, entry.count.checked_mul(size).ok_or(-EINVAL)?);
                    sum = sum.checked_add(entry.count).ok_or(-EINVAL)?;
                }
                count
            }
        };
        Ok(((parts, used), sum))
    }
}

/// Arguments of a call.
#[derive(Clone, Copy)]
struct Call {
    family: Family,
    operands: Values,
    comparands: Values,
    results: Values,
    /// Number of values; `None`: that of the operands.
    count: Option<usize>,
    /// Peer, address and key.
    to: (u64, u64, u64),
    datatype: c_int,
    op: c_int,
    context: usize,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    silent: bool,
}

impl Call {
    fn new(
        operands: Values,
        to: (u64, u64, u64),
        (datatype, op): (c_int, c_int),
        ctx: *mut c_void,
    ) -> Call {
        Call {
            family: Family::Plain,
            operands,
            comparands: Values::None,
            results: Values::None,
            count: None,
            to,
            datatype,
            op,
            context: context(ctx),
            flags: None,
            silent: false,
        }
    }

    fn fetching(self, results: Values) -> Call {
        Call {
            family: Family::Fetch,
            results,
            ..self
        }
    }

    fn comparing(self, comparands: Values, results: Values) -> Call {
        Call {
            family: Family::Compare,
            comparands,
            results,
            ..self
        }
    }

    /// Returns the arguments of a message of C, whose remote memory must be one part.
    ///
    /// # Safety
    /// Null, or the program's message with its parts.
    unsafe fn of_message(msg: *const MsgAtomic, flags: u64) -> Result<Call, c_int> {
        // SAFETY: the caller promises it.
        let msg = unsafe { msg.as_ref() }.ok_or(-EINVAL)?;
        if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: one part, as the program says.
        let remote = unsafe { &*msg.rma_iov };
        Ok(Call {
            count: Some(remote.count),
            flags: Some(flags),
            ..Call::new(
                Values::Many(msg.iov, msg.iov_count),
                (msg.addr, remote.address, remote.key),
                (msg.datatype, msg.op),
                msg.context,
            )
        })
    }
}

/// # Safety
/// `ep` is as `object::body` says; local memory and lists are valid, results are lent until the
/// completion.
unsafe fn start(ep: *mut c_void, call: &Call) -> isize {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    long(found.and_then(|found| {
        let (op, number) = known(call.family, call.datatype, call.op).ok_or(-EOPNOTSUPP)?;
        let size = number.size();
        // SAFETY: the caller promises it.
        let (operands, comparands, results) = unsafe {
            (
                call.operands.parts(size)?,
                call.comparands.parts(size)?,
                call.results.parts(size)?,
            )
        };
        fn used(parts: &Parts) -> &[libc::iovec] {
            &parts.0[..parts.1]
        }
        // Reading has no operands.
        let default = if op == AtomicOp::Read {
            results.1
        } else {
            operands.1
        };
        found.core.atomic(&AtomicAccess {
            access: Access {
                parts: used(&operands.0),
                to: call.to.0,
                address: call.to.1,
                key: call.to.2,
                data: None,
                context: call.context,
                flags: call.flags.unwrap_or(found.tx_flags),
                silent: call.silent,
            },
            op,
            number,
            comparands: used(&comparands.0),
            results: (call.family != Family::Plain).then_some(used(&results.0)),
            count: call.count.unwrap_or(default),
        })
    }))
}

unsafe extern "C" fn write(
    ep: *mut c_void,
    at: *const c_void,
    count: usize,
    _desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    // SAFETY: what the program passes.
    unsafe {
        start(
            ep,
            &Call::new(Values::One(at, count), to, (datatype, op), ctx),
        )
    }
}

unsafe extern "C" fn writev(
    ep: *mut c_void,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    // SAFETY: what the program passes.
    unsafe {
        start(
            ep,
            &Call::new(Values::Many(list, count), to, (datatype, op), ctx),
        )
    }
}

unsafe extern "C" fn writemsg(ep: *mut c_void, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: what the program passes.
    unsafe {
        match Call::of_message(msg, flags) {
            Ok(call) => start(ep, &call),
            Err(code) => code as isize,
        }
    }
}

unsafe extern "C" fn inject(
    ep: *mut c_void,
    at: *const c_void,
    count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let to = (to, address, key);
    let none = std::ptr::null_mut();
    let call = Call {
        flags: Some(0),
        silent: true,
        ..Call::new(Values::One(at, count), to, (datatype, op), none)
    };
    // SAFETY: what the program passes.
    unsafe { start(ep, &call) }
}

unsafe extern "C" fn readwrite(
    ep: *mut c_void,
    at: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    let call = Call::new(Values::One(at, count), to, (datatype, op), ctx);
    // SAFETY: what the program passes.
    unsafe { start(ep, &call.fetching(Values::One(result, count))) }
}

unsafe extern "C" fn readwritev(
    ep: *mut c_void,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    results: *const Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    let call = Call::new(Values::Many(list, count), to, (datatype, op), ctx);
    // SAFETY: what the program passes.
    unsafe { start(ep, &call.fetching(Values::Many(results, result_count))) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut c_void,
    msg: *const MsgAtomic,
    results: *const Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let results = Values::Many(results, result_count);
    // SAFETY: what the program passes.
    unsafe {
        match Call::of_message(msg, flags) {
            Ok(call) => start(ep, &call.fetching(results)),
            Err(code) => code as isize,
        }
    }
}

unsafe extern "C" fn compwrite(
    ep: *mut c_void,
    at: *const c_void,
    count: usize,
    _desc: *mut c_void,
    comparand: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    let call = Call::new(Values::One(at, count), to, (datatype, op), ctx);
    let call = call.comparing(Values::One(comparand, count), Values::One(result, count));
    // SAFETY: what the program passes.
    unsafe { start(ep, &call) }
}

unsafe extern "C" fn compwritev(
    ep: *mut c_void,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparands: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *const Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    ctx: *mut c_void,
) -> isize {
    let to = (to, address, key);
    let call = Call::new(Values::Many(list, count), to, (datatype, op), ctx);
    let comparands = Values::Many(comparands, compare_count);
    let call = call.comparing(comparands, Values::Many(results, result_count));
    // SAFETY: what the program passes.
    unsafe { start(ep, &call) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut c_void,
    msg: *const MsgAtomic,
    comparands: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *const Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let comparands = Values::Many(comparands, compare_count);
    let results = Values::Many(results, result_count);
    // SAFETY: what the program passes.
    unsafe {
        match Call::of_message(msg, flags) {
            Ok(call) => start(ep, &call.comparing(comparands, results)),
            Err(code) => code as isize,
        }
    }
}

/// # Safety
/// `ep` is as `object::body` says; `count` is null or writable.
unsafe fn valid(
    ep: *mut c_void,
    family: Family,
    (datatype, op): (c_int, c_int),
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller promises it.
    let found = unsafe { endpoint(ep) };
    code(found.and_then(|_| {
        let (_, number) = known(family, datatype, op).ok_or(-EOPNOTSUPP)?;
        if count.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: the caller promises it.
        unsafe { *count = MAX_ATOMIC / number.size() };
        Ok(0)
    }))
}

unsafe extern "C" fn writevalid(
    ep: *mut c_void,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: what the program passes.
    unsafe { valid(ep, Family::Plain, (datatype, op), count) }
}

unsafe extern "C" fn readwritevalid(
    ep: *mut c_void,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: what the program passes.
    unsafe { valid(ep, Family::Fetch, (datatype, op), count) }
}

unsafe extern "C" fn compwritevalid(
    ep: *mut c_void,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: what the program passes.
    unsafe { valid(ep, Family::Compare, (datatype, op), count) }
}

/// `fi_query_atomic`, a call of domains.
pub(crate) unsafe extern "C" fn query(
    domain_at: *mut c_void,
    datatype: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    let family = match flags {
        0 => Family::Plain,
        FI_FETCH_ATOMIC => Family::Fetch,
        FI_COMPARE_ATOMIC => Family::Compare,
        _ => return -EINVAL,
    };
    // SAFETY: the object of this table, and what the program passes.
    let (found, attr) = unsafe { (domain(domain_at), attr.as_mut()) };
    code(found.and_then(|_| {
        let attr = attr.ok_or(-EINVAL)?;
        let (_, number) = known(family, datatype, op).ok_or(-EOPNOTSUPP)?;
        (attr.count, attr.size) = (MAX_ATOMIC / number.size(), number.size());
        Ok(0)
    }))
}
