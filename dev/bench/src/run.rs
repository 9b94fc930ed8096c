//! Runs the cases of a benchmark in alternating rounds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cores::Cores;
use crate::plan::{Bench, Case, LabPlan};
use crate::protect::{Protection, without_kernel_tls};
use crate::report::{Measured, Results};
use crate::scratch::Scratch;
use crate::task::{HOLDING, LISTENING, Protocol, Role, Task, TaskResult, Wait, Work};
use cli::out::{self, Context, Failure};
use lab::{Carriers, Lab, LabOptions, cpu_time, cpu_times};

/// Time limit of a worker for a case.
const PATIENCE: Duration = Duration::from_secs(120);
/// First port of the servers. Each case uses the next one, to avoid remains of earlier cases.
const FIRST_PORT: u16 = 7100;
/// Number of ports used in turn.
const PORTS: u16 = 20_000;

/// Runs benchmarks on this machine.
#[derive(Debug)]
pub struct Rig {
    cores: Cores,
    jobs: u16,
}

impl Default for Rig {
    fn default() -> Self {
        Rig {
            cores: Cores::here(),
            jobs: 0,
        }
    }
}

impl Rig {
    /// Returns the cores of the processes.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Creates a lab whose daemons are bound to their cores.
    pub fn lab(&self, options: &LabOptions) -> Result<Lab, Failure> {
        let mut options = self.pinned(options);
        options
            .daemon_config
            .push_str("\n[lease]\nallow = \"all\"\n");
        Ok(Lab::create(&options)?)
    }

    fn pinned(&self, options: &LabOptions) -> LabOptions {
        LabOptions {
            daemon_cpus: self.cores.daemons(),
            ..options.clone()
        }
    }

    /// Runs all rounds of a benchmark in its own labs. Calls `step` after each measurement.
    pub fn run(&mut self, bench: &Bench, step: impl Fn()) -> Result<Results, Failure> {
        let daemon = bench.cases.iter().any(|case| case.path.needs_daemons());
        let mut labs = Vec::new();
        for plan in &bench.labs {
            labs.push(
                self.prepare(plan, daemon)
                    .doing(format_args!("bench {}", bench.about.name))?,
            );
        }
        let all: Vec<&Lab> = labs.iter().map(|prepared| &prepared.lab).collect();
        let results = self.rounds(bench, &all, step)?;
        let memory = labs.iter().map(|lab| lab.bytes_per_connection).collect();
        Ok(Results {
            bytes_per_connection: memory,
            ..results
        })
    }

    /// Runs all rounds of a benchmark in existing labs. Calls `step` after each measurement.
    pub fn rounds(
        &mut self,
        bench: &Bench,
        labs: &[&Lab],
        step: impl Fn(),
    ) -> Result<Results, Failure> {
        let mut measured: Vec<Vec<Measured>> = bench.cases.iter().map(|_| Vec::new()).collect();
        let has_tls = bench.cases.iter().any(|c| c.path == Protocol::TcpTls);
        let no_tls = has_tls.then(without_kernel_tls).flatten();
        let note = |case: &Case| no_tls.clone().filter(|_| case.path == Protocol::TcpTls);
        let notes: Vec<_> = bench.cases.iter().map(note).collect();
        for _ in 0..bench.rounds {
            for ((case, measured), note) in bench.cases.iter().zip(&mut measured).zip(&notes) {
                if note.is_some() {
                    step();
                    continue;
                }
                let lab = labs
                    .get(case.lab)
                    .ok_or_else(|| Failure::new("a case names no lab"))?;
                let doing = format_args!("bench {}, path {}", bench.about.name, case.path.name());
                // One more attempt: the bare loop fails if its only acknowledgement is lost.
                let result = self.measure(lab, case).or_else(|failure| {
                    out::note(format_args!("{doing}: {failure}; it is measured once more"));
                    self.measure(lab, case)
                });
                measured.push(result.doing(doing)?);
                step();
            }
        }
        Ok(Results {
            measured,
            notes,
            bytes_per_connection: Vec::new(),
            cores: self.cores.to_string(),
        })
    }

