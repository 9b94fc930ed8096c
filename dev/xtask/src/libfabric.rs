//! Building and installing the provider of libfabric.

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::{Failure, cannot_run};
use crate::process::{cargo, run};
use crate::workspace::{Workspace, root};

/// Name that libfabric looks for.
const PROVIDER: &str = "libesp-fi.so";
/// Name of the built library.
const BUILT: &str = "libesp_fi.so";

/// Runs `cargo xtask install-libfabric [--dir DIR]`.
pub(crate) fn install_libfabric(args: &[String]) -> Result<(), Failure> {
    let dir = match args {
        [] => match std::env::home_dir() {
            Some(home) => home.join(".local/lib/libfabric"),
            None => return cannot_run("install-libfabric: no home directory: use --dir DIR"),
        },
        [option, dir] if option == "--dir" && !dir.is_empty() => PathBuf::from(dir),
        _ => {
            return cannot_run(
                "install-libfabric [--dir DIR]: the folder to install to (default: \
                 ~/.local/lib/libfabric)",
            );
        }
    };
    let dir = std::path::absolute(&dir)
        .map_err(|e| Failure::CannotRun(format!("{}: {e}", dir.display())))?;
    let build = ["build", "--locked", "--release", "-p", "libfabric"];
    run(cargo(build).current_dir(root()))?;
    let built = Workspace::load()?.target.join("release").join(BUILT);
    let to = install(&built, &dir)?;
    println!("installed {}", to.display());
    println!("use it: export FI_PROVIDER_PATH={}", dir.display());
    println!("        fi_info -p esp (docs/libfabric.md)");
    Ok(())
}

fn install(built: &Path, dir: &Path) -> Result<PathBuf, Failure> {
    let failed = |path: &Path, e: std::io::Error| {
        Failure::CannotRun(format!("installing {}: {e}", path.display()))
    };
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let to = dir.join(PROVIDER);
    // Running programs keep the old file, which is replaced and not overwritten.
    let new = to.with_extension("new");
    fs::copy(built, &new).map_err(|e| failed(built, e))?;
    fs::rename(&new, &to).map_err(|e| failed(&to, e))?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_replaces_an_older_provider() {
        let dir = std::env::temp_dir().join(format!("esp-install-fi-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let built = dir.join("built.so");
        for text in ["old", "new"] {
            fs::write(&built, text).unwrap();
            let to = install(&built, &dir.join("a")).unwrap();
            assert_eq!(fs::read_to_string(to).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.join("a")).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
