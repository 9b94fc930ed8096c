//! The processes of one contender. They connect to a socket of ours, take work line by line, and
//! sleep between.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::work::{Answer, Work};
use crate::scratch::Scratch;
use cli::out::{Doing, Failure};

/// How long a launcher may take until all its ranks are there.
const START: Duration = Duration::from_secs(60);
/// How long a piece of work may take; only a hanging one does.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long processes may take to end by themselves when their work is over.
const GOODBYE: Duration = Duration::from_secs(5);
/// The longest line of an answer that is taken.
const LONGEST: u64 = 64 << 20;

/// Running processes of one contender. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Group {
    what: String,
    children: Vec<Child>,
    /// By rank.
    ranks: Vec<BufReader<UnixStream>>,
    scratch: Scratch,
}

impl Group {
    /// Starts them. `commands` is given the path of the socket; together the commands make `ranks`
    /// processes.
    pub(super) fn start(
        what: &str,
        ranks: usize,
        commands: impl FnOnce(&Path) -> Vec<Command>,
    ) -> Result<Group, Failure> {
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("s");
        let listener = UnixListener::bind(&socket).doing(socket.display())?;
        listener.set_nonblocking(true).doing(what)?;
        let mut group = Group {
            what: what.to_owned(),
            children: Vec::new(),
            ranks: Vec::new(),
            scratch,
        };
        for mut command in commands(&socket) {
            let log = File::options()
                .create(true)
                .append(true)
                .open(group.log())
                .doing(what)?;
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().doing(what)?)
                .stderr(log);
            let child = command
                .spawn()
                .doing(format_args!("{what}: {}", command.get_program().display()))?;
            group.children.push(child);
        }
        let mut joined: Vec<Option<BufReader<UnixStream>>> = (0..ranks).map(|_| None).collect();
        let end = Instant::now() + START;
        while joined.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let (rank, reader) = introduced(stream).doing(what)?;
                    let place = joined.get_mut(rank).filter(|place| place.is_none());
                    *place.ok_or_else(|| Failure::new(format!("{what}: an odd rank, {rank}")))? =
                        Some(reader);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => group.patient(end)?,
                Err(e) => return Err(e).doing(what),
            }
        }
        group.ranks = joined.into_iter().flatten().collect();
        Ok(group)
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("log")
    }

    /// Waits a moment for ranks that start.
    fn patient(&mut self, end: Instant) -> Result<(), Failure> {
        let mut ended = None;
        for child in &mut self.children {
            ended = ended.or(child.try_wait().doing(&self.what)?);
        }
        if let Some(status) = ended {
            return Err(self.failure(&format!("ended before its work ({status})")));
        }
        if Instant::now() > end {
            return Err(self.failure("does not start"));
        }
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    }

    /// A failure with what the processes said of it.
    fn failure(&self, what: &str) -> Failure {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let words: Vec<&str> = log.split_whitespace().collect();
        let said = words.join(" ");
        let said: String = said.chars().take(600).collect();
        let said = if said.is_empty() {
            "it said nothing".into()
        } else {
            said
        };
        Failure::new(format!("{} {what}: {said}", self.what))
    }

    /// Has them do a piece of work.
    pub(super) fn run(&mut self, work: &Work) -> Result<Answer, Failure> {
        for rank in &mut self.ranks {
            writeln!(rank.get_mut(), "{work}").doing(&self.what)?;
        }
        let mut answer = Answer::default();
        for rank in 0..self.ranks.len() {
            loop {
                let line = self.line(rank)?;
                match line.trim_end() {
                    "done" => break,
                    line => answer
                        .take(line, work)
                        .doing(format_args!("{}, rank {rank}", self.what))?,
                }
            }
        }
        Ok(answer)
    }

    fn line(&mut self, rank: usize) -> Result<String, Failure> {
        use std::io::Read;
        let mut line = String::new();
        let reader = self
            .ranks
            .get_mut(rank)
            .ok_or_else(|| Failure::new("a rank is missing"))?;
        match reader.take(LONGEST).read_line(&mut line) {
            Ok(0) => Err(self.failure("ended amid its work")),
            Ok(_) => Ok(line),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(self.failure("hangs")),
            Err(e) => Err(e).doing(&self.what),
        }
    }
}

/// Reads a rank's first line.
fn introduced(stream: UnixStream) -> io::Result<(usize, BufReader<UnixStream>)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let rank = line
        .trim_end()
        .strip_prefix("rank ")
        .and_then(|n| n.parse().ok());
    Ok((
        rank.ok_or_else(|| io::Error::other(format!("`{line}` is no rank")))?,
        reader,
    ))
}

impl Drop for Group {
    fn drop(&mut self) {
        for rank in &self.ranks {
            // It may have ended already.
            let _ = rank.get_ref().shutdown(Shutdown::Both);
        }
        // A launcher told to end ends its ranks, too; one that is killed does not.
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            let end = Instant::now() + GOODBYE;
            for child in &mut self.children {
                if let (Some(signal), Ok(None), Some(pid)) = (
                    signal,
                    child.try_wait(),
                    i32::try_from(child.id()).ok().and_then(Pid::from_raw),
                ) {
                    let _ = kill_process(pid, signal);
                }
            }
            // Ranks that never came wait for others that never come.
            if self.ranks.is_empty() && signal.is_none() {
                continue;
            }
            while Instant::now() < end {
                if self
                    .children
                    .iter_mut()
                    .all(|child| !matches!(child.try_wait(), Ok(None)))
                {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_ends_early_is_told_with_its_words() {
        let failed = Group::start("it", 2, |_| vec![shell("echo no such fabric >&2; exit 3")]);
        let text = failed.expect_err("nobody joined").to_string();
        assert!(
            text.contains("no such fabric") && text.contains("ended before"),
            "{text}"
        );
    }

    #[test]
    fn an_unknown_program_is_named() {
        let failed = Group::start("it", 1, |_| vec![Command::new("no-such-program-here")]);
        assert!(
            failed
                .expect_err("there is none")
                .to_string()
                .contains("no-such-program-here")
        );
    }

    #[test]
    fn scratch_folders_go() -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
        Ok(())
    }
}
