//! PMI-1, the text protocol of `mpiexec.hydra` and its relatives (wire protocol version 1.1; the
//! client's side is `src/pmi/simple` of MPICH).
//!
//! The launcher gives each process a socket (`PMI_FD`), or an address to connect to (`PMI_PORT`,
//! with `PMI_ID`). Its values are text without spaces of at most `vallen_max` bytes, so a published
//! value is spread in hexadecimal over as many keys as it needs: `esp-RANK-KEY-0` is
//! `LENGTH.DIGITS`, `esp-RANK-KEY-1` and so on are more digits.

mod line;
mod wire;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::fs::{FileType, fstat};

use crate::detect::{bad, check_place};
use crate::error::{Context, printable};
use crate::{BootError, Bootstrap, Client, Environment, MAX_JOB, MAX_VALUE, hex, sys};
use line::wrong;
use wire::Wire;

/// Name in reports and errors.
const NAME: &str = "pmi1";
/// Maximum length of a line to send: the buffer of old launchers has 1024 bytes.
const MAX_COMMAND: usize = 1000;
/// Maximum number of a descriptor that is accepted from a launcher.
const MAX_FD: i32 = 1 << 16;
/// Time limit of the connection to `PMI_PORT`.
const CONNECT: Duration = Duration::from_secs(10);

/// Advice in the error about a missing variable.
const REMEDY: &str = "start this program by mpiexec, or unset PMI_FD and PMI_PORT to run it alone";

/// Client of a PMI-1 job.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    wire: Wire,
    rank: u32,
    job: String,
    /// Maximum length of a value.
    value_max: usize,
}

impl Pmi1 {
    /// Connects to the launcher that the environment names.
    pub(crate) fn start(env: &Environment, timeout: Duration) -> Result<Bootstrap, BootError> {
        if env.get("PMI_FD").is_none() && env.get("PMI_PORT").is_some() {
            return Pmi1::by_port(env, timeout);
        }
        let rank = env.number("PMI_RANK", "PMI_FD", REMEDY)?;
        let size = env.number("PMI_SIZE", "PMI_FD", REMEDY)?;
        check_place(rank, size, ("PMI_RANK", "PMI_SIZE"))?;
        let number: i32 = env.number("PMI_FD", "mpiexec", REMEDY)?;
        let refuse = |why: &str| bad("PMI_FD", &number.to_string(), why);
        if !(0..=MAX_FD).contains(&number) {
            return Err(refuse("no descriptor has this number"));
        }
        let fd = sys::duplicate(number)
            .map_err(|e| refuse(&format!("this descriptor cannot be used ({e}); {REMEDY}")))?;
        let kind = fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind != Ok(FileType::Socket) {
            let why = format!("this descriptor is not the launcher's socket; {REMEDY}");
            return Err(refuse(&why));
        }
        Pmi1::greet(Wire::new(fd, timeout), rank, size)
    }

