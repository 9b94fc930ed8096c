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

/// Returns the operation and type that C's numbers stand for, if calls of this family support them.
fn known(family: Family, datatype: c_int, op: c_int) -> Option<(AtomicOp, AtomicType)> {
    let op = *AtomicOp::ALL.get(usize::try_from(op).ok()?)?;
    let place = match datatype {
        FI_INT8..=FI_DOUBLE_COMPLEX => datatype,
        // The numbers in between are types whose length depends on the machine.
        FI_INT128 | FI_UINT128 => datatype - FI_INT128 + FI_DOUBLE_COMPLEX + 1,
        _ => return None,
    };
    let number = *AtomicType::ALL.get(usize::try_from(place).ok()?)?;
    let fits = match family {
        Family::Compare => op.compares(),
        Family::Fetch => !op.compares(),
        Family::Plain => !op.compares() && op != AtomicOp::Read,
    };
    (fits && number.supports(op)).then_some((op, number))
}

/// Values in local memory: a pointer and a count, or a list of such pairs.
#[derive(Clone, Copy)]
enum Values {
    None,
    One(*const c_void, usize),
    Many(*const Ioc, usize),
}

/// Kind of an operation, with its comparands and the memory for the old values.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Fetch(Values),
    Compare(Values, Values),
}

/// Parts in bytes, and the number of them that are used.
type Parts = ([libc::iovec; PARTS], usize);

impl Values {
    /// Returns the parts in bytes, and the number of values.
    ///
    /// # Safety
    /// A list that is not null must be valid for reads of as many entries as its length says.
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

    fn of_kind(self, kind: Kind) -> Call {
        let (family, comparands, results) = match kind {
            Kind::Plain => (Family::Plain, Values::None, Values::None),
            Kind::Fetch(results) => (Family::Fetch, Values::None, results),
            Kind::Compare(comparands, results) => (Family::Compare, comparands, results),
        };
        Call {
            family,
            comparands,
            results,
            ..self
        }
    }

    /// Returns the arguments of a message of C, whose remote memory must be one part.
    ///
    /// # Safety
    /// `msg` must be null or the program's message with valid parts.
    unsafe fn of_message(msg: *const MsgAtomic, flags: u64) -> Result<Call, c_int> {
        // SAFETY: the caller promises it.
        let msg = unsafe { msg.as_ref() }.ok_or(-EINVAL)?;
        if msg.rma_iov_count != 1 || msg.rma_iov.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: the list has one part.
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
/// `ep` must meet the conditions of `object::body`. Local memory and lists must be valid; the
/// memory of results must stay valid until the completion.
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
        // A read has no operands.
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

/// Defines a call: its name, its arguments before those of the remote memory, its operands, and its
/// kind.
macro_rules! call {
    ($name:ident, ($($argument:ident: $type:ty),*), $operands:expr, $kind:expr) => {
        unsafe extern "C" fn $name(
            ep: *mut c_void,
            $($argument: $type,)*
            to: u64,
            address: u64,
            key: u64,
            datatype: c_int,
            op: c_int,
            ctx: *mut c_void,
        ) -> isize {
            let call = Call::new($operands, (to, address, key), (datatype, op), ctx);
            // SAFETY: the program passes valid arguments.
            unsafe { start(ep, &call.of_kind($kind)) }
        }
    };
}

/// Defines a call with a message of C: its name, its other arguments, and its kind.
macro_rules! message_call {
    ($name:ident, ($($argument:ident: $type:ty),*), $kind:expr) => {
        unsafe extern "C" fn $name(
            ep: *mut c_void,
            msg: *const MsgAtomic,
            $($argument: $type,)*
            flags: u64,
        ) -> isize {
            // SAFETY: the program passes valid arguments.
            unsafe {
                match Call::of_message(msg, flags) {
                    Ok(call) => start(ep, &call.of_kind($kind)),
                    Err(code) => code as isize,
                }
            }
        }
    };
}

/// Defines a call that returns the maximum number of values.
macro_rules! valid_call {
    ($name:ident, $family:expr) => {
        unsafe extern "C" fn $name(
            ep: *mut c_void,
            datatype: c_int,
            op: c_int,
            count: *mut usize,
        ) -> c_int {
            // SAFETY: the program passes valid arguments.
            unsafe { valid(ep, $family, (datatype, op), count) }
        }
    };
}

call!(
    write,
    (at: *const c_void, count: usize, _desc: *mut c_void),
    Values::One(at, count),
    Kind::Plain
);
call!(
    writev,
    (list: *const Ioc, _desc: *mut *mut c_void, count: usize),
    Values::Many(list, count),
    Kind::Plain
);
message_call!(writemsg, (), Kind::Plain);

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
    // SAFETY: the program passes valid arguments.
    unsafe { start(ep, &call) }
}

call!(
    readwrite,
    (
        at: *const c_void,
        count: usize,
        _desc: *mut c_void,
        result: *mut c_void,
        _result_desc: *mut c_void
    ),
    Values::One(at, count),
    Kind::Fetch(Values::One(result, count))
);
call!(
    readwritev,
    (
        list: *const Ioc,
        _desc: *mut *mut c_void,
        count: usize,
        results: *const Ioc,
        _result_desc: *mut *mut c_void,
        result_count: usize
    ),
    Values::Many(list, count),
    Kind::Fetch(Values::Many(results, result_count))
);
message_call!(
    readwritemsg,
    (results: *const Ioc, _result_desc: *mut *mut c_void, result_count: usize),
    Kind::Fetch(Values::Many(results, result_count))
);

call!(
    compwrite,
    (
        at: *const c_void,
        count: usize,
        _desc: *mut c_void,
        comparand: *const c_void,
        _compare_desc: *mut c_void,
        result: *mut c_void,
        _result_desc: *mut c_void
    ),
    Values::One(at, count),
    Kind::Compare(Values::One(comparand, count), Values::One(result, count))
);
call!(
    compwritev,
    (
        list: *const Ioc,
        _desc: *mut *mut c_void,
        count: usize,
        comparands: *const Ioc,
        _compare_desc: *mut *mut c_void,
        compare_count: usize,
        results: *const Ioc,
        _result_desc: *mut *mut c_void,
        result_count: usize
    ),
    Values::Many(list, count),
    Kind::Compare(
        Values::Many(comparands, compare_count),
        Values::Many(results, result_count)
    )
);
message_call!(
    compwritemsg,
    (
        comparands: *const Ioc,
        _compare_desc: *mut *mut c_void,
        compare_count: usize,
        results: *const Ioc,
        _result_desc: *mut *mut c_void,
        result_count: usize
    ),
    Kind::Compare(
        Values::Many(comparands, compare_count),
        Values::Many(results, result_count)
    )
);

/// # Safety
/// `ep` must meet the conditions of `object::body`; `count` must be null or valid for writes.
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

valid_call!(writevalid, Family::Plain);
valid_call!(readwritevalid, Family::Fetch);
valid_call!(compwritevalid, Family::Compare);

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
    // SAFETY: the object of this table, and valid arguments of the program.
    let (found, attr) = unsafe { (domain(domain_at), attr.as_mut()) };
    code(found.and_then(|_| {
        let attr = attr.ok_or(-EINVAL)?;
        let (_, number) = known(family, datatype, op).ok_or(-EOPNOTSUPP)?;
        (attr.count, attr.size) = (MAX_ATOMIC / number.size(), number.size());
        Ok(0)
    }))
}
