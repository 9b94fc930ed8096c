//! Joins a job: bootstrap, transports, exchange of addresses, p2p.

use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use boot::{BootError, Bootstrap};
use p2p::{P2p, Rank, Reach, Setup};

use crate::agree::{agree_on_reach, agree_on_start};
use crate::book::{Book, Names, Nodes};
use crate::error::printable;
use crate::modex::{BOOT, ModexEntry};
use crate::peers::Peers;
use crate::protection::Secret;
use crate::report::{self, Report};
use crate::transports::{self, Made, TransportSetup};
use crate::{Job, JoinError, Options, cpus};

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
    let own = ModexEntry {
        boot: boot_id(),
        node: node.to_owned(),
        cpus: cpus::own(),
        addresses: P2p::addresses(&setup),
    };
    let peers = Peers::exchange(boot, own, secret.is_lazy())?;
    peers.configure(&mut setup.config, by_daemon);
    let names = peers.names();
    let known = nodes.lock();
    known
        .unwrap_or_else(PoisonError::into_inner)
        .clone_from(&names);
    let book = Book {
        boot: Arc::clone(shared),
        own: rank,
        near: peers.into_addresses(),
        nodes: Arc::clone(nodes),
        without: without.clone(),
        verbose: options.verbose,
    };
    let explain = |error: &p2p::StartError| explain(error, &without, &names);
    let p2p = start_together(boot, setup, book, (node, &names), &explain)?;
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

/// Starts p2p. Either all processes start, or none does.
fn start_together(
    boot: &mut Bootstrap,
    setup: Setup,
    book: Book,
    (node, names): (&str, &Names),
    explain: &dyn Fn(&p2p::StartError) -> String,
) -> Result<P2p, StartFailure> {
    let (rank, size) = (setup.rank, setup.size);
    let mut exchanged = None;
    let started = P2p::start_lazily(setup, Box::new(book), |mine| {
        let (outcome, theirs) = match agree_on_reach(boot, mine) {
            Ok(theirs) => (Ok(theirs.is_none()), Ok(theirs)),
            Err(error) => {
                let text = error.to_string();
                (Err(error), Err(text))
            }
        };
        exchanged = Some(outcome);
        theirs
    });
    let is_mutual = match exchanged {
        Some(outcome) => outcome?,
        None => {
            // This process has failed already, but the others wait for its part.
            agree_on_reach(boot, &Reach::none(size))?;
            false
        }
    };
    // The transports of a failed start stay until all have reported: otherwise other processes
    // would report the lost memory instead of the reason.
    let started = started.map_err(|failed| (explain(&failed.error), failed.transports));
    let trouble = started.as_ref().err().map(|(what, _)| what.as_str());
    if !is_mutual && let Some((rank, what)) = agree_on_start(boot, trouble)? {
        let node = node_of(names, rank);
        let error = JoinError::Elsewhere { rank, node, what };
        return Err(StartFailure::Agreed(error));
    }
    started.map_err(|(what, _)| {
        let node = node.to_owned();
        StartFailure::Agreed(JoinError::Here { rank, node, what })
    })
}

/// Formats the error of p2p together with the transports that could not be created.
fn explain(error: &p2p::StartError, without: &[(&'static str, String)], names: &Names) -> String {
    let mut text = match error {
        p2p::StartError::Unreachable { peer, reasons } => {
            format!(
                "rank {peer} on node {} cannot be reached:\n{}",
                node_of(names, *peer),
                reasons.trim_end()
            )
        }
        other => other.to_string(),
    };
    text.push_str(&report::missing(without));
    text
}

/// Returns the name of a rank's node, if it is known.
fn node_of(names: &Names, rank: Rank) -> String {
    names.get(&rank).cloned().unwrap_or_else(|| "?".to_owned())
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
