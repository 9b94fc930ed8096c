//! Reads the facts about the daemon: connects, requests its state, and tries to get a lease.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use esp_client::control::{ErrorKind, Status};
use esp_client::{Client, EspError, EspListener, PATH_VARIABLE, socket_path};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

use super::files::{Files, cores};
use crate::esp::doctor::facts::{Counters, Daemon, Lease, Process, State, Unreached};

/// Reads the facts. Returns a client, too, if the daemon answers.
pub(super) fn read(files: &Files) -> (Daemon, Option<Client>) {
    let socket = socket_path();
    let (lease, reached, client) = match Client::shared() {
        Ok(client) => {
            // Tried before the state is read, because the daemon counts a refusal.
            let lease = lease(&client);
            (lease, Ok(state(&client)), Some(client))
        }
        Err(error) => (Lease::Unknown, Err(unreached(error)), None),
    };
    let process = client.as_ref().and_then(|_| serving(files, &socket));
    let serving = process.as_ref().map(|process| process.pid);
    let path = std::env::var(PATH_VARIABLE).unwrap_or_default();
    let daemon = Daemon {
        others: others(files, serving),
        reached,
        process,
        path,
        lease,
        socket,
    };
    (daemon, client)
}

fn state(client: &Client) -> Result<State, String> {
    let state = |status: Status| State {
        counters: counters(&status),
        version: status.daemon,
        uptime_s: status.uptime_s,
        interfaces: status.interfaces,
        ..State::default()
    };
    client.status().map(state).map_err(|e| e.to_string())
}

/// Reads the counters again.
pub(super) fn read_again(client: &Client, daemon: &mut Daemon, between: Duration) {
    let Ok(Ok(state)) = &mut daemon.reached else {
        return;
    };
    if let Ok(status) = client.status() {
        state.later = counters(&status);
        state.between = between;
    } else {
        state.later.clone_from(&state.counters);
    }
}

fn counters(status: &Status) -> Counters {
    let entry =
        |c: &esp_client::control::CounterStatus| ((c.interface.clone(), c.name.clone()), c.value);
    status.counters.iter().map(entry).collect()
}

fn unreached(error: EspError) -> Unreached {
    match error {
        EspError::Unreachable { kind, .. } => match kind {
            io::ErrorKind::NotFound => Unreached::NoSocket,
            io::ErrorKind::ConnectionRefused => Unreached::Stale,
            io::ErrorKind::PermissionDenied => Unreached::NoPermission,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Unreached::Silent,
            _ => Unreached::Other(error.to_string()),
        },
        EspError::DaemonSilent { .. } => Unreached::Silent,
        EspError::BadControl { source, .. } => Unreached::Version(source.to_string()),
        EspError::Denied {
            kind: ErrorKind::Version | ErrorKind::BadRequest,
            message,
        } => Unreached::Version(message),
        other => Unreached::Other(other.to_string()),
    }
}

/// Returns the process that serves the socket.
fn serving(files: &Files, socket: &Path) -> Option<Process> {
    let stream = UnixStream::connect(socket).ok()?;
    let listener = getsockopt(&stream, PeerCredentials).ok()?;
    process(files, u32::try_from(listener.pid()).ok()?)
}

fn process(files: &Files, pid: u32) -> Option<Process> {
    let status = format!("proc/{pid}/status");
    // A number in the lock file may belong to another process by now.
    if files.value(&status, "Name")? != "esp-daemon" {
        return None;
    }
    let capabilities = files.value(&status, "CapEff")?;
    Some(Process {
        pid,
        capabilities: u64::from_str_radix(&capabilities, 16).ok()?,
        cores: cores(
            &files
                .value(&status, "Cpus_allowed_list")
                .unwrap_or_default(),
        ),
    })
}

/// Returns the other daemons of this network namespace. Only the superuser sees those of other
/// users.
fn others(files: &Files, serving: Option<u32>) -> Vec<u32> {
    let namespace = |process: &str| {
        std::fs::read_link(files.path(format!("proc/{process}/ns/net")))
            .ok()
            .map(|link| link.as_os_str().as_bytes().to_vec())
    };
    let Some(own) = namespace("self") else {
        return Vec::new();
    };
    files
        .names("proc")
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|pid| Some(*pid) != serving)
        .filter(|pid: &u32| {
            files.value(format!("proc/{pid}/status"), "Name").as_deref() == Some("esp-daemon")
                && namespace(&pid.to_string()).as_ref() == Some(&own)
        })
        .collect()
}

/// Tries to get a lease, and returns it.
fn lease(client: &Client) -> Lease {
    if !client.may_lease(esp_client::Path::Auto) {
        return Lease::Forbidden;
    }
    let mut interfaces = client.interfaces().into_iter();
    let Some(interface) = interfaces.find(|i| i.up && !i.addr.is_udp()) else {
        return Lease::Unknown;
    };
    let listener = EspListener::builder()
        .interface(&interface.name)
        .path(esp_client::Path::Lease)
        .bind_at(client, 0);
    match listener {
        Ok(_) => Lease::Granted,
        Err(error) => Lease::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::Planted;
    use super::*;

    #[test]
    fn only_a_process_of_the_daemon_is_taken_for_it() {
        let status = |name| format!("Name:\t{name}\nCapEff:\t2000\nCpus_allowed_list:\t0,2\n");
        let planted = Planted::new(
            "daemon",
            &[
                ("proc/7/status", &status("esp-daemon")),
                ("proc/8/status", &status("cat")),
                ("proc/9/status", "Name:\tesp-daemon\n"),
            ],
        );
        let files = planted.files();
        let expected = Process {
            pid: 7,
            capabilities: 1 << 13,
            cores: cores("0,2"),
        };
        assert_eq!(process(&files, 7), Some(expected));
        for other in [8, 9, 10] {
            assert_eq!(process(&files, other), None);
        }
    }
}
