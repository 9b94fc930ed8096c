//! Places of the processes of a job: which share a machine, and which a node.
//!
//! Small jobs take them from the addresses of all processes. Large ones collect the places by
//! groups ([`crate::groups`]).

use std::collections::HashMap;

use boot::{BootError, Bootstrap, MAX_VALUE};
use btl_eth::address::job_hash;
use p2p::Rank;

use crate::groups::Groups;
use crate::modex::ModexEntry;

// Keys of the bootstrap: the place of a process, and those of a group of processes.
const PLACE: &str = "place";
const PLACES: &str = "places";

/// Bytes of an encoded place.
const BYTES: usize = 16;

/// Machine and node of a process, equal if those are. (A virtual cluster has several nodes on one
/// machine.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) machine: u64,
    pub(crate) node: u64,
}

impl Place {
    /// Returns the place of a process.
    pub(crate) fn of(entry: &ModexEntry) -> Place {
        let first = |bytes: [u8; 16]| bytes.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        Place {
            machine: first(entry.boot),
            node: first(job_hash(&[&entry.boot[..], entry.node.as_bytes()].concat())),
        }
    }

    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let (machine, node) = bytes.split_at_mut(BYTES / 2);
        machine.copy_from_slice(&self.machine.to_le_bytes());
        node.copy_from_slice(&self.node.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; BYTES]) -> Place {
        let bits = u128::from_le_bytes(bytes);
        Place {
            machine: bits as u64,
            node: (bits >> 64) as u64,
        }
    }
}

/// Publishes the place of this process, for the next fence.
pub(crate) fn publish(boot: &mut Bootstrap, own: Place) -> Result<(), BootError> {
    boot.put(PLACE, &own.encode())
}

/// Returns the places of all processes by rank, after that fence. All processes call it. `None`: a
/// process has published none.
pub(crate) fn collect(boot: &mut Bootstrap) -> Result<Vec<Option<Place>>, BootError> {
    let groups = Groups::of(boot);
    if let Some(group) = groups.led_by(boot.rank()) {
        let mut all = Vec::new();
        for peer in group {
            let place = boot.get(peer, PLACE)?.unwrap_or_default();
            // A missing place is all zeros, which is not the place of any process.
            all.extend(<[u8; BYTES]>::try_from(place).unwrap_or([0; BYTES]));
        }
        for (part, bytes) in all.chunks(MAX_VALUE).enumerate() {
            boot.put(&format!("{PLACES}{part}"), bytes)?;
        }
    }
    boot.fence()?;
    let mut places = Vec::with_capacity(boot.size() as usize);
    for first in groups.leaders() {
        let ranks = groups.led_by(first).map_or(0, |group| group.len());
        let mut bytes = Vec::with_capacity(ranks * BYTES);
        for part in 0..(ranks * BYTES).div_ceil(MAX_VALUE) {
            let value = boot.get(first, &format!("{PLACES}{part}"))?;
            bytes.extend(value.unwrap_or_default());
        }
        bytes.resize(ranks * BYTES, 0);
        let (of_group, _) = bytes.as_chunks::<BYTES>();
        let place = |bytes: &[u8; BYTES]| (*bytes != [0; BYTES]).then(|| Place::decode(*bytes));
        places.extend(of_group.iter().map(place));
    }
    Ok(places)
}

/// Returns the number of each rank's node: that of its first rank. A rank whose place is unknown is
/// alone.
pub(crate) fn number_nodes(places: &[Option<Place>]) -> Vec<u32> {
    let mut first = HashMap::new();
    let mut numbers = Vec::with_capacity(places.len());
    for (rank, place) in (0..).zip(places) {
        numbers.push(match place {
            Some(place) => *first.entry(place).or_insert(rank),
            None => rank,
        });
    }
    numbers
}

/// Returns true if two processes are on one node.
pub(crate) fn is_near(places: &[Option<Place>], one: Rank, other: Rank) -> bool {
    let of = |rank: Rank| places.get(rank as usize).copied().flatten();
    of(one).is_some() && of(one) == of(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modex::BOOT;

    fn place(boot: u8, node: &str) -> Option<Place> {
        Some(Place::of(&ModexEntry {
            boot: [boot; BOOT],
            node: node.to_owned(),
            cpus: Vec::new(),
            addresses: Vec::new(),
        }))
    }

    #[test]
    fn ranks_of_one_name_and_boot_are_on_one_node() {
        let all = [
            place(1, "a"),
            place(1, "b"),
            place(1, "a"),
            None,
            // Containers of one name on two machines.
            place(2, "a"),
            None,
            place(1, "b"),
        ];
        assert_eq!(number_nodes(&all), [0, 1, 0, 3, 4, 5, 1]);
        assert!(is_near(&all, 0, 2) && !is_near(&all, 0, 4) && !is_near(&all, 3, 5));
        assert!(all[0].unwrap().machine == all[1].unwrap().machine);
        assert_eq!(Place::decode(all[1].unwrap().encode()), all[1].unwrap());
    }
}
