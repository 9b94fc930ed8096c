//! Ranks as processes: the test's side.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child as Process, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::child::{
    ABORTED, ALL, BROKEN, DEAD, KILL, OFFER, OVER, PASSED, SKIPPED, VARIABLE, describe, pack, pair,
    read_frame, write_frame,
};
use super::meeting::Table;
use super::report::{Outcome, Report};
use super::run::Failure;
use super::threads::judge;
use super::{Case, Need, Options, Place};
use btl::Rank;

/// Starts ranks as processes. The child creates the transport, see [`child`](super::child()).
pub trait ProcessHarness: Sync {
    /// Returns the name in the report.
    fn name(&self) -> String;

    /// Returns the command that starts a rank; arguments, one variable and the standard streams are
    /// added. It must execute `program` in its own process (as `ip netns exec` and `nsenter` do),
    /// because that process is killed.
    ///
    /// # Errors
    /// The rank cannot be started; the case fails.
    fn command(&self, program: &Path, place: &Place) -> Result<Command, String> {
        let _ = place;
        Ok(Command::new(program))
    }

    /// Returns the extent of the run.
    fn options(&self) -> Options {
        Options::default()
    }
}

/// Runs all cases and prints their results. Each rank is a process of this program that executes
/// only the test named `test` (its full path, as libtest prints it).
#[must_use]
pub fn processes(test: &str, harness: &dyn ProcessHarness) -> Report {
    let options = harness.options().resolved();
    let run = |case: &'static Case| match options.skipped(case) {
        Some(why) => Outcome::Skipped(why),
        None => {
            Party::start(test, harness, case, &options).map_or_else(Outcome::Failed, Party::run)
        }
    };
    let (at_once, in_turn) = options
        .cases()
        .into_iter()
        .partition::<Vec<&Case>, _>(|case| {
            options.deaths_at_once && case.needs.contains(&Need::Kill)
        });
    let mut report = Report::new(harness.name(), options.seed);
    for case in in_turn {
        report.add(case.name, run(case));
    }
    std::thread::scope(|scope| {
        let start = |case: &'static Case| (case.name, scope.spawn(move || run(case)));
        let running: Vec<_> = at_once.into_iter().map(start).collect();
        for (name, thread) in running {
            let panicked = |_| Outcome::Failed("the harness panicked".into());
            report.add(name, thread.join().unwrap_or_else(panicked));
        }
    });
    report
}

/// Frame of a rank, or the end of its stream, sent by the thread that reads it.
type RankFrame = (Rank, Option<(u8, Vec<u8>)>);

/// Processes of one case.
struct Party {
    ranks: BTreeMap<Rank, Member>,
    table: Table,
    results: Vec<(Rank, Result<(), Failure>)>,
    sender: Sender<RankFrame>,
    receiver: Receiver<RankFrame>,
    deadline: Instant,
}

struct Member {
    process: Process,
    socket: UnixStream,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Already reaped, or no longer needed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Party {
    fn start(
        test: &str,
        harness: &dyn ProcessHarness,
        case: &Case,
        options: &Options,
    ) -> Result<Party, String> {
        static JOBS: AtomicU64 = AtomicU64::new(0);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        let job = format!("{}-{}-{number}", case.name, std::process::id());
        let size = options.ranks(case);
        let (sender, receiver) = mpsc::channel();
        let mut party = Party {
            ranks: BTreeMap::new(),
            table: Table::new(size),
            results: Vec::new(),
            sender,
            receiver,
            deadline: Instant::now() + options.limit + Duration::from_secs(10),
        };
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        for rank in 0..size {
            let place = Place {
                rank,
                size,
                job: job.clone(),
                case: case.name.into(),
            };
            party
                .add(harness.command(&program, &place)?, test, &place, options)
                .map_err(|error| error.to_string())?;
        }
        Ok(party)
    }

    fn add(
        &mut self,
        mut command: Command,
        test: &str,
        place: &Place,
        options: &Options,
    ) -> std::io::Result<()> {
        let (socket, input) = pair()?;
        command.args([
            test,
            "--exact",
            "--nocapture",
            "--test-threads=1",
            "--include-ignored",
        ]);
        command
            .env(VARIABLE, describe(place, options))
            .stdin(input)
            .stdout(Stdio::null());
        let process = command.spawn()?;
        // The command holds the rank's end of the socket, which only the rank may keep.
        drop(command);
        let (reader, sender, rank) = (socket.try_clone()?, self.sender.clone(), place.rank);
        self.ranks.insert(rank, Member { process, socket });
        std::thread::Builder::new().spawn(move || {
            while let Some(frame) = read_frame(&reader) {
                if sender.send((rank, Some(frame))).is_err() {
                    return;
                }
            }
            let _ = sender.send((rank, None));
        })?;
        Ok(())
    }

    fn run(mut self) -> Outcome {
        while !self.ranks.is_empty() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.receiver.recv_timeout(left) {
                Ok((rank, frame)) => self.hear_of(rank, frame),
                Err(_) => {
                    let hanging: Vec<_> = self.ranks.keys().collect();
                    return Outcome::Failed(format!("ranks {hanging:?} hang in the transport"));
                }
            }
        }
        judge(&self.results)
    }

