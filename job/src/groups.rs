//! Groups of ranks: the first rank of each collects the values of its group, and each process reads
//! those of the groups, so that it reads about 2√n values instead of n.

use std::ops::Range;

use boot::Bootstrap;
use p2p::Rank;

/// The groups of a job's ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    size: u32,
    length: u32,
}

impl Groups {
    /// Returns the groups of a job.
    pub(crate) fn of(boot: &Bootstrap) -> Groups {
        Groups::new(boot.size())
    }

    fn new(size: u32) -> Groups {
        let length = size.isqrt().max(1);
        Groups { size, length }
    }

    /// Returns the ranks of the group whose first rank this is; `None` if it is not the first.
    pub(crate) fn led_by(self, rank: Rank) -> Option<Range<Rank>> {
        let end = self.size.min(rank.saturating_add(self.length));
        (rank.is_multiple_of(self.length) && rank < self.size).then_some(rank..end)
    }

    /// Returns the first rank of each group.
    pub(crate) fn leaders(self) -> impl Iterator<Item = Rank> {
        (0..self.size).step_by(self.length as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_in_one_group() {
        for size in [1, 2, 3, 9, 10, 65, 512] {
            let groups = Groups::new(size);
            let led = groups.leaders().filter_map(|leader| groups.led_by(leader));
            let all: Vec<Rank> = led.flatten().collect();
            assert_eq!(all, (0..size).collect::<Vec<_>>());
        }
        assert_eq!(Groups::new(9).led_by(4), None);
        assert_eq!(Groups::new(9).leaders().count(), 3);
    }
}
