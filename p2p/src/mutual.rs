//! Detects whether reachability is mutual, so that processes need to exchange it only if it is not.
//!
//! Each process computes a digest of the peers it reaches; each pair contributes a term that both
//! compute identically. So all digests XOR to 0 if, and almost certainly only if, any two processes
//! that try each other reach each other by the same addresses of the best class of transports. This
//! detects faults, not forged digests.

use btl::Rank;

use crate::start::{NOT_TRIED, REACH_BYTES};

/// Returns the digest of [`Reach::best`](crate::Reach::best) of the process of this rank; `None` if
/// it does not reach all peers that it has tried. Of two processes, both try each other or neither
/// does. Reachability is mutual if no process has `None` and the digests of all processes XOR to 0.
#[must_use]
pub fn reach_digest(rank: Rank, mine: &[u8]) -> Option<u64> {
    let (mine, _) = mine.as_chunks::<REACH_BYTES>();
    let mut digest = 0;
    let tried = |(peer, reached): &(Rank, &[u8; _])| *peer != rank && **reached != NOT_TRIED;
    for (peer, reached) in (0..).zip(mine).filter(tried) {
        let reached = u64::from_le_bytes(*reached);
        if reached == 0 {
            return None;
        }
        let of_lower = if rank < peer {
            reached
        } else {
            mirror(reached)
        };
        let pair = u64::from(rank.min(peer)) << 32 | u64::from(rank.max(peer));
        digest ^= mix(mix(pair) ^ of_lower);
    }
    Some(digest)
}

/// Swaps the two sides: `own` reaches `theirs` becomes `theirs` reaches `own`.
fn mirror(reached: u64) -> u64 {
    let mut mirrored = 0;
    for own in 0..15 {
        if let Some(theirs) = (reached >> (4 * own) & 15).checked_sub(1) {
            mirrored |= (own + 1) << (4 * theirs);
        }
    }
    mirrored
}

/// Mixes all bits (the finalizer of splitmix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 5;

    /// Returns the reachability of [`SIZE`] processes, by rank and peer. In each pair, the first
    /// address of the lower rank reaches the second of the other, and the third the third; in pairs
    /// two ranks apart the fourth ones do, too.
    fn all() -> Vec<Vec<u64>> {
        let of = |rank: usize, peer: usize| match rank == peer {
            true => 0,
            false => {
                let fourth = u64::from(rank.abs_diff(peer) == 2) << 14;
                fourth | if rank < peer { 0x302 } else { 0x310 }
            }
        };
        (0..SIZE)
            .map(|rank| (0..SIZE).map(|peer| of(rank, peer)).collect())
            .collect()
    }

    fn bytes(reached: &[u64]) -> Vec<u8> {
        reached.iter().flat_map(|one| one.to_le_bytes()).collect()
    }

    fn digests(all: &[Vec<u64>]) -> Option<u64> {
        let digests = (0..)
            .zip(all)
            .map(|(rank, mine)| reach_digest(rank, &bytes(mine)));
        digests.reduce(|sum, digest| Some(sum? ^ digest?)).flatten()
    }

    #[test]
    fn marks_cancel_out_where_reachability_is_mutual() {
        let usual = all();
        assert_eq!(digests(&usual), Some(0));
        for (rank, peer) in [(0, 1), (0, 2), (4, 3)] {
            assert_eq!(mirror(usual[rank][peer]), usual[peer][rank]);
        }
    }

    #[test]
    fn marks_differ_where_one_side_reaches_less() {
        for (rank, peer) in (0..SIZE).flat_map(|rank| (0..SIZE).map(move |peer| (rank, peer))) {
            if rank == peer {
                continue;
            }
            let mut one = all();
            one[rank][peer] &= 0xff;
            assert!(digests(&one).is_some_and(|sum| sum != 0), "{rank} {peer}");
            one[rank][peer] = 0;
            assert_eq!(digests(&one), None, "{rank} {peer}");
        }
    }

    #[test]
    fn peers_that_are_not_tried_do_not_change_the_digest() {
        let mut some = all();
        let not_tried = u64::from_le_bytes(NOT_TRIED);
        (some[0][3], some[3][0]) = (not_tried, not_tried);
        assert_eq!(digests(&some), Some(0));
        // One of them has tried the other one.
        some[3][0] = all()[3][0];
        assert!(digests(&some).is_some_and(|sum| sum != 0));
    }

    #[test]
    fn a_mirror_of_a_mirror_is_the_original() {
        for reached in [0, 1, 0x10, 0x21, 0x2001, 0xf << 56 | 3] {
            assert_eq!(mirror(mirror(reached)), reached, "{reached:x}");
        }
        assert_eq!(mirror(0x302), 0x310);
    }
}
