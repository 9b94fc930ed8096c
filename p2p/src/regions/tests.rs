use super::*;

const ALL: Rights = Rights {
    read: true,
    write: true,
};

fn place(key: u64, address: u64, length: usize) -> Place {
    Place {
        key,
        address,
        length,
    }
}

/// Exposes memory of 7s that outlives the test under key 5.
pub(crate) fn leaked(
    length: usize,
    address: u64,
    (readable, writable): (bool, bool),
) -> (Regions, &'static mut [u8]) {
    let memory = Box::leak(vec![7u8; length].into_boxed_slice());
    let regions = Regions::default();
    let exposure = Exposure {
        at: memory.as_mut_ptr(),
        length,
        address,
        readable,
        writable,
    };
    // SAFETY: it is never freed, and is read after the accesses.
    assert!(unsafe { regions.expose(5, exposure) });
    // SAFETY: as above.
    assert!(!unsafe { regions.expose(5, exposure) });
    (regions, memory)
}

fn exposed(readable: bool, writable: bool) -> (Regions, &'static mut [u8]) {
    leaked(16, 1000, (readable, writable))
}

#[test]
fn what_is_not_exposed_is_not_touched() {
    let (regions, memory) = exposed(true, true);
    let bytes = [1; 20];
    let refused = [
        (place(6, 1000, 4), Refusal::UnknownKey),
        (place(5, 999, 4), Refusal::Outside),
        (place(5, 0, 4), Refusal::Outside),
        (place(5, 1013, 4), Refusal::Outside),
        (place(5, 1017, 0), Refusal::Outside),
        (place(5, u64::MAX, 4), Refusal::Outside),
        (place(5, 1000, 17), Refusal::Outside),
        (place(5, 1001, usize::MAX), Refusal::Outside),
    ];
    for (place, why) in refused {
        let part = &bytes[..place.length.min(4)];
        assert_eq!(regions.write(&place, 0, part), Err(why), "{place:?}");
        assert_eq!(regions.read(&place, 0, &mut [0; 4]), Err(why));
        assert_eq!(regions.check(&place, ALL), Err(why));
    }
    // More than the place holds, though the region has room.
    let whole = place(5, 1000, 8);
    for (offset, length) in [(0, 9), (8, 1), (9, 0), (usize::MAX, 4)] {
        let wrong = regions.write(&whole, offset, &bytes[..length]);
        assert_eq!(wrong, Err(Refusal::Outside), "{offset} {length}");
    }
    assert_eq!(*memory, [7; 16]);
    assert_eq!(regions.write(&place(5, 1012, 4), 1, &[1, 2, 3]), Ok(()));
    assert_eq!(memory[12..], [7, 1, 2, 3]);
    assert_eq!(regions.check(&place(5, 1016, 0), ALL), Ok(false));
    regions.report(5);
    assert_eq!(regions.check(&place(5, 1016, 0), ALL), Ok(true));
    regions.withdraw(5);
    assert_eq!(
        regions.check(&place(5, 1000, 1), ALL),
        Err(Refusal::UnknownKey)
    );
}

#[test]
fn rights_are_checked() {
    let at = place(5, 1000, 4);
    let (regions, memory) = exposed(true, false);
    assert_eq!(regions.write(&at, 0, &[1; 4]), Err(Refusal::NotAllowed));
    let sum = (AtomicOp::Sum, AtomicType::U32, Rights::WRITE);
    let update = regions.update(&at, sum, &[1; 4], &mut Vec::new());
    assert_eq!(update, Err(Refusal::NotAllowed));
    assert_eq!(*memory, [7; 16]);
    assert_eq!(regions.read(&at, 0, &mut [0; 4]), Ok(()));
    let (regions, _) = exposed(false, true);
    assert_eq!(regions.read(&at, 0, &mut [0; 4]), Err(Refusal::NotAllowed));
    assert_eq!(regions.write(&at, 0, &[1; 4]), Ok(()));
}

#[test]
fn atomic_operations_change_each_value_and_return_the_old_ones() {
    let (regions, memory) = exposed(true, true);
    memory.copy_from_slice(&[1, 0, 2, 0, 3, 0, 4, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
    let at = place(5, 1000, 8);
    let mut old = Vec::new();
    let swap = (AtomicOp::SwapEqual, AtomicType::U16, ALL);
    let operands = [8, 0, 8, 0, 8, 0, 8, 0, 1, 0, 9, 0, 3, 0, 9, 0];
    assert_eq!(regions.update(&at, swap, &operands, &mut old), Ok(()));
    assert_eq!(old, [1, 0, 2, 0, 3, 0, 4, 0]);
    assert_eq!(memory[..9], [8, 0, 2, 0, 8, 0, 4, 0, 9]);
    // Operands that do not fit, a length that is not one of values, bits of a float.
    let mut wrong = |at: &Place, what: (AtomicOp, AtomicType, Rights), count: usize| {
        regions.update(at, what, &operands[..count], &mut old)
    };
    assert_eq!(wrong(&at, swap, 8), Err(Refusal::Unsupported));
    assert_eq!(
        wrong(&place(5, 1000, 7), swap, 14),
        Err(Refusal::Unsupported)
    );
    let float = (AtomicOp::BitOr, AtomicType::F32, ALL);
    assert_eq!(wrong(&at, float, 8), Err(Refusal::Unsupported));
    assert_eq!(memory[..9], [8, 0, 2, 0, 8, 0, 4, 0, 9]);
}

#[test]
fn numbers_of_refusals_are_those_of_the_wire() {
    for refusal in Refusal::ALL.map(Some).into_iter().chain([None]) {
        let status = Refusal::status(refusal);
        assert_eq!(Refusal::of_status(status), Ok(refusal));
    }
    assert_eq!(Refusal::of_status(5), Err(5));
}
