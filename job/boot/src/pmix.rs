//! PMIx: Open MPI's `mpirun`, PRRTE, Slurm. The client is the system's libpmix, loaded when the
//! environment asks for it, so that programs run without it elsewhere.

use std::path::Path;
use std::time::Duration;

use crate::detect::check_place;
use crate::error::printable;
use crate::keys::{self, Keys};
use crate::sys::{self, Found, JOB_SIZE, WHOLE_JOB};
use crate::{BootError, Bootstrap, Environment, MAX_JOB, MAX_VALUE};

const NAME: &str = "pmix";
/// Folders outside the loader's search path in which distributions install libpmix.
const FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/pmix2/lib",
    "/usr/lib/aarch64-linux-gnu/pmix2/lib",
    "/usr/lib/pmix2/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/opt/pmix/lib",
];

/// A process of a PMIx job.
pub(crate) struct Pmix {
    pmix: sys::Pmix,
    rank: u32,
    size: u32,
    job: String,
    timeout: Duration,
    keys: Keys,
    finalized: bool,
}

/// Paths to try for the library: only `ESP_PMIX_LIB` if that is set, else the loader's search path,
/// then [`FOLDERS`].
fn places(env: &Environment) -> Vec<String> {
    if let Some(place) = env.get("ESP_PMIX_LIB") {
        return vec![place.to_owned()];
    }
    let folders = FOLDERS
        .iter()
        .map(|folder| format!("{folder}/libpmix.so.2"));
    std::iter::once("libpmix.so.2".to_owned())
        .chain(folders.filter(|f| Path::new(f).exists()))
        .collect()
}

fn wrong(what: impl Into<String>) -> BootError {
    BootError::Protocol {
        launcher: NAME,
        what: what.into(),
    }
}

impl Pmix {
    /// Loads the library and connects to the launcher.
    pub(crate) fn start(env: &Environment, timeout: Duration) -> Result<Pmix, BootError> {
        let remedy = "start this program by mpirun or srun --mpi=pmix, or unset ESP_BOOT";
        env.need("PMIX_NAMESPACE", "PMIx", remedy)?;
        let pmix = sys::Pmix::init(&places(env))?;
        let job = pmix
            .job()
            .filter(|job| !job.is_empty() && job.len() <= MAX_JOB);
        let job = job.ok_or_else(|| wrong("the launcher gave the job no name"))?;
        let rank = pmix.rank();
        let mut new = Pmix {
            pmix,
            rank,
            size: 0,
            job,
            timeout,
            keys: Keys::default(),
            finalized: false,
        };
        new.size = match new
            .pmix
            .get(WHOLE_JOB, JOB_SIZE, new.seconds(), MAX_VALUE)?
        {
            Some(Found::Number(size)) => size,
            found => {
                return Err(wrong(format!(
                    "the launcher did not say how large the job is ({found:?})"
                )));
            }
        };
        check_place(rank, new.size, ("PMIX_RANK", "the size of the job"))?;
        Ok(new)
    }

    /// Timeout in whole seconds, at least 1: PMIx takes 0 for no limit.
    fn seconds(&self) -> i32 {
        i32::try_from(self.timeout.as_secs())
            .unwrap_or(i32::MAX)
            .max(1)
    }

    fn alive(&self) -> Result<(), BootError> {
        if self.finalized {
            Err(BootError::Finalized)
        } else {
            Ok(())
        }
    }

    fn late(&self, error: BootError, what: impl Into<String>) -> BootError {
        if sys::is_timeout(&error) {
            return BootError::Timeout {
                launcher: NAME,
                what: what.into(),
                limit: self.timeout,
            };
        }
        error
    }
}

/// Prefix of our keys, which others of the same job do not use.
fn full(key: &str) -> String {
    format!("esp.{key}")
}

impl Bootstrap for Pmix {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn launcher(&self) -> &'static str {
        NAME
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        self.alive()?;
        self.keys.add(key, value)?;
        // The first byte keeps an empty note from looking like none: some versions of the library
        // lose byte objects of no size.
        let mut noted = vec![b'+'];
        noted.extend_from_slice(value);
        self.pmix.put(&full(key), &noted)
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.alive()?;
        let done = self.pmix.fence(self.seconds());
        done.map_err(|e| self.late(e, "waiting for all processes of the job"))
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        self.alive()?;
        keys::check_rank(rank, self.size)?;
        keys::check(key)?;
        let found = self
            .pmix
            .get(rank, &full(key), self.seconds(), MAX_VALUE + 1);
        let found =
            found.map_err(|e| self.late(e, format!("reading the note `{key}` of rank {rank}")))?;
        match found {
            None => Ok(None),
            Some(Found::Bytes(bytes)) if bytes.first() == Some(&b'+') => {
                Ok(Some(bytes.get(1..).unwrap_or_default().to_vec()))
            }
            Some(other) => {
                let what = match other {
                    Found::Bytes(bytes) => format!("{} other bytes", bytes.len()),
                    other => format!("{other:?}"),
                };
                Err(wrong(format!(
                    "the note `{key}` of rank {rank} is damaged ({what})"
                )))
            }
        }
    }

    fn abort(&mut self, code: i32, why: &str) -> BootError {
        let why = printable(why);
        match self.pmix.abort(code, &why) {
            Err(error) if !self.finalized => error,
            _ => BootError::Aborted {
                rank: self.rank,
                code,
                why,
            },
        }
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.alive()?;
        self.finalized = true;
        self.pmix.finalize()
    }
}
