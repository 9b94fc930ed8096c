//! `esplab tune`: measures the message size above which one copy within a node is faster than two,
//! for each kind of pair of CPUs of this machine, and writes the file that jobs read.
//!
//! It measures through the whole point-to-point layer, because the layer's requests and the other
//! side's work are part of the cost.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs, thread};

use btl::Btl;
use clap::Args;
use p2p::{Config, P2p, Setup, TransportAddress};
use shm_btl::topology::{Relation, Topology, allowed};
use shm_btl::{ShmBtl, ShmConfig, Thresholds};

use bench::intra::ours;
use bench::intra::work::{WINDOW, Work};
use bench::samples::median;
use cli::out::{self, Context, Failure, Verdict};

/// Value of a threshold that is never reached: the largest number in TOML.
const NEVER: usize = i64::MAX as usize;

/// Measure the message size above which one copy within a node is faster than two, and write the
/// thresholds to the file that programs read
///
/// Run it while the machine is otherwise idle.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// File to write [default: $ESP_TUNE, or else ~/.config/esp/tune.toml, where programs look for
    /// it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
    /// Measure for a shorter time, with more noise
    #[arg(long)]
    quick: bool,
}

/// Returns the file where jobs look for thresholds.
fn default_file(env: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, Failure> {
    let named = env("ESP_TUNE").filter(|file| !file.as_os_str().is_empty());
    let absolute = |name: &str| env(name).filter(|dir| dir.is_absolute());
    let config = || absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    named
        .or_else(|| Some(config()?.join("esp/tune.toml")))
        .ok_or_else(|| Failure::new("the home directory is unknown: name a file with --output"))
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let file = match &flags.output {
        Some(file) => file.clone(),
        None => default_file(|name| env::var_os(name).map(PathBuf::from))?,
    };
    let path = file.display();
    if !flags.force && file.exists() {
        let what = format!("{path} exists already (overwrite it by --force, or use --output)");
        return Err(Failure::new(what));
    }
    let pairs = Topology::default().pairs(&allowed(None));
    if pairs.is_empty() {
        let what = "this process may run on only one CPU: nothing to measure between";
        return Err(Failure::new(what));
    }
    let measure = |(relation, cpus)| Ok((relation, measure(flags.quick, cpus)?));
    let measured: Result<Vec<_>, String> = pairs.into_iter().map(measure).collect();
    let text = text(&measured.map_err(Failure::new)?);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).doing(format_args!("making {}", folder.display()))?;
    }
    fs::write(&file, &text).doing(format_args!("writing {path}"))?;
    out::line(format_args!(
        "{text}written to {path}; programs read it when they join a job (ESP_TUNE)"
    ))?;
    Ok(Verdict::Done)
}

/// Returns the table `[shm]` for thresholds with their reasons; missing relations keep their
/// default.
fn text(measured: &[(Relation, (usize, String))]) -> String {
    let mut text = String::from(
        "# Written by `esplab tune`: messages of this many bytes and more are copied once, by the\n\
         # kernel (cross-memory attach), shorter ones twice, through shared memory.\n[shm]\n",
    );
    let default = Thresholds::default();
    for (name, relation, default) in [
        ("shared_cache", Relation::SharedCache, default.shared_cache),
        ("same_socket", Relation::SameSocket, default.same_socket),
        ("other_socket", Relation::OtherSocket, default.other_socket),
    ] {
        let found = measured.iter().find(|(of, _)| *of == relation);
        let (bytes, why) = found
            .map_or((default, "default: no such pair of CPUs"), |(_, found)| {
                (found.0, found.1.as_str())
            });
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} = {bytes}  # {why}");
    }
    text
}

/// Returns the threshold between two CPUs, and its reason. Measures with two pinned threads,
/// because the kernel copies between threads of one process as it does between processes. Takes two
/// seconds, or half a second with `quick`.
///
/// # Errors
/// There is no shared memory, or a thread could not be pinned, as the text says.
fn measure(quick: bool, cpus: (u32, u32)) -> Result<(usize, String), String> {
    // Two copies at every length, and one copy at every length.
    let ([two, other_two], _) = layers(&format!("two {cpus:?}"), usize::MAX)?;
    let ([one, other_one], refused) = layers(&format!("one {cpus:?}"), 1)?;
    if let Some(why) = refused {
        return Ok((NEVER, format!("never: {}", why.replace('\n', " "))));
    }
    let gains = thread::scope(|scope| {
        // Both ends do the same work in the same order. An end that fails drops its layers, so that
        // the other fails, too.
        let first = scope.spawn(|| measure_end(quick, cpus.0, [two, one]));
        let second = scope.spawn(|| measure_end(quick, cpus.1, [other_two, other_one]));
        let ended = |_| "a measuring thread ended".to_owned();
        let (first, second) = (first.join().map_err(ended)?, second.join().map_err(ended)?);
        second.and(first)
    })?;
    Ok(match threshold(&gains) {
        Some(bytes) => (bytes, format!("measured on CPUs {cpus:?}")),
        None => (NEVER, "never: one copy was slower at every size".into()),
    })
}

