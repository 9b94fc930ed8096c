//! Reads the facts of the machine.

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use super::files::{Files, cores};
use crate::esp::doctor::facts::Host;

pub(super) fn read(files: &Files) -> Host {
    let status = "proc/self/status";
    let usable = cores(&files.value(status, "Cpus_allowed_list").unwrap_or_default());
    let capabilities = files.value(status, "CapEff").unwrap_or_default();
    let mut governors = BTreeMap::new();
    for core in &usable {
        let folder = format!("sys/devices/system/cpu/cpu{core}/cpufreq");
        if let Some(governor) = files.text(format!("{folder}/scaling_governor")) {
            let driver = files.text(format!("{folder}/scaling_driver"));
            let key = (governor, driver.unwrap_or_default());
            *governors.entry(key).or_default() += 1;
        }
    }
    let load = files.text("proc/loadavg").unwrap_or_default();
    Host {
        memlock: memlock(&files.text("proc/self/limits").unwrap_or_default()),
        rdma: files.names("sys/class/infiniband"),
        ptrace_scope: files.number("proc/sys/kernel/yama/ptrace_scope"),
        capabilities: u64::from_str_radix(&capabilities, 16).unwrap_or(0),
        cross_memory: cross_memory(),
        governors,
        cores: usable,
        quota: quota(&files.text("sys/fs/cgroup/cpu.max").unwrap_or_default()),
        load: load
            .split_whitespace()
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or(0.0),
        clock: files.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
        rmem_max: files.number("proc/sys/net/core/rmem_max"),
        wmem_max: files.number("proc/sys/net/core/wmem_max"),
    }
}

/// Returns the soft limit of locked memory in the text of `/proc/self/limits`; `None` if there is
/// none.
fn memlock(limits: &str) -> Option<u64> {
    let behind = |line: &str| Some(line.strip_prefix("Max locked memory")?.trim().to_owned());
    let values = limits.lines().find_map(behind)?;
    values.split_whitespace().next()?.parse().ok()
}

/// Returns the number of cores in the text of `cpu.max` (cgroup v2): `QUOTA PERIOD`, or `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// Copies a byte of this process by process_vm_readv(2), which only a sandbox refuses. Returns the
/// error.
fn cross_memory() -> Option<String> {
    let from = [7u8];
    let mut to = [0u8];
    let remote = RemoteIoVec {
        base: from.as_ptr().addr(),
        len: 1,
    };
    let copied = process_vm_readv(getpid(), &mut [IoSliceMut::new(&mut to)], &[remote]);
    copied.err().map(|errno| errno.desc().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_locked_memory_is_parsed() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max locked memory         65536                8388608              bytes\n";
        assert_eq!(memlock(text), Some(65536));
        assert_eq!(memlock(&text.replace("65536  ", "unlimited")), None);
        assert_eq!(memlock(""), None);
    }

    #[test]
    fn the_quota_of_a_control_group_is_parsed() {
        assert_eq!(quota("150000 100000"), Some(1.5));
        for none in ["max 100000", "", "1", "1 0", "x y"] {
            assert_eq!(quota(none), None, "{none}");
        }
    }

    #[test]
    fn a_process_may_copy_from_itself() {
        assert_eq!(cross_memory(), None);
    }
}
