//! Recorded state of a lab, by which another process can enter it or end it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::{Context, LabError};
use crate::options::{Node, WireOptions, check_name};
use crate::process::ProcessRef;

/// File name in the lab's folder.
const FILE: &str = "lab.json";
/// Maximum time to wait for a lock: more than a daemon takes to stop and the next one to start.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Pause between attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// State of a lab, written after every step of its creation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// Name.
    pub name: String,
    /// `/proc/sys/kernel/random/boot_id`: process ids are valid for one boot.
    pub boot: String,
    /// Process that created it.
    pub creator: ProcessRef,
    /// True once it is complete.
    pub ready: bool,
    /// True if it is in a user namespace.
    pub rootless: bool,
    /// Options of the wire.
    pub wire: WireOptions,
    /// Holder of the namespace with the bridge.
    pub switch: Option<ProcessRef>,
    /// Nodes by number.
    pub nodes: Vec<NodeState>,
}

/// Processes of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Holder of its namespace.
    pub holder: ProcessRef,
    /// The esp-daemon, if there is one.
    pub daemon: Option<ProcessRef>,
    /// Its arguments, for the next one.
    #[serde(default)]
    pub daemon_arguments: Vec<String>,
}

impl State {
    /// Reads the state in a lab's folder; `None` if there is none yet.
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

    /// Replaces the file atomically.
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

    /// Changes the recorded state, and keeps the changes of other processes.
    pub(crate) fn update(dir: &Path, change: impl FnOnce(&mut State)) -> Result<(), LabError> {
        let _lock = lock(dir)?;
        let name = || dir.file_name().unwrap_or_default().to_string_lossy().into();
        let mut state = State::read(dir)?.ok_or_else(|| LabError::NotFound { name: name() })?;
        change(&mut state);
        state.write(dir)
    }

    /// Returns an error while another process creates the lab.
    pub(crate) fn check_made(&self) -> Result<(), LabError> {
        if self.ready || self.boot != boot_id() || !self.creator.is_alive() {
            return Ok(());
        }
        Err(LabError::Busy {
            name: self.name.clone(),
            pid: self.creator.pid,
        })
    }

    /// Returns the daemons.
    pub(crate) fn daemons(&self) -> Vec<ProcessRef> {
        self.of_this_boot(self.nodes.iter().filter_map(|n| n.daemon))
    }

    /// Returns the holders, the switch's last.
    pub(crate) fn holders(&self) -> Vec<ProcessRef> {
        self.of_this_boot(self.nodes.iter().map(|n| n.holder).chain(self.switch))
    }

    /// Returns true while a process of the lab runs or the lab is being created.
    pub fn is_alive(&self) -> bool {
        let making = self.of_this_boot((!self.ready).then_some(self.creator).into_iter());
        making
            .into_iter()
            .chain(self.daemons())
            .chain(self.holders())
            .any(ProcessRef::is_alive)
    }

    /// Returns the holder of a node's namespace.
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

/// Locks a folder until the value is dropped.
pub(crate) fn lock(dir: &Path) -> Result<File, LabError> {
    let doing = || format!("locking {}", dir.display());
    let file = File::open(dir).at(doing)?;
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let dir = dir.to_owned();
                return Err(LabError::Locked { dir });
            }
            Err(Errno::INTR) => {}
            done => return done.at(doing).map(|()| file),
        }
    }
}

/// Returns the random id of this boot.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Variable with the folder of all labs, for programs in a node, which may run as another user.
pub(crate) const ENV: &str = "ESPLAB_STATE";

/// Folder of root's labs.
const ROOTS: &str = "/run/esplab";

/// Returns true if a folder of labs does not exist or has no lab. One that this user may not read
/// counts as not empty if it has subfolders.
fn is_empty(dir: &Path) -> bool {
    // A folder has a link of each subfolder, besides its name and its own `.`.
    fs::metadata(dir).map_or(true, |found| found.nlink() <= 2)
}

