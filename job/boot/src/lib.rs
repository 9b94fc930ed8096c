//! Bootstrap of a job: rank and size of each process from its launcher, and a key-value space in
//! which each process publishes values for the others (the *modex*).
//!
//! [`detect()`] returns the [`Bootstrap`] for the launcher that the environment names:
//!
//! | launcher | found by | module |
//! |---|---|---|
//! | Open MPI's `mpirun`, PRRTE, `srun --mpi=pmix` | `PMIX_NAMESPACE`, `PMIX_RANK` | `pmix`, the system's libpmix |
//! | `mpiexec.hydra` of MPICH and its relatives | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` or `PMI_PORT`, `PMI_ID` | `pmi1`, a text protocol |
//! | a test, a script | `ESP_JOB_RANK`, `ESP_JOB_SIZE`, `ESP_JOB_DIR` | `fixed`, files in a private folder |
//! | none | none of these | a job of one |
//!
//! `ESP_BOOT=pmix`, `pmi1`, `fixed` or `single` chooses one without looking for others.
//! `ESP_BOOT_TIMEOUT` is the longest wait, in seconds, for an answer of the launcher or for the
//! slowest process of the job.
//!
//! Input from a launcher is untrusted: lengths and times are bounded, nothing panics.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
#![deny(unsafe_code)]

mod detect;
mod error;
mod fixed;
mod hex;
mod keys;
mod pmi1;
mod pmix;
mod single;
mod sys;

pub use detect::{Environment, detect, detect_in};
pub use error::BootError;

/// Maximum length of a value of [`Bootstrap::put`], in bytes.
pub const MAX_VALUE: usize = 4096;
/// Maximum length of a key, in bytes.
pub const MAX_KEY: usize = 24;
/// Maximum length of a job's name, in bytes.
pub const MAX_JOB: usize = 255;
/// Maximum number of processes of a job.
pub const MAX_SIZE: u32 = 1 << 20;

/// One process's view of its job.
pub trait Bootstrap: Send {
    /// Returns the rank of this process, from 0.
    fn rank(&self) -> u32;

    /// Returns the number of processes.
    fn size(&self) -> u32;

    /// Returns a name that no other running job of this launcher has, of at most [`MAX_JOB`] bytes.
    /// It is not secret.
    fn job(&self) -> &str;

    /// Returns the kind of launcher: `pmix`, `pmi1`, `fixed` or `single`.
    fn launcher(&self) -> &'static str;

    /// Publishes a value, which all processes can read after the next [`fence`](Bootstrap::fence).
    ///
    /// # Errors
    /// If the key is not 1 to [`MAX_KEY`] ASCII letters, digits, `-` or `_`, or was used before; if
    /// the value is longer than [`MAX_VALUE`]; if the launcher fails.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError>;

    /// Waits until every process of the job has called this, and distributes the published values.
    ///
    /// # Errors
    /// If the launcher is gone, or a process did not call in time.
    fn fence(&mut self) -> Result<(), BootError>;

    /// Returns the value that a process published before the last fence, or `None`.
    ///
    /// # Errors
    /// If the job has no such rank, the launcher fails, or the value was not written by
    /// [`put`](Bootstrap::put).
    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError>;

    /// Asks the launcher to end the whole job. Does not return if that takes effect at once;
    /// otherwise the caller prints the error and exits with `code`.
    fn abort(&mut self, code: i32, why: &str) -> BootError;

    /// Takes leave of the launcher: from here on, this process may exit while others run.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn finalize(&mut self) -> Result<(), BootError>;
}
