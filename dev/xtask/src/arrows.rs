//! The table of ARCHITECTURE.md that says which crate may import which, checked against
//! `cargo metadata`.
//!
//! A new crate gets a line here before it can be built in CI.

use std::collections::{BTreeMap, BTreeSet};

use crate::outcome::{Failure, Outcome, verdict};
use crate::process::{cargo, output};
use crate::workspace::{Kind, Package, Workspace, root};

/// The imports of a crate.
struct Rule {
    package: &'static str,
    /// Crates of this workspace it may depend on.
    may: Crates,
    /// Crates of any origin that it may not depend on, even indirectly.
    never: &'static [&'static str],
}

/// Crates of this workspace.
enum Crates {
    All,
    Only(&'static [&'static str]),
}

use Crates::{All, Only};

/// Crates that bring a clock, a socket or an event loop.
const SYSTEM: &[&str] = &[
    "tokio",
    "mio",
    "libc",
    "rustix",
    "nix",
    "socket2",
    "pnet",
    "getrandom",
    "netif",
];

#[rustfmt::skip]
const RULES: &[Rule] = &[
    // The core, and the crates that run it without a machine.
    Rule { package: "esp-proto",  may: Only(&[]), never: SYSTEM },
    Rule { package: "esp-sim",    may: Only(&["esp-proto"]), never: SYSTEM },
    Rule { package: "scale",      may: Only(&["esp-proto", "esp-sim"]), never: SYSTEM },
    // Not shipped: test rigs and benchmarks.
    Rule { package: "btl-conformance", may: Only(&["btl"]), never: &["btl-eth", "shm-btl", "ib-btl", "p2p", "esp-client", "tokio"] },
    Rule { package: "fake-verbs", may: Only(&["ib-btl", "btl"]), never: &["btl-eth", "shm-btl", "p2p", "tokio"] },
    Rule { package: "netns",      may: Only(&["netif"]), never: &["esp-proto", "btl", "tokio"] },
    Rule { package: "rawloop",    may: Only(&["netif", "netns"]), never: &["esp-proto", "btl", "tokio"] },
    Rule { package: "lab",        may: Only(&["cli", "esp-client"]), never: &["esp-daemon", "btl"] },
    Rule { package: "dashboard",  may: Only(&["cli", "lab"]), never: &["esp-daemon", "btl"] },
    Rule { package: "bench",      may: All, never: &["esp-daemon", "esp-tests", "xtask"] },
    // The machine.
    Rule { package: "netif",      may: Only(&[]), never: &["esp-proto", "btl", "tokio"] },
    Rule { package: "shmem",      may: Only(&[]), never: &["esp-proto", "netif", "btl", "tokio"] },
    Rule { package: "esp-engine", may: Only(&["esp-proto", "netif", "shmem"]), never: &["tokio", "btl"] },
    Rule { package: "esp-client", may: Only(&["esp-proto", "esp-engine"]), never: &["esp-daemon", "btl", "p2p"] },
    Rule { package: "esp-daemon", may: Only(&["esp-proto", "netif", "esp-engine", "esp-client"]), never: &["btl", "p2p"] },
    // Byte transports: each knows the contract, none knows another.
    Rule { package: "btl",        may: Only(&[]), never: &["btl-eth", "shm-btl", "ib-btl", "p2p", "esp-client", "tokio"] },
    Rule { package: "btl-eth",    may: Only(&["btl", "esp-client"]), never: &["shm-btl", "ib-btl", "p2p", "esp-daemon"] },
    Rule { package: "shm-btl",    may: Only(&["btl", "shmem"]), never: &["btl-eth", "ib-btl", "p2p", "tokio"] },
    Rule { package: "ib-btl",     may: Only(&["btl"]), never: &["btl-eth", "shm-btl", "p2p", "tokio"] },
    // Crates above the contract.
    Rule { package: "p2p",        may: Only(&["btl", "shmem"]), never: &["btl-eth", "shm-btl", "ib-btl", "esp-client", "esp-daemon"] },
    Rule { package: "boot",       may: Only(&[]), never: &["tokio", "p2p", "btl-eth", "shm-btl", "ib-btl"] },
    // Where the parts of a job meet: besides programs, the only crates that see concrete transports
    // and the layer above.
    Rule { package: "job",        may: Only(&["btl", "btl-eth", "shm-btl", "ib-btl", "p2p", "boot", "esp-client"]), never: &["esp-daemon"] },
    Rule { package: "capi",       may: Only(&["job", "p2p", "boot", "btl", "esp-client"]), never: &["esp-daemon"] },
    Rule { package: "libfabric",  may: Only(&["job", "p2p", "shmem"]), never: &["esp-daemon", "tokio"] },
    Rule { package: "preload-wire", may: Only(&[]), never: SYSTEM },
    Rule { package: "preload",    may: Only(&["preload-wire"]), never: &["tokio", "rustix"] },
    Rule { package: "esprun",     may: Only(&["cli", "esp-client", "netif", "preload-wire"]), never: &["esp-daemon", "tokio"] },
    Rule { package: "ompi",       may: Only(&["btl", "btl-eth", "esp-client", "shmem"]), never: &["p2p", "esp-daemon"] },
    // Programs and tests. The cli starts the daemon as a program; it does not see its internals.
    Rule { package: "cli",        may: Only(&["esp-proto", "netif", "esp-client", "preload-wire"]), never: &["btl", "p2p", "job", "esp-daemon"] },
    Rule { package: "esplab",     may: All, never: &["esp-daemon", "esp-tests", "xtask"] },
    // The command lines of all programs, for their manual pages.
    Rule { package: "manual",     may: All, never: &["esp-tests", "xtask"] },
    Rule { package: "esp-tests",  may: All, never: &["xtask"] },
    Rule { package: "xtask",      may: Only(&[]), never: &["tokio"] },
];

