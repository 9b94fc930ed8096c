//! What the launcher of a job tells its processes: who they are, how many there are, and a board on
//! which each leaves notes for the others.
//!
//! [`detect()`] looks at the environment that the launcher made and gives the [`Bootstrap`] that
//! fits:
//!
//! | launcher | found by | module |
//! |---|---|---|
//! | Open MPI's `mpirun`, PRRTE, `srun --mpi=pmix` | `PMIX_NAMESPACE`, `PMIX_RANK` | `pmix`, the system's libpmix |
//! | `mpiexec.hydra` of MPICH and its relatives | `PMI_FD`, `PMI_RANK`, `PMI_SIZE` or `PMI_PORT`, `PMI_ID` | `pmi1`, a text protocol |
//! | a test, a script | `ESP_JOB_RANK`, `ESP_JOB_SIZE`, `ESP_JOB_DIR` | `fixed`, files in a private folder |
//! | none | none of these | a job of one |
//!
//! `ESP_BOOT=pmix`, `pmi1`, `fixed` or `single` chooses one and looks at no other;
//! `ESP_BOOT_TIMEOUT` is how many seconds an answer of the launcher, or the slowest process of the
//! job, is waited for.
//!
//! Whatever a launcher says is untrusted: lengths and times are bounded, nothing panics.
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

/// Longest value of [`Bootstrap::put`], in bytes.
pub const MAX_VALUE: usize = 4096;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 24;
/// Longest name of a job, in bytes.
pub const MAX_JOB: usize = 255;
/// Most processes of a job.
pub const MAX_SIZE: u32 = 1 << 20;

/// One process's view of its job.
pub trait Bootstrap: Send {
    /// Number of this process, from 0.
    fn rank(&self) -> u32;

    /// Number of processes.
    fn size(&self) -> u32;

    /// A name that no other running job of this launcher has; at most [`MAX_JOB`] bytes. Others can
    /// guess it.
    fn job(&self) -> &str;

    /// Who answered: `pmix`, `pmi1`, `fixed` or `single`.
    fn launcher(&self) -> &'static str;

    /// Leaves a note for all processes. They see it after the next [`fence`](Bootstrap::fence).
    ///
    /// # Errors
    /// A key that is not 1 to [`MAX_KEY`] ASCII letters, digits, `-` or `_`; one that was used
    /// before; a value longer than [`MAX_VALUE`]; the launcher.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError>;

    /// Waits until every process of the job has come here, and spreads the notes.
    ///
    /// # Errors
    /// The launcher is gone, or a process did not come in time.
    fn fence(&mut self) -> Result<(), BootError>;

    /// The note that a process left before the last fence; `None`: it left none.
    ///
    /// # Errors
    /// No such rank; the launcher; a note that no [`put`](Bootstrap::put) has written.
    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError>;

    /// Asks the launcher to end the whole job. Where that works at once, it does not return. The
    /// caller prints the error and exits with `code`.
    fn abort(&mut self, code: i32, why: &str) -> BootError;

    /// Says goodbye to the launcher: from here on, this process may exit while others go on.
    ///
    /// # Errors
    /// The launcher is gone.
    fn finalize(&mut self) -> Result<(), BootError>;
}
