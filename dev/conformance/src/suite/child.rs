//! Ranks as processes: the rank's side.
//!
//! Standard input is one end of a socket pair to the parent. It survives programs that enter a
//! namespace and execute the rank.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::meeting::Meeting;
use super::run::{Failure, Run};
use super::{CASES, Options, Place};
use btl::{Btl, Rank};

/// Environment variable that makes a process a rank.
pub(super) const VARIABLE: &str = "BTL_CONFORMANCE_RANK";

/// Maximum length of a frame, in bytes, far above that of real ones.
const MAX_FRAME: usize = 1 << 20;

/// Kinds of frames from a rank: an offer for the exchange; a rank to kill; the result.
pub(super) const OFFER: u8 = 1;
pub(super) const KILL: u8 = 2;
pub(super) const PASSED: u8 = 3;
pub(super) const BROKEN: u8 = 4;
pub(super) const SKIPPED: u8 = 5;
pub(super) const ABORTED: u8 = 6;
/// Kinds of frames to a rank: all offers; the rank is dead; the case has ended.
pub(super) const ALL: u8 = 11;
pub(super) const DEAD: u8 = 12;
pub(super) const OVER: u8 = 13;

/// The rank of a case that this process executes.
#[derive(Debug)]
pub struct Child {
    place: Place,
    options: Options,
}

/// Returns the rank that this process executes, if [`processes`](super::processes()) started it.
/// Call it first in the test, before any other set-up.
#[must_use]
pub fn child() -> Option<Child> {
    parse(&std::env::var(VARIABLE).ok()?)
}

/// Returns the value of the environment variable.
pub(super) fn describe(place: &Place, options: &Options) -> String {
    let Options {
        limit,
        messages,
        rounds,
        peers,
        seed,
        ends_connections,
        ..
    } = options;
    let limit = limit.as_millis();
    let Place {
        rank,
        size,
        job,
        case,
    } = place;
    format!(
        "{rank} {size} {job} {case} {limit} {messages} {rounds} {peers} {seed} {ends_connections}"
    )
}

fn parse(text: &str) -> Option<Child> {
    let mut words = text.split(' ');
    let place = Place {
        rank: words.next()?.parse().ok()?,
        size: words.next()?.parse().ok()?,
        job: words.next()?.into(),
        case: words.next()?.into(),
    };
    let options = Options {
        limit: Duration::from_millis(words.next()?.parse().ok()?),
        messages: words.next()?.parse().ok()?,
        rounds: words.next()?.parse().ok()?,
        peers: words.next()?.parse().ok()?,
        seed: words.next()?.parse().ok()?,
        ends_connections: words.next()?.parse().ok()?,
        ..Options::default()
    };
    Some(Child { place, options })
}

impl Child {
    /// Returns the rank and the job.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Executes the rank with the transport that `make` creates, reports to the parent, and ends
    /// the process.
    pub fn run(self, make: impl FnOnce(&Place) -> Result<Box<dyn Btl>, String>) -> ! {
        let limit = self.options.limit + Duration::from_secs(5);
        std::thread::spawn(move || {
            // Ends the process even if the transport hangs and the parent has ended.
            std::thread::sleep(limit);
            std::process::exit(3);
        });
        let code = match self.try_run(make) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("rank {}: {error}", self.place.rank);
                2
            }
        };
        std::process::exit(code)
    }

    fn try_run(&self, make: impl FnOnce(&Place) -> Result<Box<dyn Btl>, String>) -> io::Result<()> {
        let socket = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
        let meeting = ProcessMeeting {
            rank: self.place.rank,
            socket: socket.try_clone()?,
            input: Vec::new(),
            over: false,
        };
        let case = CASES
            .iter()
            .flat_map(|group| group.iter())
            .find(|case| case.name == self.place.case);
        let result = match (case, make(&self.place)) {
            (None, _) => Err(Failure::Broken("no such case".into())),
            (_, Err(why)) => Err(Failure::Broken(format!("no transport: {why}"))),
            (Some(case), Ok(btl)) => {
                let mut run = Run::new(&self.place, btl, Box::new(meeting), &self.options);
                let result = run.execute(case);
                // Only the case closes or drops the transport; here the process ends without that.
                std::mem::forget(run);
                result
            }
        };
        let (kind, text) = match result {
            Ok(()) => (PASSED, String::new()),
            Err(Failure::Broken(what)) => (BROKEN, what),
            Err(Failure::Skipped(why)) => (SKIPPED, why),
            Err(Failure::Killed | Failure::Aborted) => (ABORTED, String::new()),
        };
        write_frame(&socket, kind, text.as_bytes())
    }
}

/// Meeting of a rank that is a process.
#[derive(Debug)]
struct ProcessMeeting {
    rank: Rank,
    socket: UnixStream,
    input: Vec<u8>,
    over: bool,
}

