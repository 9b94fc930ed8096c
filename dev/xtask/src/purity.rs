//! Proof that the protocol core can do no input or output and knows no clock.
//!
//! Four looks, each of which fails when it saw nothing:
//!
//! 1. *tree*: every crate the core is built with is on a list of crates that were read for this;
//! 2. *source*: the root says `no_std` and `forbid(unsafe_code)`, nothing outside tests names `std`;
//! 3. *lints*: its `clippy.toml` bans clocks, sockets and sleep for its tests as well;
//! 4. *link*: a program without `std`, with a panic handler of its own, is built from it. Were `std` anywhere in it, the
//!    compiler would refuse the second panic handler; that it does is shown each time by a build with `std` planted.

mod link;

use std::fs;

use crate::outcome::{Failure, Outcome, failed, verdict};
use crate::process::{cargo, output};
use crate::source::Source;
use crate::workspace::{Workspace, root, shown};

const CORE: &str = "esp-proto";

/// Crates the core may be built with. Each was read: no system call, no clock, no socket, no thread.
/// Procedural macros run in the compiler and are not in the tree.
const READ: &[(&str, &str)] = &[
    ("esp-proto", "the core itself"),
    ("hashbrown", "hash table, memory only"),
    (
        "foldhash",
        "hash function; without its feature `std` it reads no clock and no address",
    ),
    ("rand_chacha", "generator, seeded by the host"),
    (
        "rand_core",
        "traits; without its feature `os_rng` it has no source of its own",
    ),
    ("ppv-lite86", "vector arithmetic of rand_chacha"),
    ("zerocopy", "views of bytes"),
    ("thiserror", "error enums"),
];

/// Features that would open a door in a crate that is harmless otherwise.
const DOORS: &[&str] = &["std", "os_rng", "getrandom", "thread_rng", "rand_core_std"];

/// What the core's `clippy.toml` must ban.
const BANS: &[&str] = &[
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::sleep",
    "std::thread::spawn",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::time::SystemTime",
    "std::time::Instant",
];

/// All four looks.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let tree = output(cargo(TREE).current_dir(root()))?;
    let package = workspace.package(CORE)?;
    let sources = Source::read_all(&package.dir.join("src"))?;
    let lints = fs::read_to_string(package.dir.join("clippy.toml")).unwrap_or_default();

    let (mut problems, crates) = check_tree(&tree);
    problems.extend(check_sources(&sources));
    problems.extend(check_lints(&lints));
    let linked = link::check(workspace)?;
    verdict(
        &problems,
        format!("{crates} crates, {} files, {linked}", sources.len()),
    )
}

/// Lines like `rand_core v0.9.5|feature,feature`.
const TREE: [&str; 9] = [
    "tree",
    "-p",
    CORE,
    "-e",
    "normal,no-proc-macro",
    "--target=all",
    "--prefix=none",
    "--format",
    "{p}|{f}",
];

/// Problems, and how many crates the tree has.
fn check_tree(tree: &str) -> (Vec<String>, usize) {
    let (mut problems, mut crates) = (Vec::new(), 0);
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let (package, features) = line.split_once('|').unwrap_or((line, ""));
        let name = package.split(' ').next().unwrap_or(package);
        // Packages met before end with this mark.
        let features = features.trim_end_matches("(*)").trim();
        crates += 1;
        if !READ.iter().any(|(read, _)| *read == name) {
            problems.push(format!(
                "{CORE} is built with {package}, which is not on the list in dev/xtask/src/purity.rs"
            ));
        }
        for door in features.split(',').filter(|f| DOORS.contains(f)) {
            problems.push(format!(
                "{CORE} is built with {package} with the feature `{door}`"
            ));
        }
    }
    if !tree.lines().any(|line| line.starts_with(CORE)) {
        problems.push(format!(
            "`cargo tree` did not show {CORE}: no tree was checked"
        ));
    }
    (problems, crates)
}

fn check_sources(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    match sources.iter().find(|s| s.path.ends_with("src/lib.rs")) {
        None => problems.push(format!("{CORE} has no src/lib.rs: no source was checked")),
        Some(source) => {
            for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
                if !source.code.lines().any(|line| line.trim() == attribute) {
                    problems.push(format!("{}: does not say {attribute}", shown(&source.path)));
                }
            }
        }
    }
    for source in sources {
        for at in source.idents("std").filter(|&at| !source.in_test(at)) {
            problems.push(format!("{}: `std` outside tests", source.place(at)));
        }
    }
    problems
}

fn check_lints(config: &str) -> Vec<String> {
    let missing = BANS
        .iter()
        .filter(|ban| !config.contains(&format!("path = \"{ban}\"")));
    missing
        .map(|ban| format!("{CORE}/clippy.toml does not ban {ban}"))
        .collect()
}

/// For the table of ARCHITECTURE.md's readers: what a failed build says when `std` is linked twice.
fn is_second_panic_handler(compiler_output: &str) -> bool {
    compiler_output.contains("E0152") && compiler_output.contains("panic_impl")
}

/// A build that had to fail did not, or for another reason.
fn not_caught(what: &str, compiler_output: &str) -> Result<(), Failure> {
    let tail: Vec<&str> = compiler_output.lines().rev().take(15).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    failed(format!("{what}\n{}", tail.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_TREE: &str = "esp-proto v0.1.0 (/x/esp-proto)|\nrand_core v0.9.5|\nzerocopy v0.8.63|simd\nzerocopy v0.8.63|simd (*)\n";

    #[test]
    fn a_tree_of_known_crates_passes() {
        assert_eq!(check_tree(GOOD_TREE), (vec![], 4));
    }

    #[test]
    fn a_planted_crate_or_feature_is_found() {
        for planted in [
            "tokio v1.0.0|",
            "libc v0.2.0|",
            "socket2 v0.6.0|",
            "getrandom v0.3.0|",
            "never-read v1.0.0|",
        ] {
            let (problems, _) = check_tree(&format!("{GOOD_TREE}{planted}\n"));
            assert_eq!(problems.len(), 1, "{planted}: {problems:?}");
        }
        let (problems, _) =
            check_tree("esp-proto v0.1.0|\nrand_core v0.9.5|os_rng,x\nhashbrown v1.0.0|std (*)\n");
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn an_empty_tree_is_no_pass() {
        assert_eq!(check_tree("").0.len(), 1);
        assert_eq!(check_sources(&[]).len(), 1);
        assert_eq!(check_lints("").len(), BANS.len());
    }

    #[test]
    fn planted_std_is_found_in_code_only() {
        let root =
            "#![no_std]\n#![forbid(unsafe_code)]\n// std::time\n#[cfg(test)]\nextern crate std;\n";
        assert_eq!(
            check_sources(&[Source::new("esp-proto/src/lib.rs", root)]),
            [""; 0]
        );
        let planted = format!("{root}fn f() {{ std::thread::yield_now() }}\n");
        let problems = check_sources(&[Source::new("esp-proto/src/lib.rs", planted)]);
        assert_eq!(problems, ["esp-proto/src/lib.rs:6: `std` outside tests"]);
    }

    #[test]
    fn a_missing_attribute_is_found() {
        let problems = check_sources(&[Source::new(
            "src/lib.rs",
            "// #![no_std]\n#![cfg_attr(x, no_std)]",
        )]);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
