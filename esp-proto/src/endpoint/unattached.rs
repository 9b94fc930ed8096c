//! Bound of the connections that peers have opened and no program has accepted (W-24).

use alloc::vec::Vec;

/// Numbers of connections that wait for `attach`, half-open ones included.
#[derive(Debug)]
pub(super) struct Unattached {
    /// By owner.
    of: Vec<usize>,
    /// Total of all owners except 0.
    sum: usize,
    /// Size of the table.
    table: usize,
}

impl Unattached {
    /// Creates the counters for a table of this size.
    pub(super) fn new(table: usize) -> Self {
        let of = Vec::new();
        Unattached { of, sum: 0, table }
    }

    /// Returns true if an owner may get no more, so that others find room in the table. Half of the
    /// room is reserved for peers that have proven their address (W-150), in case of a flood of
    /// forged SYNs.
    pub(super) fn is_full(&self, owner: u32, proven: bool) -> bool {
        let of = self.of.get(owner as usize).copied().unwrap_or(0);
        let room = if proven { self.table } else { self.table / 2 };
        owner != 0 && (of >= room / 4 || self.sum >= room / 2)
    }

    /// Counts a new connection.
    pub(super) fn add(&mut self, owner: u32) {
        let index = owner as usize;
        if self.of.len() <= index {
            self.of.resize(index + 1, 0);
        }
        if let Some(of) = self.of.get_mut(index).filter(|_| owner != 0) {
            *of += 1;
            self.sum += 1;
        }
    }

    /// Removes one that was attached, or has ended.
    pub(super) fn remove(&mut self, owner: u32) {
        if let Some(of) = self.of.get_mut(owner as usize).filter(|of| **of > 0) {
            *of -= 1;
            self.sum -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_a_quarter_and_all_have_half() {
        let mut counts = Unattached::new(16);
        let full = |counts: &Unattached, owner| [false, true].map(|it| counts.is_full(owner, it));
        let add = |counts: &mut Unattached, owner, times| {
            (0..times).for_each(|_| counts.add(owner));
        };
        add(&mut counts, 1, 1);
        assert_eq!(full(&counts, 1), [false, false]);
        add(&mut counts, 1, 1);
        assert_eq!(
            (full(&counts, 1), full(&counts, 2)),
            ([true, false], [false; 2])
        );
        add(&mut counts, 1, 2);
        assert_eq!(
            (full(&counts, 1), full(&counts, 2)),
            ([true; 2], [true, false])
        );
        add(&mut counts, 2, 4);
        assert_eq!(
            (full(&counts, 9), full(&counts, 0)),
            ([true; 2], [false; 2])
        );
        counts.remove(1);
        counts.remove(7);
        assert_eq!(
            (full(&counts, 1), full(&counts, 2)),
            ([true, false], [true; 2])
        );
    }
}