impl ProcessMeeting {
    /// Returns the next frame, if there is one.
    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, String> {
        let mut buffer = [0; 4096];
        loop {
            match rustix::net::recv(
                &self.socket,
                &mut buffer[..],
                rustix::net::RecvFlags::DONTWAIT,
            ) {
                Ok((0, _)) => return Err("the parent has ended".into()),
                Ok((count, _)) => self.input.extend_from_slice(&buffer[..count]),
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("the parent has ended: {error}")),
            }
        }
        let Some(length) = self
            .input
            .get(1..5)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes)
        else {
            return Ok(None);
        };
        let end = 5 + length as usize;
        if self.input.len() < end {
            return Ok(None);
        }
        let rest = self.input.split_off(end);
        let frame = std::mem::replace(&mut self.input, rest);
        let (kind, bytes) = (frame[0], frame[5..].to_vec());
        if kind == OVER {
            self.over = true;
            return Ok(None);
        }
        Ok(Some((kind, bytes)))
    }
}

impl Meeting for ProcessMeeting {
    fn offer(&mut self, mine: &[u8]) -> Result<(), String> {
        write_frame(&self.socket, OFFER, mine)
            .map_err(|error| format!("the parent has ended: {error}"))
    }

    fn collect(&mut self) -> Result<Option<Vec<Option<Vec<u8>>>>, String> {
        match self.frame()? {
            Some((ALL, bytes)) => Ok(Some(unpack(&bytes).ok_or("malformed exchange")?)),
            Some((kind, _)) => Err(format!("frame {kind}, expected an exchange")),
            None => Ok(None),
        }
    }

    fn kill(&mut self, rank: Rank) -> Result<(), String> {
        if rank == self.rank {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            return Err("still running after the kill".into());
        }
        write_frame(&self.socket, KILL, &rank.to_le_bytes()).map_err(|error| error.to_string())?;
        loop {
            match self.frame()? {
                Some((DEAD, _)) => return Ok(()),
                Some((kind, _)) => return Err(format!("frame {kind}, expected a death")),
                None if self.over => return Err("the case has ended".into()),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    fn can_kill(&self) -> bool {
        true
    }

    fn killed(&self) -> bool {
        false
    }

    fn aborted(&mut self) -> bool {
        // Reading one frame suffices, because the abort arrives as one.
        if !self.over && self.input.is_empty() {
            let mut first = [0; 1];
            let peek = rustix::net::RecvFlags::DONTWAIT | rustix::net::RecvFlags::PEEK;
            match rustix::net::recv(&self.socket, &mut first[..], peek) {
                Ok((0, _)) => self.over = true,
                Ok(_) if first[0] == OVER => self.over = true,
                _ => {}
            }
        }
        self.over
    }
}

/// Writes a frame: kind, length, bytes.
pub(super) fn write_frame(mut to: &UnixStream, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut frame = vec![kind];
    frame.extend((bytes.len() as u32).to_le_bytes());
    frame.extend(bytes);
    to.write_all(&frame)
}

/// Waits for a frame; `None` at the end of the stream.
pub(super) fn read_frame(mut from: &UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head).ok()?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_FRAME {
        return None;
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).ok()?;
    Some((head[0], bytes))
}

/// Encodes the offers of an exchange.
pub(super) fn pack(all: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in all {
        let length = one.as_ref().map_or(u32::MAX, |one| one.len() as u32);
        bytes.extend(length.to_le_bytes());
        bytes.extend(one.iter().flatten());
    }
    bytes
}

fn unpack(mut bytes: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        bytes = rest;
        if length == u32::MAX {
            all.push(None);
            continue;
        }
        let (one, rest) = bytes.split_at_checked(length as usize)?;
        all.push(Some(one.to_vec()));
        bytes = rest;
    }
    bytes.is_empty().then_some(all)
}

/// Returns the two ends of a meeting: the parent's and the rank's.
pub(super) fn pair() -> io::Result<(UnixStream, std::process::Stdio)> {
    let (parent, child) = UnixStream::pair()?;
    let child = child.as_fd().try_clone_to_owned()?;
    Ok((parent, child.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_decodes_as_encoded() {
        let all = vec![
            Some(vec![1, 2, 3]),
            None,
            Some(Vec::new()),
            Some(vec![0; 512]),
        ];
        assert_eq!(unpack(&pack(&all)), Some(all));
        assert_eq!(unpack(&[5, 0, 0, 0, 1]), None);
    }

    #[test]
    fn a_rank_decodes_its_parents_description() {
        let place = Place {
            rank: 3,
            size: 12,
            job: "j-1".into(),
            case: "order".into(),
        };
        let options = Options {
            seed: 77,
            messages: 5,
            ends_connections: true,
            ..Options::default()
        };
        let child = parse(&describe(&place, &options)).unwrap();
        assert_eq!((child.place.rank, child.place.size), (3, 12));
        assert_eq!(
            (child.place.job.as_str(), child.place.case.as_str()),
            ("j-1", "order")
        );
        assert_eq!(
            (
                child.options.seed,
                child.options.messages,
                child.options.limit
            ),
            (77, 5, options.limit)
        );
        assert!(child.options.ends_connections);
    }
}
