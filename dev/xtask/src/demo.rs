//! The demo: two nodes that talk on this machine.

use std::process::Command;

use crate::outcome::Failure;
use crate::process::{cargo, run};
use crate::tools;
use crate::workspace::{Workspace, root};

/// Installs what is missing, builds for release, and runs `esplab demo`.
pub(crate) fn demo(args: &[String]) -> Result<(), Failure> {
    tools::ensure(tools::LAB)?;
    let packages = ["--package=esp-daemon", "--package=cli", "--package=esplab"];
    run(cargo(["build", "--release"])
        .args(packages)
        .current_dir(root()))?;
    let esplab = Workspace::load()?.target.join("release/esplab");
    run(Command::new(esplab).arg("demo").args(args))
}
