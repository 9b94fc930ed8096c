//! The control socket: creation, takeover from a dead daemon, exclusion of a second one, removal.
//!
//! `PATH.lock` guards `PATH`: it is locked while the daemon lives and released at its death.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, connect, listen};
use rustix::process::Gid;

use super::interface::{holder, unix_socket};
use crate::error::StartError;

/// Maximum number of programs that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The socket's file and lock; both are removed on drop.
#[derive(Debug)]
pub struct SocketClaim {
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
    /// Device and inode of the socket, so that only this one is removed.
    identity: (u64, u64),
}

impl SocketClaim {
    /// Creates the socket and its directory. The descriptor listens and is non-blocking.
    ///
    /// # Errors
    /// See [`StartError`]; nothing of another daemon is changed then.
    pub fn take(
        path: &Path,
        mode: u32,
        group: Option<Gid>,
    ) -> Result<(SocketClaim, OwnedFd), StartError> {
        make_directory(path)?;
        let (lock, lock_path) = lock(path)?;
        remove_stale(path)?;
        let failed = |what| move |error: Errno| socket_error(what, path)(error.into());
        let socket = unix_socket().map_err(failed("make"))?;
        let address =
            SocketAddrUnix::new(path).map_err(failed("use the path (at most 107 bytes) of"))?;
        bind(&socket, &address).map_err(failed("make"))?;
        // No program can connect before `listen`, so the order of the other two does not matter.
        let made = fs::symlink_metadata(path).map_err(socket_error("find", path))?;
        let claim = SocketClaim {
            path: path.into(),
            lock_path,
            _lock: lock,
            identity: (made.dev(), made.ino()),
        };
        if group.is_some() {
            rustix::fs::chown(path, None, group).map_err(failed("change the group of"))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(socket_error("set the mode of", path))?;
        listen(&socket, BACKLOG).map_err(failed("listen on"))?;
        Ok((claim, socket))
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketClaim {
    fn drop(&mut self) {
        let ours = |found: fs::Metadata| (found.dev(), found.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            let _ = fs::remove_file(&self.path);
        }
        // Still locked: a process that waits for the lock detects that the file was removed
        // (`lock`).
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Returns the group of that name or number.
///
/// # Errors
/// [`StartError::NoGroup`].
pub fn group(name: &str) -> Result<Gid, StartError> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let found = nix::unistd::Group::from_name(name).ok().flatten();
    let found = found.ok_or_else(|| StartError::NoGroup { group: name.into() })?;
    Ok(Gid::from_raw(found.gid.as_raw()))
}

fn socket_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::Socket { what, path, source }
}

fn make_directory(path: &Path) -> Result<(), StartError> {
    let Some(directory) = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
    else {
        return Ok(());
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(socket_error("create the directory", directory))
}

/// Takes the lock, or fails when another process has it.
fn lock(path: &Path) -> Result<(File, PathBuf), StartError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    // A stopping daemon removes the file while it has it locked: that lock is useless then, and the
    // next file counts.
    for _ in 0..10 {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed())
            .open(&lock_path)
            .map_err(socket_error("open the lock", &lock_path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = file.take(16).read_to_string(&mut pid);
                let holder = match pid.trim().parse::<u32>() {
                    Ok(pid) => format!("process {pid}"),
                    Err(_) => format!("it holds {}", lock_path.display()),
                };
                return Err(StartError::SocketTaken {
                    path: path.into(),
                    holder,
                });
            }
            Err(error) => return Err(socket_error("lock", &lock_path)(error.into())),
        }
        let same = match (file.metadata(), fs::symlink_metadata(&lock_path)) {
            (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
            _ => false,
        };
        if same {
            let written = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(socket_error("write", &lock_path))?;
            return Ok((file, lock_path));
        }
    }
    Err(StartError::SocketTaken {
        path: path.into(),
        holder: "it restarts repeatedly".into(),
    })
}

/// Removes the socket of a dead daemon. A live one without our lock (its lock file was deleted) is
/// refused, too.
fn remove_stale(path: &Path) -> Result<(), StartError> {
    let kind = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(socket_error("inspect", path)(error)),
    };
    if !kind.is_socket() {
        return Err(StartError::NotASocket { path: path.into() });
    }
    let failed = |error: Errno| socket_error("inspect", path)(error.into());
    let socket = unix_socket().map_err(failed)?;
    match connect(&socket, &SocketAddrUnix::new(path).map_err(failed)?) {
        Ok(()) => Err(StartError::SocketTaken {
            path: path.into(),
            holder: holder(socket),
        }),
        Err(Errno::CONNREFUSED) => {
            tracing::info!(path = %path.display(), "removing the socket of a dead daemon");
            fs::remove_file(path).map_err(socket_error("remove", path))
        }
        Err(Errno::NOENT) => Ok(()),
        // A full queue belongs to a live process.
        Err(Errno::AGAIN) => Err(StartError::SocketTaken {
            path: path.into(),
            holder: "it is busy".into(),
        }),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

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

    #[tokio::test]
    async fn live_daemon_is_refused_by_lock_and_by_connecting() {
        let dir = TempDir::new();
        let path = dir.path().join("esp.sock");
        let (_claim, _socket) = SocketClaim::take(&path, 0o600, None).unwrap();
        let pid = format!("process {}", std::process::id());
        let error = SocketClaim::take(&path, 0o600, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&pid), "{error}");
        fs::remove_file(dir.path().join("esp.sock.lock")).unwrap();
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
        assert!(matches!(
            SocketClaim::take(&path, 0o600, None),
            Err(StartError::NotASocket { .. })
        ));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let long = dir.path().join("x".repeat(120));
        let error = SocketClaim::take(&long, 0o600, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("at most 107 bytes"), "{error}");
    }

    #[test]
    fn socket_of_a_successor_is_not_removed() {
        let dir = TempDir::new();
        let path = dir.path().join("esp.sock");
        let (claim, _socket) = SocketClaim::take(&path, 0o600, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(claim);
        assert!(exists(&path));
    }

    #[test]
    fn groups_are_found_by_name_or_number() {
        assert_eq!(group("root").unwrap(), Gid::ROOT);
        assert_eq!(group("123").unwrap(), Gid::from_raw(123));
        let error = group("no-such-group-here").unwrap_err().to_string();
        assert!(error.contains("groupadd no-such-group-here"), "{error}");
    }
}