    /// Creates a lab and opens its idle connections.
    fn prepare(&mut self, plan: &LabPlan, daemon: bool) -> Result<Prepared, Failure> {
        let wire = plan.wire();
        let options = LabOptions {
            daemon,
            carriers: Carriers::Both,
            ..LabOptions::new(wire.nodes).with_wire(wire)
        };
        let lab = if plan.protection == Protection::None {
            self.lab(&options)?
        } else {
            self.protected_lab(options, plan.protection)?
        };
        if plan.leases > 0 {
            let job = self.job(
                Protocol::Lease,
                Wait::Block,
                Work::Hold { count: plan.leases },
            );
            let cores = [&self.cores.client, &self.cores.server];
            let mut holders = Vec::new();
            for (node, cores) in cores.into_iter().enumerate() {
                holders.push(Worker::start(&lab, node, cores, &job)?);
            }
            holders
                .iter_mut()
                .try_for_each(|holder| holder.expect(HOLDING))?;
            return Ok(Prepared {
                lab,
                bytes_per_connection: None,
                holders,
            });
        }
        if plan.held == 0 {
            return Ok(Prepared {
                lab,
                bytes_per_connection: None,
                holders: Vec::new(),
            });
        }
        let before = daemons_memory(&lab);
        let job = self.job(
            Protocol::Daemon,
            Wait::Block,
            Work::Hold { count: plan.held },
        );
        let mut server = Worker::start(&lab, 1, &self.cores.server, &job)?;
        server.expect(LISTENING)?;
        let mut client = Worker::start(
            &lab,
            0,
            &self.cores.client,
            &Task {
                role: Role::Client,
                ..job
            },
        )?;
        client.expect(HOLDING)?;
        server.expect(HOLDING)?;
        // Each daemon has one end of every connection.
        let grown = daemons_memory(&lab)
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        let bytes_per_connection = grown.map(|bytes| bytes as f64 / (2 * plan.held) as f64);
        Ok(Prepared {
            holders: vec![client, server],
            lab,
            bytes_per_connection,
        })
    }

    /// Creates a lab whose daemons require protection. They read the key when they start. Leases
    /// are not protected.
    fn protected_lab(
        &self,
        mut options: LabOptions,
        protection: Protection,
    ) -> Result<Lab, Failure> {
        let scratch = Scratch::new()?;
        let key = scratch.path().join("key");
        if protection.has_key() {
            let mut file = File::options();
            let file = file.write(true).create_new(true).mode(0o600).open(&key);
            let written = file.and_then(|mut file| file.write_all("07".repeat(32).as_bytes()));
            written.doing(key.display())?;
        }
        options.daemon_config = protection.config(&key);
        Ok(Lab::create(&self.pinned(&options))?)
    }

    /// Measures a case once.
    pub fn measure(&mut self, lab: &Lab, case: &Case) -> Result<Measured, Failure> {
        if !case.offload {
            set_offload(lab, false)?;
        }
        let cpu = daemons_cpu(lab);
        let result = self.both_workers(lab, case);
        if !case.offload {
            set_offload(lab, true)?;
        }
        let mut measured = result?;
        if case.path.by_daemons() {
            measured.daemon_cpu = daemons_cpu(lab)
                .zip(cpu)
                .map(|(after, before)| after.saturating_sub(before));
        }
        Ok(measured)
    }

    fn both_workers(&mut self, lab: &Lab, case: &Case) -> Result<Measured, Failure> {
        let job = self.job(case.path, case.wait, case.work);
        let meet = if matches!(case.path, Protocol::P2p | Protocol::P2pUdp) {
            Some(Scratch::new()?)
        } else {
            None
        };
        let start =
            |node, cores, job: &Task| Worker::start_in(lab, node, cores, job, meet.as_ref(), &[]);
        let mut server = start(1, &self.cores.server, &job)?;
        server.expect(LISTENING)?;
        let mut client = start(
            0,
            &self.cores.client,
            &Task {
                role: Role::Client,
                ..job
            },
        )?;
        let client: TaskResult = client.outcome()?;
        if case.path.is_bare() {
            server.end_input();
        }
        Ok(Measured::new(client, &server.outcome()?))
    }

    /// Returns a server's task in node 1.
    fn job(&mut self, path: Protocol, wait: Wait, work: Work) -> Task {
        let port = FIRST_PORT + self.jobs % PORTS;
        self.jobs = self.jobs.wrapping_add(1);
        let own_core = self.cores.client != self.cores.client_daemon;
        Task {
            role: Role::Server,
            path,
            wait,
            work,
            node: 1,
            port,
            own_core,
        }
    }
}