    fn hear_of(&mut self, rank: Rank, frame: Option<(u8, Vec<u8>)>) {
        let Some((kind, bytes)) = frame else {
            return self.ended(rank);
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match kind {
            OFFER => {
                if self.table.offer(rank, bytes) {
                    self.announce();
                }
            }
            KILL => self.kill(rank, &bytes),
            PASSED => self.results.push((rank, Ok(()))),
            SKIPPED => self.results.push((rank, Err(Failure::Skipped(text)))),
            BROKEN => self.results.push((rank, Err(Failure::Broken(text)))),
            ABORTED => self.results.push((rank, Err(Failure::Aborted))),
            other => self
                .results
                .push((rank, Err(Failure::Broken(format!("wrote frame {other}"))))),
        }
        if kind != OFFER && kind != KILL {
            let failed = matches!(self.results.last(), Some((_, Err(_))));
            self.gone(rank, failed);
        }
    }

    /// Handles a rank's request to kill another.
    fn kill(&mut self, asker: Rank, bytes: &[u8]) {
        let victim = bytes
            .try_into()
            .map(u32::from_le_bytes)
            .unwrap_or(Rank::MAX);
        if let Some(member) = self.ranks.get_mut(&victim) {
            let _ = member.process.kill();
            let _ = member.process.wait();
            self.results.push((victim, Err(Failure::Killed)));
            self.ranks.remove(&victim);
        }
        if let Some(member) = self.ranks.get(&asker) {
            let _ = write_frame(&member.socket, DEAD, &[]);
        }
        if self.table.leave(victim, true) {
            self.announce();
        }
    }

    /// Handles the end of a rank's stream.
    fn ended(&mut self, rank: Rank) {
        let Some(mut member) = self.ranks.remove(&rank) else {
            return;
        };
        if self.results.iter().any(|(of, _)| *of == rank) {
            // The process exits by itself, which is part of the test.
            let _ = member.process.wait();
            return;
        }
        let status = member.process.wait();
        // SIGKILL comes from cases that kill their own rank.
        let killed = status.as_ref().is_ok_and(|status| {
            std::os::unix::process::ExitStatusExt::signal(status)
                == Some(rustix::process::Signal::KILL.as_raw())
        });
        if killed {
            self.results.push((rank, Err(Failure::Killed)));
        } else {
            let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            self.results.push((
                rank,
                Err(Failure::Broken(format!("ended without a result: {how}"))),
            ));
        }
        self.gone(rank, !killed);
    }

    fn gone(&mut self, rank: Rank, failed: bool) {
        let complete = self.table.is_present(rank) && self.table.leave(rank, false);
        if failed {
            for member in self.ranks.values() {
                let _ = write_frame(&member.socket, OVER, &[]);
            }
        } else if complete {
            self.announce();
        }
    }

    /// Sends the offers of a complete exchange to all ranks.
    fn announce(&mut self) {
        let all = pack(self.table.last());
        for (rank, member) in &self.ranks {
            if self.table.is_present(*rank) {
                let _ = write_frame(&member.socket, ALL, &all);
            }
        }
    }
}
