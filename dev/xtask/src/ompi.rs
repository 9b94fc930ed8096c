//! Building, checking and installing the component for Open MPI. `bindings/ompi` is a workspace of
//! its own, because it needs Open MPI's headers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{Failure, Outcome, cannot_run};
use crate::process::{cargo, run};
use crate::workspace::{Workspace, root};

/// Name of the component's file, by which Open MPI finds it.
const COMPONENT: &str = "mca_btl_esp.so";
/// Name of the file with help texts, which the component expects beside itself.
const HELP: &str = "help-mpi-btl-esp.txt";

/// Runs `cargo xtask install-ompi [--dir DIR]`.
pub(crate) fn install_ompi(args: &[String]) -> Result<(), Failure> {
    let dir = match args {
        [] => match std::env::home_dir() {
            Some(home) => home.join(".openmpi/components"),
            None => return cannot_run("install-ompi: no home directory: use --dir DIR"),
        },
        [option, dir] if option == "--dir" && !dir.is_empty() => PathBuf::from(dir),
        _ => {
            return cannot_run(
                "install-ompi [--dir DIR]: the folder to install to (default: ~/.openmpi/components)",
            );
        }
    };
    let dir = std::path::absolute(&dir)
        .map_err(|e| Failure::CannotRun(format!("{}: {e}", dir.display())))?;
    let built = build(true)?;
    let to = install(&built, &dir)?;
    println!("installed {}", to.display());
    println!("use it: mpirun --mca btl esp,vader,self PROGRAM (docs/open-mpi.md)");
    Ok(())
}

/// Returns whether Open MPI's headers are installed.
pub(crate) fn headers() -> bool {
    std::env::var_os("OMPI_INCLUDE").is_some()
        || ["mpicc.openmpi", "mpicc"].iter().any(|mpicc| {
            let output = Command::new(mpicc).arg("--showme:incdirs").output();
            output.is_ok_and(|output| {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.split_whitespace()
                    .any(|dir| Path::new(dir).join("openmpi/opal_config.h").is_file())
            })
        })
}

fn manifest() -> String {
    format!(
        "--manifest-path={}",
        root().join("bindings/ompi/Cargo.toml").display()
    )
}

/// Builds the component. Returns its path.
fn build(release: bool) -> Result<PathBuf, Failure> {
    if !headers() {
        return cannot_run("no headers of Open MPI: apt install libopenmpi-dev");
    }
    let target = Workspace::load()?.target;
    let mut command = cargo(["build", "--locked", &manifest()]);
    command.arg("--target-dir").arg(&target).current_dir(root());
    if release {
        command.arg("--release");
    }
    run(&mut command)?;
    Ok(target
        .join(if release { "release" } else { "debug" })
        .join(format!("lib{COMPONENT}")))
}

fn install(built: &Path, dir: &Path) -> Result<PathBuf, Failure> {
    let failed = |path: &Path, e: std::io::Error| {
        Failure::CannotRun(format!("installing {}: {e}", path.display()))
    };
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let to = dir.join(COMPONENT);
    let help = root().join("bindings/ompi").join(HELP);
    for (from, to) in [(help.as_path(), &dir.join(HELP)), (built, &to)] {
        // Running programs keep the old file, which is replaced and not overwritten.
        let new = to.with_extension("new");
        fs::copy(from, &new).map_err(|e| failed(from, e))?;
        fs::rename(&new, to).map_err(|e| failed(to, e))?;
    }
    Ok(to)
}

/// Builds the component and puts it beside the programs that tests start.
pub(crate) fn for_tests() -> Outcome {
    if !headers() {
        return Ok("SKIPPED: no headers of Open MPI (apt install libopenmpi-dev)".into());
    }
    let built = build(false)?;
    let dir = built.parent().map(Path::to_owned).unwrap_or_default();
    Ok(install(&built, &dir)?.display().to_string())
}

/// Checks format, lints and unit tests.
pub(crate) fn check(_: &Workspace) -> Outcome {
    run(cargo(["fmt", &manifest(), "--check"]).current_dir(root()))?;
    if !headers() {
        return Ok("format only: no headers of Open MPI (apt install libopenmpi-dev)".into());
    }
    let target = Workspace::load()?.target;
    let common = [
        "--locked".to_owned(),
        manifest(),
        format!("--target-dir={}", target.display()),
    ];
    let lints = ["--all-targets", "--", "-D", "warnings"];
    run(cargo(["clippy"])
        .args(&common)
        .args(lints)
        .current_dir(root()))?;
    run(cargo(["test", "--quiet"]).args(&common).current_dir(root()))?;
    Ok("format, lints, unit tests".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_replaces_an_older_component() {
        let dir = std::env::temp_dir().join(format!("esp-install-ompi-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let built = dir.join("built.so");
        for text in ["old", "new"] {
            fs::write(&built, text).unwrap();
            let to = install(&built, &dir.join("a/b")).unwrap();
            assert_eq!(to, dir.join("a/b").join(COMPONENT));
            assert_eq!(fs::read_to_string(to).unwrap(), text);
        }
        assert!(install(&dir.join("missing"), &dir).is_err());
        assert!(dir.join("a/b").join(HELP).is_file());
        assert_eq!(fs::read_dir(dir.join("a/b")).unwrap().count(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for args in [
            &["--dir"][..],
            &["--dir", ""],
            &["/usr"],
            &["--dir", "/x", "y"],
        ] {
            let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
            assert!(install_ompi(&args).is_err(), "{args:?}");
        }
    }
}
