//! Contenders, and how their processes are started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::group::Group;
use crate::scratch::Scratch;
use cli::out::{Context, Failure};

/// A means to move bytes between processes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Contender {
    /// Limit of the machine: a cache line between cores, memcpy, a system call.
    Limit,
    /// Limit of one copy: the kernel's copy from another process.
    KernelCopy,
    /// The shared-memory transport without the layer above.
    Transport,
    /// The point-to-point layer over shared memory.
    P2p(Ours),
    /// Open MPI's shared-memory transport (vader), with one copy by cross-memory attach or with
    /// two.
    OpenMpi {
        /// True to disable the single-copy mechanism.
        two_copy: bool,
    },
    /// MPICH as Debian builds it.
    Mpich,
    /// `ucx_perftest`, tag matching over shared memory.
    Ucx,
}

/// Settings of the point-to-point layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ours {
    /// Defaults of a job: its own thresholds, or those of `esplab tune`.
    Set,
    /// Every message by two copies.
    TwoCopy,
    /// Every message of more than a few KiB by one copy.
    OneCopy,
    /// One copy, even if the receiver is late.
    OneCopyNoSkew,
}

impl Contender {
    /// Names of our contenders.
    pub const OURS: [Contender; 5] = [
        Contender::Transport,
        Contender::P2p(Ours::Set),
        Contender::P2p(Ours::TwoCopy),
        Contender::P2p(Ours::OneCopy),
        Contender::P2p(Ours::OneCopyNoSkew),
    ];

    /// Returns the name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Limit => "limit",
            Contender::KernelCopy => "limit: kernel's copy",
            Contender::Transport => "transport",
            Contender::P2p(Ours::Set) => "p2p",
            Contender::P2p(Ours::TwoCopy) => "p2p two-copy",
            Contender::P2p(Ours::OneCopy) => "p2p one-copy",
            Contender::P2p(Ours::OneCopyNoSkew) => "p2p one-copy, skew off",
            Contender::OpenMpi { two_copy: false } => "openmpi",
            Contender::OpenMpi { two_copy: true } => "openmpi two-copy",
            Contender::Mpich => "mpich",
            Contender::Ucx => "ucx",
        }
    }

    /// Returns true for another project's.
    pub fn is_peer(self) -> bool {
        matches!(
            self,
            Contender::OpenMpi { .. } | Contender::Mpich | Contender::Ucx
        )
    }

    /// Returns true for ours, false for limits of the machine and other projects.
    pub fn is_ours(self) -> bool {
        Contender::OURS.contains(&self)
    }

    /// Returns the contender of the same project with two copies.
    pub fn two_copy(self) -> Contender {
        match self {
            Contender::P2p(_) => Contender::P2p(Ours::TwoCopy),
            Contender::OpenMpi { .. } => Contender::OpenMpi { two_copy: true },
            other => other,
        }
    }
}

const HEADER: &str = include_str!("../../peers/worker.h");
const LIMITS: &str = include_str!("../../peers/limits.c");
const MPI: &str = include_str!("../../peers/mpi.c");

