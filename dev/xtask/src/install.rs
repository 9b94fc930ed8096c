//! Installs the C interface: `include/esp.h`, `lib/libesp.so` with its versioned names,
//! `lib/libesp.a`, `lib/pkgconfig/esp.pc`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::outcome::{Failure, cannot_run};
use crate::process::{cargo, run};
use crate::workspace::{Workspace, root};

/// Version of the interface, in the library's soname (`libesp.so.0`; also in job/capi/build.rs).
const INTERFACE: &str = "0";

/// `cargo xtask install-c --prefix DIR`.
pub(crate) fn install_c(args: &[String]) -> Result<(), Failure> {
    let prefix = match args {
        [option, dir] if option == "--prefix" && !dir.is_empty() => PathBuf::from(dir),
        _ => {
            return cannot_run("install-c needs --prefix DIR, such as /usr/local");
        }
    };
    let prefix = std::path::absolute(&prefix)
        .map_err(|e| Failure::CannotRun(format!("{}: {e}", prefix.display())))?;
    run(cargo(["build", "--release", "-p", "capi"]).current_dir(root()))?;
    let built = Workspace::load()?.target.join("release");
    let files = install(&root().join("job/capi"), &built, &prefix)?;
    println!("installed to {}: {}", prefix.display(), files.join(", "));
    println!(
        "use it: export PKG_CONFIG_PATH={0}/lib/pkgconfig LD_LIBRARY_PATH={0}/lib",
        prefix.display()
    );
    Ok(())
}

/// Copies the built files; returns their names.
fn install(capi: &Path, built: &Path, prefix: &Path) -> Result<Vec<String>, Failure> {
    let failed = |path: &Path, e: std::io::Error| {
        Failure::CannotRun(format!("installing {}: {e}", path.display()))
    };
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let pkgconfig = lib.join("pkgconfig");
    for dir in [&include, &pkgconfig] {
        fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let full = format!("libesp.so.{version}");
    let mut files = Vec::new();
    let copies = [
        (capi.join("include/esp.h"), include.join("esp.h")),
        (built.join("libesp.so"), lib.join(&full)),
        (built.join("libesp.a"), lib.join("libesp.a")),
    ];
    for (from, to) in copies {
        // A running program keeps the old file.
        remove(&to).map_err(|e| failed(&to, e))?;
        fs::copy(&from, &to).map_err(|e| failed(&from, e))?;
        files.push(shown(&to, prefix));
    }
    for name in [format!("libesp.so.{INTERFACE}"), "libesp.so".to_owned()] {
        let link = lib.join(name);
        remove(&link).map_err(|e| failed(&link, e))?;
        symlink(&full, &link).map_err(|e| failed(&link, e))?;
        files.push(shown(&link, prefix));
    }
    let pc = pkgconfig.join("esp.pc");
    write_pc(prefix, "lib", &pc)?;
    files.push(shown(&pc, prefix));
    Ok(files)
}

/// Writes the file for pkg-config; the libraries are in the folder `lib` below the prefix.
pub(crate) fn write_pc(prefix: &Path, lib: &str, to: &Path) -> Result<(), Failure> {
    let text = include_str!("../../../job/capi/esp.pc.in")
        .replace("@PREFIX@", &prefix.display().to_string())
        .replace("@LIB@", lib)
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(to, text).map_err(|e| Failure::CannotRun(format!("{}: {e}", to.display())))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn shown(path: &Path, prefix: &Path) -> String {
    path.strip_prefix(prefix)
        .unwrap_or(path)
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installs_over_an_older_installation() {
        let dir = std::env::temp_dir().join(format!("esp-install-test-{}", std::process::id()));
        let (built, prefix) = (dir.join("built"), dir.join("prefix"));
        fs::create_dir_all(&built).unwrap();
        for name in ["libesp.so", "libesp.a"] {
            fs::write(built.join(name), name).unwrap();
        }
        let capi = root().join("job/capi");
        for _ in 0..2 {
            let files = install(&capi, &built, &prefix).unwrap();
            assert_eq!(files.len(), 6, "{files:?}");
            assert!(
                files
                    .iter()
                    .all(|f| prefix.join(f).metadata().is_ok_and(|m| m.len() > 0)),
                "{files:?}"
            );
        }
        let interface = fs::read_to_string(capi.join("build.rs")).unwrap();
        assert!(
            interface.contains(&format!("libesp.so.{INTERFACE}\"")),
            "job/capi/build.rs says another version"
        );
        let pc = fs::read_to_string(prefix.join("lib/pkgconfig/esp.pc")).unwrap();
        assert!(
            pc.contains(&format!("prefix={}\n", prefix.display())) && !pc.contains('@'),
            "{pc}"
        );
        fs::remove_file(built.join("libesp.a")).unwrap();
        assert!(install(&capi, &built, &prefix).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn refuses_arguments_without_a_prefix() {
        for args in [
            &[][..],
            &["--prefix"],
            &["--prefix", ""],
            &["/usr"],
            &["--prefix", "/x", "y"],
        ] {
            let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
            assert!(install_c(&args).is_err(), "{args:?}");
        }
    }
}
