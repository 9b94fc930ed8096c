//! Joining, step by step.

use std::fs;
use std::sync::Mutex;

use boot::{BootError, Bootstrap};
use p2p::{P2p, REACH_BYTES, Rank, Setup};

use crate::card::{BOOT, Introduction, MAX_REASON};
use crate::error::printable;
use crate::report::{self, Report};
use crate::transports::{self, Made, Place};
use crate::{Job, JoinError, Options, cpus};

/// Notes of a starting job: the key that rank 0 has made up, the business cards, who is reached by
/// them, how it went.
const KEY: &str = "key";
const CARDS: &str = "cards";
const REACH: &str = "reach";
const VERDICT: &str = "verdict";
/// Bytes of the key.
const KEY_LENGTH: usize = 16;

/// Joins the job that this process was started for, as the environment says.
///
/// # Errors
/// What is in the way, here or in another process, and what to do.
pub fn join() -> Result<Job, JoinError> {
    join_with(Options::from_env()?)
}

/// The same with options of the program's own.
///
/// # Errors
/// As [`join`].
pub fn join_with(options: Options) -> Result<Job, JoinError> {
    let node = node_name();
    let boot = boot::detect().map_err(|source| JoinError::Boot { node, source })?;
    join_by(boot, options)
}

/// The same by a bootstrap of the program's own.
///
/// # Errors
/// As [`join`].
pub fn join_by(mut boot: Box<dyn Bootstrap>, options: Options) -> Result<Job, JoinError> {
    let node = node_name();
    let verbose = options.verbose;
    match start(&mut *boot, options, &node) {
        Ok((p2p, report)) => {
            let world = p2p.world();
            Ok(Job {
                boot: Mutex::new(boot),
                p2p,
                world,
                report,
                verbose,
            })
        }
        Err(Trouble::Boot(source)) => Err(JoinError::Boot { node, source }),
        // All processes know, and each leaves in order: the launcher has nothing to complain about.
        Err(Trouble::Told(error)) => {
            let _ = boot.finalize();
            Err(error)
        }
    }
}

/// Why it did not work.
enum Trouble {
    /// The launcher: nobody can be told.
    Boot(BootError),
    /// Something else, which all processes know.
    Told(JoinError),
}

impl From<BootError> for Trouble {
    fn from(error: BootError) -> Trouble {
        Trouble::Boot(error)
    }
}

fn start(boot: &mut dyn Bootstrap, options: Options, node: &str) -> Result<(P2p, Report), Trouble> {
    let (rank, size) = (boot.rank(), boot.size());
    let key = agree_on_key(boot)?;
    let place = Place {
        rank,
        size,
        key: &key,
        options: &options,
    };
    let Made {
        transports,
        without,
        by_daemon,
    } = transports::make(&place);
    let mut setup = Setup {
        rank,
        size,
        transports,
        config: options.p2p.clone(),
    };
    let cards = P2p::addresses(&setup);
    let own = Introduction {
        boot: boot_id(),
        node: node.to_owned(),
        cpus: cpus::own(),
        cards,
    };
    boot.put(CARDS, &own.encode())?;
    boot.fence()?;
    let mut all = Vec::new();
    for peer in 0..size {
        let note = boot.get(peer, CARDS)?;
        let read = note.ok_or_else(|| "it left no business cards".to_owned());
        all.push(read.and_then(|bytes| Introduction::decode(&bytes)));
    }
    // The others' nodes are taken to have the same policy.
    setup.config.local_ranks = cpus::busy(&own, || all.iter().flatten(), by_daemon);
    if setup.config.cpus.is_none() {
        let available =
            std::thread::available_parallelism().map_or(usize::MAX, std::num::NonZero::get);
        setup.config.cpus = cpus::together(&own, all.iter().flatten(), available);
    }

    let name = |peer: Rank| match all.get(peer as usize) {
        Some(Ok(peer)) => peer.node.clone(),
        _ => "?".to_owned(),
    };
    let cards = |peer: Rank| match all.get(peer as usize) {
        Some(Ok(peer)) => Ok(peer.cards.clone()),
        Some(Err(why)) => Err(why.clone()),
        None => Err("there is no such rank".into()),
    };
    let mut reach = Reach {
        told: false,
        broken: None,
    };
    let started = P2p::start_agreed(setup, cards, |mine| reach.exchange(boot, mine));
    if !reach.told {
        // It did not come so far, and the others wait all the same.
        let _ = reach.exchange(boot, &vec![0; size as usize * REACH_BYTES]);
    }
    if let Some(error) = reach.broken {
        return Err(Trouble::Boot(error));
    }
    // What did not start stays until everybody has said how it went: without its memory, others
    // would find only that it is gone.
    let started =
        started.map_err(|failed| (explain(&failed.error, &without, &name), failed.transports));
    agree_on_start(
        boot,
        started.as_ref().err().map(|(what, _)| what),
        node,
        &name,
    )?;
    let p2p = match started {
        Ok(p2p) => p2p,
        // `agree_on_start` has said so already.
        Err((what, _)) => {
            return Err(Trouble::Told(JoinError::Here {
                rank,
                node: node.to_owned(),
                what,
            }));
        }
    };
    let report = Report {
        rank,
        size,
        launcher: boot.launcher(),
        nodes: (0..size).map(name).collect(),
        without,
        thresholds_from: options.thresholds_from,
        paths: p2p.paths(),
    };
    if options.verbose {
        report::say(&report.to_string());
    }
    Ok((p2p, report))
}

