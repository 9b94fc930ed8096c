//! Joins a job: bootstrap, transports, exchange of addresses, p2p.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use boot::{BootError, Bootstrap, MAX_VALUE};
use p2p::{NOT_TRIED, P2p, REACH_BYTES, Rank, Reach, Setup, reach_digest};

use crate::book::{Book, Entries, Nodes, read_entry};
use crate::error::printable;
use crate::groups::Groups;
use crate::modex::{BOOT, MAX_REASON, ModexEntry};
use crate::places::{self, Place};
use crate::protection::Secret;
use crate::report::{self, Report};
use crate::transports::{self, Made, TransportSetup};
use crate::{Job, JoinError, Options, cpus};

// Keys of the bootstrap: addresses of transports, digests of the reachable peers of a process and
// of a group of processes, reachable peers, and the reason why a process cannot start (empty if it
// starts).
pub(crate) const ADDRESSES: &str = "addresses";
const DIGEST: &str = "mark";
const DIGESTS: &str = "marks";
const REACH: &str = "reach";
const VERDICT: &str = "verdict";

/// Joins the job for which this process was started, as described by the environment.
///
/// # Errors
/// The reason why this or another process cannot start.
pub fn join() -> Result<Job, JoinError> {
    join_with(Options::from_env()?)
}

/// Joins the job with the given options instead of those of the environment.
///
/// # Errors
/// As [`join`].
pub fn join_with(options: Options) -> Result<Job, JoinError> {
    let node = node_name();
    let boot = boot::detect().map_err(|source| JoinError::Boot { node, source })?;
    join_by(boot, options)
}

/// Joins the job by the given bootstrap instead of the launcher that the environment names.
///
/// # Errors
/// As [`join`].
pub fn join_by(boot: Bootstrap, options: Options) -> Result<Job, JoinError> {
    let node = node_name();
    let verbose = options.verbose;
    let (boot, nodes) = (Arc::new(Mutex::new(boot)), Nodes::default());
    match start(&boot, options, (&node, &nodes)) {
        Ok((p2p, report)) => {
            let world = p2p.world();
            Ok(Job {
                boot,
                nodes,
                p2p,
                world,
                report,
                verbose,
            })
        }
        Err(StartFailure::Boot(source)) => Err(JoinError::Boot { node, source }),
        // All processes know of the failure, so each leaves gracefully.
        Err(StartFailure::Agreed(error)) => {
            let mut boot = boot.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = boot.finalize();
            Err(error)
        }
    }
}

/// Reason why the job did not start.
enum StartFailure {
    /// The launcher failed, so the other processes cannot be informed.
    Boot(BootError),
    /// Another failure, which all processes know.
    Agreed(JoinError),
}

impl From<BootError> for StartFailure {
    fn from(error: BootError) -> StartFailure {
        StartFailure::Boot(error)
    }
}

