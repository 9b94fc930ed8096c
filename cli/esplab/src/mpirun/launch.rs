//! Command lines and variables of the launchers.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Flags;
use super::installed::{Installed, Mpi};
use super::provider;
use cli::out::{Context, Failure};

/// Arguments and variables of a launcher.
#[derive(Debug, Default)]
pub(super) struct Launch {
    /// Variables for the launcher and the processes.
    pub(super) variables: Vec<(String, OsString)>,
    /// Options before the path of the agent that replaces ssh.
    pub(super) agent: &'static str,
    /// The other arguments, without the program.
    pub(super) arguments: Vec<OsString>,
}

/// Transports for MPIs that have no list of BTLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transports {
    /// Provider of libfabric.
    provider: &'static str,
    /// Whether the MPI's shared memory is used within a node.
    shared: bool,
}

/// Resources of a run.
pub(super) struct Place<'a> {
    /// Number of processes of each node.
    pub(super) used: &'a [u32],
    /// Number of cores of the machine.
    pub(super) cores: usize,
    /// Folder for temporary files.
    pub(super) scratch: &'a Path,
}

impl Launch {
    /// Plans the start of a job. `components`: folder of the component for Open MPI 4, if Open MPI
    /// does not find it itself.
    pub(super) fn plan(
        flags: &Flags,
        installed: &Installed,
        place: &Place<'_>,
        components: Option<PathBuf>,
    ) -> Result<Launch, Failure> {
        if !installed.mpi.is_open_mpi() && !flags.mca.is_empty() {
            return Err(Failure::new(format!(
                "--mca is for Open MPI: {} is configured by variables, such as -x NAME=VALUE",
                installed.mpi
            )));
        }
        match installed.mpi {
            Mpi::Openmpi4 => Ok(Launch::open_mpi_4(flags, place, components)),
            Mpi::Openmpi5 => Launch::open_mpi_5(flags, installed, place),
            Mpi::Mpich | Mpi::Impi => Launch::hydra(flags, installed, place),
        }
    }

    fn open_mpi_4(flags: &Flags, place: &Place<'_>, components: Option<PathBuf>) -> Launch {
        let mut launch = Launch {
            agent: "--mca plm_rsh_agent",
            ..Launch::default()
        };
        launch.add_open_mpi(flags, place);
        for (parameter, value) in [
            ("oob_tcp_if_include", "eth0"),
            ("btl_tcp_if_include", "eth0"),
            // Otherwise, Open MPI may choose a PML that uses no BTL.
            ("pml", "ob1"),
            ("btl", &list(&flags.btl, "vader")),
        ] {
            launch.add(&["--mca", parameter, value]);
        }
        launch.add_parameters(flags);
        launch.add_path("--mca orte_tmpdir_base", place.scratch.into());
        if let Some(dir) = components {
            let mut path = OsString::from("SYSTEM_DEFAULT:");
            path.push(dir);
            launch.add_path("--mca mca_base_component_path", path);
        }
        launch
    }

