//! Members of a communicator.

use btl::Rank;

use crate::ids::PeerId;

/// The members of a communicator, in the order of their ranks there.
#[derive(Debug)]
pub(crate) struct Group {
    /// Members by rank in the communicator.
    members: Vec<PeerId>,
    /// Members with their ranks in the communicator, sorted.
    places: Vec<(PeerId, Rank)>,
    /// This process's rank in the communicator.
    pub(crate) mine: Rank,
}

impl Group {
    /// Returns the group of these members, each listed once; `None` if this process is not a
    /// member.
    pub(crate) fn of(members: Vec<PeerId>, own: PeerId) -> Option<Group> {
        let mut places: Vec<(PeerId, Rank)> = members.iter().copied().zip(0..).collect();
        places.sort_unstable();
        let mine = places.iter().find(|place| place.0 == own)?.1;
        Some(Group {
            members,
            places,
            mine,
        })
    }

    pub(crate) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the peer with this rank in the communicator.
    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Option<PeerId> {
        self.members.get(rank as usize).copied()
    }

    /// Returns a peer's rank in the communicator; `None` if it is not a member.
    pub(crate) fn local_rank(&self, peer: PeerId) -> Option<Rank> {
        let at = self.places.binary_search_by_key(&peer, |place| place.0);
        at.ok().map(|at| self.places[at].1)
    }
}
