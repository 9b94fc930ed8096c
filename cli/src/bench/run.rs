//! Runs the cases of a bench in alternating rounds.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::cores::Cores;
use super::plan::{Bench, Case};
use super::report::Measured;
use super::worker::{Job, LISTENING, Outcome, Path, Role};
use crate::lab::{Lab, LabOptions};
use crate::out::{Doing, Failure};

/// How long a worker may take for a case; only a hanging one does.
const PATIENCE: Duration = Duration::from_secs(120);
/// First port of the servers; each case takes the next, so that none meets the remains of another.
const FIRST_PORT: u16 = 7100;
/// Number of ports used in turn.
const PORTS: u16 = 20_000;

/// Runs benches on this machine.
#[derive(Debug)]
pub struct Rig {
    cores: Cores,
    jobs: u16,
}

impl Default for Rig {
    fn default() -> Self {
        Rig { cores: Cores::here(), jobs: 0 }
    }
}

impl Rig {
    /// Which core runs what.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// A lab for measuring: daemons bound to their cores.
    pub fn lab(&self, options: &LabOptions) -> Result<Lab, Failure> {
        Ok(Lab::create(&LabOptions { daemon_cpus: self.cores.daemons(), ..options.clone() })?)
    }

    /// All rounds of a bench: `measured[case][round]`. Calls `step` after each measurement.
    pub fn run(&mut self, bench: &Bench, step: impl Fn()) -> Result<Vec<Vec<Measured>>, Failure> {
        let daemon = bench.cases.iter().any(|case| case.path == Path::Daemon);
        let mut labs = Vec::new();
        for wire in &bench.labs {
            labs.push(self.lab(&LabOptions { wire: wire.clone(), daemon, ..LabOptions::new(wire.nodes) })?);
        }
        let mut measured: Vec<Vec<Measured>> = bench.cases.iter().map(|_| Vec::new()).collect();
        for _ in 0..bench.rounds {
            for (case, measured) in bench.cases.iter().zip(&mut measured) {
                let lab = labs.get(case.lab).ok_or_else(|| Failure::new("a case names no lab"))?;
                measured.push(self.measure(lab, case).doing(format_args!(
                    "bench {}, path {}",
                    bench.name,
                    case.path.name()
                ))?);
                step();
            }
        }
        Ok(measured)
    }

    /// One case once.
    pub fn measure(&mut self, lab: &Lab, case: &Case) -> Result<Measured, Failure> {
        let plain = case.path == Path::TcpNoOffload;
        if plain {
            set_offload(lab, false)?;
        }
        let cpu = daemons_cpu(lab);
        let result = self.both_workers(lab, case);
        if plain {
            set_offload(lab, true)?;
        }
        let mut measured = result?;
        if case.path == Path::Daemon {
            measured.daemon_cpu =
                daemons_cpu(lab).zip(cpu).map(|(after, before)| after.saturating_sub(before));
        }
        Ok(measured)
    }

    fn both_workers(&mut self, lab: &Lab, case: &Case) -> Result<Measured, Failure> {
        let port = FIRST_PORT + self.jobs % PORTS;
        self.jobs = self.jobs.wrapping_add(1);
        let job =
            Job { role: Role::Server, path: case.path, wait: case.wait, work: case.work, node: 1, port };
        let mut server = Worker::start(lab, 1, &self.cores.server, &job)?;
        match server.line()?.as_str() {
            LISTENING => {}
            other => return Err(Failure::new(format!("the server said `{other}`"))),
        }
        let mut client = Worker::start(lab, 0, &self.cores.client, &Job { role: Role::Client, ..job })?;
        let client = client.outcome()?;
        Ok(Measured::new(client, &server.outcome()?))
    }
}

fn set_offload(lab: &Lab, on: bool) -> Result<(), Failure> {
    for node in 0..2 {
        lab.set_offload(node, on)?;
    }
    Ok(())
}

/// CPU time of all daemons of the lab so far, in nanoseconds. `None` without daemons.
fn daemons_cpu(lab: &Lab) -> Option<u64> {
    let times = lab.state().nodes.iter().map(|node| crate::lab::cpu_time(node.daemon?));
    times.sum()
}

/// A worker process in a node. Dropping it ends it.
struct Worker {
    name: String,
    child: Child,
    lines: Receiver<String>,
    stderr: Option<ChildStderr>,
}

impl Worker {
    fn start(lab: &Lab, node: usize, cpus: &[usize], job: &Job) -> Result<Worker, Failure> {
        let name = format!("the {:?} in node{node}", job.role).to_lowercase();
        let text = serde_json::to_string(job).doing(&name)?;
        let mut command = lab.pinned_command(node, cpus, "esplab")?;
        command.args(["worker", &text]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().doing(&name)?;
        let stderr = child.stderr.take();
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("a pipe is missing"))?;
        let (sender, lines) = channel();
        // Ends with the worker, whose end of the pipe closes.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Worker { name, child, lines, stderr })
    }

    /// Its next line.
    fn line(&mut self) -> Result<String, Failure> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new(format!("{} hangs", self.name))),
            Err(RecvTimeoutError::Disconnected) => {
                let mut text = String::new();
                if let Some(stderr) = &mut self.stderr {
                    stderr.read_to_string(&mut text).doing(&self.name)?;
                }
                Err(Failure::new(format!("{} failed: {}", self.name, text.trim())))
            }
        }
    }

    fn outcome(&mut self) -> Result<Outcome, Failure> {
        let line = self.line()?;
        serde_json::from_str(&line).doing(&self.name)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended, or is of no use any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
