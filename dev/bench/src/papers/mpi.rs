//! Programs of Open MPI over the nodes of a lab, by `esplab mpirun`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cores;
use crate::intra::contender::find;
use crate::results::{Figure, Unit};
use crate::samples::median;
use crate::scratch::Scratch;
use cli::out::{Context, Failure};
use lab::{Lab, LabOptions};

/// A job of Open MPI 4.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) ranks: usize,
    pub(super) nodes: usize,
    /// List of BTLs as `esplab mpirun --btl` takes it.
    pub(super) btl: &'static str,
    /// Options of `esplab mpirun` before the program.
    pub(super) options: Vec<OsString>,
    /// Seconds after which it is ended.
    pub(super) seconds: u32,
    /// Program and its arguments.
    pub(super) command: Vec<OsString>,
}

/// A lab and a folder for the jobs of a run.
pub(super) struct Site {
    lab: Lab,
    scratch: Scratch,
}

impl Site {
    /// Checks that Open MPI is installed, and creates a lab of `nodes` nodes.
    pub(super) fn new(nodes: usize) -> Result<Site, Failure> {
        find("mpirun.openmpi", "openmpi-bin")
            .map_err(|_| missing("mpirun.openmpi", "openmpi-bin"))?;
        Ok(Site {
            lab: Lab::create(&LabOptions::new(nodes))?,
            scratch: Scratch::new()?,
        })
    }

    /// Returns the folder in which jobs run.
    pub(super) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Compiles a program.
    pub(super) fn compile(&self, name: &str, source: &str) -> Result<PathBuf, Failure> {
        let compiler = find("mpicc.openmpi", "libopenmpi-dev")
            .map_err(|_| missing("mpicc.openmpi", "libopenmpi-dev gcc"))?;
        let (file, program) = (
            self.folder().join(format!("{name}.c")),
            self.folder().join(name),
        );
        fs::write(&file, source).doing(file.display())?;
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-w", "-o"])
            .args([&program, &file])
            .stdin(Stdio::null());
        let output = command.output().doing("mpicc.openmpi")?;
        if output.status.success() {
            return Ok(program);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text.lines().next().unwrap_or("no message");
        Err(Failure::new(format!(
            "mpicc.openmpi cannot compile {name}.c: {first}"
        )))
    }

    /// Runs a job, each rank bound to a core in turn, and returns what it printed.
    pub(super) fn run(&self, job: &Job) -> Result<String, Failure> {
        let esplab = std::env::current_exe().doing("finding the running program")?;
        let mut command = Command::new(esplab);
        command.args(["mpirun", "--name", self.lab.name(), "--btl", job.btl]);
        command.args(["-n", &job.ranks.to_string()]);
        command.args(["--nodes", &job.nodes.to_string()]);
        command.args(["--timeout", &job.seconds.to_string()]);
        command.args(&job.options).arg("--");
        command.args(bound(&cores::allowed())).args(&job.command);
        command.current_dir(self.folder()).stdin(Stdio::null());
        ended(command, job.btl)
    }

    /// Runs ranks on node 0 with these options of Open MPI's launcher, each bound to a core in
    /// turn, and returns what they printed.
    pub(super) fn run_within(
        &self,
        ranks: usize,
        options: &[OsString],
        program: &Path,
    ) -> Result<String, Failure> {
        let esplab = std::env::current_exe().doing("finding the running program")?;
        let mut command = Command::new(esplab);
        command.args(["exec", "--name", self.lab.name(), "0", "--"]);
        command.args(["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none"]);
        command.args(["--mca", "oob_tcp_if_include", "eth0", "--oversubscribe"]);
        command.args(["--timeout", "120", "-np", &ranks.to_string()]);
        command.args(options).args(bound(&cores::allowed()));
        command.arg(program);
        command.current_dir(self.folder()).stdin(Stdio::null());
        ended(command, "libfabric")
    }
}

/// Waits for a job and returns what it printed; `over`: its transport.
fn ended(mut command: Command, over: &str) -> Result<String, Failure> {
    let output = command
        .output()
        .doing(command.get_program().to_string_lossy())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines = errors.lines().chain(text.lines());
    let is_text = |line: &&str| line.chars().any(char::is_alphanumeric);
    let said: Vec<_> = lines.filter(is_text).take(3).collect();
    let (said, status) = (said.join(" "), output.status);
    Err(Failure::new(format!(
        "failed over {over} ({status}): {said}"
    )))
}

/// Returns the failure of a missing program or file with the line that installs it.
pub(super) fn missing(what: &str, packages: &str) -> Failure {
    Failure::new(format!("not run: no {what}: apt install {packages}"))
}

/// Returns the words before a program that bind each rank to a core in turn.
fn bound(cores: &[usize]) -> Vec<OsString> {
    if cores.is_empty() {
        return Vec::new();
    }
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let count = cores.len();
    let script = format!(
        "c=$(echo \"$0\" | cut -d, -f$((${{OMPI_COMM_WORLD_RANK:-0}} % {count} + 1))); \
         exec taskset -c \"$c\" \"$@\""
    );
    ["/bin/sh", "-c", &script, &list.join(",")]
        .map(OsString::from)
        .into()
}

/// Values of one quantity of one contender.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) what: String,
    pub(super) size: Option<u64>,
    pub(super) unit: Unit,
    /// The value of a round: of a time its median.
    pub(super) value: f64,
    /// 99th percentile of the samples of a round.
    pub(super) p99: Option<f64>,
}

