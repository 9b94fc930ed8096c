//! The processes of one contender, which connect to a socket, take work line by line and sleep in
//! between.

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
use cli::out::{Context, Failure};

/// Time limit of a launcher until all ranks have connected.
const START: Duration = Duration::from_secs(60);
/// Time limit of the work of one line.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit of processes to end after their work.
const GOODBYE: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a line of an answer.
const MAX_LINE: u64 = 64 << 20;

/// Running processes of one contender, ended on drop.
#[derive(Debug)]
pub(super) struct Group {
    what: String,
    children: Vec<Child>,
    /// Connections by rank.
    ranks: Vec<BufReader<UnixStream>>,
    scratch: Scratch,
}

impl Group {
    /// Starts the processes. `commands` receives the path of the socket and returns commands that
    /// start `ranks` processes together.
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

    /// Waits for ranks that start.
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

    /// Returns a failure with the output of the processes.
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

    /// Sends work to all ranks and returns the answer.
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
        match reader.take(MAX_LINE).read_line(&mut line) {
            Ok(0) => Err(self.failure("ended amid its work")),
            Ok(_) => Ok(line),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(self.failure("hangs")),
            Err(e) => Err(e).doing(&self.what),
        }
    }
}

/// Reads the first line of a rank.
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
        rank.ok_or_else(|| {
            io::Error::other(format!(
                "invalid first line `{line}`: expected `rank` and a number"
            ))
        })?,
        reader,
    ))
}

impl Drop for Group {
    fn drop(&mut self) {
        for rank in &self.ranks {
            let _ = rank.get_ref().shutdown(Shutdown::Both);
        }
        // On SIGTERM a launcher ends its ranks; on SIGKILL it does not.
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
            // Connected ranks wait for the missing ones.
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
    fn the_failure_of_a_program_has_its_output() {
        let failed = Group::start("it", 2, |_| vec![shell("echo no such fabric >&2; exit 3")]);
        let text = failed.expect_err("no rank connected").to_string();
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
    fn scratch_folders_are_removed() -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
        Ok(())
    }
}
