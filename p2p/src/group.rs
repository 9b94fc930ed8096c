//! Which ranks of the job a communicator consists of.

use btl::Rank;

/// The members of a communicator, in their order there.
#[derive(Debug)]
pub(crate) struct Group {
    /// Ranks in the job by rank here; `None`: all, in order.
    members: Option<Vec<Rank>>,
    /// (rank in the job, rank here), sorted.
    places: Vec<(Rank, Rank)>,
    size: u32,
    /// The own rank here.
    pub(crate) mine: Rank,
}

impl Group {
    /// The whole job.
    pub(crate) fn world(size: u32, mine: Rank) -> Group {
        Group {
            members: None,
            places: Vec::new(),
            size,
            mine,
        }
    }

    /// These ranks of the job, without repetition; `None` when the own one is not among them.
    pub(crate) fn of(members: Vec<Rank>, own: Rank) -> Option<Group> {
        let mut places: Vec<(Rank, Rank)> = members.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let mine = places.iter().find(|place| place.0 == own)?.1;
        let size = u32::try_from(members.len()).ok()?;
        Some(Group {
            members: Some(members),
            places,
            size,
            mine,
        })
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Rank in the job.
    pub(crate) fn world_rank(&self, rank: Rank) -> Option<Rank> {
        match &self.members {
            None => (rank < self.size).then_some(rank),
            Some(members) => members.get(rank as usize).copied(),
        }
    }

    /// Rank here of a rank of the job.
    pub(crate) fn local_rank(&self, world: Rank) -> Option<Rank> {
        if self.members.is_none() {
            return (world < self.size).then_some(world);
        }
        let at = self
            .places
            .binary_search_by_key(&world, |place| place.0)
            .ok()?;
        self.places.get(at).map(|place| place.1)
    }

    /// The members' ranks in the job.
    pub(crate) fn world_ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size).filter_map(|rank| self.world_rank(rank))
    }
}
