//! Builds the contents of the packages, and arranges them in a folder for each below
//! `target/packages`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::write_pc;
use crate::outcome::{Failure, failed};
use crate::process::{cargo, output, run};
use crate::workspace::{Workspace, root};
use crate::{manual, ompi, open_mpi};

/// Programs of the package `esp-daemon`.
const DAEMON: &[&str] = &["esp-daemon"];
/// Programs of the package `esp-tools`.
const TOOLS: &[&str] = &[
    "esp", "espcat", "esperf", "esping", "esplab", "espstat", "esptop",
];
/// Programs of the package `esp-preload`.
const PRELOAD: &[&str] = &["esprun"];
/// Crates to build.
const CRATES: &[&str] = &[
    "esp-daemon",
    "cli",
    "esplab",
    "capi",
    "libfabric",
    "preload",
    "esprun",
];

/// Options of strip for programs and shared libraries.
const UNNEEDED: [&str; 1] = ["--strip-unneeded"];
/// Options of strip for the archive. The compiler's intermediate code is three quarters of it, and
/// no other linker reads it.
const ARCHIVE: [&str; 3] = [
    "--strip-debug",
    "--remove-section=.llvmbc",
    "--remove-section=.llvmcmd",
];

/// Folders of staged files.
pub(super) struct Staged {
    /// The folder with one for each package.
    pub(super) dir: PathBuf,
    /// Whether the component for Open MPI is there.
    pub(super) openmpi: bool,
    /// Date of the packages' changelogs, as in e-mails.
    pub(super) date: String,
}

/// Builds everything and arranges it.
pub(super) fn build(workspace: &Workspace, debug: bool) -> Result<Staged, Failure> {
    // The manifests name this folder, wherever cargo builds.
    let dir = root().join("target/packages");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|e| error(&dir, &e))?;
    }
    let mut build = cargo(["build", "--locked"]);
    if !debug {
        build.arg("--release");
    }
    for name in CRATES {
        build.args(["-p", name]);
    }
    run(build.current_dir(root()))?;
    let built = workspace
        .target
        .join(if debug { "debug" } else { "release" });

    programs(&built, &dir.join("esp-daemon"), DAEMON)?;
    programs(&built, &dir.join("esp-tools"), TOOLS)?;
    programs(&built, &dir.join("esp-preload"), PRELOAD)?;
    library(&built, "libesp_preload.so", &dir.join("esp-preload/lib"))?;
    texts(&dir)?;
    dissector(&dir.join("esp-tools"))?;
    libesp(&built, &dir)?;
    let provider = dir.join("libfabric-esp/lib/libesp-fi.so");
    copy(&built.join("libesp_fi.so"), &provider)?;
    strip(&provider, &UNNEEDED)?;
    let openmpi = open_mpi::headers();
    if openmpi {
        component(&dir.join("openmpi-esp/root"), debug)?;
    }
    let date = ["log", "-1", "--format=%cD"];
    let date = output(Command::new("git").args(date).current_dir(root()))
        .or_else(|_| output(Command::new("date").arg("-R")))?;
    Ok(Staged {
        dir,
        openmpi,
        date: date.trim().to_owned(),
    })
}

fn programs(built: &Path, package: &Path, names: &[&str]) -> Result<(), Failure> {
    for name in names {
        let to = package.join("bin").join(name);
        copy(&built.join(name), &to)?;
        strip(&to, &UNNEEDED)?;
    }
    Ok(())
}

/// Distributes manual pages and completions: each to the package of its program.
fn texts(dir: &Path) -> Result<(), Failure> {
    let all = dir.join("all");
    manual::write("man", &all.join("man"))?;
    manual::write("completions", &all)?;
    for folder in ["man/man1", "man/man5", "man/man8", "bash", "zsh", "fish"] {
        let from = all.join(folder);
        let entries = fs::read_dir(&from).map_err(|e| error(&from, &e))?;
        for entry in entries {
            let name = entry.map_err(|e| error(&from, &e))?.file_name();
            let package = package_of(&name.to_string_lossy());
            copy(
                &from.join(&name),
                &dir.join(package).join(folder).join(&name),
            )?;
        }
    }
    fs::remove_dir_all(&all).map_err(|e| error(&all, &e))
}

/// Returns the package of a manual page or completion, by its file's name.
fn package_of(file: &str) -> &'static str {
    if file.contains("esp-daemon") {
        "esp-daemon"
    } else if PRELOAD.iter().any(|program| file.contains(program)) {
        "esp-preload"
    } else {
        "esp-tools"
    }
}

fn library(built: &Path, name: &str, dir: &Path) -> Result<(), Failure> {
    let to = dir.join(name);
    copy(&built.join(name), &to)?;
    strip(&to, &UNNEEDED)
}

/// The Wireshark dissector: Debian has a folder of plugins for each architecture.
fn dissector(package: &Path) -> Result<(), Failure> {
    let from = root().join("cli/wireshark");
    let plugins = format!("{}/wireshark/plugins/esp", multiarch());
    let to = package.join("lib").join(plugins);
    for entry in fs::read_dir(&from).map_err(|e| error(&from, &e))? {
        let file = entry.map_err(|e| error(&from, &e))?.path();
        if let Some(name) = file
            .file_name()
            .filter(|_| file.extension() == Some("lua".as_ref()))
        {
            copy(&file, &to.join(name))?;
        }
    }
    Ok(())
}

/// Returns Debian's name of this architecture.
fn multiarch() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// The C library, and what its developers need.
fn libesp(built: &Path, dir: &Path) -> Result<(), Failure> {
    let library = dir.join("libesp0/lib/libesp.so.0");
    copy(&built.join("libesp.so"), &library)?;
    strip(&library, &UNNEEDED)?;
    let dev = dir.join("libesp-dev");
    let archive = dev.join("lib/libesp.a");
    copy(&built.join("libesp.a"), &archive)?;
    strip(&archive, &ARCHIVE)?;
    let debian = format!("lib/{}", multiarch());
    for (kind, lib) in [("deb", debian.as_str()), ("rpm", "lib64")] {
        let to = dev.join(kind).join("esp.pc");
        make_parent(&to)?;
        write_pc(Path::new("/usr"), lib, &to)?;
    }
    Ok(())
}

/// The component, in the folder of the Open MPI that it was built for.
fn component(dir: &Path, debug: bool) -> Result<(), Failure> {
    let info = ["--parsable", "--path", "pkglibdir"];
    let said = output(Command::new("ompi_info").args(info))?;
    let folder = said.trim().strip_prefix("path:pkglibdir:/");
    let Some(folder) = folder.filter(|folder| folder.starts_with("usr/")) else {
        return failed(format!(
            "Open MPI keeps its components in {}: packages are for one below /usr",
            said.trim()
        ));
    };
    let to = ompi::install_built(!debug, &dir.join(folder))?;
    strip(&to, &UNNEEDED)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    make_parent(to)?;
    fs::copy(from, to).map_err(|e| error(from, &e))?;
    Ok(())
}

fn make_parent(file: &Path) -> Result<(), Failure> {
    let parent = file.parent().unwrap_or(file);
    fs::create_dir_all(parent).map_err(|e| error(parent, &e))
}

fn strip(file: &Path, options: &[&str]) -> Result<(), Failure> {
    run(Command::new("strip").args(options).arg(file))
}

fn error(path: &Path, e: &std::io::Error) -> Failure {
    Failure::CannotRun(format!("{}: {e}", path.display()))
}
