//! PMI-1, the text protocol of `mpiexec.hydra` and its relatives (wire protocol version 1.1; the
//! client's side is `src/pmi/simple` of MPICH).
//!
//! The launcher gives each process a socket (`PMI_FD`), or an address to connect to (`PMI_PORT`,
//! with `PMI_ID`). The notes are text without spaces and at most `vallen_max` bytes long, so a note
//! is spread in hexadecimal over as many keys as it needs: `esp-RANK-KEY-0` is `LENGTH.DIGITS`,
//! `esp-RANK-KEY-1` and so on are more digits.

mod line;
mod wire;

#[cfg(test)]
mod tests;

use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{FileType, fstat};

use crate::detect::{bad, check_place};
use crate::error::{At, printable};
use crate::keys::{self, Keys};
use crate::{BootError, Bootstrap, Environment, MAX_JOB, MAX_VALUE, hex, sys};
use line::wrong;
use wire::Wire;

/// Name in reports and errors.
const NAME: &str = "pmi1";
/// Maximum length of a line to send: the buffer of old launchers has 1024 bytes.
const MAX_COMMAND: usize = 1000;
/// Highest descriptor that is accepted from a launcher.
const MAX_FD: i32 = 1 << 16;
/// Time for the connection to `PMI_PORT`.
const CONNECT: Duration = Duration::from_secs(10);

/// Advice in the error about a missing variable.
const REMEDY: &str = "start this program by mpiexec, or unset PMI_FD and PMI_PORT to run it alone";

/// A process of a PMI-1 job.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    wire: Wire,
    rank: u32,
    size: u32,
    job: String,
    key_max: usize,
    value_max: usize,
    keys: Keys,
    finalized: bool,
}

impl Pmi1 {
    /// Connects to the launcher that the environment names.
    pub(crate) fn start(env: &Environment, timeout: Duration) -> Result<Pmi1, BootError> {
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
            return Err(refuse(&format!(
                "this descriptor is not the launcher's socket; {REMEDY}"
            )));
        }
        Pmi1::greet(Wire::new(fd, timeout), rank, size)
    }

    /// Connects to `PMI_PORT`; the launcher sends rank and size over the new connection.
    fn by_port(env: &Environment, timeout: Duration) -> Result<Pmi1, BootError> {
        let id: u32 = env.number("PMI_ID", "PMI_PORT", REMEDY)?;
        let address = env.need("PMI_PORT", "mpiexec", REMEDY)?;
        if address
            .rsplit_once(':')
            .is_none_or(|(_, port)| port.parse::<u16>().is_err())
        {
            return Err(bad("PMI_PORT", address, "host:port is expected"));
        }
        let doing = || {
            format!(
                "{NAME}: connecting to the launcher at {}",
                printable(address)
            )
        };
        let mut refused = None;
        let mut stream = None;
        for address in address.to_socket_addrs().at(doing)?.take(8) {
            match TcpStream::connect_timeout(&address, CONNECT.min(timeout)) {
                Ok(found) => stream = Some(found),
                Err(e) => refused = Some(e),
            }
            if stream.is_some() {
                break;
            }
        }
        let missing = || refused.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
        let mut wire = Wire::new(
            OwnedFd::from(stream.ok_or_else(missing).at(doing)?),
            timeout,
        );
        let what = "greeting the launcher";
        let said = wire.ask(&format!("cmd=initack pmiid={id}"), "initack", what)?;
        // Hydra says nothing more; others say rc.
        if said.get("rc").is_some() {
            said.succeeded("take this process in")?;
        }
        let (mut rank, mut size) = (None, None);
        // `debug` comes last. Whatever else there is in between is not for us.
        for _ in 0..16 {
            let said = wire.hear(what)?.expect("set")?;
            if said.get("rank").is_some() {
                rank = Some(small(said.number("rank", 0..=u32::MAX as usize)?)?);
            }
            if said.get("size").is_some() {
                size = Some(small(said.number("size", 0..=u32::MAX as usize)?)?);
            }
            if said.get("debug").is_some() {
                break;
            }
        }
        let (Some(rank), Some(size)) = (rank, size) else {
            return Err(wrong(
                "the launcher did not say which rank this process has",
            ));
        };
        check_place(rank, size, ("PMI_ID", "PMI_PORT"))?;
        Pmi1::greet(wire, rank, size)
    }

    /// Negotiates the version, and queries the limits and the name of the job.
    fn greet(mut wire: Wire, rank: u32, size: u32) -> Result<Pmi1, BootError> {
        let what = "greeting the launcher";
        let said = wire.ask(
            "cmd=init pmi_version=1 pmi_subversion=1",
            "response_to_init",
            what,
        )?;
        if let Some(version) = said.get("pmi_version").filter(|v| *v != "1") {
            return Err(wrong(format!(
                "the launcher speaks PMI-{}, not PMI-1; with Slurm: srun --mpi=pmix",
                printable(version)
            )));
        }
        said.succeeded("speak PMI-1 (with Slurm: srun --mpi=pmix)")?;
        let maxes = wire.ask("cmd=get_maxes", "maxes", what)?;
        let key_max = maxes.number("keylen_max", 1..=1 << 20)?;
        let value_max = maxes.number("vallen_max", 1..=1 << 20)?;
        let job = wire.ask("cmd=get_my_kvsname", "my_kvsname", what)?;
        let job = job.get("kvsname").unwrap_or_default().to_owned();
        if job.is_empty() || job.len() > MAX_JOB || !job.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong(format!(
                "the launcher calls this job `{}`, which is no name",
                printable(&job)
            )));
        }
        let pmi = Pmi1 {
            wire,
            rank,
            size,
            job,
            key_max,
            value_max,
            keys: Keys::default(),
            finalized: false,
        };
        let longest = pmi.key(MAX_SIZE_RANK, &"k".repeat(crate::MAX_KEY), MAX_VALUE);
        if longest.len() > pmi.key_max || pmi.room(&longest) < SHORTEST {
            return Err(wrong(format!(
                "the launcher has room for keys of {key_max} and values of {value_max} bytes, which is not enough"
            )));
        }
        Ok(pmi)
    }

    fn key(&self, rank: u32, key: &str, part: usize) -> String {
        format!("esp-{rank}-{key}-{part}")
    }

    /// Returns the number of value bytes that fit into one command.
    fn room(&self, key: &str) -> usize {
        let command = format!("cmd=put kvsname={} key={key} value=", self.job).len();
        self.value_max.min(MAX_COMMAND.saturating_sub(command))
    }

    fn alive(&self) -> Result<(), BootError> {
        if self.finalized {
            Err(BootError::Finalized)
        } else {
            Ok(())
        }
    }

    fn read(&mut self, key: &str) -> Result<Option<String>, BootError> {
        let command = format!("cmd=get kvsname={} key={key}", self.job);
        let said = self.wire.ask(&command, "get_result", "reading a note")?;
        // A note that is not there is the only reason for refusing that launchers know.
        if said.get("rc") != Some("0") {
            return Ok(None);
        }
        let value = said
            .get("value")
            .ok_or_else(|| wrong("the launcher answered without a value"))?;
        Ok(Some(value.to_owned()))
    }
}

