//! Enters a node: its network namespace, the lab's user namespace, and a matching view of the
//! files.
//!
//! Only a process with a single thread can join a user namespace: `esplab` itself joins and then
//! executes the command.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::{Context, LabError};
use crate::process::ProcessRef;

/// Joins the namespaces of a holder. The caller must have one thread.
pub(crate) fn join(holder: ProcessRef, user: bool) -> Result<(), LabError> {
    let doing = || format!("entering the namespace held by process {}", holder.pid);
    let fd = holder
        .open()
        .ok_or(std::io::ErrorKind::NotFound)
        .at(doing)?;
    let mut kinds = CloneFlags::CLONE_NEWNET;
    // A command run in a node is in the user namespace already and must not join it again.
    let user_namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user"));
    if user
        && user_namespace("self").at(doing)? != user_namespace(&holder.pid.to_string()).at(doing)?
    {
        kinds |= CloneFlags::CLONE_NEWUSER;
    }
    setns(fd, kinds).at(doing)
}

/// Sets the host name of the calling process, by which launchers distinguish hosts. Keeps the
/// machine's name if the system does not allow the change.
pub(crate) fn private_name(name: &str) {
    if unshare(CloneFlags::CLONE_NEWUTS).is_ok() {
        let _ = rustix::system::sethostname(name.as_bytes());
    }
}

/// Gives the calling process a mount namespace in which `/sys` shows the devices of its network
/// namespace and `/etc/hosts` lists the lab's nodes. The folder `here` shows the folder of the
/// node: launchers copy the environment from node to node, so paths in it must be valid on each.
/// The mounts are not visible outside.
///
/// Mounts that the system refuses are omitted. Returns true if `here` shows the folder `node`.
pub(crate) fn private_view(hosts: &Path, node: &Path, here: &Path) -> bool {
    let nothing: Option<&str> = None;
    let cut_off = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
        mount(
            nothing,
            "/",
            nothing,
            MsFlags::MS_REC | MsFlags::MS_SLAVE,
            nothing,
        )
    });
    if cut_off.is_err() {
        return false;
    }
    // The control groups are mounted below /sys and must stay visible: programs read their CPU
    // quota there.
    let groups = File::open("/sys/fs/cgroup").ok();
    if mount(
        Some("sysfs"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        nothing,
    )
    .is_ok()
        && let Some(groups) = groups
    {
        let from = format!("/proc/self/fd/{}", groups.as_raw_fd());
        let _ = mount(
            Some(from.as_str()),
            "/sys/fs/cgroup",
            nothing,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            nothing,
        );
    }
    let _ = mount(
        Some(hosts),
        "/etc/hosts",
        nothing,
        MsFlags::MS_BIND,
        nothing,
    );
    mount(Some(node), here, nothing, MsFlags::MS_BIND, nothing).is_ok()
}

/// Unmounts `here` of [`private_view`] if the calling process sees it; otherwise the folder could
/// not be removed.
pub(crate) fn leave_view(here: &Path) {
    let _ = umount2(here, MntFlags::MNT_DETACH);
}

/// Binds the calling thread to the cores, unless there are none.
pub fn pin(cpus: &[usize]) -> Result<(), LabError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(LabError::BadOption(format!(
                "invalid core {cpu}: the system supports no such number"
            )));
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set).at(|| format!("binding to the cores {cpus:?}"))
}

/// Executes the command in place of this process. Returns only an error.
pub(crate) fn become_command(command: &[OsString], set: impl FnOnce(&mut Command)) -> LabError {
    let Some((program, args)) = command.split_first() else {
        return LabError::BadOption("no command was given".into());
    };
    let mut command = Command::new(program);
    command.args(args);
    set(&mut command);
    LabError::Command {
        command: program.to_string_lossy().into_owned(),
        source: command.exec(),
    }
}

/// Appends the nodes to the lines of the host's `/etc/hosts`.
pub(crate) fn hosts_file(nodes: &str) -> String {
    let mut text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text + nodes
}
