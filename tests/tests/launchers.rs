//! Jobs started by common launchers: Open MPI's mpirun (PMIx) and MPICH's mpiexec.hydra (PMI-1), in
//! one node and across nodes.
//!
//! The same program, unchanged, runs in all of them: `p2p-check` (job/examples), which checks every
//! byte and prints which rank reaches which. The launchers themselves talk TCP, so they run in the
//! lab's namespaces and use nothing of the machine's own network.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use esp_tests::lab_or_skip;
use esp_tests::process::{Daemon, Finished, bare_lab, output, programs};
use lab::{Lab, LabOptions};

/// Seconds a job may take, on a machine busy with other tests.
const PATIENCE: &str = "120";

/// A launcher of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launcher {
    /// Open MPI 4.1: PMIx.
    Mpirun,
    /// MPICH: PMI-1.
    Mpiexec,
}

use Launcher::{Mpiexec, Mpirun};

impl Launcher {
    /// The program, and Debian's package.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Mpirun => ("mpirun.openmpi", "openmpi-bin"),
            Mpiexec => ("mpiexec.hydra", "mpich"),
        }
    }

    /// Its name in reports of `boot`.
    fn protocol(self) -> &'static str {
        match self {
            Mpirun => "pmix",
            Mpiexec => "pmi1",
        }
    }

    /// Returns false after printing SKIPPED if it is not installed.
    fn is_here(self, test: &str) -> bool {
        let (program, package) = self.program();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
        if !found {
            netns::skip(
                test,
                &format!("no {program} (Debian: apt install {package})"),
            );
        }
        found
    }

    /// Options for four processes, two in each of `nodes` nodes (or all in one). docs/launchers.md
    /// explains them.
    fn options(self, lab: &Lab, nodes: usize, scratch: &Scratch) -> Vec<OsString> {
        let each = 4 / nodes;
        let hosts = (0..nodes)
            .map(|n| format!("node{n}:{each}"))
            .collect::<Vec<_>>()
            .join(",");
        let rsh = lab.rsh();
        let words: &[&str] = match self {
            Mpirun => &[
                "--allow-run-as-root",
                "--bind-to",
                "none",
                "--map-by",
                "slot",
                "--host",
            ],
            Mpiexec => &["-launcher", "ssh", "-iface", "eth0", "-hosts"],
        };
        let mut all: Vec<OsString> = words.iter().map(Into::into).collect();
        all.push(hosts.into());
        match self {
            Mpirun => {
                all.extend(["--mca", "plm_rsh_agent"].map(Into::into));
                all.push(rsh.into());
                all.extend(
                    [
                        "--mca",
                        "oob_tcp_if_include",
                        "eth0",
                        "--mca",
                        "orte_tmpdir_base",
                    ]
                    .map(Into::into),
                );
                all.push(scratch.0.clone().into());
            }
            Mpiexec => {
                all.push("-launcher-exec".into());
                all.push(rsh.into());
            }
        }
        all.extend(["-n", "4"].map(Into::into));
        all
    }

    /// Runs a job of four, started in node 0.
    fn run(
        self,
        lab: &Lab,
        nodes: usize,
        program: &[&str],
        variables: &[(&str, &str)],
    ) -> Finished {
        let scratch = Scratch::new();
        let mut command: Command = lab.command(0, "timeout").expect("a command of the node");
        command
            .args(["-k", "5", PATIENCE, self.program().0])
            .args(self.options(lab, nodes, &scratch));
        // Hydra passes the environment on to other nodes; mpirun passes the variables named.
        for (name, _) in variables.iter().filter(|_| self == Mpirun) {
            command.args(["-x", name]);
        }
        command
            .args(program)
            .env("TMPDIR", &scratch.0)
            .env("ESP_TUNE", "")
            .current_dir(&scratch.0);
        for name in [
            "ESP_BTL",
            "ESP_BTL_VERBOSE",
            "ESP_BOOT",
            "PMI_FD",
            "PMI_PORT",
            "PMIX_NAMESPACE",
        ] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        output(&mut command)
    }
}

/// Room for the launchers' own files.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("esp-launch-{}-{number}", std::process::id()));
        fs::create_dir(&path).expect("make a folder");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program built from an example.
fn example(package: &str, name: &str) -> String {
    let path = programs().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is missing: cargo build -p {package} --example {name}",
        path.display()
    );
    path.to_str().expect("a path of text").to_owned()
}

/// A line of the table: from and to (rank, node), the transport, used or not, why.
#[derive(Debug)]
struct Path {
    ends: [(u32, String); 2],
    transport: String,
    used: bool,
    reason: String,
}

