//! A virtual cluster on this machine: network namespaces on one bridge, an esp-daemon in each.
//!
//! The machine's own network is not touched: the bridge has its own namespace (the *switch*), and
//! so has each node, with one interface `eth0`. The namespaces exist as long as their holder
//! processes, and all processes of a node end with them. Without privilege everything is inside a
//! user namespace.
//!
//! [`Lab::create`] creates a lab that ends when the [`Lab`] is dropped or the program is killed;
//! [`Lab::keep`] keeps it until [`down`].
#![forbid(unsafe_code)]

mod daemon;
mod enter;
mod error;
mod holder;
mod inhabitants;
mod ip;
mod offload;
mod options;
mod process;
mod service;
mod state;
mod tools;
mod watch;
mod wire;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::geteuid;

use daemon::Daemon;
pub use daemon::with_engines;
use error::Context;
use holder::Holder;
use inhabitants::Namespace;
use state::Root;
use tools::Programs;

pub use enter::pin;
pub use error::LabError;
pub use holder::{UserNs, Watch, hold};
pub use ip::Ip;
pub use offload::set_segmentation_offload;
pub use options::{
    Carriers, LabOptions, MAX_MTU, MAX_NODES, MAX_RAILS, MIN_MTU, Node, QUEUE_FRAMES, WireOptions,
};
pub use process::{ProcessRef, adopt_descendants, cpu_time, cpu_times, end_descendants, wait_any};
pub use service::{DaemonAction, daemon as act_on_daemon};
pub use state::{NodeState, State};

/// Default name of a lab.
pub const DEFAULT_NAME: &str = "default";
/// File name of the program in a lab's folder that reaches nodes like `ssh`.
const RSH: &str = "rsh";
/// Name of the folder in which processes of a node see their node's folder.
const HERE: &str = "here";
/// Time limit for a daemon to close its connections.
const DAEMON_GRACE: Duration = Duration::from_secs(3);

/// A lab of this process. It ends when dropped.
pub struct Lab {
    state: State,
    dir: PathBuf,
    programs: Programs,
    /// Unless `keep` was sent, the lab ends when this is closed; see [`holder`].
    leash: Option<ChildStdin>,
    children: Vec<Child>,
    kept: bool,
}

impl Lab {
    /// Creates a lab and waits until its daemons answer. An error leaves nothing behind.
    pub fn create(options: &LabOptions) -> Result<Lab, LabError> {
        Lab::create_watched(options, |_| ())
    }

    /// Creates a lab like [`Lab::create`]; calls `step` after each of the [`Lab::steps`].
    pub fn create_watched(options: &LabOptions, step: impl Fn(&str)) -> Result<Lab, LabError> {
        options.check()?;
        wire::check_tools(&options.wire)?;
        let programs = Programs::locate(options.programs.as_deref())?;
        let esplab = programs.esplab()?;
        let daemon = if options.daemon {
            Some(programs.daemon()?)
        } else {
            None
        };

        let mut lab = Lab::claim(options, programs)?;
        let first_user = if lab.state.rootless {
            UserNs::New
        } else {
            UserNs::Same
        };
        let switch = lab.add_switch(&esplab, first_user)?;
        let user = if lab.state.rootless {
            UserNs::Of(switch)
        } else {
            UserNs::Same
        };
        step("switch");
        for node in 0..options.wire.nodes {
            lab.add_node(&esplab, user, switch)?;
            step(&Node(node).to_string());
        }
        lab.write_names(options.carriers)?;
        lab.write_rsh(&esplab)?;
        let holders: Vec<ProcessRef> = lab.state.nodes.iter().map(|n| n.holder).collect();
        wire::build_switch(|| lab.enter(switch), &options.wire, options.rails, &holders)?;
        for (node, &holder) in holders.iter().enumerate() {
            wire::build_node(|| lab.enter(holder), &options.wire, options.rails, node)?;
            if !options.wire.offload {
                lab.set_offload(node, false)?;
            }
            step(&format!("{} wire", Node(node)));
        }
        wire::await_forwarding(|| lab.enter(switch), &options.wire, options.rails)?;
        if let Some(program) = daemon {
            lab.start_daemons(&program, options, step)?;
        }
        lab.state.ready = true;
        lab.state.write(&lab.dir)?;
        lab.command_switch("complete")?;
        Ok(lab)
    }

