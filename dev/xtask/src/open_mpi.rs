//! Finding an installed Open MPI: its headers, its version, and whether it can load components.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::outcome::{Failure, cannot_run};

/// Header that defines the version. Only developers' headers have it.
const CONFIG: &str = "openmpi/opal_config.h";

/// An installed Open MPI.
#[derive(Debug)]
pub(crate) struct OpenMpi {
    /// Folder with `openmpi/opal_config.h`.
    pub(crate) include: PathBuf,
    /// Version in these headers.
    pub(crate) version: Version,
    /// Whether its `ompi_info` ran and agreed; no if these are the headers of another machine.
    pub(crate) confirmed: bool,
}

/// A version of Open MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) release: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

impl Version {
    /// Returns the version that `opal_config.h` defines.
    fn of_header(text: &str) -> Option<Version> {
        let number = |name: &str| {
            text.lines().find_map(|line| {
                let value = line.strip_prefix("#define ")?.strip_prefix(name)?;
                value.strip_prefix(' ')?.trim().parse().ok()
            })
        };
        Some(Version {
            major: number("OPAL_MAJOR_VERSION")?,
            minor: number("OPAL_MINOR_VERSION")?,
            release: number("OPAL_RELEASE_VERSION")?,
        })
    }
}

/// Values of `ompi_info --parsable`.
#[derive(Debug, PartialEq, Eq)]
struct Info {
    /// Such as `5.0.7`, or `5.0.8rc1`.
    version: String,
    /// Whether components can be loaded.
    dlopen: bool,
}

impl Info {
    fn parse(text: &str) -> Option<Info> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Some(Info {
            version: value("ompi:version:full:")?.trim().to_owned(),
            dlopen: value("option:dlopen:")?.trim() == "yes",
        })
    }

    /// Runs an `ompi_info`. `None` if there is none, or if it does not run here.
    fn of(program: &Path) -> Option<Info> {
        Info::parse(&printed(program, &["--parsable"])?)
    }

    /// Refuses an Open MPI that loads no components.
    fn check(&self, program: &Path) -> Result<(), Failure> {
        if self.dlopen {
            return Ok(());
        }
        cannot_run(format!(
            "{}: Open MPI {} was built without dlopen and cannot load components (the one of PyPI \
             is): use the provider of libfabric (cargo xtask install-libfabric), or another Open \
             MPI",
            program.display(),
            self.version
        ))
    }
}

impl OpenMpi {
    /// Finds the Open MPI below `prefix`; without one, that of `OMPI_INCLUDE`, else of `mpicc`.
    /// Fails if it cannot load components, or if headers are missing.
    pub(crate) fn find(prefix: Option<&Path>) -> Result<OpenMpi, Failure> {
        let (include, info) = match prefix {
            Some(prefix) => {
                let program = prefix.join("bin/ompi_info");
                let info = Info::of(&program);
                if let Some(info) = &info {
                    info.check(&program)?;
                }
                let Some(include) = below(prefix) else {
                    let found = match &info {
                        Some(info) => format!("Open MPI {} without", info.version),
                        None => "no Open MPI with".into(),
                    };
                    return cannot_run(format!(
                        "{}: {found} developers' headers ({CONFIG}): Debian has them in \
                         libopenmpi-dev; otherwise configure Open MPI --with-devel-headers",
                        prefix.display()
                    ));
                };
                (include, info)
            }
            None => match std::env::var_os("OMPI_INCLUDE") {
                Some(include) => (PathBuf::from(include), None),
                None => {
                    let program = Path::new("ompi_info");
                    let info = Info::of(program);
                    if let Some(info) = &info {
                        info.check(program)?;
                    }
                    (of_compiler()?, info)
                }
            },
        };
        let config = include.join(CONFIG);
        let text = fs::read_to_string(&config)
            .map_err(|e| Failure::CannotRun(format!("{}: {e}", config.display())))?;
        let Some(version) = Version::of_header(&text) else {
            return cannot_run(format!("{}: no version of Open MPI", config.display()));
        };
        if let Some(info) = info.as_ref().filter(|info| !same_series(info, version)) {
            return cannot_run(format!(
                "ompi_info is of Open MPI {}, the headers in {} of {version}: name one by --ompi \
                 DIR, the folder with bin and include",
                info.version,
                include.display()
            ));
        }
        Ok(OpenMpi {
            include,
            version,
            confirmed: info.is_some(),
        })
    }

    /// Returns the folder of PMIx's components if `mpirun` sets it as that of Open MPI's, too.
    /// Since Open MPI 5 a setting in PMIx's own file does that (Debian 13).
    pub(crate) fn overridden_by(&self) -> Option<String> {
        if self.version.major < 5 {
            return None;
        }
        // Debian: LIBRARIES/openmpi/include and LIBRARIES/pmix2/share.
        let libraries = self.include.parent()?.parent()?;
        let text = fs::read_to_string(libraries.join("pmix2/share/pmix-mca-params.conf")).ok()?;
        component_path(&text)
    }
}

/// Returns the value of `mca_base_component_path` in a file of parameters.
fn component_path(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "mca_base_component_path").then(|| value.trim().to_owned())
    })
}

