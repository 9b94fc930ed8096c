//! What is written down about a lab, so that another process can enter it or end it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::{At, LabError};
use crate::options::{Node, WireOptions, check_name};
use crate::process::ProcessRef;

/// The file in the lab's folder.
const FILE: &str = "lab.json";

/// All about a lab. Written anew after every step of making it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Its name.
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`: process ids mean nothing after a reboot.
    pub boot: String,
    /// The process that makes (or made) it.
    pub creator: ProcessRef,
    /// True once it is usable.
    pub ready: bool,
    /// True: it lives in a user namespace.
    pub rootless: bool,
    /// The wire.
    pub wire: WireOptions,
    /// Holder of the namespace with the bridge.
    pub switch: Option<ProcessRef>,
    /// The nodes.
    pub nodes: Vec<NodeState>,
}

/// A node's processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Holder of its namespace.
    pub holder: ProcessRef,
    /// Its esp-daemon.
    pub daemon: Option<ProcessRef>,
}

impl State {
    /// Reads the state in a lab's folder. `None`: there is none (yet).
    pub(crate) fn read(dir: &Path) -> Result<Option<State>, LabError> {
        let file = dir.join(FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).at(|| format!("reading {}", file.display())),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(io::Error::other)
            .at(|| format!("reading {}", file.display()))
    }

    /// Writes it; a reader sees the old or the new one, never a part.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let (file, new) = (dir.join(FILE), dir.join("lab.json.new"));
        let doing = || format!("writing {}", file.display());
        let text = serde_json::to_string_pretty(self)
            .map_err(io::Error::other)
            .at(doing)?;
        let mut out = File::create(&new).at(doing)?;
        out.write_all(text.as_bytes()).at(doing)?;
        fs::rename(&new, &file).at(doing)
    }

    /// The daemons.
    pub(crate) fn daemons(&self) -> Vec<ProcessRef> {
        self.of_this_boot(self.nodes.iter().filter_map(|n| n.daemon))
    }

    /// The processes that keep the namespaces; the switch's last.
    pub(crate) fn holders(&self) -> Vec<ProcessRef> {
        self.of_this_boot(self.nodes.iter().map(|n| n.holder).chain(self.switch))
    }

    /// True while anything of it runs, or while it is being made.
    pub fn is_alive(&self) -> bool {
        let making = self.of_this_boot((!self.ready).then_some(self.creator).into_iter());
        making
            .into_iter()
            .chain(self.daemons())
            .chain(self.holders())
            .any(ProcessRef::is_alive)
    }

    /// The holder of a node's namespace.
    pub(crate) fn holder(&self, node: usize) -> Result<ProcessRef, LabError> {
        let name = || self.name.clone();
        let found = self.nodes.get(node).ok_or_else(|| LabError::NoNode {
            name: name(),
            node,
            last: self.nodes.len().saturating_sub(1),
        })?;
        if self.boot != boot_id() || !found.holder.is_alive() {
            return Err(LabError::Broken {
                name: name(),
                what: format!("the namespace of {}", Node(node)),
            });
        }
        Ok(found.holder)
    }

    fn of_this_boot(&self, processes: impl Iterator<Item = ProcessRef>) -> Vec<ProcessRef> {
        if self.boot == boot_id() {
            processes.collect()
        } else {
            Vec::new()
        }
    }
}

/// Random number of this boot of the machine.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Names the folder of all labs, for programs in a node (whose user may look like another there).
pub(crate) const ENV: &str = "ESPLAB_STATE";

/// The folder of all labs of this user.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// `$ESPLAB_STATE`, or `/run/esplab` for the superuser, else `$XDG_RUNTIME_DIR/esplab`, else
    /// `/tmp/esplab-UID`. Not made yet.
    pub(crate) fn new() -> Root {
        if let Some(dir) = std::env::var_os(ENV)
            .map(PathBuf::from)
            .filter(|d| d.is_absolute())
        {
            return Root(dir);
        }
        let uid = geteuid();
        if uid.is_root() {
            return Root("/run/esplab".into());
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|d| d.is_absolute() && d.is_dir());
        Root(runtime.map_or_else(
            || format!("/tmp/esplab-{}", uid.as_raw()).into(),
            |d| d.join("esplab"),
        ))
    }

    /// The one that holds this lab's folder.
    pub(crate) fn of(lab: &Path) -> Root {
        Root(lab.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it when it is missing, and makes sure that nobody else can write there (it may lie in
    /// /tmp).
    fn make(&self) -> Result<(), LabError> {
        let doing = || format!("making {}", self.0.display());
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).at(doing),
            _ => {}
        }
        let found = fs::symlink_metadata(&self.0).at(doing)?;
        if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
            let text = "it exists and is not a folder of this user alone; remove it";
            return Err(io::Error::other(text)).at(doing);
        }
        Ok(())
    }

    /// A lab's folder.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Held while labs come and go; ends with the value (or its process).
    fn lock(&self) -> Result<File, LabError> {
        let doing = || format!("locking {}", self.0.display());
        let dir = File::open(&self.0).at(doing)?;
        flock(&dir, FlockOperation::LockExclusive).at(doing)?;
        Ok(dir)
    }

    /// Takes the lab's name: makes its folder with a first state. Remains of a dead lab give way.
    pub(crate) fn claim(&self, state: &State) -> Result<PathBuf, LabError> {
        self.make()?;
        let _lock = self.lock()?;
        let dir = self.dir(&state.name);
        if dir.exists() {
            if State::read(&dir)?.is_some_and(|old| old.is_alive()) {
                return Err(LabError::Exists {
                    name: state.name.clone(),
                });
            }
            fs::remove_dir_all(&dir).at(|| format!("removing {}", dir.display()))?;
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .at(|| format!("making {}", dir.display()))?;
        state.write(&dir)?;
        Ok(dir)
    }

    /// Removes a lab's folder if it still is that of `state`.
    pub(crate) fn release(&self, state: &State) -> Result<(), LabError> {
        let dir = self.dir(&state.name);
        let _lock = self.lock()?;
        if State::read(&dir)?.is_none_or(|now| now.creator != state.creator) {
            return Ok(());
        }
        fs::remove_dir_all(&dir).at(|| format!("removing {}", dir.display()))
    }

    /// A lab by name.
    pub(crate) fn open(&self, name: &str) -> Result<(State, PathBuf), LabError> {
        check_name(name)?;
        let dir = self.dir(name);
        let state = State::read(&dir)?.ok_or_else(|| LabError::NotFound {
            name: name.to_owned(),
        })?;
        Ok((state, dir))
    }

    /// All labs, by name. Those that cannot be read are left out.
    pub(crate) fn list(&self) -> Result<Vec<State>, LabError> {
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at(|| format!("reading {}", self.0.display()))?,
        };
        let mut labs: Vec<State> = entries
            .flatten()
            .filter_map(|e| State::read(&e.path()).ok().flatten())
            .collect();
        labs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(labs)
    }
}
