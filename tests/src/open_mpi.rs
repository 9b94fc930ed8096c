//! Programs of Open MPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{output, programs};

/// A compiled program in a temporary folder, removed on drop.
pub struct Program {
    dir: PathBuf,
    file: PathBuf,
}

impl Program {
    /// Compiles a program of `tests/mpi/programs`. Returns `None` after printing SKIPPED if Open
    /// MPI is not installed or its component was not built.
    ///
    /// # Panics
    /// When the program cannot be compiled.
    pub fn new(test: &str, name: &str) -> Option<Program> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
        if !find("mpicc.openmpi") || !programs().join("mca_btl_esp.so").is_file() {
            netns::skip(
                test,
                "no Open MPI (Debian: apt install openmpi-bin libopenmpi-dev), or its component was not built (cargo xtask test builds it)",
            );
            return None;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("mpi/programs")
            .join(name)
            .with_extension("c");
        let dir =
            std::env::temp_dir().join(format!("esp-open-mpi-{}-{test}-{name}", std::process::id()));
        fs::create_dir(&dir).expect("make a folder");
        let file = dir.join(name);
        let mut mpicc = Command::new("mpicc.openmpi");
        mpicc
            .args(["-Wall", "-Werror", "-O2", "-o"])
            .arg(&file)
            .arg(source)
            .arg("-lpthread");
        let compiled = output(&mut mpicc);
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        Some(Program { dir, file })
    }

    /// Returns its path.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
