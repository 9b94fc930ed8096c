//! Identity of a process: its kernel and namespaces, and the time it started.

use std::fs;
use std::io;

use rustix::fs::{CWD, StatxFlags};

use crate::address::sum;

/// The kernel and namespaces of a process, which show whether two processes share a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    /// Hash of the id of this boot of this kernel.
    pub(crate) boot: u64,
    /// Inodes of the namespaces.
    pub(crate) pid_ns: u64,
    pub(crate) net_ns: u64,
    pub(crate) user_ns: u64,
    /// Effective user id.
    pub(crate) uid: u32,
}

impl NodeView {
    /// Returns the view of the calling process.
    pub(crate) fn own() -> io::Result<NodeView> {
        Ok(NodeView {
            boot: sum(&fs::read("/proc/sys/kernel/random/boot_id")?),
            pid_ns: inode("/proc/self/ns/pid")?,
            net_ns: inode("/proc/self/ns/net")?,
            user_ns: inode("/proc/self/ns/user")?,
            uid: rustix::process::geteuid().as_raw(),
        })
    }
}

fn inode(path: &str) -> io::Result<u64> {
    let found = rustix::fs::statx(CWD, path, rustix::fs::AtFlags::empty(), StatxFlags::INO)
        .map(|stat| stat.stx_ino);
    Ok(found?)
}

/// Index of the start time, counted from the state.
const START: usize = 19;

/// Returns the start time of a process in clock ticks since boot; together with the process id it
/// is unique.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let time = field(&stat, START).and_then(|time| time.parse().ok());
    time.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns true if the process was stopped by a signal or a debugger, so that it may continue
/// later.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    matches!(field(&stat, 0), Some("T" | "t"))
}

/// Returns a field of `/proc/PID/stat`. Fields are counted from the command's closing bracket,
/// because the command may contain any character; 0 is the state.
fn field(stat: &[u8], index: usize) -> Option<&str> {
    let rest = stat.iter().rposition(|b| *b == b')')? + 1;
    let text = std::str::from_utf8(stat.get(rest..)?).ok()?;
    text.split_ascii_whitespace().nth(index)
}

/// Returns Yama's restriction of cross-memory attach, or `None` if the kernel has no Yama.
pub(crate) fn yama_scope() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_after_any_command_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        for name in ["a", "a) S 1 (", "\u{fc} x)"] {
            assert_eq!(
                field(format!("77 ({name}) {fields}").as_bytes(), START),
                Some("4242"),
                "{name}"
            );
        }
        assert_eq!(field(b"77 (x) S 1 2", START), None);
        assert_eq!(field(b"", START), None);
        assert_eq!(field(b"77 (T) T () S 1 2", 0), Some("S"));
        assert_eq!((field(b"77 (x)", 0), field(b"", 0)), (None, None));
        assert!(!is_stopped(std::process::id()));
        let own = start_time(std::process::id()).expect("procfs");
        assert_eq!(own, start_time(std::process::id()).expect("procfs"));
    }

    #[test]
    fn this_process_is_on_its_own_node() {
        assert_eq!(
            NodeView::own().expect("procfs"),
            NodeView::own().expect("procfs")
        );
    }
}