/// A key that only the processes of this job know: launchers use the names of jobs again, and
/// others can guess them.
fn agree_on_key(boot: &mut dyn Bootstrap) -> Result<String, Trouble> {
    let wrong = |what: String| BootError::Protocol {
        launcher: "job",
        what,
    };
    if boot.rank() == 0 {
        let mut key = [0; KEY_LENGTH];
        getrandom::fill(&mut key).map_err(|e| wrong(format!("no random numbers: {e}")))?;
        boot.put(KEY, &key)?;
    }
    boot.fence()?;
    let key = boot.get(0, KEY)?.filter(|key| key.len() == KEY_LENGTH);
    let key = key.ok_or_else(|| wrong("rank 0 did not say the key of the job".into()))?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What processes tell each other of their ways.
struct Reach {
    told: bool,
    /// The launcher failed meanwhile.
    broken: Option<BootError>,
}

impl Reach {
    /// Hands out what this process reaches, some bytes for each rank, and answers what each rank
    /// said of this process.
    fn exchange(&mut self, boot: &mut dyn Bootstrap, mine: &[u8]) -> Result<Vec<u8>, String> {
        self.told = true;
        let (rank, size) = (boot.rank(), boot.size());
        let mut exchange = || -> Result<Vec<u8>, BootError> {
            for (part, bytes) in mine.chunks(boot::MAX_VALUE).enumerate() {
                boot.put(&format!("{REACH}{part}"), bytes)?;
            }
            boot.fence()?;
            let at = rank as usize * REACH_BYTES;
            let (key, at) = (
                format!("{REACH}{}", at / boot::MAX_VALUE),
                at % boot::MAX_VALUE,
            );
            let mut theirs = Vec::new();
            for peer in 0..size {
                // Who did not come so far reaches nobody.
                let note = boot.get(peer, &key)?;
                let said = note
                    .as_ref()
                    .and_then(|note| note.get(at..at + REACH_BYTES));
                theirs.extend_from_slice(said.unwrap_or(&[0; REACH_BYTES]));
            }
            Ok(theirs)
        };
        exchange().map_err(|error| {
            let words = error.to_string();
            self.broken = Some(error);
            words
        })
    }
}

/// Tells all processes how it went here, and hears how it went there: either all start, or none
/// does.
fn agree_on_start(
    boot: &mut dyn Bootstrap,
    trouble: Option<&String>,
    node: &str,
    name: &dyn Fn(Rank) -> String,
) -> Result<(), Trouble> {
    let rank = boot.rank();
    let words = trouble
        .map(|what| printable(what, MAX_REASON))
        .unwrap_or_default();
    boot.put(VERDICT, words.as_bytes())?;
    boot.fence()?;
    if let Some(what) = trouble {
        let what = what.clone();
        return Err(Trouble::Told(JoinError::Here {
            rank,
            node: node.to_owned(),
            what,
        }));
    }
    for peer in 0..boot.size() {
        let said = boot
            .get(peer, VERDICT)?
            .unwrap_or_else(|| b"it did not say how it went".to_vec());
        if !said.is_empty() {
            let what = printable(&String::from_utf8_lossy(&said), MAX_REASON);
            return Err(Trouble::Told(JoinError::Elsewhere {
                rank: peer,
                node: name(peer),
                what,
            }));
        }
    }
    Ok(())
}

/// What the layer said, and which transports were missing when it said so.
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
    for (transport, why) in without {
        text.push_str(&format!("\n{transport}: not there: {why}"));
    }
    text
}

fn node_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    printable(&name, 64).replace('\n', " ")
}

/// Random number of this boot of the machine; zeros where the kernel does not say.
fn boot_id() -> [u8; BOOT] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .unwrap_or_default()
        .to_be_bytes()
}
