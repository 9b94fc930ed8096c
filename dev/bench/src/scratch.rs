//! Private temporary folders.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cli::out::{Context, Failure};

/// Start of the names; process id and a counter follow.
const PREFIX: &str = "esplab-";

/// A private folder for sockets, programs and logs, removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Scratch, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir();
        sweep(&folder);
        let name = format!(
            "{PREFIX}{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = folder.join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .doing(path.display())?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes folders of this user's killed processes.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner);
        let dead = owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
        // Symbolic links and folders of other users stay.
        let ours =
            |meta: fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
        if dead && entry.metadata().is_ok_and(ours) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Parses the process id of a folder's name.
fn owner(name: &str) -> Option<u32> {
    let (pid, count) = name.strip_prefix(PREFIX)?.split_once('-')?;
    count.parse::<u32>().ok()?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_ended_processes_are_removed() -> Result<(), Failure> {
        let place = Scratch::new()?;
        let mut child = std::process::Command::new("true").spawn().doing("true")?;
        child.wait().doing("true")?;
        let [dead, living] = [child.id(), std::process::id()].map(|pid| format!("{PREFIX}{pid}-0"));
        let others = [
            "esplab-results".to_owned(),
            format!("{PREFIX}{}-x", child.id()),
        ];
        for name in [&dead, &living].into_iter().chain(&others) {
            fs::create_dir(place.path().join(name)).doing(name)?;
        }
        fs::write(place.path().join(&dead).join("log"), "left").doing("log")?;
        sweep(place.path());
        assert!(!place.path().join(&dead).exists());
        assert!(
            [&living]
                .into_iter()
                .chain(&others)
                .all(|name| place.path().join(name).exists())
        );
        Ok(())
    }
}
