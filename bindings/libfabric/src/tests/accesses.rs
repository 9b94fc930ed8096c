//! Accesses to memory of peers, through the tables of calls.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::objects::{Own, call};
use super::{close, receive_into};
use crate::ffi::*;
use crate::queue::{Counter, deadline};
use crate::remote::Access;
use crate::transfer::{Outgoing, UNTAGGED};
use crate::{atomic, queues};

#[test]
fn registrations_are_checked_at_every_access() {
    for mode in [FI_MR_SCALABLE, FI_MR_BASIC] {
        let own = Own::open(mode);
        let mut memory = [1u64, 2, 3, 4];
        let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let (region, key) = own.register(&mut memory, both, 77);
        assert_eq!(key == 77, mode == FI_MR_SCALABLE);
        let base = if mode == FI_MR_BASIC {
            memory.as_ptr() as u64
        } else {
            0
        };
        assert_eq!(own.write(&[9, 8], base + 8, key), 0);
        assert_eq!(own.completion(), Ok(FI_RMA | FI_WRITE));
        let mut got = [0; 4];
        assert_eq!(own.read(&mut got, base, key), 0);
        assert_eq!(own.completion(), Ok(FI_RMA | FI_READ));
        assert_eq!(got, [1, 9, 8, 4]);
        for (address, key, error) in [
            (base + 24, key, EINVAL),
            (base.wrapping_sub(8), key, EINVAL),
            (base, key + 1, EACCES),
        ] {
            assert_eq!(own.write(&[5, 5], address, key), 0);
            assert_eq!(own.completion(), Err(error));
            assert_eq!(own.read(&mut got, address, key), 0);
            assert_eq!(own.completion(), Err(error));
        }
        assert_eq!(close(region), 0);
        assert_eq!(own.write(&[5, 5], base, key), 0);
        assert_eq!(own.completion(), Err(EACCES));
        let (region, key) = own.register(&mut memory, FI_REMOTE_READ, 78);
        assert_eq!(own.write(&[5], base, key), 0);
        assert_eq!(own.completion(), Err(EACCES));
        assert_eq!(close(region), 0);
        assert_eq!((memory, got), ([1, 9, 8, 4], [1, 9, 8, 4]));
        own.close();
    }
}

#[test]
fn atomic_calls_return_the_old_values() {
    let own = Own::open(0);
    let mut memory = [40u64, 50];
    let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let (region, key) = own.register(&mut memory, both, 5);
    let (sum, swap, u64s, none) = (2, 12, 7, null_mut::<c_void>());
    let (operands, comparands, mut old) = ([2u64, 3], [42u64, 0], [0u64; 2]);
    let at = |values: &[u64]| values.as_ptr().cast::<c_void>();
    let old_at = old.as_mut_ptr().cast::<c_void>();
    let done = call!(own.endpoint, 5, 4,
        (*const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, i32, i32,
            *mut c_void) -> isize,
        at(&operands), 2, none, old_at, none, 0, 0, key, u64s, sum, none);
    assert_eq!((done, own.completion()), (0, Ok(FI_ATOMIC | FI_READ)));
    assert_eq!((memory, old), ([42, 53], [40, 50]));
    let old_at = old.as_mut_ptr().cast::<c_void>();
    let done = call!(own.endpoint, 5, 7,
        (*const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void,
            u64, u64, u64, i32, i32, *mut c_void) -> isize,
        at(&operands), 2, none, at(&comparands), none, old_at, none, 0, 0, key, u64s, swap, none);
    assert_eq!((done, own.completion()), (0, Ok(FI_ATOMIC | FI_READ)));
    assert_eq!((memory, old), ([2, 53], [42, 53]));
    // A plain call has no comparing operation, and no type has this number.
    for (datatype, op) in [(u64s, swap), (99, sum), (u64s, -1)] {
        let done = call!(own.endpoint, 5, 0,
            (*const c_void, usize, *mut c_void, u64, u64, u64, i32, i32, *mut c_void) -> isize,
            at(&operands), 1, none, 0, 0, key, datatype, op, none);
        assert_eq!(done, -(EOPNOTSUPP as isize));
    }
    let mut count = 0;
    let valid =
        call!(own.endpoint, 5, 10, (i32, i32, *mut usize) -> i32, u64s, sum, &raw mut count);
    assert_eq!((valid, count), (0, p2p::MAX_ATOMIC / 8));
    assert_eq!(close(region), 0);
    own.close();
}

