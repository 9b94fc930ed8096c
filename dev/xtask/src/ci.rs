//! The steps that CI runs for every change. They need root, for network namespaces.

use std::process::{Command, ExitCode};

use crate::outcome::{Failure, Outcome};
use crate::process::run as run_command;
use crate::soak::Soak;
use crate::steps::Steps;
use crate::workspace::{Workspace, root};
use crate::{check, suite};

/// Programs that CI runs over ESP, of those of `tests/sockets/programs`: the quick ones.
const SOCKET_PROGRAMS: &str = "netcat,rsync_daemon,asyncio";

/// Tests, one of which is the demo, and gates. A failed gate does not keep the tests from running.
/// The soak runs at the same time as the models and the gates, some of which compile.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("ci");
    // Tests first: gates that compile find the dependencies' metadata already built.
    let workspace = Workspace::load()?;
    let mut counts = suite::tests(&mut steps, &workspace, true);
    steps.step("sockets", || socket_programs(&workspace));
    let soak = Soak::start(&workspace);
    suite::models_and_docs(&mut steps, &workspace, true, &mut counts);
    check::all(&mut steps, &workspace);
    steps.step("soak", || soak.and_then(Soak::finish));
    let code = steps.finish();
    counts.report();
    Ok(code)
}

/// Runs unmodified programs over ESP and over TCP.
fn socket_programs(workspace: &Workspace) -> Outcome {
    let mut script = Command::new(root().join("tests/sockets/programs"));
    script.env("PROGRAMS", workspace.target.join("debug"));
    run_command(script.env("ROWS", SOCKET_PROGRAMS))?;
    Ok(format!("{SOCKET_PROGRAMS} over ESP as over TCP"))
}