/// Dependencies that only the tests of a crate may have: (package, dependency, reason).
const FOR_TESTS: &[(&str, &str, &str)] = &[
    ("cli", "netns", "all tests skip themselves in the same way"),
    ("netif", "netns", "tests make their own network namespaces"),
    (
        "esp-engine",
        "netns",
        "tests make their own network namespaces",
    ),
    (
        "esp-daemon",
        "netns",
        "tests make their own network namespaces",
    ),
    (
        "shm-btl",
        "btl-conformance",
        "every transport runs the suite",
    ),
    (
        "ib-btl",
        "btl-conformance",
        "every transport runs the suite",
    ),
    ("ib-btl", "fake-verbs", "tests run without hardware"),
    ("job", "fake-verbs", "tests run without hardware"),
    (
        "p2p",
        "btl-conformance",
        "tests run over the loopback transport",
    ),
    (
        "job",
        "btl-conformance",
        "tests run over the loopback transport",
    ),
];

impl Crates {
    fn allow(&self, name: &str) -> bool {
        match self {
            All => true,
            Only(names) => names.contains(&name),
        }
    }
}

/// Direct and indirect dependencies of each crate.
type Trees = BTreeMap<String, BTreeSet<String>>;

/// Checks every crate of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let mut trees = Trees::new();
    for package in &workspace.packages {
        trees.insert(package.name.clone(), tree(&package.name)?);
    }
    check_all(workspace, &trees)
}

/// Lists the dependencies of a crate by `cargo tree`: `cargo metadata` would unify the features of
/// all crates and their tests.
fn tree(package: &str) -> Result<BTreeSet<String>, Failure> {
    let args = [
        "tree",
        "-p",
        package,
        "-e",
        "normal,no-proc-macro",
        "--all-features",
        "--prefix=none",
        "--format={p}",
    ];
    let text = output(cargo(args).current_dir(root()))?;
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Ok(names
        .filter(|name| *name != package)
        .map(str::to_owned)
        .collect())
}

fn check_all(workspace: &Workspace, trees: &Trees) -> Outcome {
    let mut problems = Vec::new();
    let mut arrows = 0;
    for package in &workspace.packages {
        let Some(rule) = RULES.iter().find(|r| r.package == package.name) else {
            problems.push(format!(
                "{}: no rule for this crate in dev/xtask/src/arrows.rs",
                package.name
            ));
            continue;
        };
        arrows += check_direct(workspace, package, rule, &mut problems);
        let Some(tree) = trees.get(&package.name) else {
            continue;
        };
        for never in rule.never.iter().filter(|never| tree.contains(**never)) {
            problems.push(format!(
                "{}: depends on {never}, which it must not",
                package.name
            ));
        }
    }
    let seen = trees.values().map(BTreeSet::len).sum::<usize>();
    if arrows == 0 || seen == 0 {
        problems.push("not a single arrow between crates was found: nothing was checked".into());
    }
    verdict(
        &problems,
        format!(
            "{} crates, {arrows} arrows between them",
            workspace.packages.len()
        ),
    )
}