/// Folder of all labs of this user.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// Returns `$ESPLAB_STATE`, or `/run/esplab` for the superuser, else `$XDG_RUNTIME_DIR/esplab`,
    /// else `/tmp/esplab-UID`, without creating it.
    pub(crate) fn new() -> Root {
        if let Some(dir) = std::env::var_os(ENV)
            .map(PathBuf::from)
            .filter(|d| d.is_absolute())
        {
            return Root(dir);
        }
        let uid = geteuid();
        if uid.is_root() {
            return Root(ROOTS.into());
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|d| d.is_absolute() && d.is_dir());
        Root(runtime.map_or_else(
            || format!("/tmp/esplab-{}", uid.as_raw()).into(),
            |d| d.join("esplab"),
        ))
    }

    /// Returns the root that contains this lab's folder.
    pub(crate) fn of(lab: &Path) -> Root {
        Root(lab.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder if it is missing, and checks it.
    fn make(&self) -> Result<(), LabError> {
        let doing = || format!("making {}", self.0.display());
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e).at(doing),
            _ => self.check(),
        }
    }

    /// Checks that no other user but root can write to the folder: it may be in /tmp, and this user
    /// ends the processes that the states in it name. One that does not exist is fine.
    fn check(&self) -> Result<(), LabError> {
        let doing = || format!("using {}", self.0.display());
        let found = match fs::symlink_metadata(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.at(doing)?,
        };
        let is_trusted = found.uid() == geteuid().as_raw() || found.uid() == 0;
        if found.is_dir() && is_trusted && found.mode() & 0o022 == 0 {
            return Ok(());
        }
        let text = "it exists, but is not a private folder of this user: remove it";
        Err(io::Error::other(text)).at(doing)
    }

    /// Returns a lab's folder.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Reserves the lab's name: creates its folder with a first state. Remains of an ended lab are
    /// removed.
    pub(crate) fn claim(&self, state: &State) -> Result<PathBuf, LabError> {
        self.make()?;
        let _lock = lock(&self.0)?;
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

    /// Removes a lab's folder if it is still that of `state`.
    pub(crate) fn release(&self, state: &State) -> Result<(), LabError> {
        let dir = self.dir(&state.name);
        let _lock = lock(&self.0)?;
        if State::read(&dir)?.is_none_or(|now| now.creator != state.creator) {
            return Ok(());
        }
        fs::remove_dir_all(&dir).at(|| format!("removing {}", dir.display()))
    }

    /// Returns the lab of this name.
    pub(crate) fn open(&self, name: &str) -> Result<(State, PathBuf), LabError> {
        check_name(name)?;
        self.check()?;
        let dir = self.dir(name);
        let name = name.to_owned();
        match State::read(&dir) {
            Ok(Some(state)) => Ok((state, dir)),
            Ok(None) if self.0 != Path::new(ROOTS) && !is_empty(Path::new(ROOTS)) => {
                Err(LabError::RootsLab { name })
            }
            Ok(None) => Err(LabError::NotFound { name }),
            Err(LabError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                let dir = self.0.clone();
                Err(LabError::OtherUser { name, dir })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns all labs, by name, except those that cannot be read.
    pub(crate) fn list(&self) -> Result<Vec<State>, LabError> {
        self.check()?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;
    use crate::options::LabOptions;

    /// A folder of labs with the state of one, removed on drop.
    struct Planted(Root);

    impl Planted {
        fn new(what: &str) -> io::Result<Planted> {
            let name = format!("esplab-state-{what}-{}", std::process::id());
            let root = Root(std::env::temp_dir().join(name));
            DirBuilder::new().mode(0o700).create(&root.0)?;
            let planted = Planted(root);
            let state = State {
                name: "lab".into(),
                boot: boot_id(),
                creator: ProcessRef::me()?,
                ready: true,
                rootless: false,
                wire: LabOptions::new(1).wire,
                switch: None,
                nodes: Vec::new(),
            };
            let dir = planted.0.dir("lab");
            fs::create_dir(&dir)?;
            state.write(&dir).map_err(io::Error::other)?;
            Ok(planted)
        }

        #[track_caller]
        fn is_used(&self, expected: bool) {
            let root = &self.0;
            assert_eq!(root.open("lab").is_ok(), expected);
            assert_eq!(root.list().is_ok_and(|labs| labs.len() == 1), expected);
            assert_eq!(root.make().is_ok(), expected);
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.0);
        }
    }

    #[test]
    fn folders_to_which_others_write_are_not_used() -> io::Result<()> {
        let planted = Planted::new("mode")?;
        planted.is_used(true);
        let path = &planted.0.0;
        fs::set_permissions(path, fs::Permissions::from_mode(0o770))?;
        planted.is_used(false);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        planted.is_used(true);
        // Only root can give a folder away.
        if geteuid().is_root() {
            chown(path, Some(65534), None)?;
            planted.is_used(false);
        }
        Ok(())
    }

    #[test]
    fn a_link_to_a_folder_is_not_used() -> io::Result<()> {
        let planted = Planted::new("link")?;
        let link = planted.0.0.join("link");
        std::os::unix::fs::symlink(&planted.0.0, &link)?;
        let root = Root(link);
        assert!(root.open("lab").is_err() && root.list().is_err());
        Ok(())
    }

    #[test]
    fn a_folder_that_does_not_exist_has_no_labs() {
        let root = Root("/nonexistent/esplab".into());
        assert!(root.list().is_ok_and(|labs| labs.is_empty()));
        assert!(root.open("lab").is_err());
    }
}