/// Collects values of rounds as figures.
#[derive(Debug, Default)]
pub(super) struct Collected(Vec<(Figure, Vec<f64>)>);

impl Collected {
    /// Adds the values of a round of a contender.
    pub(super) fn add(&mut self, run: &str, contender: &str, values: Vec<Value>) {
        for value in values {
            let is_same = |figure: &Figure| {
                figure.what == value.what
                    && figure.size == value.size
                    && figure.contender == contender
            };
            let known = self.0.iter().position(|(figure, _)| is_same(figure));
            let at = known.unwrap_or_else(|| {
                let figure = Figure {
                    bench: run.into(),
                    what: value.what.clone(),
                    size: value.size,
                    contender: contender.into(),
                    unit: value.unit,
                    p50: 0.0,
                    p99: None,
                    rounds: Vec::new(),
                    machine: crate::page::summary(),
                };
                self.0.push((figure, Vec::new()));
                self.0.len() - 1
            });
            if let Some((figure, p99)) = self.0.get_mut(at) {
                figure.rounds.push(value.value);
                p99.extend(value.p99);
            }
        }
    }

    /// Returns the figures: medians of the rounds, of percentiles, too.
    pub(super) fn figures(self) -> Vec<Figure> {
        let finished = |(figure, p99): (Figure, Vec<f64>)| Figure {
            p50: median(&figure.rounds),
            p99: (!p99.is_empty()).then(|| median(&p99)),
            ..figure
        };
        self.0.into_iter().map(finished).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_bound_in_turn() {
        assert!(bound(&[]).is_empty());
        let words = bound(&[3, 5]);
        let rank = |rank: &str| {
            let mut shell = Command::new(&words[0]);
            // In place of taskset a function that prints its arguments.
            let script = words[2].to_string_lossy().replace("exec taskset", "echo");
            shell.arg("-c").arg(script).arg(&words[3]).arg("program");
            shell.env("OMPI_COMM_WORLD_RANK", rank);
            String::from_utf8(shell.output().unwrap().stdout).unwrap()
        };
        assert_eq!([rank("0"), rank("1"), rank("2")].concat(), {
            "-c 3 program\n-c 5 program\n-c 3 program\n"
        });
    }

    #[test]
    fn rounds_are_collected_by_quantity_size_and_contender() {
        let value = |size, value| Value {
            what: "ping-pong".into(),
            size: Some(size),
            unit: Unit::Micros,
            value,
            p99: Some(10.0 * value),
        };
        let mut all = Collected::default();
        for round in [1.0, 3.0, 2.0] {
            all.add("mpi", "esp", vec![value(1, round), value(64, round)]);
            all.add("mpi", "tcp", vec![value(1, 2.0 * round)]);
        }
        let figures = all.figures();
        assert_eq!(figures.len(), 3);
        assert_eq!(figures[0].rounds, [1.0, 3.0, 2.0]);
        assert_eq!((figures[2].p50, figures[2].p99), (4.0, Some(40.0)));
    }
}
