//! What CI runs for every change. It needs root, for network namespaces.

use std::process::ExitCode;

use crate::outcome::Failure;
use crate::soak::Soak;
use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{check, suite};

/// Tests, one of which is the demo, and gates. A failed gate does not keep the tests from running.
/// Beside the models and the gates, some of which compile, runs the soak.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("ci");
    // Tests first: gates that compile find the dependencies' metadata already built.
    let workspace = Workspace::load()?;
    let mut counts = suite::tests(&mut steps, &workspace, true);
    let soak = Soak::start(&workspace);
    suite::models_and_docs(&mut steps, &workspace, true, &mut counts);
    check::all(&mut steps, &workspace);
    steps.step("soak", || soak.and_then(Soak::finish));
    let code = steps.finish();
    counts.report();
    Ok(code)
}
