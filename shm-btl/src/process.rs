//! Identity of a process: its kernel and namespaces, and the time it started.

use std::fs;
use std::io;

use rustix::fs::{CWD, StatxFlags};

/// The kernel and namespaces of a process, by which two processes find out that they share a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    /// Id of this boot of this kernel.
    pub(crate) boot: [u8; 16],
    /// Inodes of the namespaces.
    pub(crate) pid_ns: u64,
    pub(crate) net_ns: u64,
    pub(crate) user_ns: u64,
    /// Effective user id.
    pub(crate) uid: u32,
}

impl NodeView {
    /// Returns those of the calling process.
    pub(crate) fn own() -> io::Result<NodeView> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(NodeView {
            boot: parse_uuid(&boot).ok_or(io::ErrorKind::InvalidData)?,
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

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|b| *b != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

/// Returns the start time of a process in clock ticks since boot; together with the process id it
/// is unique. Field 22 of `/proc/PID/stat`, counted from the command's closing bracket, because the
/// command may contain any character.
pub(crate) fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns true if the process was stopped by a signal or a debugger, so that it may continue
/// later.
pub(crate) fn is_stopped(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| parse_stopped(&stat))
}

fn parse_stopped(stat: &[u8]) -> bool {
    let rest = stat
        .iter()
        .rposition(|b| *b == b')')
        .and_then(|at| stat.get(at + 2));
    matches!(rest, Some(b'T' | b't'))
}

fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let rest = stat.iter().rposition(|b| *b == b')')? + 1;
    let text = std::str::from_utf8(stat.get(rest..)?).ok()?;
    text.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns Yama's restriction of cross-memory attach, or `None` if the kernel has no Yama.
pub(crate) fn yama_scope() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_after_any_command_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        for name in ["a", "a) S 1 (", "\u{fc} x)"] {
            assert_eq!(
                parse_start_time(format!("77 ({name}) {fields}").as_bytes()),
                Some(4242),
                "{name}"
            );
        }
        assert_eq!(parse_start_time(b"77 (x) S 1 2"), None);
        assert_eq!(parse_start_time(b""), None);
        for (state, stopped) in [(b'T', true), (b't', true), (b'S', false), (b'R', false)] {
            let line = [b"77 (T) T (".as_slice(), b") ", &[state], b" 1 2"].concat();
            assert_eq!(parse_stopped(&line), stopped);
        }
        assert!(
            !parse_stopped(b"77 (x)") && !parse_stopped(b"") && !is_stopped(std::process::id())
        );
        let own = start_time(std::process::id()).expect("procfs");
        assert_eq!(own, start_time(std::process::id()).expect("procfs"));
    }

    #[test]
    fn a_boot_id_is_a_uuid() {
        assert_eq!(
            parse_uuid("00010203-0405-0607-0809-0a0b0c0d0e0f\n").map(|u| u[15]),
            Some(15)
        );
        for bad in [
            "",
            "00",
            "zz010203-0405-0607-0809-0a0b0c0d0e0f",
            "+1010203-0405-0607-0809-0a0b0c0d0e0",
        ] {
            assert_eq!(parse_uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_on_its_own_node() {
        assert_eq!(
            NodeView::own().expect("procfs"),
            NodeView::own().expect("procfs")
        );
    }
}
