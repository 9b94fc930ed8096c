//! PMIx: Open MPI's `mpirun`, PRRTE, Slurm. The client is the system's libpmix, loaded when the
//! environment asks for it, so that programs run without it elsewhere.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use crate::detect::check_place;
use crate::sys::{self, Found, JOB_SIZE, WHOLE_JOB};
use crate::{BootError, Bootstrap, Client, Environment, MAX_JOB, MAX_VALUE};

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

/// Client of a PMIx job.
pub(crate) struct Pmix {
    pmix: sys::Pmix,
    timeout: Duration,
}

/// Returns the paths to try for the library: only `ESP_PMIX_LIB` if that is set, otherwise the
/// loader's search path, then [`FOLDERS`].
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

fn wrong(what: impl Display) -> BootError {
    BootError::Protocol(format!("{NAME}: {what}"))
}

impl Pmix {
    /// Loads the library and connects to the launcher.
    pub(crate) fn start(env: &Environment, timeout: Duration) -> Result<Bootstrap, BootError> {
        let remedy = "start this program by mpirun or srun --mpi=pmix, or unset ESP_BOOT";
        env.need("PMIX_NAMESPACE", "PMIx", remedy)?;
        let pmix = Pmix {
            pmix: sys::Pmix::init(&places(env))?,
            timeout,
        };
        let job = pmix
            .pmix
            .job()
            .filter(|job| (1..=MAX_JOB).contains(&job.len()));
        let job = job.ok_or_else(|| wrong("the launcher sent no name of the job"))?;
        let rank = pmix.pmix.rank();
        let found = pmix
            .pmix
            .get(WHOLE_JOB, JOB_SIZE, pmix.seconds(), MAX_VALUE)?;
        let Some(Found::Number(size)) = found else {
            return Err(wrong(format!(
                "the launcher did not send the size of the job ({found:?})"
            )));
        };
        check_place(rank, size, ("PMIX_RANK", "the size of the job"))?;
        Ok(Bootstrap::new(NAME, (rank, size), job, pmix))
    }

    /// Returns the timeout in whole seconds, at least 1: PMIx treats 0 as no limit.
    fn seconds(&self) -> i32 {
        let seconds = i32::try_from(self.timeout.as_secs());
        seconds.unwrap_or(i32::MAX).max(1)
    }
}

/// Returns a key with a prefix that no other library of the job uses.
fn full(key: &str) -> String {
    format!("esp.{key}")
}

impl Client for Pmix {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        // This byte keeps every value from being empty: some versions of the library lose empty
        // byte objects.
        self.pmix.put(&full(key), &[b"+", value].concat())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.pmix.fence(self.seconds())
    }

    fn set_limit(&mut self, limit: Duration) -> Duration {
        std::mem::replace(&mut self.timeout, limit)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        let seconds = self.seconds();
        let what = match self.pmix.get(rank, &full(key), seconds, MAX_VALUE + 1)? {
            None => return Ok(None),
            Some(Found::Bytes(bytes)) => match bytes.strip_prefix(b"+") {
                Some(value) => return Ok(Some(value.to_vec())),
                None => format!("{} other bytes", bytes.len()),
            },
            Some(other) => format!("{other:?}"),
        };
        Err(wrong(format!(
            "the value `{key}` of rank {rank} is malformed ({what})"
        )))
    }

    fn abort(&mut self, code: i32, why: &str) -> Result<(), BootError> {
        self.pmix.abort(code, why)
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.pmix.finalize()
    }
}
