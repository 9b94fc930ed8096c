//! Debian and RPM packages: `stage` builds and arranges what they contain below `target/packages`,
//! and cargo-deb and cargo-generate-rpm pack it by the metadata in the manifests.

mod stage;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{Failure, cannot_run};
use crate::process::run;
use crate::tools;
use crate::workspace::{Workspace, root};

/// A package, and the manifest that describes it.
struct Package {
    name: &'static str,
    /// Folder of the manifest.
    dir: &'static str,
    /// Variant of the manifest's metadata.
    variant: Option<&'static str>,
    /// Whether Debian keeps its libraries in a folder of the architecture.
    multiarch: bool,
}

const fn package(name: &'static str, dir: &'static str, multiarch: bool) -> Package {
    Package {
        name,
        dir,
        variant: None,
        multiarch,
    }
}

/// All packages.
const PACKAGES: [Package; 7] = [
    package("esp-daemon", "esp-daemon", false),
    package("esp-tools", "cli", false),
    package("esp-preload", "bindings/preload/run", false),
    package(LIBESP, "job/capi", true),
    Package {
        variant: Some("dev"),
        ..package("libesp-dev", "job/capi", true)
    },
    package(OPENMPI, "bindings/ompi", false),
    package("libfabric-esp", "bindings/libfabric", true),
];

/// The package with the C library, named by its soname.
const LIBESP: &str = "libesp0";

/// The package that needs the headers of Open MPI.
const OPENMPI: &str = "openmpi-esp";

/// Arguments of `cargo xtask packages`.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Folder for the packages.
    dir: PathBuf,
    /// Whether programs are built without optimization and hardly compressed, to try the packaging.
    debug: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, Failure> {
        let (debug, rest) = match args {
            [rest @ .., option] if option == "--debug" => (true, rest),
            rest => (false, rest),
        };
        match rest {
            [dir] if !dir.is_empty() && !dir.starts_with('-') => {
                let dir = std::path::absolute(dir)
                    .map_err(|e| Failure::CannotRun(format!("{dir}: {e}")))?;
                Ok(Options { dir, debug })
            }
            _ => cannot_run(
                "packages DIR [--debug]: the folder for the packages; --debug: unoptimized \
                 programs, to try the packaging",
            ),
        }
    }
}

/// Runs `cargo xtask packages DIR [--debug]`.
pub(crate) fn packages(args: &[String]) -> Result<(), Failure> {
    let options = Options::parse(args)?;
    let workspace = Workspace::load()?;
    fs::create_dir_all(&options.dir)
        .map_err(|e| Failure::CannotRun(format!("{}: {e}", options.dir.display())))?;
    let staged = stage::build(&workspace, options.debug)?;
    let packages = PACKAGES
        .iter()
        .filter(|p| staged.openmpi || p.name != OPENMPI);
    for package in packages.clone() {
        let changelog = staged.dir.join(package.name).join("changelog");
        write(&changelog, &entry(package.name, &staged.date))?;
        let deb = options.dir.join(package.file());
        run(package
            .deb(&workspace, options.debug)?
            .arg("--output")
            .arg(&deb))?;
        if package.name == LIBESP {
            library(&deb, &staged.dir.join("unpacked"))?;
        }
    }
    for package in packages {
        run(package
            .rpm(&workspace, options.debug)?
            .arg("--output")
            .arg(&options.dir))?;
    }
    if !staged.openmpi {
        println!("no {OPENMPI}: no headers of Open MPI (apt install libopenmpi-dev)");
    }
    println!("packages in {}", options.dir.display());
    Ok(())
}

impl Package {
    /// Returns the name of Debian's package.
    fn file(&self) -> String {
        let architecture = match env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let version = env!("CARGO_PKG_VERSION");
        format!("{}_{version}-1_{architecture}.deb", self.name)
    }

