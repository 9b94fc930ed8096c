//! The gates: what must hold before the tests are worth running.

use crate::outcome::{Failure, Outcome};
use crate::process::{cargo, output, run};
use crate::steps::Steps;
use crate::workspace::{Workspace, root};
use crate::{arrows, configs, links, ompi, purity, spec, unsafety, unused};

/// One gate; each is a command of its own.
pub(crate) struct Gate {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Workspace) -> Outcome,
}

/// Cheap ones first.
pub(crate) const GATES: &[Gate] = &[
    Gate {
        name: "lock",
        about: "Cargo.lock fits the manifests",
        run: lock,
    },
    Gate {
        name: "fmt",
        about: "rustfmt has nothing to change",
        run: fmt,
    },
    Gate {
        name: "arrows",
        about: "no crate imports what it may not",
        run: arrows::check,
    },
    Gate {
        name: "unused",
        about: "no dependency without a use",
        run: unused::check,
    },
    Gate {
        name: "spec",
        about: "every MUST of the wire format is cited in code",
        run: spec::check,
    },
    Gate {
        name: "links",
        about: "every page and file that text refers to is there",
        run: links::check,
    },
    Gate {
        name: "unsafety",
        about: "unsafe code only where it is meant to be",
        run: unsafety::check,
    },
    Gate {
        name: "purity",
        about: "the protocol core can reach no clock and no I/O",
        run: purity::check,
    },
    Gate {
        name: "clippy",
        about: "clippy has nothing to say",
        run: clippy,
    },
    Gate {
        name: "features",
        about: "clippy is content with each crate alone, with and without its features",
        run: features,
    },
    Gate {
        name: "ompi",
        about: "the Open MPI component: format, lints, unit tests",
        run: ompi::check,
    },
    Gate {
        name: "docs",
        about: "rustdoc has nothing to say, private items included",
        run: docs,
    },
    Gate {
        name: "configs",
        about: "shipped configuration and systemd units are accepted",
        run: configs::check,
    },
];

/// Adds all gates to a list of steps.
pub(crate) fn all(steps: &mut Steps) -> Result<(), Failure> {
    let workspace = Workspace::load()?;
    for gate in GATES {
        steps.step(gate.name, || (gate.run)(&workspace));
    }
    Ok(())
}

fn lock(workspace: &Workspace) -> Outcome {
    output(cargo(["tree", "--locked", "--quiet", "--workspace", "--depth=0"]).current_dir(root()))?;
    Ok(format!("{} crates", workspace.packages.len()))
}

fn fmt(_: &Workspace) -> Outcome {
    run(cargo(["fmt", "--all", "--check"]).current_dir(root()))?;
    if !root().join("dev/fuzz/Cargo.toml").is_file() {
        return Ok("the workspace".into());
    }
    run(cargo(["fmt", "--manifest-path=dev/fuzz/Cargo.toml", "--check"]).current_dir(root()))?;
    Ok("the workspace and dev/fuzz/".into())
}

fn clippy(workspace: &Workspace) -> Outcome {
    let args = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    run(cargo(args).current_dir(root()))?;
    Ok(format!("{} crates, all targets", workspace.packages.len()))
}

/// Cargo joins the features that different crates ask for, so a workspace build does not show that one is missing.
fn features(workspace: &Workspace) -> Outcome {
    let mut builds = 0;
    for package in &workspace.packages {
        let mut sets = vec!["--no-default-features"];
        if !package.features.is_empty() {
            sets.push("--all-features");
        }
        for set in sets {
            let args = [
                "clippy",
                "--quiet",
                "-p",
                &package.name,
                set,
                "--",
                "-D",
                "warnings",
            ];
            run(cargo(args).current_dir(root()))?;
            builds += 1;
        }
    }
    Ok(format!("{builds} builds"))
}

fn docs(workspace: &Workspace) -> Outcome {
    let args = [
        "doc",
        "--workspace",
        "--all-features",
        "--no-deps",
        "--document-private-items",
    ];
    run(cargo(args)
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root()))?;
    Ok(format!("{} crates", workspace.packages.len()))
}
