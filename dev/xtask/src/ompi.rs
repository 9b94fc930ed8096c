//! Building, checking and installing the component for Open MPI. `bindings/ompi` is a workspace of
//! its own, because it needs Open MPI's headers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::open_mpi::{OpenMpi, headers};
use crate::outcome::{Failure, Outcome, cannot_run};
use crate::process::{cargo, run};
use crate::workspace::{Workspace, root};

/// Name of the component's file, by which Open MPI finds it.
const COMPONENT: &str = "mca_btl_esp.so";
/// Name of the file with help texts, which the component expects in its own folder.
const HELP: &str = "help-mpi-btl-esp.txt";

/// Arguments of `cargo xtask install-ompi`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Prefix of the Open MPI to build for; `None`: that of `mpicc`.
    ompi: Option<PathBuf>,
    /// Folder to install to; `None`: that of the user.
    dir: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, Failure> {
        let mut options = Options::default();
        for pair in args.chunks(2) {
            let place = match pair[0].as_str() {
                "--ompi" => &mut options.ompi,
                "--dir" => &mut options.dir,
                _ => return usage(),
            };
            let Some(value) = pair.get(1).filter(|value| !value.is_empty()) else {
                return usage();
            };
            let path = std::path::absolute(value)
                .map_err(|e| Failure::CannotRun(format!("{value}: {e}")))?;
            if place.replace(path).is_some() {
                return usage();
            }
        }
        Ok(options)
    }
}

fn usage<T>() -> Result<T, Failure> {
    cannot_run(
        "install-ompi [--ompi DIR] [--dir DIR]\n  --ompi  prefix of the Open MPI to build for, the \
         folder with bin and include (default: that of mpicc)\n  --dir   folder to install to \
         (default: ~/.openmpi/components)",
    )
}

/// Runs `cargo xtask install-ompi [--ompi DIR] [--dir DIR]`.
pub(crate) fn install_ompi(args: &[String]) -> Result<(), Failure> {
    let options = Options::parse(args)?;
    let home = std::env::home_dir().map(|home| home.join(".openmpi/components"));
    let Some(dir) = options.dir.or_else(|| home.clone()) else {
        return cannot_run("install-ompi: no home directory: use --dir DIR");
    };
    let ompi = OpenMpi::find(options.ompi.as_deref())?;
    println!(
        "Open MPI {}, headers in {}",
        ompi.version,
        ompi.include.display()
    );
    if !ompi.confirmed {
        println!("its ompi_info did not run here: whether it can load components is not known");
    }
    let built = build(true, Some(&ompi))?;
    let to = install(&built, &dir)?;
    let (major, minor) = (ompi.version.major, ompi.version.minor);
    println!(
        "installed {}: for Open MPI {major}.{minor} (built with the headers of {})",
        to.display(),
        ompi.version
    );
    let memory = if major < 5 { "vader" } else { "sm" };
    println!("use it: mpirun --mca btl esp,{memory},self PROGRAM (docs/open-mpi.md)");
    if let Some(path) = ompi.overridden_by() {
        println!(
            "with: export OMPI_MCA_mca_base_component_path={}",
            dir.display()
        );
        println!("      export PMIX_MCA_mca_base_component_path={path}");
    } else if home.as_deref() != Some(&dir) {
        let dir = dir.display();
        println!("with: --mca mca_base_component_path SYSTEM_DEFAULT:{dir}");
    }
    Ok(())
}

fn manifest() -> String {
    format!(
        "--manifest-path={}",
        root().join("bindings/ompi/Cargo.toml").display()
    )
}

/// Builds the component for `ompi`, or else for the Open MPI of `mpicc`. Returns its path.
fn build(release: bool, ompi: Option<&OpenMpi>) -> Result<PathBuf, Failure> {
    let target = Workspace::load()?.target;
    let mut command = cargo(["build", "--locked", &manifest()]);
    command.arg("--target-dir").arg(&target).current_dir(root());
    if release {
        command.arg("--release");
    }
    if let Some(ompi) = ompi {
        command.env("OMPI_INCLUDE", &ompi.include);
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

/// Builds the component for the Open MPI of `mpicc`, and copies it to `dir` with its help texts.
pub(crate) fn install_built(release: bool, dir: &Path) -> Result<PathBuf, Failure> {
    install(&build(release, None)?, dir)
}

/// Builds the component and copies it to the folder of the programs that tests start.
pub(crate) fn for_tests() -> Outcome {
    if !headers() {
        return Ok("SKIPPED: no headers of Open MPI (apt install libopenmpi-dev)".into());
    }
    let built = build(false, None)?;
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
        let parsed = |line: &str| {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Options::parse(&args)
        };
        for line in ["--dir", "--dir ", "/usr", "--dir /x y", "--dir /x --dir /y"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let options = Options {
            ompi: Some("/opt/ompi".into()),
            dir: Some("/x".into()),
        };
        assert_eq!(parsed("--dir /x --ompi /opt/ompi"), Ok(options));
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
    }
}
