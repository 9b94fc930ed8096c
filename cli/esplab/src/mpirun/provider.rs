//! Finds the provider of libfabric.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cli::out::{Context, Failure};

/// File name by which libfabric finds the provider.
const PROVIDER: &str = "libesp-fi.so";
/// File name of the provider in the folder of a build.
const BUILT: &str = "libesp_fi.so";

/// Returns the folder of the provider for `FI_PROVIDER_PATH`: one that this variable names already,
/// or else that of this program's build (linked into `scratch` under the name that libfabric
/// expects), or else the one installed for this user.
pub(super) fn folder(scratch: &Path) -> Result<PathBuf, Failure> {
    let path = env::var_os("FI_PROVIDER_PATH").unwrap_or_default();
    if let Some(dir) = env::split_paths(&path).find(|dir| dir.join(PROVIDER).is_file()) {
        return std::path::absolute(&dir).doing(dir.display());
    }
    let exe = env::current_exe().doing("finding the running program")?;
    if let Some(built) = exe.parent().map(|dir| dir.join(BUILT))
        && built.is_file()
    {
        let link = scratch.join(PROVIDER);
        symlink(&built, &link).doing(format!("making {}", link.display()))?;
        return Ok(scratch.to_owned());
    }
    let home = env::home_dir()
        .unwrap_or_default()
        .join(".local/lib/libfabric");
    if home.join(PROVIDER).is_file() {
        return Ok(home);
    }
    Err(Failure::new(format!(
        "no {PROVIDER} in FI_PROVIDER_PATH, no {BUILT} in the folder of this program, and no \
         {PROVIDER} in {}: cargo xtask install-libfabric",
        home.display()
    )))
}