/// A lab with its idle connections. The workers are dropped first.
struct Prepared {
    #[expect(dead_code, reason = "held until the bench ends")]
    holders: Vec<Worker>,
    lab: Lab,
    bytes_per_connection: Option<f64>,
}

fn set_offload(lab: &Lab, on: bool) -> Result<(), Failure> {
    for node in 0..2 {
        lab.set_offload(node, on)?;
    }
    Ok(())
}

/// Returns the CPU time of all daemons of the lab in nanoseconds; `None` without daemons.
pub(super) fn daemons_cpu(lab: &Lab) -> Option<u64> {
    lab.state()
        .nodes
        .iter()
        .map(|node| cpu_time(node.daemon?))
        .sum()
}

/// Returns the CPU time of each thread of all daemons of the lab in nanoseconds, by node and
/// thread; `None` without daemons.
pub(super) fn daemon_threads_cpu(lab: &Lab) -> Option<BTreeMap<(usize, String), u64>> {
    let mut all = BTreeMap::new();
    for (number, node) in lab.state().nodes.iter().enumerate() {
        let threads = cpu_times(node.daemon?)?.into_iter();
        all.extend(threads.map(|(thread, time)| ((number, thread), time)));
    }
    Some(all)
}

/// Returns the memory of all daemons of the lab in bytes, with the touched pages of shared rings.
fn daemons_memory(lab: &Lab) -> Option<u64> {
    let resident = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_ascii_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
            .map(|kib| kib * 1024)
    };
    lab.state()
        .nodes
        .iter()
        .map(|node| resident(node.daemon?.pid))
        .sum()
}

/// A worker process in a node. Dropping it ends it.
pub(super) struct Worker {
    name: String,
    child: Child,
    lines: Receiver<String>,
    stderr: Option<ChildStderr>,
}

impl Worker {
    /// Starts `esplab worker` with the task `job`.
    pub(super) fn start(
        lab: &Lab,
        node: usize,
        cpus: &[usize],
        job: &impl Serialize,
    ) -> Result<Worker, Failure> {
        Worker::start_in(lab, node, cpus, job, None, &[])
    }

    /// Starts `esplab worker` with variables of the environment. `meet`: folder in which the two
    /// ranks of a job find each other.
    pub(super) fn start_in(
        lab: &Lab,
        node: usize,
        cpus: &[usize],
        job: &impl Serialize,
        meet: Option<&Scratch>,
        variables: &[(&str, &str)],
    ) -> Result<Worker, Failure> {
        let name = format!("the worker in node{node}");
        let text = serde_json::to_string(job).doing(&name)?;
        let mut command = lab.pinned_command(node, cpus, "esplab")?;
        command
            .args(["worker", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(meet) = meet {
            command
                .env("ESP_BOOT", "fixed")
                .env("ESP_JOB_DIR", meet.path());
            command
                .env("ESP_JOB_RANK", node.to_string())
                .env("ESP_JOB_SIZE", "2");
        }
        command.envs(variables.iter().copied());
        let mut child = command.spawn().doing(&name)?;
        let stderr = child.stderr.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| Failure::new("a pipe is missing"))?;
        let (sender, lines) = channel();
        // Ends when the worker closes its end of the pipe.
        std::thread::spawn(move || {
            BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Ok(Worker {
            name,
            child,
            lines,
            stderr,
        })
    }

    /// Reads the next line.
    fn line(&mut self) -> Result<String, Failure> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new(format!("{} hangs", self.name))),
            Err(RecvTimeoutError::Disconnected) => {
                let mut text = String::new();
                if let Some(stderr) = &mut self.stderr {
                    stderr.read_to_string(&mut text).doing(&self.name)?;
                }
                Err(Failure::new(format!(
                    "{} failed: {}",
                    self.name,
                    text.trim()
                )))
            }
        }
    }

    pub(super) fn expect(&mut self, wanted: &str) -> Result<(), Failure> {
        let line = self.line()?;
        if line == wanted {
            Ok(())
        } else {
            Err(Failure::new(format!(
                "{} said `{line}`, not `{wanted}`",
                self.name
            )))
        }
    }

    /// Reads the last line.
    pub(super) fn outcome<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let line = self.line()?;
        serde_json::from_str(&line).doing(&self.name)
    }

    /// Closes the standard input, which ends a waiting worker.
    pub(super) fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