/// Highest possible rank.
const MAX_SIZE_RANK: u32 = crate::MAX_SIZE - 1;
/// Minimum room for a value, which has to hold the length and some digits.
const SHORTEST: usize = 16;

fn small(number: usize) -> Result<u32, BootError> {
    u32::try_from(number).map_err(|_| wrong("the launcher says a number that is too large"))
}

impl Bootstrap for Pmi1 {
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
        let text = format!("{}.{}", value.len(), hex::encode(value));
        let (mut rest, mut part) = (text.as_str(), 0);
        while !rest.is_empty() {
            let key = self.key(self.rank, key, part);
            // ASCII: any position is the border of a character.
            let (now, later) = rest.split_at(self.room(&key).min(rest.len()));
            let command = format!("cmd=put kvsname={} key={key} value={now}", self.job);
            self.wire
                .ask(&command, "put_result", "leaving a note")?
                .succeeded("take a note")?;
            (rest, part) = (later, part + 1);
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.alive()?;
        let said = self.wire.ask(
            "cmd=barrier_in",
            "barrier_out",
            "waiting for all processes of the job",
        )?;
        // Hydra says nothing more; others say rc.
        if said.get("rc").is_some() {
            said.succeeded("let all processes meet").map(drop)
        } else {
            Ok(())
        }
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        self.alive()?;
        keys::check_rank(rank, self.size)?;
        keys::check(key)?;
        let broken = || wrong(format!("the note `{key}` of rank {rank} is damaged"));
        let Some(first) = self.read(&self.key(rank, key, 0))? else {
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
            let more = self.read(&self.key(rank, key, part))?.ok_or_else(broken)?;
            if more.is_empty() {
                return Err(broken());
            }
            text.push_str(&more);
            part += 1;
        }
        let value = hex::decode(&text).filter(|value| value.len() == length);
        value.map(Some).ok_or_else(broken)
    }

    fn abort(&mut self, code: i32, why: &str) -> BootError {
        let why = printable(why);
        match self
            .wire
            .tell(&format!("cmd=abort exitcode={code}"), "aborting the job")
        {
            Err(error) if !self.finalized => error,
            _ => {
                // The launcher kills this process, too. The answer is its end of the connection,
                // should it be slow.
                let _ = self.wire.hear("waiting for the launcher to end the job");
                BootError::Aborted {
                    rank: self.rank,
                    code,
                    why,
                }
            }
        }
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.alive()?;
        self.finalized = true;
        self.wire
            .ask(
                "cmd=finalize",
                "finalize_ack",
                "saying goodbye to the launcher",
            )
            .map(drop)
    }
}