    /// Plans Open MPI 5. Over ESP, it uses the provider, without BTLs.
    fn open_mpi_5(
        flags: &Flags,
        installed: &Installed,
        place: &Place<'_>,
    ) -> Result<Launch, Failure> {
        let mut launch = Launch {
            agent: "--prtemca plm_ssh_agent",
            ..Launch::default()
        };
        launch.add_open_mpi(flags, place);
        launch.add(&["--prtemca", "prte_if_include", "eth0"]);
        if flags.btl == "esp" {
            launch.use_provider("esp", installed, place)?;
            launch.add(&["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
        } else {
            launch.add(&["--mca", "btl_tcp_if_include", "eth0", "--mca", "pml", "ob1"]);
            launch.add(&["--mca", "btl", &list(&flags.btl, "sm")]);
        }
        // Processes on other nodes get only these variables.
        let exported = launch.variables.clone();
        for (name, _) in &exported {
            launch.add(&["-x", name]);
        }
        launch.add_parameters(flags);
        launch.add_path("--prtemca prte_tmpdir_base", place.scratch.into());
        Ok(launch)
    }

    /// Plans MPICH and Intel MPI, whose launcher passes all variables to all processes.
    fn hydra(flags: &Flags, installed: &Installed, place: &Place<'_>) -> Result<Launch, Failure> {
        let transports = Transports::parse(&flags.btl, installed.mpi)?;
        let mut launch = Launch {
            agent: "-launcher ssh -launcher-exec",
            ..Launch::default()
        };
        launch.use_provider(transports.provider, installed, place)?;
        launch.add(&["-iface", "eth0", "-n", &flags.ranks.to_string()]);
        // Not -hosts, with which Intel MPI interprets the number after a single node as part of its
        // name.
        let file = place.scratch.join("nodes");
        let lines = hosts(place.used).replace(',', "\n");
        fs::write(&file, lines + "\n").doing(format!("writing {}", file.display()))?;
        launch.add_path("-machinefile", file.into());
        if installed.mpi == Mpi::Mpich {
            launch.set("MPIR_CVAR_CH4_NETMOD", "ofi");
            if !transports.shared {
                launch.set("MPIR_CVAR_NOLOCAL", "1");
            }
        } else {
            launch.set("I_MPI_ROOT", installed.prefix());
            launch.set("I_MPI_OFI_PROVIDER", transports.provider);
            let fabrics = if transports.shared { "shm:ofi" } else { "ofi" };
            launch.set("I_MPI_FABRICS", fabrics);
            // Otherwise, each node would bind its first process to core 0, as if it were alone on
            // the machine.
            launch.set("I_MPI_PIN", "0");
        }
        if let Some(seconds) = flags.timeout {
            launch.set("MPIEXEC_TIMEOUT", seconds.to_string());
        }
        for variable in &flags.export {
            // A variable without a value is inherited from this process anyway.
            if let Some((name, value)) = variable.split_once('=') {
                launch.set(name, value);
            }
        }
        Ok(launch)
    }

    /// Sets the variables that select the libfabric and the provider that the MPI uses.
    fn use_provider(
        &mut self,
        name: &str,
        installed: &Installed,
        place: &Place<'_>,
    ) -> Result<(), Failure> {
        self.set("FI_PROVIDER", name);
        if name == "esp" {
            self.set("FI_PROVIDER_PATH", provider::folder(place.scratch)?);
        } else {
            self.set("FI_TCP_IFACE", "eth0");
        }
        if installed.mpi == Mpi::Impi {
            let (library, own) = intel_libfabric(installed.prefix())?;
            self.set("I_MPI_OFI_LIBRARY", library);
            let mut libraries = OsString::from(installed.prefix().join("lib"));
            if let Some(others) = std::env::var_os("LD_LIBRARY_PATH").filter(|v| !v.is_empty()) {
                libraries.push(":");
                libraries.push(others);
            }
            self.set("LD_LIBRARY_PATH", libraries);
            if name != "esp" {
                self.set("FI_PROVIDER_PATH", own);
            }
        }
        Ok(())
    }

    /// Adds the options that Open MPI 4 and 5 have in common.
    fn add_open_mpi(&mut self, flags: &Flags, place: &Place<'_>) {
        // Every process in a lab is root, even that of an ordinary user, in the lab's user
        // namespace.
        self.add(&["--allow-run-as-root"]);
        let (ranks, hosts) = (flags.ranks.to_string(), hosts(place.used));
        self.add(&["-n", &ranks, "--host", &hosts, "--map-by", "slot"]);
        // Otherwise, each node would bind its first process to core 0, as if it were alone on the
        // machine.
        self.add(&["--bind-to", "none"]);
        if flags.ranks as usize > place.cores {
            self.add(&["--mca", "mpi_yield_when_idle", "1"]);
        }
        if let Some(seconds) = flags.timeout {
            self.add(&["--timeout", &seconds.to_string()]);
        }
    }

    /// Adds the user's variables and parameters for Open MPI, which override earlier ones.
    fn add_parameters(&mut self, flags: &Flags) {
        for variable in &flags.export {
            self.add(&["-x", variable]);
        }
        for parameter in &flags.mca {
            let (parameter, value) = parameter.split_once('=').unwrap_or((parameter, "1"));
            self.add(&["--mca", parameter, value]);
        }
    }

    fn add(&mut self, words: &[&str]) {
        self.arguments.extend(words.iter().map(OsString::from));
    }

    /// Adds options, and a last word that need not be UTF-8.
    fn add_path(&mut self, options: &str, path: OsString) {
        self.arguments.extend(options.split(' ').map(Into::into));
        self.arguments.push(path);
    }

    fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.push((name.to_owned(), value.into()));
    }
}

impl Transports {
    fn parse(list: &str, mpi: Mpi) -> Result<Transports, Failure> {
        let (provider, shared) = match list {
            "esp" => ("esp", true),
            "tcp" => ("tcp", true),
            "esp,self" => ("esp", false),
            "tcp,self" => ("tcp", false),
            _ => {
                return Err(Failure::new(format!(
                    "--btl {list}: {mpi} can use esp or tcp, or esp,self or tcp,self for no shared \
                     memory within a node"
                )));
            }
        };
        Ok(Transports { provider, shared })
    }
}

/// Returns a list of BTLs, in which `shared` is the name of shared memory.
fn list(btl: &str, shared: &str) -> String {
    match btl {
        "esp" | "tcp" => format!("{btl},{shared},self"),
        list => list.to_owned(),
    }
}

/// Returns the nodes and their numbers of processes in the form for launchers.
fn hosts(used: &[u32]) -> String {
    let each = used.iter().enumerate();
    let all: Vec<String> = each.map(|(i, ranks)| format!("node{i}:{ranks}")).collect();
    all.join(",")
}

/// Finds the libfabric of an Intel MPI and the folder of its providers. In Python packages, both
/// are in `lib`; in other installations, in separate folders.
fn intel_libfabric(prefix: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let dirs = ["lib", "opt/mpi/libfabric/lib", "libfabric/lib"].map(|dir| prefix.join(dir));
    let found = dirs.iter().find(|dir| dir.join("libfabric.so.1").is_file());
    let Some(dir) = found else {
        return Err(Failure::new(format!(
            "Intel MPI in {} has no libfabric.so.1: pip install impi-rt",
            prefix.display()
        )));
    };
    let providers = dir.join("prov");
    let providers = if providers.is_dir() {
        providers
    } else {
        dir.clone()
    };
    Ok((dir.join("libfabric.so.1"), providers))
}
