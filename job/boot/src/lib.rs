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
//! `ESP_BOOT=pmix`, `pmi1`, `fixed` or `single` selects one without detection. `ESP_BOOT_TIMEOUT`
//! is the maximum time to wait, in seconds, for an answer of the launcher or for the slowest
//! process of the job.
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
mod pmi1;
mod pmix;
mod sys;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use detect::{Environment, detect, detect_in};
pub use error::BootError;
use error::printable;

/// Maximum length of a value of [`Bootstrap::put`], in bytes.
pub const MAX_VALUE: usize = 4096;
/// Maximum length of a key, in bytes.
pub const MAX_KEY: usize = 24;
/// Maximum length of a job's name, in bytes.
pub const MAX_JOB: usize = 255;
/// Maximum number of processes of a job.
pub const MAX_SIZE: u32 = 1 << 20;

/// One process's view of its job.
pub struct Bootstrap {
    rank: u32,
    size: u32,
    job: String,
    launcher: &'static str,
    /// Keys that this process has published.
    keys: BTreeSet<String>,
    finalized: bool,
    /// Number of values read.
    lookups: u64,
    client: Box<dyn Client>,
}

/// Time limit of the last fence, effectively none: a year.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// Connection to a launcher. [`Bootstrap`] has checked the arguments, and makes no call after
/// `finalize` except `abort`.
trait Client: Send {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError>;
    fn fence(&mut self) -> Result<(), BootError>;
    /// Replaces the time limit of all calls, and returns the previous one.
    fn set_limit(&mut self, limit: Duration) -> Duration;
    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError>;
    fn abort(&mut self, code: i32, why: &str) -> Result<(), BootError>;
    fn finalize(&mut self) -> Result<(), BootError>;
}

impl Bootstrap {
    fn new(
        launcher: &'static str,
        (rank, size): (u32, u32),
        job: String,
        client: impl Client + 'static,
    ) -> Bootstrap {
        Bootstrap {
            rank,
            size,
            job,
            launcher,
            keys: BTreeSet::new(),
            finalized: false,
            lookups: 0,
            client: Box::new(client),
        }
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the name of the job, of at most [`MAX_JOB`] bytes, which no other running job of
    /// this launcher has. It is not secret.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Returns the kind of launcher: `pmix`, `pmi1`, `fixed` or `single`.
    pub fn launcher(&self) -> &'static str {
        self.launcher
    }

    /// Returns the number of values that this process has read from the launcher.
    pub fn lookups(&self) -> u64 {
        self.lookups
    }

    /// Publishes a value, which all processes can read after the next [`fence`](Bootstrap::fence).
    ///
    /// # Errors
    /// If the key is not 1 to [`MAX_KEY`] ASCII letters, digits, `-` or `_`, or was used before; if
    /// the value is longer than [`MAX_VALUE`]; if the launcher fails.
    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        self.check_open()?;
        check_key(key)?;
        if value.len() > MAX_VALUE {
            let what = format!("the value has {} bytes, more than {MAX_VALUE}", value.len());
            return Err(BootError::Argument(what));
        }
        if !self.keys.insert(key.to_owned()) {
            let what =
                format!("the key `{key}` was published already, and values cannot be changed");
            return Err(BootError::Argument(what));
        }
        self.client.put(key, value)
    }

    /// Waits until every process of the job has called this, and distributes the published values.
    ///
    /// # Errors
    /// If the launcher is gone, or a process did not call in time.
    pub fn fence(&mut self) -> Result<(), BootError> {
        self.check_open()?;
        self.client.fence()
    }

    /// Waits as [`fence`](Bootstrap::fence) does, without a time limit, because other processes may
    /// still work.
    ///
    /// # Errors
    /// If the launcher is gone, or a process has ended without calling it.
    pub fn fence_at_end(&mut self) -> Result<(), BootError> {
        self.check_open()?;
        let usual = self.client.set_limit(UNLIMITED);
        let met = self.client.fence();
        self.client.set_limit(usual);
        met
    }

    /// Returns the value that a process published before the last fence, or `None`.
    ///
    /// # Errors
    /// If the job has no such rank, the launcher fails, or the value was not written by
    /// [`put`](Bootstrap::put).
    pub fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        self.check_open()?;
        check_key(key)?;
        if rank >= self.size {
            let what = format!("there is no rank {rank} in a job of {}", self.size);
            return Err(BootError::Argument(what));
        }
        self.lookups += 1;
        self.client.get(rank, key)
    }

    /// Asks the launcher to end the whole job. Does not return if that takes effect at once;
    /// otherwise the caller prints the error and exits with `code`.
    pub fn abort(&mut self, code: i32, why: &str) -> BootError {
        let (rank, why) = (self.rank, printable(why));
        match self.client.abort(code, &why) {
            Err(error) if !self.finalized => error,
            _ => BootError::Aborted { rank, code, why },
        }
    }

    /// Disconnects from the launcher. Afterwards this process may exit while others run.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn finalize(&mut self) -> Result<(), BootError> {
        self.check_open()?;
        self.finalized = true;
        self.client.finalize()
    }

    fn check_open(&self) -> Result<(), BootError> {
        match self.finalized {
            true => Err(BootError::Finalized),
            false => Ok(()),
        }
    }
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("launcher", &self.launcher)
            .finish_non_exhaustive()
    }
}

/// Checks the form of a key.
fn check_key(key: &str) -> Result<(), BootError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    match (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(BootError::Argument(format!(
            "invalid key `{}`: use 1 to {MAX_KEY} letters, digits, - and _",
            printable(key)
        ))),
    }
}

/// Client of a job of one: its values, and those visible since the last fence.
#[derive(Debug, Default)]
struct Single {
    put: BTreeMap<String, Vec<u8>>,
    seen: BTreeMap<String, Vec<u8>>,
}

impl Single {
    fn start() -> Bootstrap {
        let job = format!("single-{}", std::process::id());
        Bootstrap::new("single", (0, 1), job, Single::default())
    }
}

impl Client for Single {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        self.put.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.seen.append(&mut self.put);
        Ok(())
    }

    fn set_limit(&mut self, limit: Duration) -> Duration {
        limit
    }

    fn get(&mut self, _: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        Ok(self.seen.get(key).cloned())
    }

    fn abort(&mut self, _: i32, _: &str) -> Result<(), BootError> {
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_visible_after_a_fence_and_calls_fail_after_finalize() {
        let mut job = Single::start();
        job.put("a", b"1").unwrap();
        assert_eq!(job.get(0, "a").unwrap(), None);
        job.fence().unwrap();
        assert_eq!(job.get(0, "a").unwrap().as_deref(), Some(&b"1"[..]));
        assert!(matches!(job.get(1, "a"), Err(BootError::Argument(_))));
        job.finalize().unwrap();
        assert!(matches!(job.fence(), Err(BootError::Finalized)));
        assert!(matches!(job.put("b", b""), Err(BootError::Finalized)));
    }

    #[test]
    fn keys_are_short_plain_and_used_once() {
        let mut job = Single::start();
        job.put("cards-1_A", &[0; MAX_VALUE]).unwrap();
        for (key, value, part) in [
            ("cards-1_A", &[][..], "was published already"),
            ("b", &[0; MAX_VALUE + 1], "4097 bytes"),
        ] {
            let text = job.put(key, value).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
        for bad in [
            "",
            "a b",
            "a=b",
            "a\n",
            "ä",
            "../x",
            "0123456789012345678901234",
        ] {
            assert!(
                matches!(job.put(bad, &[]), Err(BootError::Argument(_))),
                "{bad}"
            );
        }
    }
}
