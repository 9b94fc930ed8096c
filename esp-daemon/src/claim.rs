//! Exclusive resources of one daemon: its interfaces and its control socket.
//!
//! The claim on an interface is a Unix socket in the abstract namespace. It belongs to the network
//! namespace, as the interface does, and vanishes with the process. Any local user can take such a
//! name first. So only a process of the superuser or of the daemon's own user counts as a daemon.
//! If another process has the name, this daemon logs that and serves without a claim.
//!
//! `PATH.lock` guards the control socket at `PATH`: it is locked while the daemon lives.

use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netif::Closer;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use rustix::process::Gid;

use crate::error::StartError;

/// Maximum number of programs that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Time between two removals of the connections of refused daemons from a claim.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(10);
/// Number of attempts to find the holder of a claim that does not listen yet, and the pause between
/// two.
const HOLDER_ATTEMPTS: u32 = 10;
const HOLDER_PAUSE: Duration = Duration::from_millis(5);

/// The exclusive right to serve an interface; released on drop.
#[derive(Debug)]
pub(crate) struct InterfaceClaim {
    /// Socket with the name of the claim; `None`: the interface is served without one.
    _socket: Option<Arc<OwnedFd>>,
}

impl InterfaceClaim {
    /// Claims the interface for one packet type. Must be called inside the runtime.
    ///
    /// # Errors
    /// Another daemon, which the error names, has it.
    pub(crate) fn take(
        name: &str,
        index: u32,
        ethertype: u16,
    ) -> Result<InterfaceClaim, StartError> {
        let failed = |error: Errno| StartError::system("claim the interface")(error.into());
        let claim_name = format!("esp-daemon.{index}.{ethertype:04x}");
        let address = SocketAddrUnix::new_abstract_name(claim_name.as_bytes()).map_err(failed)?;
        for _ in 0..HOLDER_ATTEMPTS {
            let socket = unix_socket().map_err(failed)?;
            match bind(&socket, &address) {
                Ok(()) => {
                    listen(&socket, BACKLOG).map_err(failed)?;
                    return Ok(InterfaceClaim::hold(socket));
                }
                Err(Errno::ADDRINUSE) => {}
                Err(error) => return Err(failed(error)),
            }
            match connect(&socket, &address) {
                // Its process has ended, or will listen soon.
                Err(Errno::CONNREFUSED) => std::thread::sleep(HOLDER_PAUSE),
                connected => {
                    let holder = connected.ok().and_then(|()| peer(socket));
                    if let Some(holder) = holder.as_ref().filter(|holder| holder.may_serve()) {
                        return Err(StartError::passing(format_args!(
                            "another esp-daemon ({holder}) serves {name} for EtherType \
                             {ethertype:#06x}: stop that process, or name another interface"
                        )));
                    }
                    return Ok(InterfaceClaim::without(name, &claim_name, holder));
                }
            }
        }
        Ok(InterfaceClaim::without(name, &claim_name, None))
    }

    /// Holds a claim. Refused daemons connect to find this process's id; their connections are
    /// removed from time to time, or the queue would be full for the next one.
    fn hold(socket: OwnedFd) -> InterfaceClaim {
        let socket = Arc::new(socket);
        let held = Arc::downgrade(&socket);
        netif::refuse_descriptors(&*socket);
        let closer = Closer::default();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(REMOVAL_INTERVAL).await;
                let Some(socket) = held.upgrade() else {
                    return;
                };
                for _ in 0..=BACKLOG {
                    let Ok(refused) = accept(&socket) else {
                        break;
                    };
                    // Every user can connect.
                    closer.close_socket(0, refused);
                }
            }
        });
        InterfaceClaim {
            _socket: Some(socket),
        }
    }

    /// Logs that the name is taken by a process that is not a daemon.
    fn without(name: &str, claim_name: &str, holder: Option<Holder>) -> InterfaceClaim {
        let holder = holder.map_or("a process".into(), |holder| holder.to_string());
        tracing::warn!(
            interface = name,
            "{holder} has the name @{claim_name}, which is reserved for esp-daemon: ignored, so a second \
             esp-daemon for this interface would not be noticed"
        );
        InterfaceClaim { _socket: None }
    }
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Process that has the name of a claim.
struct Holder {
    /// `None`: it is in another container.
    pid: Option<i32>,
    uid: u32,
}

impl Holder {
    /// Returns true if its user may run a daemon.
    fn may_serve(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} of user {}", self.uid),
            None => write!(f, "a process of user {} in another container", self.uid),
        }
    }
}

/// Returns the process at the other end of a connected socket.
fn peer(socket: OwnedFd) -> Option<Holder> {
    // Not rustix' SO_PEERCRED: its type cannot represent pid 0, an invisible process.
    let stream = tokio::net::UnixStream::from_std(socket.into()).ok()?;
    let peer = stream.peer_cred().ok()?;
    Some(Holder {
        pid: peer.pid().filter(|pid| *pid > 0),
        uid: peer.uid(),
    })
}