/// Programs compiled for a run, each at its first use, and removed on drop.
#[derive(Debug, Default)]
pub(super) struct Workshop {
    scratch: Option<Scratch>,
    built: Vec<(&'static str, Result<PathBuf, String>)>,
}

impl Workshop {
    /// Starts the processes, pinned to `cores` in turn.
    pub(super) fn start(
        &mut self,
        who: Contender,
        ranks: usize,
        cores: &[usize],
    ) -> Result<Group, Failure> {
        let pinning = pinning(ranks, cores);
        match who {
            Contender::Limit | Contender::KernelCopy => {
                let program = self.build("cc", "gcc", LIMITS)?;
                Group::start(who.name(), 2, |socket| {
                    vec![with(&program, socket, &pinning)]
                })
            }
            Contender::OpenMpi { two_copy } => {
                let launcher = find("mpirun.openmpi", "openmpi-bin")?;
                let program = self.build("mpicc.openmpi", "libopenmpi-dev", MPI)?;
                Group::start(who.name(), ranks, |socket| {
                    let mut command = Command::new(launcher);
                    command.args(["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]);
                    if two_copy {
                        command.args(["--mca", "btl_vader_single_copy_mechanism", "none"]);
                    }
                    // The ranks pin themselves; the launcher's sockets stay on the loopback
                    // interface.
                    command.args(["--mca", "oob_tcp_if_include", "lo", "--bind-to", "none"]);
                    command.args(["--oversubscribe", "-np", &ranks.to_string()]);
                    command
                        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                    if ranks <= cores.len() {
                        // `--oversubscribe` makes waiting ranks yield, which costs latency if each
                        // has a core.
                        command.args(["--mca", "mpi_yield_when_idle", "0"]);
                    }
                    command.arg(&program).arg(socket).arg(&pinning);
                    vec![command]
                })
            }
            Contender::Mpich => {
                let launcher = find("mpiexec.hydra", "mpich")?;
                let program = self.build("mpicc.mpich", "libmpich-dev", MPI)?;
                Group::start(who.name(), ranks, |socket| {
                    let mut command = Command::new(launcher);
                    command.args(["-bind-to", "none", "-n", &ranks.to_string()]);
                    command.arg(&program).arg(socket).arg(&pinning);
                    vec![command]
                })
            }
            Contender::Ucx => Err(Failure::new("ucx_perftest takes no work by line")),
            Contender::P2p(_) | Contender::Transport => {
                let program = std::env::current_exe().doing("finding the running program")?;
                Group::start(who.name(), ranks, |socket| {
                    let rank = |rank: usize| {
                        let mut command = Command::new(&program);
                        command
                            .args(["rank", "--as", who.name(), "--cores", &pinning])
                            .arg(socket);
                        // The socket is in a private folder.
                        command.env("ESP_JOB_DIR", socket.parent().unwrap_or(socket));
                        command
                            .env("ESP_JOB_RANK", rank.to_string())
                            .env("ESP_JOB_SIZE", ranks.to_string());
                        command.env("ESP_BOOT", "fixed");
                        command
                    };
                    (0..ranks).map(rank).collect()
                })
            }
        }
    }

    /// Compiles a program at its first use.
    fn build(
        &mut self,
        compiler: &'static str,
        package: &str,
        source: &str,
    ) -> Result<PathBuf, Failure> {
        if let Some((_, built)) = self.built.iter().find(|(by, _)| *by == compiler) {
            return built.clone().map_err(Failure::new);
        }
        let built = find(compiler, package).and_then(|path| self.compile(&path, compiler, source));
        self.built.push((
            compiler,
            built
                .as_ref()
                .map(Clone::clone)
                .map_err(ToString::to_string),
        ));
        built
    }

    fn compile(&mut self, compiler: &Path, name: &str, source: &str) -> Result<PathBuf, Failure> {
        if self.scratch.is_none() {
            self.scratch = Some(Scratch::new()?);
        }
        let folder = self
            .scratch
            .as_ref()
            .map(|s| s.path().join(name))
            .unwrap_or_default();
        fs::create_dir_all(&folder).doing(folder.display())?;
        fs::write(folder.join("worker.h"), HEADER).doing(folder.display())?;
        fs::write(folder.join("main.c"), source).doing(folder.display())?;
        let program = folder.join("program");
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-w", "-o"])
            .arg(&program)
            .arg(folder.join("main.c"))
            .stdin(Stdio::null());
        let output = command.output().doing(compiler.display())?;
        if output.status.success() {
            return Ok(program);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said
            .lines()
            .next()
            .unwrap_or("no message")
            .chars()
            .take(300)
            .collect();
        Err(Failure::new(format!("not usable: {name} fails: {said}")))
    }
}

/// Finds a program on PATH.
pub(crate) fn find(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Failure::new(format!("not installed: {name} (Debian package {package})")))
}

/// Returns the core of each rank, separated by commas: senders (the lower half) have the even
/// places of `cores`, receivers the odd ones, so that a pair shares no core if there are two.
fn pinning(ranks: usize, cores: &[usize]) -> String {
    let pairs = (ranks / 2).max(1);
    let place = |rank: usize| {
        if rank < pairs {
            2 * rank
        } else {
            2 * (rank - pairs) + 1
        }
    };
    let core = |rank: usize| {
        cores
            .get(place(rank) % cores.len().max(1))
            .copied()
            .unwrap_or_default()
    };
    (0..ranks)
        .map(|rank| core(rank).to_string())
        .collect::<Vec<_>>()
        .join(",")
}

fn with(program: &Path, socket: &Path, pinning: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(socket).arg(pinning);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intra::work::Work;

    #[test]
    fn a_pair_never_shares_a_core() {
        assert_eq!(pinning(2, &[3, 5]), "3,5");
        assert_eq!(pinning(4, &[0, 1]), "0,0,1,1");
        assert_eq!(pinning(4, &[0, 1, 2, 3]), "0,2,1,3");
        assert_eq!(pinning(2, &[7]), "7,7");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let text = find("no-such-mpicc", "libnothing-dev")
            .expect_err("there is none")
            .to_string();
        assert_eq!(
            text,
            "not installed: no-such-mpicc (Debian package libnothing-dev)"
        );
        let mut workshop = Workshop::default();
        for _ in 0..2 {
            let text = workshop
                .build("no-such-mpicc", "libnothing-dev", "")
                .expect_err("none")
                .to_string();
            assert!(text.contains("libnothing-dev"), "{text}");
        }
    }

    #[test]
    fn limits_answer_all_their_work() -> Result<(), Failure> {
        let mut group = Workshop::default().start(Contender::Limit, 2, &crate::cores::allowed())?;
        let answer = group.run(&Work::Line {
            count: 20,
            batch: 4,
        })?;
        assert_eq!((answer.times.len(), answer.batches.len()), (20, 5));
        let answer = group.run(&Work::Memcpy {
            size: 100,
            window: 3,
            count: 7,
            slots: 2,
        })?;
        assert_eq!(answer.times.len(), 7);
        let unknown = group.run(&Work::Unexpected {
            backlog: 1,
            count: 1,
            depth: 1,
        });
        assert!(
            unknown
                .expect_err("limits match nothing")
                .to_string()
                .contains("unknown work")
        );
        Ok(())
    }
}
