//! Members of a communicator.

use btl::Rank;

use crate::ids::PeerId;

/// The members of a communicator, in the order of their ranks there.
#[derive(Debug)]
pub(crate) struct Group {
    /// Members by rank here; `None`: the whole job.
    members: Option<Vec<PeerId>>,
    /// Members with their ranks here, sorted.
    places: Vec<(PeerId, Rank)>,
    size: u32,
    /// The own rank here.
    pub(crate) mine: Rank,
}

impl Group {
    /// Returns the group of all ranks of the job.
    pub(crate) fn world(size: u32, own: PeerId) -> Group {
        Group {
            members: None,
            places: Vec::new(),
            size,
            mine: own.rank(),
        }
    }

    /// Returns the group of these members, none twice; `None` if the own rank is not a member.
    pub(crate) fn of(members: Vec<PeerId>, own: PeerId) -> Option<Group> {
        let mut places: Vec<(PeerId, Rank)> = members.iter().copied().zip(0..).collect();
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

    /// Returns the peer with this rank here.
    #[inline]
    pub(crate) fn peer(&self, rank: Rank) -> Option<PeerId> {
        match &self.members {
            None => PeerId::new(rank, self.size),
            Some(members) => members.get(rank as usize).copied(),
        }
    }

    /// Returns the rank here of a peer; `None` if it is not a member.
    pub(crate) fn local_rank(&self, peer: PeerId) -> Option<Rank> {
        if self.members.is_none() {
            return Some(peer.rank());
        }
        let at = self
            .places
            .binary_search_by_key(&peer, |place| place.0)
            .ok()?;
        self.places.get(at).map(|place| place.1)
    }
}
