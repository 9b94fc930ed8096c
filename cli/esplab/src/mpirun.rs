//! `esplab mpirun`: runs an Open MPI program over the nodes of a lab.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{guard, up};
use cli::out::{Doing, Failure, Verdict};
use lab::LabOptions;

/// File name by which Open MPI finds the component.
const COMPONENT: &str = "mca_btl_esp.so";

/// Run an MPI program over nodes of this machine, by Open MPI's mpirun: with our component, or with
/// TCP to compare
///
/// Creates a lab for the run, or uses the running one that --name names. The component is the one
/// beside this program, else the one installed for this user (`cargo xtask install-ompi`). The exit
/// code is that of mpirun. If esplab or mpirun is killed, all processes of the job end.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Number of processes
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Number of nodes; processes fill one node after the other
    #[arg(long, value_name = "K", default_value_t = 2)]
    nodes: usize,
    /// Transports: esp or tcp between nodes (and shared memory within), or a list for Open MPI such
    /// as esp,self
    #[arg(long, value_name = "LIST", default_value = "esp")]
    btl: String,
    /// MTU of the created lab
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Use this running lab and do not end it
    #[arg(long, value_name = "LAB")]
    name: Option<String>,
    /// Parameter for Open MPI, such as btl_esp_verbose=1 (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    mca: Vec<String>,
    /// Environment variable to pass to the processes (may be repeated)
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
    let mpirun = mpirun()?;
    let components = flags.components()?;
    let used = flags.used();
    let (name, lab) = match &flags.name {
        Some(name) => {
            let state = lab::open(name)?;
            if state.nodes.len() < used.len() {
                let (have, want) = (state.nodes.len(), used.len());
                return Err(Failure::new(format!(
                    "lab `{name}` has {have} nodes, not {want}: --nodes {have}, or esplab up --nodes {want}"
                )));
            }
            (name.clone(), None)
        }
        None => {
            let mut options = LabOptions::new(flags.nodes);
            options.wire.mtu = flags.mtu;
            let lab = up::create(&options)?;
            (lab.name().to_owned(), Some(lab))
        }
    };
    let scratch = Scratch::new()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let esplab = env::current_exe().doing("finding the running program")?;
    // The variable is set for commands within the lab.
    let line = r#"m=$1; shift; exec "$m" --mca plm_rsh_agent "$ESPLAB_RSH" "$@""#;
    let mut launcher: Vec<OsString> = vec![esplab.into()];
    launcher.extend(["exec", "--name", &name, "0", "--"].map(Into::into));
    launcher.extend(["/bin/sh", "-c", line, "mpirun"].map(Into::into));
    launcher.push(mpirun.into());
    launcher.extend(flags.arguments(&used, cores, &scratch.0));
    if let Some(dir) = components {
        let mut path = OsString::from("SYSTEM_DEFAULT:");
        path.push(dir);
        launcher.extend(["--mca", "mca_base_component_path"].map(Into::into));
        launcher.push(path);
    }
    launcher.extend_from_slice(&flags.command);
    let code = guard::launch(&launcher, &scratch.0)?;
    drop(lab);
    Ok(Verdict::Code(code))
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

    /// Returns the list of BTLs for Open MPI.
    fn list(&self) -> String {
        match self.btl.as_str() {
            "esp" | "tcp" => format!("{},vader,self", self.btl),
            list => list.to_owned(),
        }
    }

    /// Returns the component's folder; `None` if Open MPI finds it by itself.
    fn components(&self) -> Result<Option<PathBuf>, Failure> {
        let has = |dir: &Path| dir.join(COMPONENT).is_file();
        let exe = env::current_exe().doing("finding the running program")?;
        if let Some(dir) = exe.parent().filter(|dir| has(dir)) {
            return Ok(Some(dir.to_owned()));
        }
        let home = env::home_dir()
            .unwrap_or_default()
            .join(".openmpi/components");
        if !has(&home) && self.list().split(',').any(|name| name == "esp") {
            return Err(Failure::new(format!(
                "no {COMPONENT} beside this program, nor in {}: cargo xtask install-ompi",
                home.display()
            )));
        }
        Ok(None)
    }

    fn arguments(&self, used: &[u32], cores: usize, scratch: &Path) -> Vec<OsString> {
        let hosts: Vec<String> = used
            .iter()
            .enumerate()
            .map(|(i, ranks)| format!("node{i}:{ranks}"))
            .collect();
        let mut all: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
        if rustix::process::geteuid().is_root() {
            add(&["--allow-run-as-root"]);
        }
        let (ranks, hosts) = (self.ranks.to_string(), hosts.join(","));
        add(&["-n", &ranks, "--host", &hosts, "--map-by", "slot"]);
        // Each node would bind its first process to core 0, as if it had the machine to itself.
        add(&["--bind-to", "none"]);
        for (parameter, value) in [
            ("oob_tcp_if_include", "eth0"),
            ("btl_tcp_if_include", "eth0"),
            // Else Open MPI may choose a component for whole messages, which uses no BTL.
            ("pml", "ob1"),
            ("btl", &self.list()),
        ] {
            add(&["--mca", parameter, value]);
        }
        if self.ranks as usize > cores {
            add(&["--mca", "mpi_yield_when_idle", "1"]);
        }
        if let Some(seconds) = self.timeout {
            add(&["--timeout", &seconds.to_string()]);
        }
        for variable in &self.export {
            add(&["-x", variable]);
        }
        for parameter in &self.mca {
            let (parameter, value) = parameter.split_once('=').unwrap_or((parameter, "1"));
            add(&["--mca", parameter, value]);
        }
        all.extend(["--mca", "orte_tmpdir_base"].map(OsString::from));
        all.push(scratch.into());
        all
    }
}