    /// Returns the number of steps that `create_watched` reports.
    pub fn steps(options: &LabOptions) -> u64 {
        (1 + options.wire.nodes * if options.daemon { 3 } else { 2 }) as u64
    }

    fn claim(options: &LabOptions, programs: Programs) -> Result<Lab, LabError> {
        let name = options.name.clone().unwrap_or_else(unique_name);
        let state = State {
            name,
            boot: state::boot_id(),
            creator: ProcessRef::me().at(|| "reading /proc".into())?,
            ready: false,
            rootless: options.rootless.unwrap_or_else(|| !geteuid().is_root()),
            wire: options.wire.clone(),
            switch: None,
            nodes: Vec::new(),
        };
        let dir = Root::new().claim(&state)?;
        Ok(Lab {
            state,
            dir,
            programs,
            leash: None,
            children: Vec::new(),
            kept: false,
        })
    }

    fn add_switch(&mut self, esplab: &Path, user: UserNs) -> Result<ProcessRef, LabError> {
        let Holder {
            process,
            child,
            mut leash,
        } = Holder::start(esplab, user, &Watch::Lab(self.dir.clone()))?;
        self.children.push(child);
        self.state.switch = Some(process);
        self.state.write(&self.dir)?;
        holder::say(&mut leash, "go")?;
        self.leash = Some(leash);
        Ok(process)
    }

    fn add_node(
        &mut self,
        esplab: &Path,
        user: UserNs,
        switch: ProcessRef,
    ) -> Result<(), LabError> {
        let Holder {
            process,
            child,
            mut leash,
        } = Holder::start(esplab, user, &Watch::Switch(switch))?;
        self.children.push(child);
        self.state.nodes.push(NodeState {
            holder: process,
            daemon: None,
            daemon_arguments: Vec::new(),
        });
        self.state.write(&self.dir)?;
        holder::say(&mut leash, "go")
    }

    /// Writes the names of the nodes for programs over ESP (`ethers`) and over TCP/IP (`hosts`).
    fn write_names(&self, carriers: Carriers) -> Result<(), LabError> {
        let (mut ethers, mut hosts) = (String::new(), String::new());
        for node in (0..self.state.nodes.len()).map(Node) {
            if carriers != Carriers::Udp {
                let _ = writeln!(ethers, "{} {node}", node.mac_text());
            }
            for version in self.state.wire.ip.versions() {
                let _ = writeln!(hosts, "{} {node}", version.address(node));
            }
            let dir = daemon::node_dir(&self.dir, node.0);
            fs::create_dir(&dir).at(|| format!("making {}", dir.display()))?;
        }
        let here = self.dir.join(HERE);
        fs::create_dir(&here).at(|| format!("making {}", here.display()))?;
        let doing = || format!("writing the names of the nodes to {}", self.dir.display());
        fs::write(self.dir.join("ethers"), ethers).at(doing)?;
        fs::write(self.dir.join("hosts"), enter::hosts_file(&hosts)).at(doing)
    }

