//! Nothing needs a newer Rust than the `rust-version` of Cargo.toml.
//!
//! Without a toolchain of that version two things are checked: every locked dependency declares the
//! same version or an older one, and clippy's `incompatible_msrv` (denied in Cargo.toml) knows when
//! each item of the standard library became stable. With one (`rustup toolchain install VERSION`)
//! the workspace is compiled by it.

use std::process::Command;

use serde_json::Value;

use crate::outcome::{Outcome, failed, verdict};
use crate::process::{cargo, output, quietly, run};
use crate::workspace::{Workspace, root};

/// Minor version of Rust 1.
type Minor = u32;

/// Asks cargo for the versions that all packages declare.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let args = [
        "metadata",
        "--locked",
        "--format-version=1",
        "--all-features",
    ];
    let host = "--filter-platform=x86_64-unknown-linux-gnu";
    let text = output(cargo(args).arg(host).current_dir(root()))?;
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let (ours, problems, seen) = newer(&value);
    let Some(ours) = ours.filter(|_| seen > workspace.packages.len()) else {
        return failed("no rust-version, or no dependency was found: nothing was checked");
    };
    verdict(&problems, String::new())?;
    let version = format!("1.{ours}");
    let mut rustc = Command::new("rustup");
    rustc.args(["run", &version, "rustc", "--version"]);
    let is_installed = quietly(&mut rustc).is_ok_and(|(status, _)| status.success());
    if !is_installed {
        return Ok(format!(
            "{seen} packages declare {version} or older; NOT compiled: no toolchain {version}"
        ));
    }
    let mut check = Command::new("rustup");
    check.args(["run", &version, "cargo", "check", "--locked", "--workspace"]);
    check.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    check.arg("--target-dir").arg(workspace.target.join("msrv"));
    run(check.current_dir(root()))?;
    Ok(format!("{seen} packages, compiled by {version}"))
}

/// Our version, the packages that need a newer one, and the number of packages checked.
fn newer(metadata: &Value) -> (Option<Minor>, Vec<String>, usize) {
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let declared = packages.iter().map(|package| {
        let minor = package["rust_version"].as_str().and_then(minor);
        (
            package["name"].as_str().unwrap_or("?"),
            package["source"].is_null(),
            minor,
        )
    });
    // Any crate of the workspace: they all inherit this version.
    let ours = declared
        .clone()
        .find_map(|(_, is_ours, minor)| minor.filter(|_| is_ours));
    let needs_newer = declared.filter(|(_, _, minor)| *minor > ours);
    let problems = needs_newer
        .map(|(name, _, minor)| format!("{name} needs Rust 1.{}", minor.unwrap_or_default()));
    (ours, problems.collect(), packages.len())
}

fn minor(version: &str) -> Option<Minor> {
    version.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_newer_dependency_is_found() {
        let text = r#"{"packages": [
            {"name": "ours", "source": null, "rust_version": "1.88"},
            {"name": "old", "source": "registry", "rust_version": "1.56.1"},
            {"name": "any", "source": "registry", "rust_version": null},
            {"name": "new", "source": "registry", "rust_version": "1.90"}]}"#;
        let (ours, problems, seen) = newer(&serde_json::from_str(text).expect("JSON"));
        assert_eq!((ours, seen), (Some(88), 4));
        assert_eq!(problems, ["new needs Rust 1.90"]);
    }
}
