//! Agreement of all processes of a job: by which transports they reach each other, and whether the
//! job starts.

use boot::{BootError, Bootstrap, MAX_VALUE};
use p2p::{NOT_TRIED, REACH_BYTES, Rank, Reach, reach_digest};

use crate::error::printable;
use crate::groups::Groups;
use crate::modex::MAX_REASON;

// Keys of the bootstrap: digests of the reachable peers of a process and of a group of processes,
// reachable peers, and the reason why a process cannot start (empty if it starts).
const DIGEST: &str = "digest";
const DIGESTS: &str = "digests";
const REACH: &str = "reach";
const VERDICT: &str = "verdict";

/// Determines whether all processes reach each other by the same transports. Returns `None` if they
/// do, otherwise the reachability of this process that each rank has published.
pub(crate) fn agree_on_reach(
    boot: &mut Bootstrap,
    mine: &Reach,
) -> Result<Option<Vec<u8>>, BootError> {
    let digest = reach_digest(boot.rank(), &mine.best);
    match sum_of_digests(boot, digest)? {
        Some(0) => Ok(None),
        _ => exchange_reach(boot, &mine.all).map(Some),
    }
}

/// Returns the exclusive or of all processes' digests; `None` if one has none. The first process of
/// each group reads the digests of its group, and all read those of the groups: about 2√n values.
fn sum_of_digests(boot: &mut Bootstrap, digest: Option<u64>) -> Result<Option<u64>, BootError> {
    let encode =
        |digest: Option<u64>| digest.map_or(Vec::new(), |digest| digest.to_le_bytes().to_vec());
    let groups = Groups::of(boot);
    boot.put(DIGEST, &encode(digest))?;
    boot.fence()?;
    if let Some(group) = groups.led_by(boot.rank()) {
        let sum = read_digests(boot, DIGEST, group)?;
        boot.put(DIGESTS, &encode(sum))?;
    }
    boot.fence()?;
    read_digests(boot, DIGESTS, groups.leaders())
}

/// Returns the exclusive or of the digests that these ranks published; `None` if one has none.
fn read_digests(
    boot: &mut Bootstrap,
    key: &str,
    ranks: impl Iterator<Item = Rank>,
) -> Result<Option<u64>, BootError> {
    let mut sum = Some(0);
    for rank in ranks {
        let note = boot.get(rank, key)?;
        let digest = note.and_then(|note| Some(u64::from_le_bytes(note.try_into().ok()?)));
        sum = sum.zip(digest).map(|(sum, digest)| sum ^ digest);
    }
    Ok(sum)
}

/// Exchanges the transports by which each process reaches those that it has tried, including
/// itself: publishes the parts of `mine` that concern these, and returns the part that each of them
/// published for this process. Two processes that try each other try the same set of processes.
fn exchange_reach(boot: &mut Bootstrap, mine: &[u8]) -> Result<Vec<u8>, BootError> {
    let (all, _) = mine.as_chunks::<REACH_BYTES>();
    let tried: Vec<_> = all.iter().filter(|reach| **reach != NOT_TRIED).collect();
    for (part, bytes) in tried.chunks(MAX_VALUE / REACH_BYTES).enumerate() {
        let bytes: Vec<u8> = bytes.iter().flat_map(|reach| **reach).collect();
        boot.put(&format!("{REACH}{part}"), &bytes)?;
    }
    boot.fence()?;
    let before = all.iter().take(boot.rank() as usize);
    let at = REACH_BYTES * before.filter(|reach| **reach != NOT_TRIED).count();
    let (key, at) = (format!("{REACH}{}", at / MAX_VALUE), at % MAX_VALUE);
    let mut theirs = Vec::new();
    for (peer, reach) in (0..boot.size()).zip(all) {
        let note = match *reach == NOT_TRIED {
            true => None,
            false => boot.get(peer, &key)?,
        };
        // A process that failed before reaches no peer.
        let reported = note
            .as_deref()
            .and_then(|note| note.get(at..at + REACH_BYTES));
        theirs.extend_from_slice(reported.unwrap_or(&[0; REACH_BYTES]));
    }
    Ok(theirs)
}

/// Publishes why this process cannot start (`None`: it can), and returns the first rank that cannot
/// start, with its reason; `None` if all can, or this process cannot.
pub(crate) fn agree_on_start(
    boot: &mut Bootstrap,
    trouble: Option<&str>,
) -> Result<Option<(Rank, String)>, BootError> {
    let words = printable(trouble.unwrap_or_default(), MAX_REASON);
    boot.put(VERDICT, words.as_bytes())?;
    boot.fence()?;
    for rank in (0..boot.size()).filter(|_| trouble.is_none()) {
        let reported = boot.get(rank, VERDICT)?;
        let reported = reported.unwrap_or_else(|| b"it did not report whether it started".to_vec());
        if !reported.is_empty() {
            let what = printable(&String::from_utf8_lossy(&reported), MAX_REASON);
            return Ok(Some((rank, what)));
        }
    }
    Ok(None)
}
