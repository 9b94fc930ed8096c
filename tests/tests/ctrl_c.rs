//! Ctrl-C in the midst of `esplab mpirun`, `bench` and `papers`: it reaches all processes of the
//! terminal's foreground group at once, and nothing is left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use esp_tests::marked::Mark;
use esp_tests::process::{bare_lab, programs};
use esp_tests::{open_mpi, wait_until};
use rustix::process::{Pid, Signal, kill_process_group};

/// A running program. Its processes are killed on drop.
struct Run {
    mark: Mark,
    child: Child,
    /// Its folder for temporary files.
    room: PathBuf,
}

/// Files and namespaces of a running program that can outlive its processes.
struct Traces {
    /// Files in /dev/shm that its processes have mapped or opened.
    shared: BTreeSet<PathBuf>,
    /// Folders of labs, with the sockets of their daemons.
    labs: BTreeSet<PathBuf>,
    /// Number of its network namespaces.
    namespaces: usize,
}

impl Run {
    /// Starts `esplab` with these words as a terminal does, in a process group of its own.
    fn start(words: &[&str]) -> Run {
        let mark = Mark::new();
        let room = std::env::temp_dir().join(format!("esp-ctrl-c-{}", mark.value()));
        fs::create_dir(&room).expect("make a folder");
        let mut command = Command::new(programs().join("esplab"));
        command.args(words).env("TMPDIR", &room).process_group(0);
        mark.put_on(&mut command);
        for name in [
            "PMI_FD",
            "PMI_PORT",
            "PMIX_NAMESPACE",
            "ESPLAB",
            "ESPLAB_STATE",
        ] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("start esplab");
        Run { mark, child, room }
    }

    /// Waits until a process runs whose command line has this part.
    fn wait_for(&mut self, part: &str) {
        wait_until(&format!("{part} runs"), || {
            let ended = self.child.try_wait().expect("its status");
            assert!(ended.is_none(), "it has ended before {part}: {ended:?}");
            !self.mark.running(|line| line.contains(part)).is_empty()
        });
    }

    fn traces(&self) -> Traces {
        let mut traces = Traces {
            shared: BTreeSet::new(),
            labs: BTreeSet::new(),
            namespaces: 0,
        };
        let mut namespaces = BTreeSet::new();
        for (pid, _) in self.mark.processes() {
            let process = Path::new("/proc").join(pid.to_string());
            namespaces.extend(fs::read_link(process.join("ns/net")));
            let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
            let mapped = maps
                .lines()
                .filter_map(|line| line.find('/').map(|at| &line[at..]));
            let opened = fs::read_dir(process.join("fd"))
                .into_iter()
                .flatten()
                .flatten();
            let opened = opened.filter_map(|entry| fs::read_link(entry.path()).ok());
            let files = mapped.map(PathBuf::from).chain(opened);
            // The name of a removed file ends with `(deleted)`.
            traces
                .shared
                .extend(files.filter(|file| file.starts_with("/dev/shm") && file.exists()));
            // The first process that has a lab names its folder.
            let state = format!("/run/esplab/p{pid}-");
            let labs = fs::read_dir("/run/esplab").into_iter().flatten().flatten();
            let paths = labs.map(|entry| entry.path());
            traces
                .labs
                .extend(paths.filter(|path| path.to_string_lossy().starts_with(&state)));
        }
        let own = fs::read_link("/proc/self/ns/net").expect("this process's namespace");
        namespaces.remove(&own);
        traces.namespaces = namespaces.len();
        traces
    }

    /// Presses Ctrl-C, and checks that nothing is left.
    fn interrupt(mut self, what: &str, traces: &Traces) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process_group(group.expect("a process id"), Signal::INT).expect("interrupt it");
        let status = self.child.wait().expect("wait for it");
        assert!(!status.success(), "{what}: {status}");
        // A namespace ends with its processes.
        wait_until(&format!("{what}: its processes end"), || {
            self.mark.processes().is_empty()
        });
        let left = |files: &BTreeSet<PathBuf>| -> Vec<PathBuf> {
            files.iter().filter(|file| file.exists()).cloned().collect()
        };
        assert_eq!(
            left(&traces.shared),
            [""; 0].map(PathBuf::from),
            "{what}: shared memory"
        );
        assert_eq!(
            left(&traces.labs),
            [""; 0].map(PathBuf::from),
            "{what}: labs"
        );
        let files: Vec<_> = fs::read_dir(&self.room)
            .expect("its folder")
            .flatten()
            .collect();
        assert!(files.is_empty(), "{what}: {files:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        for lab in &traces.labs {
            assert!(
                !mounts.contains(&*lab.to_string_lossy()),
                "{what}: {mounts}"
            );
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.room);
    }
}

/// Ctrl-C while the lab is created and while the job runs, with shared memory within a node.
#[test]
fn in_the_midst_of_a_job() {
    let test = "in_the_midst_of_a_job";
    let Some(program) = open_mpi::Program::new(test, "endless") else {
        return;
    };
    if bare_lab(test, 1).is_none() {
        return;
    }
    let file = program.file().to_str().expect("a path of text");
    // Both ranks on one node; the other node is there, too.
    let words = ["mpirun", "-n", "2", "--nodes", "1", "--", file];
    let mut run = Run::start(&words);
    run.wait_for("esplab hold");
    let traces = run.traces();
    run.interrupt("while the lab is created", &traces);
    let mut run = Run::start(&words);
    let started = || {
        (0..2).all(|rank| {
            program
                .file()
                .with_file_name(format!("endless.{rank}"))
                .exists()
        })
    };
    run.wait_for("mpirun");
    wait_until("the ranks exchange messages", started);
    let traces = run.traces();
    assert_eq!(traces.labs.len(), 1, "of the run");
    assert!(traces.namespaces >= 2, "of the node and of the switch");
    assert!(!traces.shared.is_empty(), "Open MPI's shared memory");
    run.interrupt("while the job runs", &traces);
}

/// Ctrl-C during benchmarks between nodes, of a job, and within a node.
#[test]
fn in_the_midst_of_benchmarks() {
    let test = "in_the_midst_of_benchmarks";
    if bare_lab(test, 1).is_none() {
        return;
    }
    for (only, part, has_lab) in [
        ("pingpong", "esplab hold", true),
        ("pingpong", "esplab worker", true),
        ("rails", "esplab worker", true),
        ("shm", "esplab rank", false),
    ] {
        let mut run = Run::start(&["bench", "--quick", "--only", only]);
        run.wait_for(part);
        let traces = run.traces();
        if has_lab {
            assert_ne!((traces.labs.len(), traces.namespaces), (0, 0), "{only}");
        }
        run.interrupt(&format!("{only}, {part}"), &traces);
    }
}

/// Ctrl-C while programs of Open MPI run for `esplab papers`, and within a node.
#[test]
fn in_the_midst_of_the_papers() {
    let test = "in_the_midst_of_the_papers";
    // Only to know whether Open MPI and the component are there.
    let has_mpi = open_mpi::Program::new(test, "endless").is_some();
    if !has_mpi || bare_lab(test, 1).is_none() {
        return;
    }
    for (only, part, has_lab) in [
        ("lu-sp", "kernels 20 lu", true),
        ("keys", "esplab rank", false),
    ] {
        let mut run = Run::start(&["papers", "--quick", "--only", only]);
        run.wait_for(part);
        let traces = run.traces();
        if has_lab {
            assert_ne!((traces.labs.len(), traces.namespaces), (0, 0), "{only}");
        }
        run.interrupt(&format!("{only}, {part}"), &traces);
    }
}