#[test]
fn types_of_atomic_operations_are_those_that_a_query_knows() {
    let own = Own::open(0);
    let query = |datatype, op| {
        let mut attr = AtomicAttr { count: 0, size: 0 };
        // SAFETY: an open domain and a valid attribute.
        let code = unsafe { atomic::query(own.domain, datatype, op, &raw mut attr, 0) };
        (code == 0).then_some((attr.count, attr.size))
    };
    let (min, sum, or) = (0, 2, 6);
    assert_eq!(query(9, sum), Some((128, 8)));
    // Complex numbers of two floats and of two doubles.
    assert_eq!((query(10, sum), query(10, min)), (Some((128, 8)), None));
    assert_eq!((query(11, sum), query(11, or)), (Some((64, 16)), None));
    // Those of `long double`, whose size and format depend on the machine.
    assert_eq!((query(12, sum), query(13, sum)), (None, None));
    assert_eq!(
        (query(14, min), query(15, or)),
        (Some((64, 16)), Some((64, 16)))
    );
    assert_eq!((query(16, sum), query(-1, sum)), (None, None));
    let mut memory = [u64::MAX, 0];
    let (region, key) = own.register(&mut memory, FI_REMOTE_WRITE, 5);
    let (one, none) = ([1u64, 0], null_mut::<c_void>());
    let done = call!(own.endpoint, 5, 0,
        (*const c_void, usize, *mut c_void, u64, u64, u64, i32, i32, *mut c_void) -> isize,
        one.as_ptr().cast(), 1, none, 0, 0, key, FI_UINT128, sum, none);
    assert_eq!((done, own.completion()), (0, Ok(FI_ATOMIC | FI_WRITE)));
    assert_eq!(memory, [0, 1]);
    assert_eq!(close(region), 0);
    own.close();
}

#[test]
fn a_fence_waits_for_what_was_started_before() {
    let own = Own::open(0);
    let mut memory = [0u64; 2];
    let (region, key) = own.register(&mut memory, FI_REMOTE_WRITE, 5);
    let core = own.core();
    let from = [7u64];
    let parts = [libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: 8,
    }];
    let fenced = |core: &crate::core::Core| {
        core.write(&Access {
            parts: &parts,
            to: 0,
            address: 0,
            key,
            data: None,
            context: 2,
            flags: FI_FENCE,
            silent: false,
        })
    };
    let send = |flags| Outgoing {
        parts: &parts,
        to: 0,
        space: UNTAGGED,
        tag: 0,
        data: None,
        context: 1,
        flags,
        silent: false,
    };
    // It is complete once it was received.
    assert_eq!(core.send(&send(FI_MATCH_COMPLETE)), Ok(0));
    assert_eq!(fenced(core), Err(-EAGAIN));
    assert_eq!(core.send(&send(FI_FENCE)), Err(-EAGAIN));
    assert_eq!(memory, [0, 0]);
    let mut room = [0; 8];
    receive_into(core, &mut room, 0);
    assert_eq!(fenced(core), Ok(0));
    let mut seen: Vec<u64> = (0..3).map(|_| own.completion().unwrap()).collect();
    seen.sort_unstable();
    let mut expected = [FI_MSG | FI_SEND, FI_MSG | FI_RECV, FI_RMA | FI_WRITE];
    expected.sort_unstable();
    assert_eq!((seen.as_slice(), memory), (&expected[..], [7, 0]));
    assert_eq!(close(region), 0);
    own.close();
}

#[test]
fn accesses_to_a_registration_are_counted() {
    let own = Own::open(0);
    let mut memory = [[0u64; 2]; 2];
    let mut registrations = Vec::new();
    for (place, part) in memory.iter_mut().enumerate() {
        let mut counter = null_mut();
        let (attr, none) = (null_mut(), null_mut());
        // SAFETY: an open domain.
        let opened = unsafe { queues::open_counter(own.domain, attr, &raw mut counter, none) };
        assert_eq!(opened, 0);
        let (region, key) = own.register(part, FI_REMOTE_WRITE, place as u64 + 1);
        // SAFETY: the second call of a registration binds it.
        let bound = unsafe {
            let bind: unsafe extern "C" fn(*mut c_void, *mut c_void, u64) -> i32 =
                std::mem::transmute(super::call(region, 1));
            bind(region, counter, FI_REMOTE_WRITE)
        };
        assert_eq!(bound, 0);
        registrations.push((region, counter, key));
    }
    for (place, (region, counter, key)) in registrations.into_iter().enumerate() {
        // SAFETY: an open counter.
        let counted: &Arc<Counter> = unsafe { queues::counter(counter) }.unwrap();
        assert!(!counted.wait(1, deadline(1)));
        assert_eq!(own.write(&[place as u64 + 8], 8, key), 0);
        assert!(counted.wait(1, deadline(10_000)));
        assert_eq!(own.completion(), Ok(FI_RMA | FI_WRITE));
        assert_eq!((close(region), close(counter)), (0, 0));
    }
    assert_eq!(memory, [[0, 8], [0, 9]]);
    own.close();
}
