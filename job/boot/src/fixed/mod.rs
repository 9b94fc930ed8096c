//! Bootstrap without a launcher: rank, size and a folder are in the environment of each process
//! (`ESP_JOB_RANK`, `ESP_JOB_SIZE`, `ESP_JOB_DIR`). For tests and scripts, on one machine or where
//! the folder is shared.
//!
//! The folder belongs to one user and to one job. It contains `rank-R`, which claims a rank and
//! names its process, `job`, which holds a random name, `notes-F-R` with the values that rank R
//! published before its fence number F, and `abort` with the message of a process that ends the
//! job. Files are created atomically (written under another name, then linked). None is trusted:
//! sizes are bounded, contents parsed, links not followed.

mod files;
mod process;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::detect::check_place;
use crate::error::printable;
use crate::{BootError, Bootstrap, Client, Environment, MAX_VALUE, check_key, hex};
use files::Folder;
use process::Process;

const NAME: &str = "fixed";
/// First and maximum interval between two scans of the folder.
const PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// Interval at which missing processes are checked.
const LIVENESS: Duration = Duration::from_millis(50);
/// Bytes of a random name.
const NONCE: usize = 16;

/// Published values of one process.
type Notes = BTreeMap<String, Vec<u8>>;

/// Client of a job without a launcher.
#[derive(Debug)]
pub(crate) struct Fixed {
    folder: Folder,
    rank: u32,
    size: u32,
    timeout: Duration,
    fences: u32,
    put: Notes,
    /// Published values by rank.
    seen: BTreeMap<u32, Notes>,
}

fn wrong(what: impl Display) -> BootError {
    BootError::Protocol(format!("{NAME}: {what}"))
}

impl Fixed {
    /// Claims the rank in the folder.
    pub(crate) fn start(env: &Environment, timeout: Duration) -> Result<Bootstrap, BootError> {
        let remedy = "set ESP_JOB_RANK, ESP_JOB_SIZE and ESP_JOB_DIR, or none of them";
        let because = "a job without a launcher";
        let rank = env.number("ESP_JOB_RANK", because, remedy)?;
        let size = env.number("ESP_JOB_SIZE", because, remedy)?;
        let path = env.need("ESP_JOB_DIR", because, remedy)?;
        check_place(rank, size, ("ESP_JOB_RANK", "ESP_JOB_SIZE"))?;
        let folder = Folder::open(path)?;
        let me = Process::me()?;
        if !folder.create(&format!("rank-{rank}"), &me.to_string(), rank)? {
            return Err(wrong(format!(
                "{path} already has a process of rank {rank}: start one process per rank, and give each job a new empty folder"
            )));
        }
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|e| wrong(format!("no random numbers: {e}")))?;
        // The first process names the job.
        folder.create("job", &hex::encode(&nonce), rank)?;
        let job = folder
            .read("job")?
            .filter(|text| hex::decode(text).is_some_and(|n| n.len() == NONCE));
        let job =
            job.ok_or_else(|| wrong(format!("{path}/job does not contain the name of a job")))?;
        let fixed = Fixed {
            folder,
            rank,
            size,
            timeout,
            fences: 0,
            put: Notes::new(),
            seen: BTreeMap::new(),
        };
        Ok(Bootstrap::new(NAME, (rank, size), job, fixed))
    }

    /// Returns an error if a process has ended the job.
    fn check_abort(&self) -> Result<(), BootError> {
        let Some(text) = self.folder.read("abort")? else {
            return Ok(());
        };
        let mut words = text.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_default();
        Err(BootError::Aborted {
            rank: word().parse().unwrap_or(u32::MAX),
            code: word().parse().unwrap_or(1),
            why: printable(word()),
        })
    }

    /// Returns an error if the process of a rank has ended without reaching this fence.
    fn check_alive(&self, rank: u32) -> Result<(), BootError> {
        let text = self.folder.read(&format!("rank-{rank}"))?;
        let process = text.and_then(|text| Process::parse(&text));
        let Some(process) = process.filter(|process| process.is_dead()) else {
            return Ok(());
        };
        // It may have written a message or values after the last scan and before its end.
        self.check_abort()?;
        if self.folder.read(&self.notes_of(rank))?.is_some() {
            return Ok(());
        }
        Err(wrong(format!(
            "rank {rank} (process {}) ended while others waited for it",
            process.pid
        )))
    }

    /// Returns the name of the file with the values of a rank for the next fence.
    fn notes_of(&self, rank: u32) -> String {
        format!("notes-{}-{rank}", self.fences)
    }

    fn wait_for(&mut self, missing: &mut Vec<u32>) -> Result<(), BootError> {
        let deadline = Instant::now() + self.timeout;
        let mut pause = PAUSES.0;
        let mut next_check = Instant::now() + LIVENESS;
        loop {
            let mut still = Vec::new();
            for &rank in missing.iter() {
                match self.folder.read(&self.notes_of(rank))? {
                    Some(text) => {
                        let notes = parse(&text).ok_or_else(|| {
                            wrong(format!("the values of rank {rank} are malformed"))
                        })?;
                        self.seen.entry(rank).or_default().extend(notes);
                    }
                    None => still.push(rank),
                }
            }
            *missing = still;
            let Some(&first) = missing.first() else {
                return Ok(());
            };
            self.check_abort()?;
            let now = Instant::now();
            if now > next_check {
                missing
                    .iter()
                    .try_for_each(|&rank| self.check_alive(rank))?;
                next_check = now + LIVENESS;
            }
            if now > deadline {
                let (others, limit) = (missing.len() - 1, self.timeout);
                let what = format!("{NAME}: waiting for rank {first} and {others} others");
                return Err(BootError::Timeout { what, limit });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Parses values as lines of `key digits`.
fn parse(text: &str) -> Option<Notes> {
    let note = |line: &str| {
        let (key, digits) = line.split_once(' ')?;
        check_key(key).ok()?;
        let value = hex::decode(digits).filter(|v| v.len() <= MAX_VALUE)?;
        Some((key.to_owned(), value))
    };
    text.lines().map(note).collect()
}

impl Client for Fixed {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        self.put.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        let notes = std::mem::take(&mut self.put);
        let line = |(key, value): (&String, &Vec<u8>)| format!("{key} {}\n", hex::encode(value));
        let lines: String = notes.iter().map(line).collect();
        let name = self.notes_of(self.rank);
        self.folder.create(&name, &lines, self.rank)?;
        self.seen.entry(self.rank).or_default().extend(notes);
        let mut missing: Vec<u32> = (0..self.size).filter(|&rank| rank != self.rank).collect();
        self.wait_for(&mut missing)?;
        self.fences += 1;
        Ok(())
    }

    fn set_limit(&mut self, limit: Duration) -> Duration {
        std::mem::replace(&mut self.timeout, limit)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        let notes = self.seen.get(&rank);
        Ok(notes.and_then(|notes| notes.get(key)).cloned())
    }

    /// Writes a message for waiting processes, and ends those of this machine.
    fn abort(&mut self, code: i32, why: &str) -> Result<(), BootError> {
        let text = format!("{} {code} {why}", self.rank);
        self.folder.create("abort", &text, self.rank)?;
        for rank in (0..self.size).filter(|&rank| rank != self.rank) {
            if let Ok(Some(text)) = self.folder.read(&format!("rank-{rank}"))
                && let Some(process) = Process::parse(&text)
            {
                process.end();
            }
        }
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        Ok(())
    }
}
