//! The memory that this process has registered: what it may copy from when a peer asks for help (`share.rs`).

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    next: u64,
    /// Address by handle.
    handles: BTreeMap<u64, u64>,
    /// Lengths by address, and by handle for those with the same address.
    ranges: BTreeMap<(u64, u64), u64>,
}

/// Regions looked at for one address: of those that begin before it, nested ones apart, only the last can hold it.
const LOOKS: usize = 8;

impl Regions {
    /// A new handle.
    pub(crate) fn add(&mut self, address: u64, length: u64) -> u64 {
        self.next += 1;
        self.handles.insert(self.next, address);
        self.ranges.insert((address, self.next), length);
        self.next
    }

    /// Unknown handles are ignored.
    pub(crate) fn remove(&mut self, handle: u64) {
        if let Some(address) = self.handles.remove(&handle) {
            self.ranges.remove(&(address, handle));
        }
    }

    /// Is all of this range registered, in one piece? It may say no of a range in deeply nested regions.
    pub(crate) fn holds(&self, from: u64, length: u64) -> bool {
        let Some(end) = from.checked_add(length) else { return false };
        let mut before = self.ranges.range(..=(from, u64::MAX)).rev().take(LOOKS);
        before.any(|((address, _), size)| address.checked_add(*size).is_some_and(|limit| end <= limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_now_is_held() {
        let mut regions = Regions::default();
        let (a, b) = (regions.add(1000, 100), regions.add(1000, 50));
        assert!(regions.holds(1000, 100) && regions.holds(1050, 50) && regions.holds(1100, 0));
        assert!(!regions.holds(999, 2) && !regions.holds(1050, 51) && !regions.holds(0, 1));
        assert!(!regions.holds(1050, u64::MAX));
        regions.remove(a);
        assert!(regions.holds(1000, 50) && !regions.holds(1000, 51));
        regions.remove(a);
        regions.remove(b);
        assert!(!regions.holds(1000, 1));
        let end = regions.add(u64::MAX - 10, 10);
        assert!(regions.holds(u64::MAX - 10, 10) && !regions.holds(u64::MAX - 1, 2));
        regions.remove(end);
        assert!(regions.handles.is_empty() && regions.ranges.is_empty());
    }
}
