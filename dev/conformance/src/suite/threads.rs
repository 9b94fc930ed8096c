//! Ranks as threads.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::meeting::{Table, ThreadMeeting};
use super::memory::Buffer;
use super::report::{Outcome, Report};
use super::run::{Failure, Run};
use super::{Case, Options, Place};
use btl::{Btl, Rank};

/// Creates jobs whose ranks can be threads of this process.
pub trait Harness {
    /// Returns the name in the report.
    fn name(&self) -> String;

    /// Creates the transports of a new job, by rank, not added to each other.
    ///
    /// # Errors
    /// The job cannot be created; the case fails.
    fn job(&self, size: u32) -> Result<Job, String>;

    /// Returns the extent of the run.
    fn options(&self) -> Options {
        Options::default()
    }
}

/// A job whose ranks can be threads.
pub struct Job {
    /// The transports, by rank.
    pub ranks: Vec<Box<dyn Btl>>,
    /// Ends a rank as a crash does: its transport stops, and its peers detect it.
    pub kill: Option<Arc<dyn Fn(Rank) + Send + Sync>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// Creates a job whose ranks cannot be killed.
    pub fn new<T: Btl + 'static>(ranks: impl IntoIterator<Item = T>) -> Job {
        Job {
            ranks: ranks
                .into_iter()
                .map(|btl| Box::new(btl) as Box<dyn Btl>)
                .collect(),
            kill: None,
        }
    }
}

/// Runs all cases, each rank on its own thread, and prints their results.
#[must_use]
pub fn threads(harness: &dyn Harness) -> Report {
    let options = harness.options().resolved();
    let mut report = Report::new(harness.name(), options.seed);
    for case in options.cases() {
        let outcome = match options.skipped(case) {
            Some(why) => Outcome::Skipped(why),
            None => one(harness, case, &options),
        };
        report.add(case.name, outcome);
    }
    report
}

fn one(harness: &dyn Harness, case: &'static Case, options: &Options) -> Outcome {
    let size = options.ranks(case);
    let job = match harness.job(size) {
        Ok(job) => job,
        Err(why) => return Outcome::Failed(format!("no job: {why}")),
    };
    let table = Arc::new(Mutex::new(Table::new(size)));
    let (sender, receiver) = mpsc::channel();
    let mut names: Vec<Rank> = Vec::new();
    for (rank, btl) in (0..size).zip(job.ranks) {
        let place = Place {
            rank,
            size,
            job: format!("threads-{}", case.name),
            case: case.name.into(),
        };
        let meeting = ThreadMeeting {
            table: Arc::clone(&table),
            rank,
            kill: job.kill.clone(),
            round: 0,
        };
        let (sender, options) = (sender.clone(), options.clone());
        let work = move || rank_thread(&place, case, btl, meeting, &options, &sender);
        if let Err(error) = std::thread::Builder::new()
            .name(format!("{}-{rank}", case.name))
            .spawn(work)
        {
            return Outcome::Failed(format!("no thread: {error}"));
        }
        names.push(rank);
    }
    drop((sender, job.kill));
    let deadline = Instant::now() + options.limit + Duration::from_secs(10);
    let (mut results, mut kept) = (Vec::new(), Vec::new());
    while !names.is_empty() {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((rank, result, buffers)) => {
                names.retain(|name| *name != rank);
                results.push((rank, result));
                kept.push(buffers);
            }
            Err(error) => {
                // The rank's thread holds memory that others may write, so nothing is freed.
                std::mem::forget(kept);
                let how = if error == RecvTimeoutError::Timeout {
                    "hang in the transport"
                } else {
                    "panicked"
                };
                return Outcome::Failed(format!("ranks {names:?} {how}"));
            }
        }
    }
    judge(&results)
}

type RankResult = (Rank, Result<(), Failure>, Vec<Buffer>);

fn rank_thread(
    place: &Place,
    case: &'static Case,
    btl: Box<dyn Btl>,
    meeting: ThreadMeeting,
    options: &Options,
    sender: &mpsc::Sender<RankResult>,
) {
    // Dropped on a panic of the case, too, so that the others do not wait for this rank.
    let leave = Leave(meeting.clone());
    let mut run = Run::new(place, btl, Box::new(meeting) as Box<_>, options);
    let mut result = run.execute(case);
    // Called before the transport is dropped, so that the others do not report its end as their
    // failure. They also stop when the case does not apply to this rank.
    if matches!(
        result,
        Err(Failure::Broken(_) | Failure::Aborted | Failure::Skipped(_))
    ) && leave.0.abort()
        && matches!(result, Err(Failure::Broken(_)))
    {
        result = Err(Failure::Aborted);
    }
    let buffers = std::mem::take(&mut run.buffers);
    // The transport is dropped before the others learn that this rank has finished.
    drop(run);
    drop(leave);
    let _ = sender.send((place.rank, result, buffers));
}

struct Leave(ThreadMeeting);

impl Drop for Leave {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
        self.0.leave();
    }
}

/// Combines the results of all ranks. A broken promise outweighs its consequences.
pub(super) fn judge(results: &[(Rank, Result<(), Failure>)]) -> Outcome {
    let mut skipped = None;
    for (rank, result) in results {
        match result {
            Err(Failure::Broken(what)) => return Outcome::Failed(format!("rank {rank}: {what}")),
            Err(Failure::Skipped(why)) => skipped = Some(why.clone()),
            Ok(()) | Err(Failure::Killed | Failure::Aborted) => {}
        }
    }
    if let Some(why) = skipped {
        return Outcome::Skipped(why);
    }
    if results
        .iter()
        .any(|(_, result)| *result == Err(Failure::Aborted))
    {
        return Outcome::Failed("a rank ended without a result".into());
    }
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One rank's broken promise must not become a pass or a skip of the whole case.
    #[test]
    fn a_broken_promise_outweighs_the_rest() {
        let broken = || Err(Failure::Broken("lost".into()));
        let failed = Outcome::Failed("rank 2: lost".into());
        assert_eq!(
            judge(&[
                (0, Ok(())),
                (1, Err(Failure::Skipped("no".into()))),
                (2, broken())
            ]),
            failed
        );
        assert_eq!(judge(&[(0, Err(Failure::Aborted)), (2, broken())]), failed);
        assert!(matches!(
            judge(&[(0, Err(Failure::Aborted)), (1, Ok(()))]),
            Outcome::Failed(_)
        ));
        assert_eq!(
            judge(&[(0, Ok(())), (1, Err(Failure::Killed))]),
            Outcome::Passed
        );
    }
}
