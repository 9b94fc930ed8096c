//! The gates: checks of the project in addition to the tests.

use crate::outcome::Outcome;
use crate::process::{cargo, output, run};
use crate::steps::Steps;
use crate::workspace::{Workspace, root};
use crate::{arrows, configs, dependencies, links, msrv, ompi, purity, spec, unsafety, width};

/// One gate; each is a command of its own.
pub(crate) struct Gate {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Workspace) -> Outcome,
}

const fn gate(name: &'static str, about: &'static str, run: fn(&Workspace) -> Outcome) -> Gate {
    Gate { name, about, run }
}

/// All gates, cheap ones first.
#[rustfmt::skip]
pub(crate) const GATES: &[Gate] = &[
    gate("lock", "Cargo.lock fits the manifests", lock),
    gate("fmt", "rustfmt has nothing to change", fmt),
    gate("arrows", "no crate imports what it may not", arrows::check),
    gate("unused", "no dependency without a use (cargo-shear)", dependencies::unused),
    gate("deny", "licences, duplicates, origins of dependencies (cargo-deny)", dependencies::deny),
    gate("msrv", "nothing needs a newer Rust than rust-version", msrv::check),
    gate("spec", "every MUST of the wire format is cited in code", spec::check),
    gate("links", "every page and file that text refers to exists", links::check),
    gate("width", "comments and Markdown within 100 columns", width::check),
    gate("unsafety", "unsafe code only in the listed files", unsafety::check),
    gate("purity", "the protocol core can reach no clock and no I/O", purity::check),
    gate("clippy", "clippy has no complaint", clippy),
    gate("features", "crates with features build without them", features),
    gate("ompi", "the Open MPI component: format, lints, unit tests", ompi::check),
    gate("docs", "rustdoc has no complaint, private items included", docs),
    gate("configs", "shipped configuration and systemd units are accepted", configs::check),
];

/// Adds all gates to a list of steps.
pub(crate) fn all(steps: &mut Steps, workspace: &Workspace) {
    for gate in GATES {
        steps.step(gate.name, || (gate.run)(workspace));
    }
}

fn lock(workspace: &Workspace) -> Outcome {
    output(cargo(["tree", "--locked", "--quiet", "--workspace", "--depth=0"]).current_dir(root()))?;
    Ok(format!("{} crates", workspace.packages.len()))
}

fn fmt(_: &Workspace) -> Outcome {
    run(cargo(["fmt", "--all", "--check"]).current_dir(root()))?;
    run(cargo(["fmt", "--manifest-path=dev/fuzz/Cargo.toml", "--check"]).current_dir(root()))?;
    Ok("the workspace and dev/fuzz/".into())
}

fn clippy(workspace: &Workspace) -> Outcome {
    let what = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--all-features",
    ];
    run(cargo(what)
        .args(["--", "-D", "warnings"])
        .current_dir(root()))?;
    Ok(format!("{} crates, all targets", workspace.packages.len()))
}

/// Cargo unifies the features that crates ask for, so a workspace build does not show that one is
/// missing.
fn features(workspace: &Workspace) -> Outcome {
    let with_features = workspace.packages.iter().filter(|p| !p.features.is_empty());
    let names: Vec<&str> = with_features.map(|package| package.name.as_str()).collect();
    for name in &names {
        let what = ["clippy", "--locked", "--no-default-features", "-p", name];
        run(cargo(what)
            .args(["--", "-D", "warnings"])
            .current_dir(root()))?;
    }
    Ok(names.join(", "))
}

fn docs(workspace: &Workspace) -> Outcome {
    let what = [
        "doc",
        "--locked",
        "--workspace",
        "--all-features",
        "--no-deps",
    ];
    let mut command = cargo(what);
    command
        .arg("--document-private-items")
        .env("RUSTDOCFLAGS", "-D warnings");
    run(command.current_dir(root()))?;
    Ok(format!("{} crates", workspace.packages.len()))
}