/// The socket's file and lock; both are removed on drop, unless the lock is left as a mark for the
/// next daemon ([`was_left`]).
#[derive(Debug)]
pub(crate) struct SocketClaim {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
    leaves: bool,
}

impl SocketClaim {
    /// Creates the socket and its directory. The descriptor listens and is non-blocking.
    ///
    /// # Errors
    /// See [`StartError`]. In this case nothing of another daemon is changed.
    pub(crate) fn take(
        path: &Path,
        mode: u32,
        group: Option<Gid>,
    ) -> Result<(SocketClaim, OwnedFd), StartError> {
        let failed = |what| move |error: Errno| socket_error(what, path)(error.into());
        if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o755).create(directory);
            made.map_err(socket_error("create the directory", directory))?;
        }
        let (lock, lock_path) = lock(path)?;
        remove_stale(path)?;
        let claim = SocketClaim {
            path: path.into(),
            lock_path,
            _lock: lock,
            leaves: false,
        };
        let socket = unix_socket().map_err(failed("make"))?;
        let address =
            SocketAddrUnix::new(path).map_err(failed("use the path (at most 107 bytes) of"))?;
        bind(&socket, &address).map_err(failed("make"))?;
        // No program can connect before `listen`, so the order of the other two does not matter.
        if group.is_some() {
            rustix::fs::chown(path, None, group).map_err(failed("change the group of"))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(socket_error("set the mode of", path))?;
        listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        Ok((claim, socket))
    }

    /// Leaves a mark that the next daemon continues the work of this one.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
    }
}

/// Returns true if the last daemon at this socket did not end for good, so that programs may bring
/// its streams: it was killed, or left them to the next one.
pub(crate) fn was_left(path: &Path) -> bool {
    fs::symlink_metadata(beside(path, ".lock")).is_ok()
}

impl Drop for SocketClaim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if self.leaves {
            return;
        }
        // Still locked: a process that waits for the lock detects that the file was removed
        // (`lock`).
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Returns the group with this name or number.
///
/// # Errors
/// There is no group with this name.
pub(crate) fn group(name: &str) -> Result<Gid, StartError> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let found = nix::unistd::Group::from_name(name).ok().flatten();
    let found = found.ok_or_else(|| {
        StartError::new(format_args!(
            "socket.group: no group `{name}`: create it (groupadd {name}), or give its number"
        ))
    })?;
    Ok(Gid::from_raw(found.gid.as_raw()))
}

fn socket_error(what: &str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let hint = "check the permissions, or choose another --socket";
    move |error| {
        StartError::new(format_args!(
            "cannot {what} {}: {error}; {hint}",
            path.display()
        ))
    }
}

fn taken(path: &Path, holder: impl Display) -> StartError {
    StartError::passing(format_args!(
        "another esp-daemon ({holder}) serves {}: stop that daemon, or choose another --socket",
        path.display()
    ))
}

/// Returns the path of a file next to the control socket.
pub(crate) fn beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Takes the lock, or fails when another process has it.
fn lock(path: &Path) -> Result<(File, PathBuf), StartError> {
    let lock_path = beside(path, ".lock");
    loop {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed())
            .open(&lock_path)
            .map_err(socket_error("open the lock", &lock_path))?;
        // A user that can read a file can lock it, and so keep the next daemon from starting.
        // Earlier versions left it readable.
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(socket_error("set the mode of", &lock_path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = file.take(16).read_to_string(&mut pid);
                return Err(taken(path, format_args!("process {}", pid.trim())));
            }
            Err(error) => return Err(socket_error("lock", &lock_path)(error.into())),
        }
        // A stopping daemon removes the file while it holds the lock: that lock is then useless,
        // and the next file counts.
        let inode = file
            .metadata()
            .map_err(socket_error("inspect", &lock_path))?
            .ino();
        if fs::symlink_metadata(&lock_path).is_ok_and(|found| found.ino() == inode) {
            let written = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(socket_error("write", &lock_path))?;
            return Ok((file, lock_path));
        }
    }
}

