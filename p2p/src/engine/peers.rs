//! The table of peers.

use std::ops::{Index, IndexMut};

use btl::Rank;

use super::peer::Peer;
use crate::ids::PeerId;

/// All peers of the job by rank; the own rank is one of them.
#[derive(Debug)]
pub(crate) struct Peers(Vec<Peer>);

impl Peers {
    pub(crate) fn new(peers: Vec<Peer>) -> Peers {
        Peers(peers)
    }

    /// Returns the number of ranks in the job.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.0.len() as u32
    }

    /// Checks a rank that a transport reports.
    #[inline]
    pub(crate) fn id(&self, rank: Rank) -> Option<PeerId> {
        PeerId::new(rank, self.size())
    }

    /// Iterates over all ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        let size = self.size();
        (0..size).filter_map(move |rank| PeerId::new(rank, size))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.ids().zip(&self.0)
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.0[peer.rank() as usize]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.0[peer.rank() as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_of_the_job_have_an_entry() {
        let mut peers = Peers::new(vec![Peer::own(), Peer::own()]);
        assert_eq!(peers.id(2), None);
        assert_eq!(PeerId::new(u32::MAX, 2), None);
        for peer in peers.ids() {
            peers[peer].late = true;
        }
        assert!(peers.iter().all(|(_, peer)| peer.late));
    }

    /// An id of a larger job is an error that is seen, not one that is ignored.
    #[test]
    #[should_panic(expected = "out of bounds")]
    fn an_id_outside_the_table_panics() {
        let peers = Peers::new(vec![Peer::own()]);
        let other = PeerId::new(1, 2).unwrap();
        let _ = &peers[other];
    }
}
