//! Holders: small processes whose only work is to be in a namespace, so that it exists.
//!
//! A holder is started with a pipe on its standard input, the *leash*. It makes its namespace, says
//! `ready` on its standard output, and waits for `go`, which comes when it has been written down in
//! the lab's state; without it, it ends, so that a creator that dies leaves nobody behind
//! unrecorded.
//!
//! The first holder, the switch's, keeps watching its leash: when the creator dies before it has
//! said `keep`, by whatever signal, this holder ends everything of the lab. So a half-made lab
//! never stays, nor does one that belongs to a program (a benchmark, a test) that was killed.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::process::{getegid, geteuid, setsid};

use crate::error::{At, LabError};
use crate::process::ProcessRef;
use crate::state::State;
use crate::teardown;

/// In which user namespace a holder makes its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNs {
    /// That of the caller, who is superuser there.
    Same,
    /// A new one, in which the caller's user is the superuser.
    New,
    /// The one of this other holder.
    Of(ProcessRef),
}

/// A holder that has been started and waits for `go`.
pub(crate) struct Holder {
    pub process: ProcessRef,
    pub child: Child,
    pub leash: ChildStdin,
}

impl Holder {
    /// Starts one and waits until its namespace is there. `watch`: the lab's folder, for the
    /// switch's holder.
    pub(crate) fn start(
        esplab: &Path,
        user: UserNs,
        watch: Option<&Path>,
    ) -> Result<Holder, LabError> {
        let doing = || format!("starting {} hold", esplab.display());
        let mut command = Command::new(esplab);
        command.arg("hold");
        let option = match user {
            UserNs::Same => Vec::new(),
            UserNs::New => vec!["--new-user".to_owned()],
            UserNs::Of(ProcessRef { pid, start }) => {
                vec!["--user-of".to_owned(), format!("{pid}:{start}")]
            }
        };
        command.args(option);
        if let Some(dir) = watch {
            command.arg("--watch").arg(dir);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().at(doing)?;
        match greeting(&mut child).at(doing) {
            Ok((process, leash)) => Ok(Holder {
                process,
                child,
                leash,
            }),
            Err(e) => {
                // It has ended, or does when the pipes of `child` close.
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

/// Lets a holder stay.
pub(crate) fn say(leash: &mut ChildStdin, word: &str) -> Result<(), LabError> {
    writeln!(leash, "{word}").at(|| "telling a namespace holder to stay".into())
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
        _ => Err(io::Error::other("it ended without a word")),
    }
}

/// The life of a holder process.
pub fn hold(user: UserNs, watch: Option<PathBuf>) -> io::Result<()> {
    // Out of the terminal's reach: Ctrl-C is for the creator. Fails only for a process that leads a
    // group already.
    let _ = setsid();
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
    // Descriptor 1 is closed for good, so that nobody who reads the creator's pipe waits for us.
    writeln!(io::stdout(), "ready")?;
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null.as_fd())?;

    let mut words = BufReader::new(io::stdin()).lines().map_while(Result::ok);
    if words.next().as_deref() != Some("go") {
        return Ok(());
    }
    if let Some(dir) = watch
        && words.next().as_deref() != Some("keep")
    {
        abandoned(&dir);
        return Ok(());
    }
    loop {
        std::thread::park();
    }
}

/// The creator died: ends everything that is written down, but not this process, which ends by
/// itself.
fn abandoned(dir: &Path) {
    if let Ok(Some(state)) = State::read(dir) {
        let me = ProcessRef::me().ok();
        if state.switch.is_some() && state.switch == me {
            // Nobody is left to hear of an error.
            let _ = teardown(&state, dir, me);
        }
    }
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
                .ok_or_else(|| io::Error::other("the first namespace holder is gone"))?;
            setns(fd, CloneFlags::CLONE_NEWUSER)?;
            unshare(CloneFlags::CLONE_NEWNET).map_err(|e| forbidden(e.into(), true))
        }
    }
}

/// No IPv6: it talks by itself, and the lab's wire is to be silent unless somebody speaks. Kernels
/// without it have no such file.
fn quiet() {
    for which in ["all", "default"] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

/// Switches of distributions that forbid user namespaces: file, the value that forbids, how to
/// allow.
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

/// Says what the refusal of a namespace means and what to do about it.
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
            "this system does not let user {} make a network namespace ({error}): run as root, or ({remedy})",
            geteuid().as_raw()
        )
    } else {
        format!(
            "making a network namespace needs CAP_SYS_ADMIN ({error}): run as a user outside a container, or start the container with it"
        )
    };
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// The system's error numbers that mean "you may not".
mod libc_errno {
    use rustix::io::Errno;
    pub(super) const EPERM: i32 = Errno::PERM.raw_os_error();
    pub(super) const EACCES: i32 = Errno::ACCESS.raw_os_error();
    pub(super) const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
    pub(super) const EUSERS: i32 = Errno::USERS.raw_os_error();
}