fn start(
    shared: &Arc<Mutex<Bootstrap>>,
    options: Options,
    (node, nodes): (&str, &Nodes),
) -> Result<(P2p, Report), StartFailure> {
    let boot = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
    let (rank, size) = (boot.rank(), boot.size());
    let secret = Secret::agree(boot, &options)?;
    let name = secret.name();
    let place = TransportSetup {
        rank,
        size,
        key: &name,
        protection: secret.protection(&options),
        only_protected: secret.excludes(&options),
        lazy: secret.is_lazy(),
        options: &options,
    };
    let Made {
        transports,
        without,
        by_daemon,
    } = transports::make(&place);
    let protection = place.protection.as_ref().ok();
    let protection = protection.and_then(|protection| secret.describe(protection));
    let mut setup = Setup {
        rank,
        size,
        transports,
        config: options.p2p.clone(),
    };
    let addresses = P2p::addresses(&setup);
    let own = ModexEntry {
        boot: boot_id(),
        node: node.to_owned(),
        cpus: cpus::own(),
        addresses,
    };
    boot.put(ADDRESSES, &own.encode())?;
    let own_place = Place::of(&own);
    if secret.is_lazy() {
        places::publish(boot, own_place)?;
    }
    boot.fence()?;
    let mut entries = Entries::new();
    let places = if secret.is_lazy() {
        let places = places::collect(boot)?;
        for peer in (0..size).filter(|peer| places::is_near(&places, rank, *peer)) {
            entries.insert(peer, read_entry(boot, peer)?);
        }
        places
    } else {
        for peer in 0..size {
            entries.insert(peer, read_entry(boot, peer)?);
        }
        let place = |entry: &Result<ModexEntry, _>| entry.as_ref().ok().map(Place::of);
        entries.values().map(place).collect()
    };
    // The other nodes are assumed to have this node's policy.
    setup.config.local_ranks = cpus::busy(own_place, &places, by_daemon);
    if setup.config.cpus.is_none() {
        let available =
            std::thread::available_parallelism().map_or(usize::MAX, std::num::NonZero::get);
        setup.config.cpus = cpus::together(&own, entries.values().flatten(), available);
    }

    if setup.config.nodes.is_empty() {
        setup.config.nodes = places::number_nodes(&places);
    }

    let known = |(peer, entry): (&Rank, &Result<ModexEntry, _>)| {
        let entry = entry.as_ref().ok()?;
        Some((*peer, entry.node.clone()))
    };
    let names: BTreeMap<Rank, String> = entries.iter().filter_map(known).collect();
    let name = |peer: Rank| names.get(&peer).cloned().unwrap_or_else(|| "?".to_owned());
    nodes
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone_from(&names);
    let addresses = |entry: &Result<ModexEntry, String>| match entry {
        Ok(entry) => Ok(entry.addresses.clone()),
        Err(why) => Err(why.clone()),
    };
    let near = entries
        .iter()
        .map(|(peer, entry)| (*peer, addresses(entry)));
    let book = Book {
        boot: Arc::clone(shared),
        own: rank,
        near: near.collect(),
        nodes: Arc::clone(nodes),
        without: without.clone(),
        verbose: options.verbose,
    };
    let (mut is_exchanged, mut is_mutual, mut broken) = (false, false, None);
    let started = P2p::start_lazily(setup, Box::new(book), |mine| {
        is_exchanged = true;
        let theirs = agree_on_reach(boot, mine).map_err(|error| {
            let words = error.to_string();
            broken = Some(error);
            words
        })?;
        is_mutual = theirs.is_none();
        Ok(theirs)
    });
    if !is_exchanged {
        // This process has failed already, but the others wait for its part.
        broken = agree_on_reach(boot, &Reach::none(size)).err();
    }
    if let Some(error) = broken {
        return Err(StartFailure::Boot(error));
    }
    // The transports of a failed start stay until all have reported: otherwise other processes
    // would report the lost memory instead of the reason.
    let started =
        started.map_err(|failed| (explain(&failed.error, &without, &name), failed.transports));
    let trouble = started.as_ref().err().map(|(what, _)| what.as_str());
    if !is_mutual {
        agree_on_start(boot, trouble, &name)?;
    }
    let p2p = started.map_err(|(what, _)| {
        let node = node.to_owned();
        StartFailure::Agreed(JoinError::Here { rank, node, what })
    })?;
    let report = Report {
        rank,
        size,
        launcher: boot.launcher(),
        nodes: names,
        without,
        protection,
        thresholds_from: options.thresholds_from,
        paths: p2p.paths(),
    };
    if options.verbose {
        report::say(&report.to_string());
    }
    Ok((p2p, report))
}

/// Determines whether all processes reach each other by the same transports. Returns `None` if they
/// do, otherwise the reachability of this process that each rank has published.
fn agree_on_reach(boot: &mut Bootstrap, mine: &Reach) -> Result<Option<Vec<u8>>, BootError> {
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

/// Exchanges the outcomes of the start: either all processes start, or none does. `trouble` is the
/// reason why this process cannot start, which the caller reports.
fn agree_on_start(
    boot: &mut Bootstrap,
    trouble: Option<&str>,
    name: &dyn Fn(Rank) -> String,
) -> Result<(), StartFailure> {
    let words = printable(trouble.unwrap_or_default(), MAX_REASON);
    boot.put(VERDICT, words.as_bytes())?;
    boot.fence()?;
    for rank in (0..boot.size()).filter(|_| trouble.is_none()) {
        let reported = boot.get(rank, VERDICT)?;
        let reported = reported.unwrap_or_else(|| b"it did not report whether it started".to_vec());
        if !reported.is_empty() {
            let what = printable(&String::from_utf8_lossy(&reported), MAX_REASON);
            let node = name(rank);
            return Err(StartFailure::Agreed(JoinError::Elsewhere {
                rank,
                node,
                what,
            }));
        }
    }
    Ok(())
}

/// Formats the error of p2p together with the transports that could not be created.
fn explain(
    error: &p2p::StartError,
    without: &[(&'static str, String)],
    name: &dyn Fn(Rank) -> String,
) -> String {
    let mut text = match error {
        p2p::StartError::Unreachable { peer, reasons } => {
            format!(
                "rank {peer} on node {} cannot be reached:\n{}",
                name(*peer),
                reasons.trim_end()
            )
        }
        other => other.to_string(),
    };
    text.push_str(&report::missing(without));
    text
}

fn node_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    printable(&name, 64).replace('\n', " ")
}

/// Returns the random number of this boot of the machine, or zeros if the kernel has none.
fn boot_id() -> [u8; BOOT] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .unwrap_or_default()
        .to_be_bytes()
}