/// Finds the `mpirun` of Open MPI: Debian has several programs of that name.
fn mpirun() -> Result<PathBuf, Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    let find = |name: &str| {
        env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
    };
    find("mpirun.openmpi")
        .or_else(|| find("mpirun"))
        .ok_or_else(|| Failure::new("mpirun of Open MPI was not found: apt install openmpi-bin"))
}

/// Folder for the launcher's own files, removed on drop; by the guard if this process is killed.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let path = env::temp_dir().join(format!("esplab-mpirun-{}", std::process::id()));
        std::fs::create_dir(&path).doing(format!("making {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remains lie in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(line: &str) -> Flags {
        Whole::try_parse_from(format!("mpirun {line}").split(' '))
            .unwrap()
            .flags
    }

    #[test]
    fn processes_fill_the_nodes() {
        for (line, used) in [
            ("-n 4 prog", &[2, 2][..]),
            ("-n 5 --nodes 3 prog", &[2, 2, 1]),
            ("-n 1 prog", &[1]),
            ("-n 2 --nodes 4 prog", &[1, 1]),
            ("-n 3 --nodes 1 prog", &[3]),
        ] {
            assert_eq!(flags(line).used(), used, "{line}");
        }
    }

    #[test]
    fn the_command_line_of_mpirun_has_all_options() {
        let flags = flags("-n 3 --btl tcp --mca a_b=c=d --timeout 9 -x FOO prog -n 7");
        assert_eq!(flags.command, ["prog", "-n", "7"]);
        let words = flags.arguments(&flags.used(), 2, Path::new("/scratch"));
        let line = words.join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        for part in [
            "-n 3 --host node0:2,node1:1 --map-by slot --bind-to none",
            "--mca btl tcp,vader,self",
            "--mca mpi_yield_when_idle 1",
            "--timeout 9 -x FOO --mca a_b c=d --mca orte_tmpdir_base /scratch",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(
            !flags
                .arguments(&[3], 4, Path::new("/s"))
                .contains(&"mpi_yield_when_idle".into())
        );
    }
}
