//! Checks of the component for Open MPI.

use super::facts::{Facts, OpenMpi};
use super::finding::Finding;

/// Checks that the component is for the installed Open MPI.
pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    let (open_mpi, components) = (&facts.mpi.open_mpi, &facts.mpi.components);
    let Some(open_mpi) = open_mpi else {
        if let Some(file) = components.first() {
            findings.push(Finding::note(
                "mpi.none",
                format!("there is {}, but no ompi_info in PATH", file.display()),
            ));
        }
        return;
    };
    findings.push(component(open_mpi, !components.is_empty()));
}

fn component(open_mpi: &OpenMpi, is_installed: bool) -> Finding {
    let version = &open_mpi.version;
    if !open_mpi.dlopen {
        return Finding::note(
            "mpi.dlopen",
            format!("Open MPI {version} was built without dlopen and loads no components"),
        )
        .fix("cargo xtask install-libfabric: the provider serves this Open MPI");
    }
    match &open_mpi.component {
        Some(built) if series(built) == series(version) => Finding::ok(
            "mpi.component",
            format!("Open MPI {version} finds the component"),
        ),
        Some(built) => Finding::error(
            "mpi.component",
            format!("the component is for Open MPI {built}; {version} ignores it"),
        )
        .fix("cargo xtask install-ompi"),
        None if is_installed => Finding::error(
            "mpi.component",
            format!("Open MPI {version} does not load the installed component"),
        )
        .fix("ompi_info --param btl esp --level 9; cargo xtask install-ompi"),
        None => Finding::note(
            "mpi.component",
            format!("Open MPI {version} has no component for ESP"),
        )
        .fix("cargo xtask install-ompi"),
    }
}

/// Returns the release series of a version, such as `4.1` for `4.1.4`.
fn series(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