fn same_series(info: &Info, version: Version) -> bool {
    let series = format!("{}.{}.", version.major, version.minor);
    info.version.starts_with(&series)
}

/// Returns whether the developers' headers of Open MPI are installed.
pub(crate) fn headers() -> bool {
    std::env::var_os("OMPI_INCLUDE").is_some() || of_compiler().is_ok()
}

/// Returns the folder of the headers below an installation's prefix.
fn below(prefix: &Path) -> Option<PathBuf> {
    let mut dirs = vec![prefix.join("include"), prefix.join("lib/openmpi/include")];
    // Debian: lib/x86_64-linux-gnu/openmpi/include.
    for entry in fs::read_dir(prefix.join("lib"))
        .into_iter()
        .flatten()
        .flatten()
    {
        dirs.push(entry.path().join("openmpi/include"));
    }
    dirs.into_iter().find(|dir| dir.join(CONFIG).is_file())
}

/// Returns the folder of the headers that `mpicc` uses.
fn of_compiler() -> Result<PathBuf, Failure> {
    let mut found = String::new();
    for mpicc in ["mpicc.openmpi", "mpicc"] {
        let program = Path::new(mpicc);
        let dirs = printed(program, &["--showme:incdirs"]).unwrap_or_default();
        let dirs = dirs.split_whitespace().map(PathBuf::from);
        if let Some(dir) = dirs.into_iter().find(|dir| dir.join(CONFIG).is_file()) {
            return Ok(dir);
        }
        if let Some(text) = printed(program, &["--showme:version"]) {
            found = format!(" ({})", text.trim());
        }
    }
    cannot_run(format!(
        "no headers of Open MPI{found}: apt install libopenmpi-dev, or name an installation by \
         --ompi DIR"
    ))
}

/// Returns the output of a program; `None` if it fails or does not exist.
fn printed(program: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = command.output().ok()?;
    let succeeded = output.status.success();
    succeeded.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Makes an installation whose `ompi_info` prints `info`, with headers of version 5.0.7.
    fn installation(name: &str, headers: bool, info: Option<&str>) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("esp-open-mpi-{name}-{}", std::process::id()));
        let libraries = dir.join("lib/x86_64-linux-gnu");
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::create_dir_all(libraries.join("openmpi/include/openmpi")).unwrap();
        if headers {
            let text = "#define OPAL_MAJOR_VERSION 5\n#define OPAL_MINOR_VERSION 0\n\
                        #define OPAL_RELEASE_VERSION 7\n";
            fs::write(libraries.join("openmpi/include").join(CONFIG), text).unwrap();
        }
        if let Some(info) = info {
            let program = dir.join("bin/ompi_info");
            fs::write(&program, format!("#!/bin/sh\ncat <<E\n{info}\nE\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    fn found(name: &str, headers: bool, info: Option<&str>) -> Result<OpenMpi, String> {
        let dir = installation(name, headers, info);
        let found = OpenMpi::find(Some(&dir)).map_err(|failure| failure.to_string());
        fs::remove_dir_all(dir).unwrap();
        found
    }

    const RIGHT: &str = "ompi:version:full:5.0.7\noption:dlopen:yes";

    #[test]
    fn an_installation_is_found_by_its_prefix() {
        for (name, info, confirmed) in [("right", Some(RIGHT), true), ("foreign", None, false)] {
            let found = found(name, true, info).unwrap();
            assert_eq!(found.version.to_string(), "5.0.7");
            assert_eq!(found.confirmed, confirmed);
            assert!(found.include.ends_with("x86_64-linux-gnu/openmpi/include"));
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let old = "ompi:version:full:4.1.4\noption:dlopen:yes";
        let wheel = "ompi:version:full:5.0.11\noption:dlopen:no";
        for (name, headers, info, text) in [
            (
                "wheel",
                false,
                Some(wheel),
                "Open MPI 5.0.11 was built without dlopen",
            ),
            (
                "static",
                true,
                Some(wheel),
                "Open MPI 5.0.11 was built without dlopen",
            ),
            (
                "users",
                false,
                Some(RIGHT),
                "Open MPI 5.0.7 without developers' headers",
            ),
            ("empty", false, None, "no Open MPI with developers' headers"),
            ("mixed", true, Some(old), "ompi_info is of Open MPI 4.1.4"),
        ] {
            let error = found(name, headers, info).unwrap_err();
            assert!(error.contains(text), "{name}: {error}");
        }
    }

    #[test]
    fn versions_and_settings_are_parsed() {
        let right = "/* x */\n#define OPAL_MAJOR_VERSION 4\n#define OPAL_MINOR_VERSION 1\n\
                     #define OPAL_RELEASE_VERSION 4\n";
        assert_eq!(Version::of_header(right).unwrap().to_string(), "4.1.4");
        assert_eq!(Version::of_header("#define OPAL_MAJOR_VERSION 4"), None);
        let text = "# mca_base_component_path = /a\nmca_base_component_path = /b/c\n";
        assert_eq!(component_path(text).as_deref(), Some("/b/c"));
        assert_eq!(component_path("# mca_base_component_path = /a"), None);
    }
}