/// Returns the minimum size at which one copy is faster, for this and all larger sizes. `gains` are
/// ascending sizes with the speed-up of one copy.
fn threshold(gains: &[(usize, f64)]) -> Option<usize> {
    let faster = gains.iter().rev().take_while(|(_, gain)| *gain > 1.0);
    faster.last().map(|(size, _)| *size)
}

/// Measures at one end: windows of messages with a buffer for each, with two copies and one copy in
/// turn. Only the gains of rank 0 are valid.
fn measure_end(quick: bool, cpu: u32, layers: [P2p; 2]) -> Result<Vec<(usize, f64)>, String> {
    let failed = |error: p2p::Error| error.to_string();
    lab::pin(&[cpu as usize]).map_err(|error| error.to_string())?;
    let (rounds, bytes) = if quick { (1, 8 << 20) } else { (5, 64 << 20) };
    let comms = layers.each_ref().map(P2p::world);
    let mut gains = Vec::new();
    for size in (11..=20).map(|bits| 1usize << bits) {
        let count = (bytes / (size * WINDOW)).clamp(2, 200);
        let work = Work::windows(size, count, WINDOW, false);
        let mut samples = [const { Vec::new() }; 2];
        for _ in 0..rounds {
            for (comm, samples) in comms.iter().zip(&mut samples) {
                let times = ours::run(comm, &work).map_err(failed)?;
                let nanos = times.into_iter().flat_map(|(_, nanos)| nanos);
                samples.extend(nanos.map(|nanos| nanos as f64));
            }
        }
        let [two, one] = samples.map(|nanos| median(&nanos));
        gains.push((size, two / one));
    }
    layers
        .into_iter()
        .try_for_each(P2p::finalize)
        .map_err(failed)?;
    Ok(gains)
}

/// Starts a layer for each end, over shared memory only, with one copy for messages of at least
/// `from` bytes. Also returns the reason if one copy is refused.
fn layers(name: &str, from: usize) -> Result<([P2p; 2], Option<String>), String> {
    let shm = |rank| {
        let mut config = ShmConfig::new(rank, 2, format!("tune-{}-{name}", std::process::id()));
        config.thresholds = Thresholds {
            shared_cache: from,
            same_socket: from,
            other_socket: from,
        };
        ShmBtl::new(config).map_err(|error| error.to_string())
    };
    let transports = [shm(0)?, shm(1)?];
    let cards = transports.each_ref().map(|shm| TransportAddress {
        transport: shm.name().into(),
        address: shm.address(),
    });
    let start = |(rank, shm): (u32, ShmBtl)| {
        let config = Config {
            skew: false,
            one_sided_from: Some(from),
            local_ranks: 2,
            cpus: Some(2),
            ..Config::default()
        };
        let setup = Setup {
            rank,
            size: 2,
            transports: vec![Box::new(shm)],
            config,
        };
        let theirs = |peer: u32| {
            cards
                .get(peer as usize)
                .cloned()
                .map(|card| vec![card])
                .ok_or_else(String::new)
        };
        P2p::start(setup, theirs).map_err(|failed| failed.error.to_string())
    };
    let [first, second] = transports;
    let layers = [start((0, first))?, start((1, second))?];
    let path = layers
        .iter()
        .flat_map(P2p::paths)
        .filter_map(|report| report.path)
        .find(|path| !path.one_sided);
    Ok((layers, path.map(|path| path.reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_where_one_copy_stays_faster() {
        let found =
            |gains: &[f64]| threshold(&(1..).zip(gains.iter().copied()).collect::<Vec<_>>());
        assert_eq!(found(&[0.8, 1.0, 1.2]), Some(3));
        assert_eq!(found(&[1.5, 0.5, 1.5]), Some(3));
        assert_eq!(found(&[1.5, 1.1]), Some(1));
        assert_eq!(found(&[1.5, 0.9]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn the_text_has_every_relation_and_the_reason() {
        let text = text(&[
            (Relation::SharedCache, (65536, "measured".into())),
            (Relation::OtherSocket, (NEVER, "never: Yama".into())),
        ]);
        let other = Thresholds::default().same_socket;
        for part in [
            "[shm]\nshared_cache = 65536  # measured\n",
            &format!("same_socket = {other}  # default"),
            "other_socket = 9223372036854775807  # never: Yama",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn thresholds_go_where_jobs_look_for_them() {
        let file = |variables: &[(&str, &str)]| {
            let env = |name: &str| {
                let found = variables.iter().find(|(n, _)| *n == name);
                found.map(|(_, v)| PathBuf::from(v))
            };
            default_file(env)
                .map(|file| file.display().to_string())
                .ok()
        };
        let home = ("HOME", "/home/me");
        let default = Some("/home/me/.config/esp/tune.toml");
        assert_eq!(file(&[home]).as_deref(), default);
        let xdg = file(&[home, ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(xdg.as_deref(), Some("/c/esp/tune.toml"));
        assert_eq!(
            file(&[home, ("ESP_TUNE", "t.toml")]).as_deref(),
            Some("t.toml")
        );
        assert_eq!(file(&[home, ("ESP_TUNE", "")]).as_deref(), default);
        assert_eq!(file(&[("HOME", "relative")]), None);
    }
}