fn paths(out: &str) -> Vec<Path> {
    let parse = |line: &str| {
        let (ends, rest) = line.strip_prefix("path ")?.split_once(": ")?;
        let (from, to) = ends.split_once(" -> ")?;
        let end = |text: &str| {
            let (rank, node) = text.split_once(" (")?;
            Some((rank.parse().ok()?, node.strip_suffix(')')?.to_owned()))
        };
        let (verdict, reason) = rest.split_once(": ")?;
        let (transport, used) = verdict.split_once(' ')?;
        let used = match used {
            "used" => true,
            "not used" => false,
            _ => return None,
        };
        Some(Path {
            ends: [end(from)?, end(to)?],
            transport: transport.to_owned(),
            used,
            reason: reason.to_owned(),
        })
    };
    let lines = out.lines().filter(|line| line.starts_with("path "));
    lines
        .map(|line| parse(line).unwrap_or_else(|| panic!("no line of the table: {line}")))
        .collect()
}

/// Which transport each process uses for each other one; every pair is there once.
#[track_caller]
fn used(finished: &Finished) -> Vec<(u32, u32, bool, String)> {
    let mut pairs = Vec::new();
    for path in paths(&finished.out)
        .into_iter()
        .filter(|p| p.used && p.ends[0].0 != p.ends[1].0)
    {
        assert!(!path.reason.is_empty(), "{path:?}");
        let [(from, here), (to, there)] = path.ends;
        pairs.push((from, to, here == there, path.transport));
    }
    pairs.sort();
    let expected: Vec<(u32, u32)> = (0..4)
        .flat_map(|a| (0..4).filter(move |b| *b != a).map(move |b| (a, b)))
        .collect();
    let found: Vec<(u32, u32)> = pairs.iter().map(|p| (p.0, p.1)).collect();
    assert_eq!(found, expected, "each pair by one transport: {finished:?}");
    pairs
}

#[track_caller]
fn passed(finished: &Finished, launcher: Launcher) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let last = finished.out.lines().last().unwrap_or_default();
    let expected = format!(" checks, 4 ranks, started by {}", launcher.protocol());
    assert!(
        last.starts_with("PASS ") && last.ends_with(&expected),
        "{finished:?}"
    );
}

fn within_a_node(test: &str, launcher: Launcher) {
    if !launcher.is_here(test) {
        return;
    }
    let Some(lab) = bare_lab(test, 1) else { return };
    let verbose = [("ESP_BTL_VERBOSE", "1")];
    let finished = launcher.run(&lab, 1, &[&example("job", "p2p-check")], &verbose);
    passed(&finished, launcher);
    for (from, to, _, transport) in used(&finished) {
        assert_eq!(transport, "shm", "{from} -> {to}");
    }
    // No process needs a daemon here, and a request for one reports that there is none.
    assert_eq!(
        finished
            .err
            .matches("no transport eth, all peers are reached without it")
            .count(),
        4,
        "{finished:?}"
    );
    assert!(finished.err.contains("esp.sock"), "{finished:?}");
}

#[test]
fn mpirun_within_a_node() {
    within_a_node("mpirun_within_a_node", Mpirun);
}

#[test]
fn mpiexec_within_a_node() {
    within_a_node("mpiexec_within_a_node", Mpiexec);
}

/// Shared memory inside the nodes, Ethernet between them, in one job.
fn across_nodes(test: &str, launcher: Launcher) {
    if !launcher.is_here(test) {
        return;
    }
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let raw = [("ESP_BTL", "self,shm,eth")];
    let finished = launcher.run(&lab, 2, &[&example("job", "p2p-check")], &raw);
    passed(&finished, launcher);
    let used = used(&finished);
    for (from, to, together, transport) in &used {
        assert_eq!(
            transport,
            if *together { "shm" } else { "eth" },
            "{from} -> {to}"
        );
    }
    assert_eq!(
        used.iter().filter(|pair| pair.2).count(),
        4,
        "two nodes of two processes: {used:?}"
    );
    for path in paths(&finished.out) {
        if path.ends[0].1 != path.ends[1].1 && path.transport == "shm" {
            assert!(
                !path.used && path.reason.contains("network namespace"),
                "{path:?}"
            );
        }
    }
}

#[test]
fn mpirun_across_nodes() {
    across_nodes("mpirun_across_nodes", Mpirun);
}

#[test]
fn mpiexec_across_nodes() {
    across_nodes("mpiexec_across_nodes", Mpiexec);
}

/// All by Ethernet, also among the processes of a node.
#[test]
fn transports_are_chosen_by_the_environment() {
    let test = "transports_are_chosen_by_the_environment";
    if !Mpiexec.is_here(test) {
        return;
    }
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let finished = Mpiexec.run(
        &lab,
        2,
        &[&example("job", "p2p-check")],
        &[("ESP_BTL", "self,eth")],
    );
    passed(&finished, Mpiexec);
    for (from, to, _, transport) in used(&finished) {
        assert_eq!(transport, "eth", "{from} -> {to}");
    }
}

