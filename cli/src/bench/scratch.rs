//! A private folder.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::out::{Doing, Failure};

/// A folder of our own for sockets, programs and logs; gone when dropped.
#[derive(Debug)]
pub(in crate::bench) struct Scratch(PathBuf);

impl Scratch {
    pub(in crate::bench) fn new() -> Result<Scratch, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("esplab-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).doing(path.display())?;
        Ok(Scratch(path))
    }

    pub(in crate::bench) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