    /// Returns the command that packs for Debian, without its output.
    fn deb(&self, workspace: &Workspace, quick: bool) -> Result<Command, Failure> {
        let mut command = tools::subcommand(workspace, "deb")?;
        command.args(["--no-build", "--no-strip", "--quiet", "--manifest-path"]);
        command.arg(root().join(self.dir).join("Cargo.toml"));
        command.arg("--maintainer").arg(maintainer());
        if quick {
            command.arg("--fast");
        }
        if let Some(variant) = self.variant {
            command.arg("--variant").arg(variant);
        }
        if self.multiarch {
            command.args(["--multiarch", "same"]);
        }
        Ok(command)
    }

    /// Returns the command that packs for RPM, without its output.
    fn rpm(&self, workspace: &Workspace, quick: bool) -> Result<Command, Failure> {
        let mut command = tools::subcommand(workspace, "generate-rpm")?;
        // Sources are relative to the manifest.
        command.current_dir(root().join(self.dir));
        if quick {
            command.args(["--payload-compress", "none"]);
        }
        if let Some(variant) = self.variant {
            command.arg("--variant").arg(variant);
        }
        Ok(command)
    }
}

/// Adds to the package of the C library what cargo-deb cannot: the file by which packages of
/// programs find out that they depend on it. A library is not executable.
fn library(deb: &Path, dir: &Path) -> Result<(), Failure> {
    run(Command::new("dpkg-deb").arg("-R").arg(deb).arg(dir))?;
    write(&dir.join("DEBIAN/shlibs"), "libesp 0 libesp0\n")?;
    let mut chmod = Command::new("find");
    chmod
        .arg(dir.join("usr"))
        .args(["-name", "libesp.so.0", "-exec", "chmod", "644", "{}", "+"]);
    run(&mut chmod)?;
    let pack = ["--root-owner-group", "-b"];
    run(Command::new("dpkg-deb").args(pack).arg(dir).arg(deb))
}

/// Returns the maintainer, from the variables of Debian's tools.
fn maintainer() -> String {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let name = set("DEBFULLNAME").unwrap_or_else(|| "ESP project contributors".into());
    let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let email = set("DEBEMAIL").unwrap_or_else(|| format!("root@{}", host().trim()));
    format!("{name} <{email}>")
}

/// Returns the changelog that Debian requires in addition to that of the project.
fn entry(package: &str, date: &str) -> String {
    format!(
        "{package} ({}-1) unstable; urgency=medium\n\n  * Packaged from source; changelog.gz has \
         the changes.\n\n -- {}  {date}\n",
        env!("CARGO_PKG_VERSION"),
        maintainer()
    )
}

fn write(to: &Path, text: &str) -> Result<(), Failure> {
    fs::write(to, text).map_err(|e| Failure::CannotRun(format!("{}: {e}", to.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Options, Failure> {
        let args: Vec<String> = line.iter().map(|a| (*a).to_owned()).collect();
        Options::parse(&args)
    }

    #[test]
    fn arguments() {
        for (line, debug) in [(&["/x"][..], false), (&["/x", "--debug"], true)] {
            let dir = PathBuf::from("/x");
            assert_eq!(parse(line), Ok(Options { dir, debug }));
        }
        for line in [
            &[][..],
            &[""],
            &["--debug"],
            &["/x", "/y"],
            &["/x", "--release"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn manifests_name_the_packages_and_this_version() {
        for package in &PACKAGES {
            let manifest = root().join(package.dir).join("Cargo.toml");
            let text = fs::read_to_string(&manifest).unwrap();
            let folder = format!("target/packages/{}/changelog", package.name);
            assert!(
                text.contains(&folder),
                "{}: no {folder}",
                manifest.display()
            );
            let debian = text.matches("libesp0 (= ").count();
            let version = env!("CARGO_PKG_VERSION");
            let own = text.matches(&format!("libesp0 (= {version}-1)")).count();
            assert_eq!(debian, own, "libesp-dev depends on another version");
            let rpm = text.matches("libesp0 = \"= ").count();
            let own = text.matches(&format!("libesp0 = \"= {version}\"")).count();
            assert_eq!(rpm, own, "libesp-devel depends on another version");
        }
    }
}