    /// Writes the program that replaces `ssh` for launchers, which take the path of one program.
    fn write_rsh(&self, esplab: &Path) -> Result<(), LabError> {
        let file = self.dir.join(RSH);
        let doing = || format!("writing {}", file.display());
        // The path is quoted for the shell; the lab's name needs no quoting.
        let program = esplab.to_string_lossy().replace('\'', r"'\''");
        let text = format!(
            "#!/bin/sh\nexec env {}='{}' '{program}' rsh --name {} \"$@\"\n",
            state::ENV,
            Root::of(&self.dir)
                .path()
                .display()
                .to_string()
                .replace('\'', r"'\''"),
            self.state.name
        );
        fs::write(&file, text).at(doing)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).at(doing)
    }

    fn start_daemons(
        &mut self,
        program: &Path,
        options: &LabOptions,
        step: impl Fn(&str),
    ) -> Result<(), LabError> {
        let mut daemons = Vec::new();
        for node in 0..self.state.nodes.len() {
            let cpus = match options.daemon_cpus.len() {
                0 => &[][..],
                n => &options.daemon_cpus[node % n],
            };
            let (daemon, arguments) = Daemon::start(
                &self.dir,
                node,
                self.exec_command(node, cpus)?,
                program,
                options,
            )?;
            if let Some(state) = self.state.nodes.get_mut(node) {
                state.daemon = Some(daemon.process);
                state.daemon_arguments = arguments;
            }
            self.state.write(&self.dir)?;
            daemons.push(daemon);
        }
        let mut result = Ok(());
        for (node, mut daemon) in daemons.into_iter().enumerate() {
            if result.is_ok() {
                result = daemon.await_ready();
                step(&format!("{} daemon", Node(node)));
            }
            self.children.push(daemon.child);
        }
        result
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Returns the folder with `ethers`, and for each node `nodeI/esp.sock` and `nodeI/daemon.log`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the recorded state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the program that runs commands in nodes with the arguments of `ssh`, for launchers;
    /// in the nodes it is `$ESPLAB_RSH`.
    pub fn rsh(&self) -> PathBuf {
        self.dir.join(RSH)
    }

    /// Returns the path of the socket of a node's daemon.
    pub fn socket(&self, node: usize) -> PathBuf {
        daemon::socket(&self.dir, node)
    }

    /// Returns a command that runs in a node; the caller adds arguments and pipes and spawns it.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.pinned_command(node, &[], program)
    }

    /// Returns a command like [`Lab::command`], bound to these cores.
    pub fn pinned_command(
        &self,
        node: usize,
        cpus: &[usize],
        program: impl AsRef<OsStr>,
    ) -> Result<Command, LabError> {
        let mut command = self.exec_command(node, cpus)?;
        command.arg(program);
        Ok(command)
    }

    /// Runs a program in a node and returns its output.
    pub fn run<I, S>(
        &self,
        node: usize,
        program: impl AsRef<OsStr>,
        args: I,
    ) -> Result<Output, LabError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let what = format!(
            "running `{}` in {}",
            program.as_ref().to_string_lossy(),
            Node(node)
        );
        self.command(node, program)?
            .args(args)
            .stdin(Stdio::null())
            .output()
            .at(|| what)
    }

    /// Runs `work` on a thread in the node's network namespace: sockets that it opens are the
    /// node's, wherever they are used. Only for the superuser: a thread cannot change its user
    /// namespace.
    pub fn run_in<T: Send>(
        &self,
        node: usize,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, LabError> {
        if self.state.rootless {
            return Err(LabError::BadOption(
                "a rootless lab cannot be entered by a thread".into(),
            ));
        }
        let holder = self.state.holder(node)?;
        let joined = std::thread::scope(|scope| {
            scope
                .spawn(|| enter::join(holder, false).map(|()| work()))
                .join()
        });
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Turns segmentation offload of a node's TCP and UDP on or off.
    pub fn set_offload(&self, node: usize, on: bool) -> Result<(), LabError> {
        let mut command = self.enter(self.state.holder(node)?);
        command
            .arg(self.programs.esplab()?)
            .args(["offload", if on { "on" } else { "off" }])
            .stdin(Stdio::null());
        let doing = || format!("setting the segmentation offload of {}", Node(node));
        let output = command.output().at(doing)?;
        if output.status.success() {
            return Ok(());
        }
        let text = tools::one_line(&String::from_utf8_lossy(&output.stderr));
        Err(std::io::Error::other(text)).at(doing)
    }

    /// Returns the number of frames dropped by the configured loss; 0 without loss.
    pub fn frames_lost(&self) -> Result<u64, LabError> {
        match self.state.switch {
            Some(switch) if self.state.wire.loss_ppm > 0 => wire::frames_lost(self.enter(switch)),
            _ => Ok(0),
        }
    }

    /// Returns the number of frames dropped because a node's port had [`QUEUE_FRAMES`] queued; 0
    /// without a rate.
    pub fn frames_overrun(&self, node: usize) -> Result<u64, LabError> {
        match self.state.switch {
            Some(switch) if self.state.wire.rate.is_some() => {
                wire::frames_overrun(self.enter(switch), node)
            }
            _ => Ok(0),
        }
    }

    /// Keeps the lab after the end of this process; [`down`] ends it.
    pub fn keep(mut self) -> Result<State, LabError> {
        self.command_switch("keep")?;
        self.kept = true;
        Ok(self.state.clone())
    }

    /// Sends a command word to the switch's holder.
    fn command_switch(&mut self, word: &str) -> Result<(), LabError> {
        self.leash
            .as_mut()
            .map_or(Ok(()), |leash| holder::say(leash, word))
    }

    fn exec_command(&self, node: usize, cpus: &[usize]) -> Result<Command, LabError> {
        let mut command = Command::new(self.programs.esplab()?);
        command.args(["exec", "--name", &self.state.name]);
        if !cpus.is_empty() {
            command.arg("--cpus").arg(
                cpus.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
            );
        }
        command.arg(node.to_string()).arg("--");
        Ok(command)
    }

    fn enter(&self, holder: ProcessRef) -> Command {
        let mut command = Command::new(self.programs.dir().join("esplab"));
        command.arg("enter").arg(holder.to_string());
        if self.state.rootless {
            command.arg("--user");
        }
        command.arg("--");
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Without its processes the lab has ended; the next lab of the name replaces the folder.
        let _ = teardown(&self.state, &self.dir, None);
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Returns a name that no other lab has.
fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "p{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Ends the processes of a lab except `spare`, and all other processes in its nodes except the
/// callers of this function. Of a node whose holder has ended, only the daemon is known. Removes
/// the lab's folder. Returns the processes that still run in a node.
pub(crate) fn teardown(
    state: &State,
    dir: &Path,
    spare: Option<ProcessRef>,
) -> Result<Vec<ProcessRef>, LabError> {
    let (daemons, mut holders) = (state.daemons(), state.holders());
    let namespaces: Vec<Namespace> = holders.iter().filter_map(|p| Namespace::of(*p)).collect();
    let spared = [&daemons[..], &holders, &process::lineage()].concat();
    inhabitants::end(&namespaces, &spared);
    process::end_all(&daemons, DAEMON_GRACE);
    holders.retain(|&p| Some(p) != spare);
    // They watch each other: one that sees another one end would end the callers, too.
    process::stop_all(&holders);
    process::end_all(&holders, Duration::ZERO);
    let left = inhabitants::inhabitants(&namespaces);
    enter::leave_view(&dir.join(HERE));
    Root::of(dir).release(state)?;
    Ok(left)
}

/// Returns the lab of this name.
pub fn open(name: &str) -> Result<State, LabError> {
    Root::new().open(name).map(|(state, _)| state)
}

/// Returns all labs of this user.
pub fn list() -> Result<Vec<State>, LabError> {
    Root::new().list()
}

/// Ends the lab of this name and all processes in its nodes. Returns the processes that could not
/// be ended, such as the shell that started `esplab down`; they keep the namespace of their node
/// alive.
pub fn down(name: &str) -> Result<Vec<ProcessRef>, LabError> {
    let (state, dir) = Root::new().open(name)?;
    state.check_made()?;
    teardown(&state, &dir, None)
}

/// Enters a node and executes the command in place of this process, which must have one thread, on
/// these cores (none: all). Returns only an error.
pub fn exec(name: &str, node: usize, cpus: &[usize], command: &[OsString]) -> LabError {
    let go = || -> Result<(PathBuf, PathBuf), LabError> {
        let (state, dir) = Root::new().open(name)?;
        enter::join(state.holder(node)?, state.rootless)?;
        let own = daemon::node_dir(&dir, node);
        let here = dir.join(HERE);
        let bound = enter::private_view(&dir.join("hosts"), &own, &here);
        enter::private_name(&Node(node).to_string());
        pin(cpus)?;
        Ok((dir, if bound { here } else { own }))
    };
    let (dir, own) = match go() {
        Ok(dirs) => dirs,
        Err(e) => return e,
    };
    let programs = match Programs::locate(None) {
        Ok(programs) => programs,
        Err(e) => return e,
    };
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(programs.dir().to_owned()).chain(std::env::split_paths(&old)),
    );
    // The new PATH must also find the command.
    enter::become_command(command, |command| {
        command
            .env("ESPLAB", name)
            .env("ESPLAB_NODE", node.to_string());
        command
            .env("ESP_ETHERS", dir.join("ethers"))
            .env("ESP_SOCKET", own.join(daemon::SOCKET));
        command.env("ESPLAB_RSH", dir.join(RSH));
        command
            .env(state::ENV, Root::of(&dir).path())
            .env("PATH", path.unwrap_or(old));
    })
}

/// Joins the namespaces of a holder and executes the command. Returns only an error.
pub fn enter_holder(holder: ProcessRef, user: bool, command: &[OsString]) -> LabError {
    match enter::join(holder, user) {
        Ok(()) => enter::become_command(command, |_| ()),
        Err(e) => e,
    }
}
