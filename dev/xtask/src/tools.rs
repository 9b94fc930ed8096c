//! Requirements of the project besides a Rust toolchain: programs of the system, and cargo's
//! subcommands.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::outcome::{Failure, cannot_run};
use crate::process::{cargo, find_program, line, quietly, run};
use crate::workspace::{Workspace, root};

/// Programs of the virtual cluster, with Debian's packages.
pub(crate) const LAB: &[(&str, &str)] =
    &[("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")];

/// Programs that some tests need in addition to [`LAB`].
pub(crate) const TESTS: &[(&str, &str)] = &[("tshark", "tshark")];

/// Makes sure that the programs are installed: by apt-get as root, else the error says how.
pub(crate) fn ensure(programs: &[(&str, &str)]) -> Result<(), Failure> {
    let Some(packages) = missing(programs, |name| find_program(name).is_some()) else {
        return Ok(());
    };
    if !is_root() || find_program("apt-get").is_none() {
        return cannot_run(format!(
            "programs are missing; on Debian: sudo apt-get install {packages}"
        ));
    }
    eprintln!("Installing the packages {packages}, which this machine lacks");
    for args in [
        "update -q",
        &format!("install -q -y --no-install-recommends {packages}"),
    ] {
        let mut apt = Command::new("apt-get");
        apt.args(args.split(' ')).stdin(Stdio::null());
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))?;
    }
    match missing(programs, |name| find_program(name).is_some()) {
        None => Ok(()),
        Some(still) => cannot_run(format!("still missing after the installation: {still}")),
    }
}

/// The packages of the programs that are not `present`.
fn missing(programs: &[(&str, &str)], present: impl Fn(&str) -> bool) -> Option<String> {
    let absent = programs.iter().filter(|(name, _)| !present(name));
    let mut packages: Vec<_> = absent.map(|&(_, package)| package).collect();
    packages.dedup();
    (!packages.is_empty()).then(|| packages.join(" "))
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Subcommands of cargo and the versions that are installed where they are missing.
const SUBCOMMANDS: &[(&str, &str)] = &[
    ("cargo-nextest", "0.9.148"),
    ("cargo-shear", "1.14.0"),
    ("cargo-deny", "0.20.2"),
    ("cargo-deb", "3.8.0"),
    ("cargo-generate-rpm", "0.21.1"),
];

/// `cargo SUBCOMMAND`, with the subcommand installed below the target folder if the machine lacks
/// it: prebuilt by pip, which takes a second, else built by cargo.
pub(crate) fn subcommand(workspace: &Workspace, name: &str) -> Result<Command, Failure> {
    let program = format!("cargo-{name}");
    let mut command = cargo([name]);
    command.current_dir(root());
    if find_program(&program).is_some() {
        return Ok(command);
    }
    let dir = workspace.target.join("xtask/tools").join(&program);
    let bin = dir.join("bin");
    if !bin.join(&program).is_file() {
        install(&program, &dir)?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(bin).chain(env::split_paths(&path));
    match env::join_paths(paths) {
        Ok(path) => command.env("PATH", path),
        Err(e) => return cannot_run(format!("PATH with {}: {e}", dir.display())),
    };
    Ok(command)
}

fn install(program: &str, dir: &Path) -> Result<(), Failure> {
    let version = SUBCOMMANDS.iter().find(|(name, _)| *name == program);
    let Some((_, version)) = version else {
        return cannot_run(format!(
            "`{program}` has no version in dev/xtask/src/tools.rs"
        ));
    };
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--target"])
        .arg(dir);
    pip.arg(format!("astral-dev-toolchain-{program}=={version}"));
    eprintln!("$ {}", line(&pip));
    if quietly(&mut pip).is_ok_and(|(status, _)| status.success()) {
        return Ok(());
    }
    let mut cargo = cargo([
        "install",
        "--locked",
        "--quiet",
        program,
        "--version",
        version,
    ]);
    run(cargo.arg("--root").arg(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_named_once() {
        assert_eq!(missing(LAB, |_| true), None);
        assert_eq!(missing(LAB, |name| name == "nft"), Some("iproute2".into()));
    }
}
