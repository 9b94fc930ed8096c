use std::fs;

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

/// A folder with the files of Intel MPI's Python package. It is also the scratch folder.
struct Prefix(PathBuf);

impl Prefix {
    fn new(test: &str) -> Prefix {
        let dir = env::temp_dir().join(format!("esplab-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("lib")).unwrap();
        fs::write(dir.join("lib/libfabric.so.1"), "").unwrap();
        Prefix(dir)
    }

    /// Plans a job and returns the command line, in which the folder is `DIR`.
    fn line(&self, flags: &Flags, cores: usize) -> Result<String, String> {
        let installed = Installed {
            mpi: flags.mpi,
            launcher: self.0.join("bin/launcher"),
        };
        let place = Place {
            used: &flags.used(),
            cores,
            scratch: &self.0,
        };
        let launch = Launch::plan(flags, &installed, &place, None).map_err(|e| e.to_string())?;
        let words = words("esplab".into(), "lab", &installed, &launch);
        let line = words.join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        Ok(line.replace(self.0.to_str().unwrap(), "DIR"))
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part} in {line}");
    }
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
fn open_mpi_4_gets_all_options() {
    let prefix = Prefix::new("open-mpi-4");
    let flags = flags("-n 3 --btl tcp --mca a_b=c=d --timeout 9 -x FOO prog -n 7");
    assert_eq!(flags.command, ["prog", "-n", "7"]);
    let line = prefix.line(&flags, 2).unwrap();
    has(
        &line,
        &[
            "esplab exec --name lab 0 -- /usr/bin/env /bin/sh -c m=$1; shift; exec \"$m\" --mca plm_rsh_agent \"$ESPLAB_RSH\" \"$@\" mpirun DIR/bin/launcher ",
            "--allow-run-as-root -n 3 --host node0:2,node1:1 --map-by slot --bind-to none",
            "--mca mpi_yield_when_idle 1 --timeout 9",
            "--mca pml ob1 --mca btl tcp,vader,self",
            "-x FOO --mca a_b c=d --mca orte_tmpdir_base DIR",
        ],
    );
    assert!(
        !prefix
            .line(&flags, 3)
            .unwrap()
            .contains("mpi_yield_when_idle")
    );
}

#[test]
fn open_mpi_5_over_tcp_uses_btls() {
    let prefix = Prefix::new("open-mpi-5");
    let line = prefix.line(&flags("--mpi openmpi5 -n 2 --btl tcp prog"), 2);
    has(
        &line.unwrap(),
        &[
            "export PATH=\"${m%/*}:$PATH\"; exec \"$m\" --prtemca plm_ssh_agent \"$ESPLAB_RSH\"",
            "-n 2 --host node0:1,node1:1 --map-by slot --bind-to none",
            "--mca pml ob1 --mca btl tcp,sm,self --prtemca prte_tmpdir_base DIR",
        ],
    );
}

#[test]
fn mpich_over_tcp_uses_its_provider() {
    let prefix = Prefix::new("mpich");
    let line = "--mpi mpich -n 3 --btl tcp,self --timeout 9 -x A=b=c -x HOME prog";
    let line = prefix.line(&flags(line), 2).unwrap();
    has(
        &line,
        &[
            "/usr/bin/env FI_PROVIDER=tcp FI_TCP_IFACE=eth0 MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 MPIEXEC_TIMEOUT=9 A=b=c /bin/sh",
            "exec \"$m\" -launcher ssh -launcher-exec \"$ESPLAB_RSH\" \"$@\" mpirun DIR/bin/launcher -iface eth0 -n 3 -machinefile DIR/nodes",
        ],
    );
    let nodes = fs::read_to_string(prefix.0.join("nodes")).unwrap();
    assert_eq!(nodes, "node0:2\nnode1:1\n");
    let line = prefix
        .line(&flags("--mpi mpich -n 2 --btl tcp prog"), 2)
        .unwrap();
    assert!(!line.contains("NOLOCAL"), "{line}");
}

#[test]
fn intel_mpi_gets_its_own_libfabric() {
    let prefix = Prefix::new("impi");
    let line = prefix.line(&flags("--mpi impi -n 2 --btl tcp prog"), 2);
    has(
        &line.unwrap(),
        &[
            "FI_PROVIDER=tcp",
            "I_MPI_OFI_LIBRARY=DIR/lib/libfabric.so.1 LD_LIBRARY_PATH=DIR/lib",
            "FI_PROVIDER_PATH=DIR/lib I_MPI_ROOT=DIR I_MPI_OFI_PROVIDER=tcp I_MPI_FABRICS=shm:ofi I_MPI_PIN=0",
        ],
    );
    fs::remove_dir_all(prefix.0.join("lib")).unwrap();
    let line = prefix.line(&flags("--mpi impi -n 2 --btl tcp prog"), 2);
    has(
        &line.unwrap_err(),
        &["no libfabric.so.1", "pip install impi-rt"],
    );
}

#[test]
fn options_of_open_mpi_are_refused_for_others() {
    let prefix = Prefix::new("refused");
    for (line, words) in [
        ("--mpi mpich -n 2 --mca a=b prog", "--mca is for Open MPI"),
        (
            "--mpi impi -n 2 --btl esp,vader prog",
            "Intel MPI can use esp or tcp",
        ),
    ] {
        has(&prefix.line(&flags(line), 2).unwrap_err(), &[words]);
    }
}