/// Removes the socket of a dead daemon; the caller has the lock.
fn remove_stale(path: &Path) -> Result<(), StartError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(socket_error("inspect", path)(error)),
        Ok(found) if found.file_type().is_socket() => {
            tracing::info!(path = %path.display(), "removing the socket of a dead daemon");
            fs::remove_file(path).map_err(socket_error("remove", path))
        }
        Ok(_) => Err(StartError::new(format_args!(
            "{} exists and is not a socket: remove it, or choose another --socket",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// Returns an index that neither an interface nor another run of these tests has.
    fn index(test: u32) -> u32 {
        0x4000_0000 | std::process::id() << 4 | test
    }

    #[tokio::test]
    async fn second_claim_names_the_holder() {
        let held = InterfaceClaim::take("x0", index(0), 0x88b5).unwrap();
        let _other_type = InterfaceClaim::take("x0", index(0), 0x88b6).unwrap();
        for _ in 0..2 {
            let error = InterfaceClaim::take("x0", index(0), 0x88b5)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("process {} ", std::process::id())),
                "{error}"
            );
            assert!(error.starts_with("another esp-daemon ("), "{error}");
        }
        drop(held);
        InterfaceClaim::take("x0", index(0), 0x88b5).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn refused_starts_do_not_hide_the_holder() {
        let _held = InterfaceClaim::take("x0", index(2), 0x88b5).unwrap();
        for attempt in 0..3 * BACKLOG {
            assert!(
                InterfaceClaim::take("x0", index(2), 0x88b5).is_err(),
                "two claims after {attempt} attempts"
            );
            if attempt % 1000 == 0 {
                tokio::time::sleep(REMOVAL_INTERVAL * 2).await;
            }
        }
    }

    #[tokio::test]
    async fn waits_for_a_holder_that_does_not_listen_yet() {
        let name = format!("esp-daemon.{}.88b5", index(3));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let other = unix_socket().unwrap();
        bind(&other, &address).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(HOLDER_PAUSE * 2);
            listen(&other, BACKLOG).unwrap();
            other
        });
        let taken = InterfaceClaim::take("x0", index(3), 0x88b5);
        let _other = other.join().unwrap();
        assert!(taken.is_err(), "the other has it");
    }

    /// Takes a claim's name as another user does; `None` without the privilege to become one.
    fn squat(index: u32) -> Option<OwnedFd> {
        let squatter = std::thread::spawn(move || {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).ok()?;
            let name = format!("esp-daemon.{index}.88b5");
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            let socket = unix_socket().unwrap();
            bind(&socket, &address).unwrap();
            listen(&socket, 1).unwrap();
            Some(socket)
        });
        squatter.join().unwrap()
    }

    #[tokio::test]
    async fn other_users_cannot_claim() {
        let Some(squatter) = squat(index(1)) else {
            netns::skip("other_users_cannot_claim", "needs root");
            return;
        };
        InterfaceClaim::take("x0", index(1), 0x88b5).unwrap();
        // A full queue hides the user.
        let _full: Vec<_> = (0..3)
            .map(|_| {
                let name = format!("esp-daemon.{}.88b5", index(1));
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
                let socket = unix_socket().unwrap();
                let _ = connect(&socket, &address);
                socket
            })
            .collect();
        InterfaceClaim::take("x0", index(1), 0x88b5).unwrap();
        drop(squatter);
    }

    fn exists(path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    #[test]
    fn socket_is_made_with_its_directory_and_removed() {
        let dir = TempDir::new();
        let path = dir.path().join("deep/er/esp.sock");
        let (claim, _socket) = SocketClaim::take(&path, 0o640, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(claim);
        assert!(!exists(&path) && !exists(&dir.path().join("deep/er/esp.sock.lock")));
    }

    #[test]
    fn live_daemon_is_refused() {
        let dir = TempDir::new();
        let path = dir.path().join("esp.sock");
        let (_claim, _socket) = SocketClaim::take(&path, 0o600, None).unwrap();
        let pid = format!("process {}", std::process::id());
        let error = SocketClaim::take(&path, 0o600, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&pid), "{error}");
        assert!(exists(&path));
    }

    #[test]
    fn dead_daemons_socket_is_replaced() {
        let dir = TempDir::new();
        let path = dir.path().join("esp.sock");
        let (claim, socket) = SocketClaim::take(&path, 0o600, None).unwrap();
        // As after kill -9: lock and socket are closed, both files remain.
        let lock = claim._lock.try_clone().unwrap();
        std::mem::forget(claim);
        drop(socket);
        flock(&lock, FlockOperation::Unlock).unwrap();
        assert!(exists(&path));
        let (_claim, _socket) = SocketClaim::take(&path, 0o600, None).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn other_files_are_left_alone() {
        let dir = TempDir::new();
        let path = dir.path().join("precious");
        fs::write(&path, "data").unwrap();
        let error = SocketClaim::take(&path, 0o600, None).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let long = dir.path().join("x".repeat(120));
        let error = SocketClaim::take(&long, 0o600, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("at most 107 bytes"), "{error}");
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        assert_eq!(group("root").unwrap(), Gid::ROOT);
        assert_eq!(group("123").unwrap(), Gid::from_raw(123));
        let error = group("no-such-group-here").unwrap_err().to_string();
        assert!(error.contains("groupadd no-such-group-here"), "{error}");
    }
}
