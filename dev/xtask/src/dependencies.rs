//! Gates over dependencies, by cargo-shear and cargo-deny. Each gate begins with a run that has to
//! fail, so that a wrong call of the tool is not taken for a clean result.

use std::fs;
use std::path::Path;

use crate::outcome::{Failure, Outcome, cannot_run, failed};
use crate::process::{quietly, run};
use crate::tools::subcommand;
use crate::workspace::{Workspace, root};

/// The protocol core and the list of crates it may be built with.
const CORE: [&str; 4] = [
    "--manifest-path=esp-proto/Cargo.toml",
    "--config=dev/xtask/core.toml",
    "check",
    "bans",
];

/// No crate names a dependency that it does not use.
pub(crate) fn unused(workspace: &Workspace) -> Outcome {
    let planted = workspace.target.join("xtask/planted");
    if let Err(e) = plant(&planted) {
        return cannot_run(format!("writing {}: {e}", planted.display()));
    }
    let mut shear = subcommand(workspace, "shear")?;
    must_fail(shear.arg(&planted), "unused_dependency")?;
    run(subcommand(workspace, "shear")?.args(["--locked"]))?;
    Ok(format!("{} crates", workspace.packages.len()))
}

/// A crate with a dependency that it does not use.
fn plant(dir: &Path) -> std::io::Result<()> {
    for (name, dependencies) in [("a", "planted-b = { path = \"../b\" }"), ("b", "")] {
        let package = format!(
            "[package]\nname = \"planted-{name}\"\nedition = \"2024\"\n[dependencies]\n{dependencies}\n"
        );
        fs::create_dir_all(dir.join(name).join("src"))?;
        fs::write(dir.join(name).join("Cargo.toml"), package)?;
        fs::write(dir.join(name).join("src/lib.rs"), "//! A\n")?;
    }
    fs::write(
        dir.join("Cargo.toml"),
        "[workspace]\nresolver = \"3\"\nmembers = [\"a\", \"b\"]\n",
    )
}

/// Licences, duplicates and origins of all dependencies; and that the core is built only with
/// crates that were read: no system call, no clock, no socket, no thread.
pub(crate) fn deny(workspace: &Workspace) -> Outcome {
    let deny = |args: &[&str]| -> Result<_, Failure> {
        let mut command = subcommand(workspace, "deny")?;
        command.args(["--locked", "--log-level=error"]).args(args);
        Ok(command)
    };
    let planted = "--config=dev/xtask/planted-deny.toml";
    must_fail(&mut deny(&[planted, "check", "licenses"])?, "rejected")?;
    // The crate that owns the packet sockets is built with everything that the core may not have.
    let mut with_sockets = CORE;
    with_sockets[0] = "--manifest-path=netif/Cargo.toml";
    must_fail(&mut deny(&with_sockets)?, "not-allowed")?;

    run(&mut deny(&["check", "licenses", "bans", "sources"])?)?;
    run(&mut deny(&CORE)?)?;
    Ok("licences, duplicates, origins, crates of the core (advisories need network access)".into())
}

fn must_fail(command: &mut std::process::Command, word: &str) -> Result<(), Failure> {
    let (status, text) = quietly(command.current_dir(root()))?;
    if !status.success() && text.contains(word) {
        return Ok(());
    }
    failed(format!(
        "self-test: a planted violation was not found:\n{text}"
    ))
}
