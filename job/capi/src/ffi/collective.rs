//! Collective functions.

use std::ffi::{c_int, c_void};

use p2p::{Comm, Number, Op};

use super::{check, guard};
use crate::code::{Code, Fault};
use crate::state;

#[unsafe(no_mangle)]
extern "C" fn esp_barrier(comm: i32) -> c_int {
    guard(|| Ok(state::comm(comm)?.barrier()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_bcast(data: *mut c_void, length: i64, root: i32, comm: i32) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let data = check::write(data, length)?;
        Ok(state::comm(comm)?.bcast(data, check::rank(root)?)?)
    })
}

fn operation(op: i32) -> Result<Op, Fault> {
    Ok(match op {
        1 => Op::Sum,
        2 => Op::Prod,
        3 => Op::Min,
        4 => Op::Max,
        5 => Op::BitAnd,
        6 => Op::BitOr,
        7 => Op::BitXor,
        _ => return Err(Fault::new(Code::Op, format!("there is no operation {op}"))),
    })
}

/// Reduces to all ranks, or to one.
unsafe fn reduce<T: Number>(
    data: *mut c_void,
    count: i64,
    op: Op,
    root: Option<u32>,
    comm: &Comm,
) -> Result<(), Fault> {
    // SAFETY: by the contract of the module.
    let data = unsafe { check::values::<T>(data.cast(), count)? };
    let done = match root {
        Some(root) => comm.reduce(data, op, root),
        None => comm.allreduce(data, op),
    };
    Ok(done?)
}

unsafe fn reduce_any(
    data: *mut c_void,
    count: i64,
    kind: i32,
    op: i32,
    root: Option<u32>,
    comm: i32,
) -> Result<(), Fault> {
    let (op, comm) = (operation(op)?, state::comm(comm)?);
    // SAFETY: by the contract of the module.
    unsafe {
        match kind {
            1 => reduce::<i8>(data, count, op, root, &comm),
            2 => reduce::<u8>(data, count, op, root, &comm),
            3 => reduce::<i16>(data, count, op, root, &comm),
            4 => reduce::<u16>(data, count, op, root, &comm),
            5 => reduce::<i32>(data, count, op, root, &comm),
            6 => reduce::<u32>(data, count, op, root, &comm),
            7 => reduce::<i64>(data, count, op, root, &comm),
            8 => reduce::<u64>(data, count, op, root, &comm),
            9 => reduce::<f32>(data, count, op, root, &comm),
            10 => reduce::<f64>(data, count, op, root, &comm),
            _ => Err(Fault::new(Code::Type, format!("there is no type {kind}"))),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_allreduce(
    data: *mut c_void,
    count: i64,
    kind: i32,
    op: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe { reduce_any(data, count, kind, op, None, comm) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_reduce(
    data: *mut c_void,
    count: i64,
    kind: i32,
    op: i32,
    root: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe { reduce_any(data, count, kind, op, Some(check::rank(root)?), comm) })
}

/// Returns the length of the buffer for all ranks, which only the root uses.
fn whole_at(root: u32, comm: &Comm, length: i64) -> Result<i64, Fault> {
    match comm.rank() == root {
        true => check::times(length, comm.size()),
        false => Ok(0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_gather(
    mine: *const c_void,
    length: i64,
    all: *mut c_void,
    root: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (root, comm) = (check::rank(root)?, state::comm(comm)?);
        let whole = whole_at(root, &comm, length)?;
        let (mine, all) = (check::read(mine, length)?, check::write(all, whole)?);
        Ok(comm.gather(mine, all, root)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_scatter(
    all: *const c_void,
    length: i64,
    mine: *mut c_void,
    root: i32,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let (root, comm) = (check::rank(root)?, state::comm(comm)?);
        let whole = whole_at(root, &comm, length)?;
        let (all, mine) = (check::read(all, whole)?, check::write(mine, length)?);
        Ok(comm.scatter(all, mine, root)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_allgather(
    mine: *const c_void,
    length: i64,
    all: *mut c_void,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let comm = state::comm(comm)?;
        let whole = check::times(length, comm.size())?;
        let (mine, all) = (check::read(mine, length)?, check::write(all, whole)?);
        Ok(comm.allgather(mine, all)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn esp_alltoall(
    out: *const c_void,
    length: i64,
    into: *mut c_void,
    comm: i32,
) -> c_int {
    // SAFETY: by the contract of the module.
    guard(|| unsafe {
        let comm = state::comm(comm)?;
        let whole = check::times(length, comm.size())?;
        let (out, into) = (check::read(out, whole)?, check::write(into, whole)?);
        Ok(comm.alltoall(out, into)?)
    })
}
