//! Checks of the daemon: whether it can be reached, its version, its privileges, leases, refused
//! requests.

use std::time::Duration;

use super::facts::{Daemon, Facts, Lease, State, Unreached};
use super::finding::Finding;

/// Bit of `CAP_NET_RAW`.
const NET_RAW: u32 = 13;

/// Checks the daemon.
pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    let daemon = &facts.daemon;
    let socket = daemon.socket.display();
    let reached = match &daemon.reached {
        Err(why) => {
            findings.push(unreached(daemon, why));
            return;
        }
        Ok(reached) => reached,
    };
    match reached {
        Ok(state) => {
            let uptime = humantime::format_duration(Duration::from_secs(state.uptime_s as u64));
            let text = format!("esp-daemon {} at {socket}, up {uptime}", state.version);
            findings.push(Finding::ok("daemon.reached", text));
            version(state, findings);
            programs(state, findings);
        }
        Err(why) => findings.push(
            Finding::warning(
                "daemon.state",
                format!(
                    "its state cannot be read: {why}; counters and links are not checked (does it \
                     have another version?)"
                ),
            )
            .fix("install one version, then: systemctl restart esp-daemon"),
        ),
    }
    privilege(daemon, findings);
    lease(daemon, findings);
}

fn unreached(daemon: &Daemon, why: &Unreached) -> Finding {
    let socket = daemon.socket.display();
    let elsewhere = match daemon.others.first() {
        Some(pid) => format!("; process {pid} is an esp-daemon with another socket"),
        None => String::new(),
    };
    let start = match daemon.others.first() {
        Some(pid) => format!("export ESP_SOCKET=PATH, see: tr '\\0' ' ' < /proc/{pid}/cmdline"),
        None => "systemctl start esp-daemon (its log: journalctl -u esp-daemon)".into(),
    };
    match why {
        Unreached::NoSocket => Finding::error(
            "daemon.stopped",
            format!("no daemon: {socket} does not exist{elsewhere}"),
        )
        .fix(start),
        Unreached::Stale => Finding::error(
            "daemon.stale",
            format!("no daemon: {socket} was left behind by one that has ended{elsewhere}"),
        )
        .fix(start),
        Unreached::NoPermission => Finding::error(
            "daemon.permission",
            format!("this user may not use {socket}"),
        )
        .fix("set [socket] mode or group in esp-daemon.toml, or join that group"),
        Unreached::Silent => Finding::error(
            "daemon.silent",
            format!("the daemon at {socket} does not answer"),
        )
        .fix("systemctl restart esp-daemon (its log: journalctl -u esp-daemon)"),
        Unreached::Version(text) => Finding::error(
            "daemon.control",
            format!("the daemon at {socket} speaks another control version: {text}"),
        )
        .fix("install one version, then: systemctl restart esp-daemon"),
        Unreached::Other(text) => Finding::error("daemon.unreached", text)
            .fix("see the daemon's log: journalctl -u esp-daemon"),
    }
}

fn version(state: &State, findings: &mut Vec<Finding>) {
    let own = env!("CARGO_PKG_VERSION");
    if state.version != own {
        findings.push(
            Finding::warning(
                "daemon.version",
                format!(
                    "the daemon has version {}, this program {own}",
                    state.version
                ),
            )
            .fix("install one version, then: systemctl restart esp-daemon"),
        );
    }
}

/// Checks the privileges of the process that serves the socket.
fn privilege(daemon: &Daemon, findings: &mut Vec<Finding>) {
    let Some(process) = &daemon.process else {
        return;
    };
    if process.capabilities & (1 << NET_RAW) == 0 {
        findings.push(
            Finding::warning(
                "daemon.capability",
                format!(
                    "process {} lacks CAP_NET_RAW: it cannot open further packet sockets, for \
                     leases or interfaces that come back",
                    process.pid
                ),
            )
            .fix("setcap cap_net_raw+ep FILE of esp-daemon, or AmbientCapabilities=CAP_NET_RAW"),
        );
    }
}

fn lease(daemon: &Daemon, findings: &mut Vec<Finding>) {
    let wanted = daemon.path == "lease";
    match &daemon.lease {
        Lease::Unknown => {}
        Lease::Granted => findings.push(Finding::ok("daemon.lease", "this user may have leases")),
        Lease::Forbidden if wanted => findings.push(
            Finding::error(
                "daemon.lease",
                "ESP_PATH=lease, but the node's policy grants this user no lease: streams fail",
            )
            .fix("unset ESP_PATH, or: usermod -aG esp-lease USER"),
        ),
        Lease::Forbidden => findings.push(
            Finding::note(
                "daemon.lease",
                "this user may not have a lease: messages take the daemon's path, which is slower",
            )
            .fix("usermod -aG esp-lease USER, or [lease] allow in esp-daemon.toml"),
        ),
        Lease::Failed(why) => findings.push(
            Finding::warning(
                "daemon.lease",
                format!("this user may have leases, but got none: {why}"),
            )
            .fix("see limits.leases and limits.ring_bytes in esp-daemon.toml"),
        ),
    }
}

/// Checks requests that the daemon has refused, and programs that corrupted memory.
fn programs(state: &State, findings: &mut Vec<Finding>) {
    let limit = state.counter("", "refused_limit");
    if limit > 0 {
        findings.push(
            Finding::warning_if(
                state.rise("", "refused_limit") > 0,
                "daemon.limits",
                format!("{limit} requests of programs were refused because a limit was reached"),
            )
            .fix("raise [limits] in esp-daemon.toml, then: systemctl reload esp-daemon"),
        );
    }
    let corrupt = state.counter("", "programs_corrupted_memory");
    if corrupt > 0 {
        findings.push(
            Finding::warning(
                "daemon.corrupted",
                format!("{corrupt} programs corrupted the memory that they share with the daemon"),
            )
            .fix("look for defects in these programs: journalctl -u esp-daemon"),
        );
    }
}