    /// Connects to `PMI_PORT`; the launcher sends rank and size over the new connection.
    fn by_port(env: &Environment, timeout: Duration) -> Result<Bootstrap, BootError> {
        let id: u32 = env.number("PMI_ID", "PMI_PORT", REMEDY)?;
        let address = env.need("PMI_PORT", "mpiexec", REMEDY)?;
        let port = address
            .rsplit_once(':')
            .map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            return Err(bad("PMI_PORT", address, "expected host:port"));
        }
        let doing = || {
            let address = printable(address);
            format!("{NAME}: connecting to the launcher at {address}")
        };
        let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let connect = |address| {
            let stream = TcpStream::connect_timeout(&address, CONNECT.min(timeout));
            stream.map_err(|error| refused = error).ok()
        };
        let mut addresses = address.to_socket_addrs().context(doing)?.take(8);
        let stream = addresses.find_map(connect).ok_or(refused).context(doing)?;
        let mut wire = Wire::new(stream.into(), timeout);
        let what = "greeting the launcher";
        let answer = wire.ask(&format!("cmd=initack pmiid={id}"), "initack", what)?;
        // Hydra sends nothing else; other launchers send rc.
        if answer.get("rc").is_some() {
            answer.succeeded("accept this process")?;
        }
        let (mut rank, mut size) = (None, None);
        // `debug` comes last. Other words before it are ignored.
        for _ in 0..16 {
            let answer = wire.receive(what)?.expect("set")?;
            if answer.get("rank").is_some() {
                rank = Some(answer.number("rank", 0..=u32::MAX)?);
            }
            if answer.get("size").is_some() {
                size = Some(answer.number("size", 0..=u32::MAX)?);
            }
            if answer.get("debug").is_some() {
                break;
            }
        }
        let (Some(rank), Some(size)) = (rank, size) else {
            let what = "the launcher did not send the rank of this process";
            return Err(wrong(what));
        };
        check_place(rank, size, ("PMI_ID", "PMI_PORT"))?;
        Pmi1::greet(wire, rank, size)
    }

    /// Negotiates the version, and queries the limits and the name of the job.
    fn greet(mut wire: Wire, rank: u32, size: u32) -> Result<Bootstrap, BootError> {
        let what = "greeting the launcher";
        let command = "cmd=init pmi_version=1 pmi_subversion=1";
        let answer = wire.ask(command, "response_to_init", what)?;
        if let Some(version) = answer.get("pmi_version").filter(|v| *v != "1") {
            return Err(wrong(format!(
                "the launcher speaks PMI-{}, not PMI-1; with Slurm: srun --mpi=pmix",
                printable(version)
            )));
        }
        answer.succeeded("speak PMI-1 (with Slurm: srun --mpi=pmix)")?;
        let maxes = wire.ask("cmd=get_maxes", "maxes", what)?;
        let key_max: usize = maxes.number("keylen_max", 1..=1 << 20)?;
        let value_max = maxes.number("vallen_max", 1..=1 << 20)?;
        let job = wire.ask("cmd=get_my_kvsname", "my_kvsname", what)?;
        let job = job.get("kvsname").unwrap_or_default().to_owned();
        if job.is_empty() || job.len() > MAX_JOB || !job.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong(format!(
                "the launcher sent the invalid job name `{}`",
                printable(&job)
            )));
        }
        let pmi = Pmi1 {
            wire,
            rank,
            job: job.clone(),
            value_max,
        };
        let longest = full(crate::MAX_SIZE - 1, &"k".repeat(crate::MAX_KEY), MAX_VALUE);
        if longest.len() > key_max || pmi.room(&longest) < MIN_ROOM {
            return Err(wrong(format!(
                "the launcher supports keys of {key_max} and values of {value_max} bytes, which is not enough"
            )));
        }
        Ok(Bootstrap::new(NAME, (rank, size), job, pmi))
    }

    /// Returns the number of value bytes that fit into one command.
    fn room(&self, key: &str) -> usize {
        let command = format!("cmd=put kvsname={} key={key} value=", self.job).len();
        self.value_max.min(MAX_COMMAND.saturating_sub(command))
    }

    fn read(&mut self, key: &str) -> Result<Option<String>, BootError> {
        let command = format!("cmd=get kvsname={} key={key}", self.job);
        let answer = self.wire.ask(&command, "get_result", "reading a value")?;
        // Known launchers refuse only if the key does not exist.
        if answer.get("rc") != Some("0") {
            return Ok(None);
        }
        let value = answer
            .get("value")
            .ok_or_else(|| wrong("the launcher answered without a value"))?;
        Ok(Some(value.to_owned()))
    }
}

/// Minimum size of a value, which must hold the length and some digits.
const MIN_ROOM: usize = 16;

/// Returns the launcher's key for a part of a value.
fn full(rank: u32, key: &str, part: usize) -> String {
    format!("esp-{rank}-{key}-{part}")
}

impl Client for Pmi1 {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        let text = format!("{}.{}", value.len(), hex::encode(value));
        let (mut rest, mut part) = (text.as_str(), 0);
        while !rest.is_empty() {
            let key = full(self.rank, key, part);
            // ASCII, so any position is a character boundary.
            let (now, later) = rest.split_at(self.room(&key).min(rest.len()));
            let command = format!("cmd=put kvsname={} key={key} value={now}", self.job);
            self.wire
                .ask(&command, "put_result", "publishing a value")?
                .succeeded("publish a value")?;
            (rest, part) = (later, part + 1);
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        let what = "waiting for all processes of the job";
        let answer = self.wire.ask("cmd=barrier_in", "barrier_out", what)?;
        // Hydra sends nothing else; other launchers send rc.
        if answer.get("rc").is_some() {
            answer.succeeded("run the barrier").map(drop)
        } else {
            Ok(())
        }
    }

    fn set_limit(&mut self, limit: Duration) -> Duration {
        std::mem::replace(&mut self.wire.timeout, limit)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        let broken = || wrong(format!("the value `{key}` of rank {rank} is malformed"));
        let Some(first) = self.read(&full(rank, key, 0))? else {
            return Ok(None);
        };
        let (length, digits) = first.split_once('.').ok_or_else(broken)?;
        let length: usize = length
            .parse()
            .ok()
            .filter(|&n| n <= MAX_VALUE)
            .ok_or_else(broken)?;
        let mut text = digits.to_owned();
        let mut part = 1;
        while text.len() < 2 * length {
            let more = self.read(&full(rank, key, part))?.ok_or_else(broken)?;
            if more.is_empty() {
                return Err(broken());
            }
            text.push_str(&more);
            part += 1;
        }
        let value = hex::decode(&text).filter(|value| value.len() == length);
        value.map(Some).ok_or_else(broken)
    }

    fn abort(&mut self, code: i32, _: &str) -> Result<(), BootError> {
        let command = format!("cmd=abort exitcode={code}");
        self.wire.send(&command, "aborting the job")?;
        // The launcher kills this process, too. If it is slow, wait until it closes the connection.
        let _ = self.wire.receive("waiting for the launcher to end the job");
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        let what = "leaving the launcher";
        self.wire
            .ask("cmd=finalize", "finalize_ack", what)
            .map(drop)
    }
}