/// Counts the imports of a crate from the workspace, and adds those that are not allowed to
/// `problems`.
fn check_direct(
    workspace: &Workspace,
    package: &Package,
    rule: &Rule,
    problems: &mut Vec<String>,
) -> usize {
    let mut arrows = 0;
    for dependency in &package.dependencies {
        let target = dependency.package.as_str();
        // Tests may enable features of their own crate.
        if target == package.name || workspace.package(target).is_err() {
            continue;
        }
        arrows += 1;
        let for_tests = FOR_TESTS
            .iter()
            .any(|(p, d, _)| (*p, *d) == (rule.package, target));
        let allowed = rule.may.allow(target) || (dependency.kind == Kind::Dev && for_tests);
        if !allowed {
            problems.push(format!(
                "{} -> {target}: this arrow points the wrong way",
                package.name
            ));
        }
    }
    arrows
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: Kind = Kind::Normal;

    fn problems(packages: &[(&str, &[(&str, Kind)])]) -> String {
        problems_in(packages, &[("esp-proto", "hashbrown")])
    }

    fn problems_in(packages: &[(&str, &[(&str, Kind)])], trees: &[(&str, &str)]) -> String {
        let tree = |names: &str| names.split(' ').map(str::to_owned).collect();
        let trees = trees
            .iter()
            .map(|(package, names)| ((*package).to_owned(), tree(names)))
            .collect();
        match check_all(&Workspace::made_of(packages), &trees) {
            Ok(text) => format!("passed: {text}"),
            Err(Failure::Failed(text) | Failure::CannotRun(text)) => text,
        }
    }

    #[test]
    fn right_arrows_pass() {
        let text = problems(&[
            ("esp-proto", &[]),
            ("netif", &[]),
            ("esp-engine", &[("esp-proto", N), ("netif", N)]),
        ]);
        assert_eq!(text, "passed: 3 crates, 2 arrows between them");
    }

    #[test]
    fn a_planted_arrow_is_found() {
        let text = problems(&[("esp-proto", &[]), ("netif", &[("esp-proto", N)])]);
        assert!(
            text.contains("netif -> esp-proto: this arrow points the wrong way"),
            "{text}"
        );
        let text = problems(&[
            ("esp-daemon", &[]),
            ("esp-client", &[("esp-daemon", Kind::Dev)]),
        ]);
        assert!(text.contains("esp-client -> esp-daemon"), "{text}");
    }

    #[test]
    fn a_forbidden_crate_far_away_is_found() {
        let packages: [(&str, &[(&str, Kind)]); 2] =
            [("esp-proto", &[]), ("esp-engine", &[("esp-proto", N)])];
        let text = problems_in(&packages, &[("esp-engine", "esp-proto harmless tokio")]);
        assert!(text.contains("esp-engine: depends on tokio"), "{text}");
    }

    #[test]
    fn an_unknown_crate_is_found() {
        let text = problems(&[
            ("esp-proto", &[]),
            ("esp-sim", &[("esp-proto", N)]),
            ("newcomer", &[]),
        ]);
        assert!(text.contains("newcomer: no rule"), "{text}");
    }

    #[test]
    fn nothing_to_check_is_no_pass() {
        assert!(problems(&[("esp-proto", &[])]).contains("nothing was checked"));
        let text = problems_in(&[("esp-proto", &[]), ("esp-sim", &[("esp-proto", N)])], &[]);
        assert!(text.contains("nothing was checked"), "{text}");
    }

    #[test]
    fn the_rules_name_each_crate_once_and_agree_with_each_other() {
        for (i, rule) in RULES.iter().enumerate() {
            assert!(
                !RULES.iter().skip(i + 1).any(|r| r.package == rule.package),
                "{} twice",
                rule.package
            );
            let Only(may) = rule.may else { continue };
            for name in may {
                assert!(
                    RULES.iter().any(|r| r.package == *name),
                    "{}: {name} has no rule itself",
                    rule.package
                );
                assert!(
                    !rule.never.contains(name),
                    "{}: {name} is both allowed and forbidden",
                    rule.package
                );
            }
        }
    }
}
