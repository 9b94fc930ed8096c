//! Number of CPUs that the processes of a node share. Where a launcher pins each process to its own
//! CPUs, they share none.

use std::collections::BTreeSet;

use crate::modex::ModexEntry;
use crate::places::Place;

/// Returns the CPUs that this process may run on, one bit each, lowest first; empty if unknown.
pub(crate) fn own() -> Vec<u8> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    let mut bits = Vec::new();
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
        bits.resize(cpu / 8 + 1, 0u8);
        if let Some(byte) = bits.last_mut() {
            *byte |= 1 << (cpu % 8);
        }
    }
    bits
}

/// Returns the number of CPUs that the processes of this machine have in total, limited by the
/// quota of the control group; `None` if it is unknown. `others` are processes of this machine.
/// `available` is the number that the standard library reports for this process, which includes the
/// quota.
pub(crate) fn together<'a>(
    own: &ModexEntry,
    others: impl Iterator<Item = &'a ModexEntry>,
    available: usize,
) -> Option<u32> {
    let mut union = own.cpus.clone();
    for peer in others.filter(|peer| peer.boot == own.boot) {
        union.resize(union.len().max(peer.cpus.len()), 0);
        union
            .iter_mut()
            .zip(&peer.cpus)
            .for_each(|(sum, byte)| *sum |= byte);
    }
    let mine = count(&own.cpus);
    // Fewer than the set contains: there is a quota.
    let is_limited = available < mine;
    let count = if is_limited { available } else { count(&union) };
    u32::try_from(count).ok().filter(|count| *count > 0)
}

/// Returns the number of processes of this machine that need a CPU while the job communicates: its
/// ranks, and the daemon of each of its nodes if nodes communicate through daemons. A rank that
/// spins on its daemon's CPU delays itself.
pub(crate) fn busy(own: Place, all: &[Option<Place>], by_daemons: bool) -> u32 {
    let known = || all.iter().flatten();
    let here = || known().filter(|place| place.machine == own.machine);
    let several = known().any(|place| *place != own);
    let nodes: BTreeSet<&Place> = here().collect();
    let by_daemons = by_daemons && several;
    let daemons = if by_daemons { nodes.len() } else { 0 };
    u32::try_from(here().count() + daemons)
        .unwrap_or(u32::MAX)
        .max(1)
}

fn count(cpus: &[u8]) -> usize {
    cpus.iter().map(|byte| byte.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(cpus: &[u8], boot: u8) -> ModexEntry {
        ModexEntry {
            boot: [boot; 16],
            node: "n".into(),
            cpus: cpus.to_vec(),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn cpus_of_pinned_processes_are_added() {
        let all = [on(&[1], 1), on(&[2], 1), on(&[0, 1], 1), on(&[0xff], 2)];
        assert_eq!(together(&all[0], all.iter(), 1), Some(3));
        assert_eq!(together(&all[3], all.iter(), 8), Some(8));
    }

    #[test]
    fn daemons_need_a_cpu_where_nodes_communicate() {
        let at = |machine, node| Some(Place { machine, node });
        let busy = |rank: usize, all: &[Option<Place>], by_daemons| {
            busy(all[rank].unwrap(), all, by_daemons)
        };
        assert_eq!(busy(0, &[at(1, 1), at(1, 1), None], true), 2);
        let virtual_cluster = [at(1, 1), at(1, 2)];
        assert_eq!(busy(0, &virtual_cluster, true), 4);
        assert_eq!(busy(0, &virtual_cluster, false), 2);
        let two_machines = [at(1, 1), at(1, 1), at(2, 3)];
        assert_eq!(busy(0, &two_machines, true), 3);
        assert_eq!(busy(2, &two_machines, true), 2);
    }

    #[test]
    fn a_quota_counts_and_unknown_cpus_do_not() {
        let all = [on(&[0xff], 1), on(&[], 1)];
        assert_eq!(together(&all[0], all.iter(), 2), Some(2));
        assert_eq!(together(&on(&[], 3), all.iter(), 4), None);
        assert!(count(&own()) >= 1);
    }
}
