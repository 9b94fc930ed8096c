//! What CI runs for every change. It needs root, for network namespaces.

use std::process::ExitCode;

use crate::outcome::Failure;
use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{check, suite};

/// Tests, one of which is the demo, and gates. A failed gate does not keep the tests from running.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let mut steps = Steps::new("ci");
    // Tests first: gates that compile find the dependencies' metadata already built.
    let counts = suite::all(&mut steps, true)?;
    let workspace = Workspace::load()?;
    check::all(&mut steps, &workspace);
    let code = steps.finish();
    counts.report();
    Ok(code)
}
