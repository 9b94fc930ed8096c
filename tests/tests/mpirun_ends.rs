//! A job of `esplab mpirun` ends when a part of it is killed: none of its processes remains on any
//! node.
//!
//! The ranks are shell scripts that ignore signals: they notice less than programs of MPI do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use esp_tests::marked::Mark;
use esp_tests::process::{bare_lab, programs, signal};
use esp_tests::wait_until;
use lab::Lab;
use rustix::process::Signal;

/// A rank that runs for ever.
const ENDLESS: &str = "trap '' TERM INT HUP; while :; do sleep 0.1; done";

/// Returns whether Open MPI is installed, and prints SKIPPED if it is not.
fn is_installed(test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join("mpirun.openmpi").is_file());
    if !found {
        netns::skip(test, "no Open MPI (Debian: apt install openmpi-bin)");
    }
    found
}

/// A job that runs until it is ended. Its processes are killed on drop.
struct Job {
    esplab: Child,
    /// Folder for temporary files.
    room: Room,
    mark: Mark,
}

/// A folder, removed on drop.
struct Room(PathBuf);

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Job {
    /// Starts three ranks on two nodes: of this lab, or of one that `esplab mpirun` creates. Waits
    /// until they run.
    fn start(lab: Option<&Lab>) -> Job {
        Job::start_by(lab, None)
    }

    /// [`Job::start`] by Open MPI, or by the MPICH in a folder.
    fn start_by(lab: Option<&Lab>, mpich: Option<&Path>) -> Job {
        let mark = Mark::new();
        let room = Room(std::env::temp_dir().join(format!("esp-ends-{}", mark.value())));
        fs::create_dir(&room.0).expect("make a folder");
        let mut command = Command::new(programs().join("esplab"));
        command.args(["mpirun", "-n", "3", "--nodes", "2", "--btl", "tcp"]);
        if let Some(lab) = lab {
            command.args(["--name", lab.name()]);
        }
        if let Some(dir) = mpich {
            command.args(["--mpi", "mpich", "--mpi-dir"]).arg(dir);
        }
        command.args(["--", "/bin/sh", "-c", ENDLESS]);
        mark.put_on(&mut command);
        command.env("TMPDIR", &room.0);
        for name in ["PMI_FD", "PMI_PORT", "PMIX_NAMESPACE", "ESPLAB"] {
            command.env_remove(name);
        }
        let esplab = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start esplab");
        let mut job = Job { esplab, room, mark };
        wait_until("the ranks run", || {
            let ended = job.esplab.try_wait().expect("its status");
            assert!(ended.is_none(), "esplab mpirun has ended: {ended:?}");
            job.mark.running(|line| line == "sleep 0.1 ").len() == 3
        });
        job
    }

    /// Sends a signal to `esplab mpirun`.
    fn signal(&self, which: Signal) {
        signal(
            i32::try_from(self.esplab.id()).expect("a process id"),
            which,
        );
    }

    /// Waits for the end of `esplab mpirun` and of all processes that it has started.
    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let status = self.esplab.wait().expect("wait for esplab");
        let end = Instant::now() + Duration::from_secs(15);
        while let left @ [_, ..] = &*self.mark.processes() {
            assert!(Instant::now() < end, "still there: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        status
    }
}

/// Kills `esplab mpirun` in a lab of its own and in one that stays.
fn killed_by(test: &str, which: Signal) {
    if !is_installed(test) {
        return;
    }
    let Some(lab) = bare_lab(test, 2) else { return };
    for lab in [Some(&lab), None] {
        let mut job = Job::start(lab);
        job.signal(which);
        let status = job.ends();
        assert!(!status.success(), "{status}");
        let left = fs::read_dir(&job.room.0).expect("the folder").count();
        assert_eq!(left, 0, "temporary files");
    }
    let output = lab.run(1, "true", [""; 0]).expect("the lab stays");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn killed_by_sigterm() {
    killed_by("killed_by_sigterm", Signal::TERM);
}

#[test]
fn interrupted() {
    killed_by("interrupted", Signal::INT);
}

#[test]
fn killed_by_sigkill() {
    killed_by("killed_by_sigkill", Signal::KILL);
}

/// When esplab ends by a signal, its exit code is that of a shell, and the job has ended before.
#[test]
fn esplab_ends_after_its_job() {
    let test = "esplab_ends_after_its_job";
    if !is_installed(test) {
        return;
    }
    let mut job = Job::start(None);
    job.signal(Signal::TERM);
    let status = job.esplab.wait().expect("wait for esplab");
    assert_eq!(job.mark.processes(), [], "esplab has ended before");
    assert_eq!(status.code(), Some(128 + 15), "{status}");
}

/// The launcher of MPICH has other helpers. It is Debian's, which does not need MPICH's libraries.
#[test]
fn a_job_of_mpich_is_killed() {
    let test = "a_job_of_mpich_is_killed";
    if !Path::new("/usr/bin/mpiexec.hydra").is_file() {
        netns::skip(test, "no MPICH (Debian: apt install mpich)");
        return;
    }
    let dir = std::env::temp_dir().join(format!("esp-ends-mpich-{}", std::process::id()));
    let room = Room(dir);
    fs::create_dir(&room.0).expect("make a folder");
    let launcher = room.0.join("mpiexec");
    // Its version would say that it was built without libfabric.
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && { echo HYDRA build details; exit; }\n\
                  exec /usr/bin/mpiexec.hydra \"$@\"\n";
    fs::write(&launcher, script).expect("write a script");
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).expect("make it executable");
    let Some(lab) = bare_lab(test, 2) else { return };
    for which in [Signal::TERM, Signal::KILL] {
        let mut job = Job::start_by(Some(&lab), Some(&room.0));
        job.signal(which);
        let status = job.ends();
        assert!(!status.success(), "{status}");
    }
}

#[test]
fn mpirun_is_killed() {
    let test = "mpirun_is_killed";
    if !is_installed(test) {
        return;
    }
    let Some(lab) = bare_lab(test, 2) else { return };
    let mut job = Job::start(Some(&lab));
    let mpirun = job
        .mark
        .running(|line| line.starts_with("/usr/bin/mpirun.openmpi "));
    assert_eq!(mpirun.len(), 1, "{:#?}", job.mark.processes());
    signal(mpirun[0], Signal::KILL);
    let status = job.ends();
    assert_eq!(status.code(), Some(128 + 9), "{status}");
}

/// The guard is killed; then both processes of esplab, so that the job ends with its lab.
#[test]
fn esplab_and_its_guard_are_killed() {
    let test = "esplab_and_its_guard_are_killed";
    if !is_installed(test) {
        return;
    }
    let Some(lab) = bare_lab(test, 2) else { return };
    for with_esplab in [false, true] {
        let mut job = Job::start((!with_esplab).then_some(&lab));
        let guards = job.mark.running(|line| line.contains("esplab guard"));
        assert_eq!(guards.len(), 1, "{:#?}", job.mark.processes());
        if with_esplab {
            job.signal(Signal::STOP);
        }
        signal(guards[0], Signal::KILL);
        if with_esplab {
            job.signal(Signal::KILL);
        }
        job.ends();
    }
}
