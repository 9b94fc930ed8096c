//! The record of leases for the next daemon: a file next to the control socket (`PATH.leases`).
//!
//! Each lease has a line `UID PID INTERFACE FIRST LAST` (PID 0: unknown). Every change replaces the
//! file atomically, so it is complete whenever this process dies; without leases there is no file.
//! It is read only if it belongs to this daemon's user; malformed lines are ignored. If it cannot
//! be written, leases do not outlive the daemon.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use esp_proto::Port;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use tracing::warn;

use super::MAX_PORTS;
use crate::claim::beside;

/// Maximum size of the file in bytes; a larger one is not ours.
const MAX_BYTES: u64 = 1 << 20;

/// A recorded lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// User of the holder.
    pub uid: u32,
    /// Process of the holder.
    pub pid: Option<u32>,
    /// Name of its interface.
    pub interface: String,
    /// The ports.
    pub ports: RangeInclusive<Port>,
}

impl Entry {
    fn parse(line: &str) -> Option<Entry> {
        let words: Vec<&str> = line.split(' ').collect();
        let [uid, pid, interface, first, last] = *words.as_slice() else {
            return None;
        };
        let (first, last): (Port, Port) = (first.parse().ok()?, last.parse().ok()?);
        if first == 0 || first > last || last - first >= MAX_PORTS || interface.is_empty() {
            return None;
        }
        let pid = Some(pid.parse().ok()?).filter(|pid| *pid != 0);
        Some(Entry {
            uid: uid.parse().ok()?,
            pid,
            interface: interface.into(),
            ports: first..=last,
        })
    }

    fn line(&self) -> String {
        let Entry {
            uid,
            pid,
            interface,
            ports,
        } = self;
        format!(
            "{uid} {} {interface} {} {}\n",
            pid.unwrap_or(0),
            ports.start(),
            ports.end()
        )
    }

    fn overlaps(&self, other: &Entry) -> bool {
        self.interface == other.interface
            && self.ports.start() <= other.ports.end()
            && other.ports.start() <= self.ports.end()
    }

    /// Returns false only when its process has certainly ended.
    pub(super) fn may_live(&self) -> bool {
        let pid = self.pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.is_none_or(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }
}

/// Reads the leases of an earlier daemon whose holders may live.
pub(crate) fn load(path: &Path) -> Vec<Entry> {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            warn!(path = %path.display(), %error, "ignoring the record of earlier leases");
            return Vec::new();
        }
    };
    let mut entries: Vec<Entry> = Vec::new();
    for entry in text
        .lines()
        .filter_map(Entry::parse)
        .filter(Entry::may_live)
    {
        if !entries.iter().any(|other| other.overlaps(&entry)) {
            entries.push(entry);
        }
    }
    entries
}

fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > MAX_BYTES || found.uid() != geteuid().as_raw() {
        return Err(io::Error::other(
            "not a file of this daemon's user, or too large",
        ));
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Replaces the file. Without leases there is none.
pub(super) fn write<'a>(path: &Path, entries: impl Iterator<Item = &'a Entry>) -> io::Result<()> {
    let text: String = entries.map(Entry::line).collect();
    if text.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
    }
    let new = beside(path, ".new");
    // Left by a daemon that died before the rename. No other process uses this name while this one
    // has the socket.
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn entry(ports: RangeInclusive<Port>) -> Entry {
        Entry {
            uid: 7,
            pid: Some(std::process::id()),
            interface: "eth0".into(),
            ports,
        }
    }

    #[test]
    fn a_record_is_read_back() {
        let dir = TempDir::new();
        let path = beside(&dir.path().join("esp.sock"), ".leases");
        let unknown = Entry {
            pid: None,
            ..entry(1..=64)
        };
        let all = [entry(7000..=7000), entry(32768..=32799), unknown];
        write(&path, all.iter()).unwrap();
        assert_eq!(load(&path), all);
        write(&path, all[1..].iter()).unwrap();
        assert_eq!(load(&path), all[1..]);
        for _ in 0..2 {
            write(&path, std::iter::empty()).unwrap();
            assert!(!path.exists(), "without leases there is no file");
        }
    }

    #[test]
    fn malformed_lines_and_dead_processes_are_ignored() {
        let dir = TempDir::new();
        let path = dir.path().join("leases");
        // A process of our own that has ended and was reaped.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (dead, own) = (child.id(), std::process::id());
        let text = format!(
            "\n7 0 eth0\n7 0 eth0 9 8\n7 0 eth0 0 1\n7 0 eth0 1 65\n7 x eth0 5 5\n-1 0 eth0 5 5\n7 0  5 5\n\
             7 {dead} eth0 5 5\n7 {own} eth0 70000 70001\n7 {own} eth0 6 8\n9 {own} eth0 8 9\n9 {own} eth1 8 9\n7 1 e"
        );
        fs::write(&path, text).unwrap();
        let found = load(&path);
        assert_eq!(
            found,
            [
                entry(6..=8),
                Entry {
                    uid: 9,
                    interface: "eth1".into(),
                    ..entry(8..=9)
                }
            ]
        );
        fs::write(&path, [0xff; 100]).unwrap();
        assert!(load(&path).is_empty());
        fs::write(&path, "7 0 eth0 5 5\n".repeat(100_000)).unwrap();
        assert!(load(&path).is_empty(), "too long");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(load(&path).is_empty());
        // A symbolic link in place of the new file must not be followed.
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("leases.new")).unwrap();
        write(&path, std::iter::once(&entry(5..=5))).unwrap();
        assert_eq!(load(&path), [entry(5..=5)]);
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}