/// Nodes without a daemon reach each other by ESP in UDP, with the defaults.
#[test]
fn nodes_without_a_daemon_use_udp() {
    let test = "nodes_without_a_daemon_use_udp";
    for launcher in [Mpirun, Mpiexec] {
        if !launcher.is_here(test) {
            continue;
        }
        let Some(lab) = bare_lab(test, 2) else { return };
        let finished = launcher.run(&lab, 2, &[&example("job", "p2p-check")], &[]);
        passed(&finished, launcher);
        for (from, to, together, transport) in used(&finished) {
            let expected = if together { "shm" } else { "udp" };
            assert_eq!(transport, expected, "{from} -> {to}");
        }
    }
}

/// Ranks of the other node are reached when they are used, over each carrier.
#[test]
fn ranks_of_other_nodes_are_reached_on_use() {
    let test = "ranks_of_other_nodes_are_reached_on_use";
    for launcher in [Mpirun, Mpiexec] {
        if !launcher.is_here(test) {
            continue;
        }
        let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
            return;
        };
        for (list, between) in [
            ("self,shm,eth", "eth"),
            ("self,shm,udp", "udp"),
            ("self,eth", "eth"),
        ] {
            let variables = [
                ("ESP_LAZY_FROM", "2"),
                ("ESP_BTL", list),
                ("ESP_BTL_VERBOSE", "1"),
            ];
            let finished = launcher.run(&lab, 2, &[&example("job", "p2p-check")], &variables);
            passed(&finished, launcher);
            for (from, to, together, transport) in used(&finished) {
                let expected = match together && list.contains("shm") {
                    true => "shm",
                    false => between,
                };
                assert_eq!(transport, expected, "{from} -> {to}");
            }
            let path = format!("esp: rank 0: node1 has rank 2 by {between}: used");
            let count = finished.err.matches(&path).count();
            assert_eq!(count, 1, "{finished:?}");
        }
    }
}

/// One process cannot reach another: all of them report which one, where and why, and the launcher
/// gets a failure.
#[test]
fn a_node_without_a_daemon_is_named_by_all() {
    let test = "a_node_without_a_daemon_is_named_by_all";
    for launcher in [Mpirun, Mpiexec] {
        if !launcher.is_here(test) {
            continue;
        }
        let Some(lab) = bare_lab(test, 2) else { return };
        let _daemon = Daemon::start(&lab, 0, "");
        let raw = [("ESP_BTL", "self,shm,eth")];
        let finished = launcher.run(&lab, 2, &[&example("job", "p2p-check")], &raw);
        assert!(!matches!(finished.code, Some(0 | 124)), "{finished:?}");
        assert!(!finished.out.contains("PASS"), "{finished:?}");
        let said = |words: &str| finished.err.contains(words);
        assert!(
            said("node node1") && said("cannot be reached") && said("esp-daemon"),
            "{finished:?}"
        );
    }
}

/// A rank that cannot be reached when it is used ends the job with the reason, after a wait for its
/// node.
#[test]
fn a_node_without_a_daemon_is_named_when_it_is_used() {
    let test = "a_node_without_a_daemon_is_named_when_it_is_used";
    for launcher in [Mpirun, Mpiexec] {
        if !launcher.is_here(test) {
            continue;
        }
        let Some(lab) = bare_lab(test, 2) else { return };
        let _daemon = Daemon::start(&lab, 0, "");
        let variables = [("ESP_BTL", "self,shm,eth"), ("ESP_LAZY_FROM", "2")];
        let finished = launcher.run(&lab, 2, &[&example("job", "p2p-check")], &variables);
        assert!(!matches!(finished.code, Some(0 | 124)), "{finished:?}");
        assert!(!finished.out.contains("PASS"), "{finished:?}");
        let said = |words: &str| finished.err.contains(words);
        assert!(
            said("it cannot be reached: ")
                && (said("eth: the peer has no such transport") || said("eth: not available: "))
                && said("esp-daemon"),
            "{finished:?}"
        );
    }
}

/// One process gives up: the launcher ends the others and passes its exit code on.
#[test]
fn an_abort_ends_the_job() {
    let test = "an_abort_ends_the_job";
    for launcher in [Mpirun, Mpiexec] {
        if !launcher.is_here(test) {
            continue;
        }
        let Some(lab) = bare_lab(test, 2) else { return };
        let finished = launcher.run(&lab, 2, &[&example("boot", "whoami"), "abort"], &[]);
        assert_eq!(finished.code, Some(7), "{finished:?}");
        assert!(
            !finished.err.contains("the abort did not end this process"),
            "{finished:?}"
        );
    }
}
