//! `esplab mpirun`: runs an MPI program over the nodes of a lab.

mod installed;
mod launch;
mod provider;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{guard, up};
use cli::out::{Context, Failure, Verdict};
use installed::{Installed, Mpi};
use lab::{Lab, LabOptions};
use launch::{Launch, Place};

/// File name by which Open MPI finds the component.
const COMPONENT: &str = "mca_btl_esp.so";

/// Run an MPI program on the nodes of a lab with the launcher of its MPI, over ESP or, for
/// comparison, over TCP
///
/// Open MPI 4 uses the component in the folder of this program, or else the one installed for this
/// user (`cargo xtask install-ompi`). The other MPIs use the provider of libfabric that
/// FI_PROVIDER_PATH names, or else the one in the folder of this program, or else the one installed
/// for this user (`cargo xtask install-libfabric`). The program must be compiled for the MPI.
/// Creates a lab for the run, or uses the running one that --name names. The exit code is that of
/// the launcher. If esplab or the launcher is killed, all processes of the job end.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// MPI implementation
    #[arg(long, value_name = "MPI", value_enum, default_value_t = Mpi::Openmpi4)]
    mpi: Mpi,
    /// Folder of the MPI, such as a virtual environment of Python [default: $I_MPI_ROOT for Intel
    /// MPI, or else $VIRTUAL_ENV, or else found by PATH]
    #[arg(long, value_name = "DIR")]
    mpi_dir: Option<PathBuf>,
    /// Number of processes
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Number of nodes; processes fill one node after the other
    #[arg(long, value_name = "K", default_value_t = 2)]
    nodes: usize,
    /// Transports: esp or tcp between nodes, with the MPI's shared memory within; esp,self or
    /// tcp,self for no shared memory; or a list of BTLs for Open MPI. Open MPI 5 uses the provider
    /// with esp, within nodes too, and BTLs with all others, such as esp,sm,self
    #[arg(long, value_name = "LIST", default_value = "esp")]
    btl: String,
    /// MTU of the created lab
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Use this running lab, and do not end it
    #[arg(long, value_name = "LAB")]
    name: Option<String>,
    /// Parameter for Open MPI, such as btl_esp_verbose=1 (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    mca: Vec<String>,
    /// Environment variable to pass to the processes, or to set with VAR=VALUE (may be repeated)
    #[arg(short = 'x', value_name = "VAR")]
    export: Vec<String>,
    /// End the job after this number of seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// The program and its arguments
    #[arg(
        value_name = "PROG",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let installed = Installed::find(flags.mpi, flags.mpi_dir.as_deref())?;
    let components = flags.components()?;
    let used = flags.used();
    let plan = |scratch: &guard::Scratch| {
        let place = Place {
            used: &used,
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            scratch: scratch.path(),
        };
        Launch::plan(flags, &installed, &place, components.clone())
    };
    // Reports missing files before a lab is created.
    plan(&guard::Scratch::new()?)?;
    let (name, lab) = flags.lab(used.len())?;
    // Created just before the guard starts, which removes it if this process is killed.
    let scratch = guard::Scratch::new()?;
    let launch = plan(&scratch)?;
    let esplab = env::current_exe().doing("finding the running program")?;
    let words = words(esplab.into(), &name, &installed, &launch);
    let launcher = [words, flags.command.clone()].concat();
    let code = guard::launch(&launcher, &scratch, guard::HELPERS)?;
    drop(lab);
    Ok(Verdict::Code(code))
}

/// Returns the command that starts the launcher in node 0, up to the program.
fn words(esplab: OsString, lab: &str, installed: &Installed, launch: &Launch) -> Vec<OsString> {
    let mut words = vec![esplab];
    words.extend(["exec", "--name", lab, "0", "--", "/usr/bin/env"].map(Into::into));
    for (name, value) in &launch.variables {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        words.push(word);
    }
    // ESPLAB_RSH is set for commands within the lab. Helpers on other nodes are found by PATH.
    // Those of Open MPI 4 do not need it: its folder may be one of the system and must not precede
    // this build in PATH.
    let path = match installed.mpi {
        Mpi::Openmpi4 => "",
        Mpi::Openmpi5 | Mpi::Mpich | Mpi::Impi => r#"export PATH="${m%/*}:$PATH"; "#,
    };
    let agent = launch.agent;
    let line = format!(r#"m=$1; shift; {path}exec "$m" {agent} "$ESPLAB_RSH" "$@""#);
    words.extend(["/bin/sh", "-c", &line, "mpirun"].map(Into::into));
    words.push(installed.launcher.clone().into());
    words.extend_from_slice(&launch.arguments);
    words
}

impl Flags {
    /// Returns the number of processes of each node that has any.
    fn used(&self) -> Vec<u32> {
        let nodes = u32::try_from(self.nodes)
            .unwrap_or(u32::MAX)
            .clamp(1, self.ranks);
        let (each, more) = (self.ranks / nodes, self.ranks % nodes);
        (0..nodes)
            .map(|node| each + u32::from(node < more))
            .collect()
    }

    /// Returns the name of the lab to use, which has at least `nodes` nodes, and the lab if it was
    /// created for this run.
    fn lab(&self, nodes: usize) -> Result<(String, Option<Lab>), Failure> {
        if let Some(name) = &self.name {
            let have = lab::open(name)?.nodes.len();
            if have < nodes {
                return Err(Failure::new(format!(
                    "lab `{name}` has {have} nodes, not {nodes}: --nodes {have}, or esplab up --nodes {nodes}"
                )));
            }
            return Ok((name.clone(), None));
        }
        let mut options = LabOptions::new(self.nodes);
        options.wire.mtu = self.mtu;
        let lab = up::create(&options)?;
        Ok((lab.name().to_owned(), Some(lab)))
    }

    /// Returns the component's folder; `None` if Open MPI finds it itself or does not need it.
    fn components(&self) -> Result<Option<PathBuf>, Failure> {
        if self.mpi != Mpi::Openmpi4 {
            return Ok(None);
        }
        let has = |dir: &Path| dir.join(COMPONENT).is_file();
        let exe = env::current_exe().doing("finding the running program")?;
        if let Some(dir) = exe.parent().filter(|dir| has(dir)) {
            return Ok(Some(dir.to_owned()));
        }
        let home = env::home_dir()
            .unwrap_or_default()
            .join(".openmpi/components");
        if !has(&home) && self.btl.split(',').any(|name| name == "esp") {
            return Err(Failure::new(format!(
                "no {COMPONENT} in the folder of this program, nor in {}: cargo xtask install-ompi",
                home.display()
            )));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
