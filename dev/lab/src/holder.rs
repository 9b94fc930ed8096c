//! Holders: processes that keep a namespace alive.
//!
//! A holder is started with a pipe on its standard input, the *leash*. It creates its namespace,
//! writes `ready` to its standard output and waits for `go`, which the creator sends once the
//! holder is recorded in the lab's state. If the creator dies before that, the pipe closes and the
//! holder ends.
//!
//! The first holder, that of the switch, keeps watching its leash: if it closes before `keep`, this
//! holder ends all processes of the lab. A half-created lab, or that of a killed benchmark,
//! therefore ends. After `complete` it also watches the other holders; see [`watch`](crate::watch).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{getegid, geteuid};

use crate::error::{Context, LabError};
use crate::process::ProcessRef;
use crate::watch::{Words, remove_unfinished, watch_nodes, watch_switch};

/// User namespace of a holder's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNs {
    /// The caller's namespace, where the caller is superuser.
    Same,
    /// A new namespace, in which the caller's user is superuser.
    New,
    /// The namespace of another holder.
    Of(ProcessRef),
}

/// Task of a holder once its namespace exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Holder of the switch: watches its creator and the nodes of the lab in this folder.
    Lab(PathBuf),
    /// Holder of a node: watches the switch's holder.
    Switch(ProcessRef),
}

/// A started holder that waits for `go`.
pub(crate) struct Holder {
    pub process: ProcessRef,
    pub child: Child,
    pub leash: ChildStdin,
}

impl Holder {
    /// Starts a holder and waits until its namespace exists.
    pub(crate) fn start(esplab: &Path, user: UserNs, watch: &Watch) -> Result<Holder, LabError> {
        let doing = || format!("starting {} hold", esplab.display());
        let mut command = Command::new(esplab);
        command.arg("hold");
        let option = match user {
            UserNs::Same => Vec::new(),
            UserNs::New => vec!["--new-user".to_owned()],
            UserNs::Of(holder) => vec!["--user-of".to_owned(), holder.to_string()],
        };
        command.args(option);
        match watch {
            Watch::Lab(dir) => command.arg("--lab").arg(dir),
            Watch::Switch(holder) => command.args(["--switch", &holder.to_string()]),
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C must reach the creator only.
            .process_group(0);
        let mut child = command.spawn().at(doing)?;
        match greeting(&mut child).at(doing) {
            Ok((process, leash)) => Ok(Holder {
                process,
                child,
                leash,
            }),
            Err(e) => {
                // It has ended, or ends when the pipes of `child` close.
                let _ = child.kill();
                let _ = child.wait();
                match e {
                    LabError::Io { source, .. }
                        if source.kind() == io::ErrorKind::PermissionDenied =>
                    {
                        Err(LabError::Forbidden(source.to_string()))
                    }
                    e => Err(e),
                }
            }
        }
    }
}

/// Sends a command word to a holder.
pub(crate) fn say(leash: &mut ChildStdin, word: &str) -> Result<(), LabError> {
    writeln!(leash, "{word}").at(|| format!("sending `{word}` to a namespace holder"))
}

/// Waits for the first line of a new holder.
fn greeting(child: &mut Child) -> io::Result<(ProcessRef, ChildStdin)> {
    let missing = || io::Error::other("a pipe is missing");
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or_else(missing)?).read_line(&mut line)?;
    match line.trim().split_once(' ').unwrap_or((line.trim(), "")) {
        ("ready", _) => {
            let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
            Ok((
                ProcessRef::of(pid)?,
                child.stdin.take().ok_or_else(missing)?,
            ))
        }
        ("forbidden", text) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            text.to_owned(),
        )),
        ("error", text) => Err(io::Error::other(text.to_owned())),
        _ => Err(io::Error::other("it ended without a report")),
    }
}

/// Runs a holder process.
pub fn hold(user: UserNs, watch: &Watch) -> io::Result<()> {
    let _ = std::env::set_current_dir("/");
    match make_namespace(user) {
        Ok(()) => quiet(),
        Err(e) => {
            let word = if e.kind() == io::ErrorKind::PermissionDenied {
                "forbidden"
            } else {
                "error"
            };
            let _ = writeln!(io::stdout(), "{word} {e}");
            return Err(e);
        }
    }
    let mut words = Words::default();
    let is_wanted = report_ready().is_ok() && words.next().as_deref() == Some("go");
    match watch {
        Watch::Lab(dir) if is_wanted => watch_nodes(dir, words),
        Watch::Lab(dir) => {
            remove_unfinished(dir);
            Ok(())
        }
        Watch::Switch(switch) if is_wanted => watch_switch(*switch),
        Watch::Switch(_) => Ok(()),
    }
}

fn report_ready() -> io::Result<()> {
    writeln!(io::stdout(), "ready")?;
    // Readers of the creator's output must not wait for this process.
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null.as_fd())?)
}

fn make_namespace(user: UserNs) -> io::Result<()> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    match user {
        UserNs::Same => unshare(CloneFlags::CLONE_NEWNET).map_err(|e| forbidden(e.into(), false)),
        UserNs::New => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
                .map_err(|e| forbidden(e.into(), true))?;
            fs::write("/proc/self/setgroups", "deny")
                .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
                .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
                .map_err(|e| forbidden(e, true))
        }
        UserNs::Of(holder) => {
            let fd = holder
                .open()
                .ok_or_else(|| io::Error::other("the first namespace holder has ended"))?;
            setns(fd, CloneFlags::CLONE_NEWUSER)?;
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| forbidden(e.into(), true))
        }
    }
}

/// Disables IPv6, which sends frames by itself. Kernels without it have no such file.
fn quiet() {
    for which in ["all", "default"] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

/// Settings that forbid user namespaces: file, forbidding value, remedy.
const FORBIDDING: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "sysctl -w user.max_user_namespaces=10000",
    ),
];

/// Explains the refusal of a namespace and names the remedy.
fn forbidden(error: io::Error, user: bool) -> io::Error {
    if !matches!(
        error.raw_os_error(),
        Some(libc_errno::EPERM | libc_errno::EACCES | libc_errno::ENOSPC | libc_errno::EUSERS)
    ) {
        return error;
    }
    let text = if user {
        let known = FORBIDDING.iter().find(|(file, value, _)| {
            fs::read_to_string(file).is_ok_and(|now| now.trim() == *value)
        });
        let remedy = known.map_or("in a container, allow it user namespaces", |(_, _, how)| {
            how
        });
        format!(
            "user {} is not allowed to make a network namespace on this system ({error}): run as root, or ({remedy})",
            geteuid().as_raw()
        )
    } else {
        format!(
            "making a network namespace needs CAP_SYS_ADMIN ({error}): run as a user outside a container, or start the container with it"
        )
    };
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Returns true for the error numbers of a missing permission.
mod libc_errno {
    use rustix::io::Errno;
    pub(super) const EPERM: i32 = Errno::PERM.raw_os_error();
    pub(super) const EACCES: i32 = Errno::ACCESS.raw_os_error();
    pub(super) const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
    pub(super) const EUSERS: i32 = Errno::USERS.raw_os_error();
}
