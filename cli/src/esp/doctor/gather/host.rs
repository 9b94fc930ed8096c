//! Reads the facts about the machine.

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::getpid;

use super::files::{Files, cores};
use crate::esp::doctor::facts::Host;

/// Reads the facts.
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

/// Returns the soft limit on locked memory in the text of `/proc/self/limits`; `None` if it is
/// unlimited or missing.
fn memlock(limits: &str) -> Option<u64> {
    let after = |line: &str| Some(line.strip_prefix("Max locked memory")?.trim().to_owned());
    let values = limits.lines().find_map(after)?;
    values.split_whitespace().next()?.parse().ok()
}

/// Returns the number of cores in the text of `cpu.max` (cgroup v2): `QUOTA PERIOD`, or `max`.
fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// Copies a byte of this process by process_vm_readv(2), which only a sandbox refuses. Returns the
/// error, if any.
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
    use super::super::files::Planted;
    use super::*;

    #[test]
    fn facts_are_read_from_the_files_of_the_kernel() {
        let cpu = "sys/devices/system/cpu";
        let (governor, driver) = ("cpufreq/scaling_governor", "cpufreq/scaling_driver");
        let planted = Planted::new(
            "host",
            &[
                (
                    "proc/self/status",
                    "CapEff:\t80000\nCpus_allowed_list:\t1-2\n",
                ),
                (
                    "proc/self/limits",
                    "Max locked memory   65536   65536   bytes\n",
                ),
                ("proc/loadavg", "2.50 1.00 0.50 3/120 4711\n"),
                ("proc/sys/kernel/yama/ptrace_scope", "2\n"),
                ("proc/sys/net/core/rmem_max", "212992\n"),
                ("sys/class/infiniband/mlx5_0/node_guid", ""),
                ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
                (&format!("{cpu}/cpu0/{governor}"), "performance\n"),
                (&format!("{cpu}/cpu1/{governor}"), "powersave\n"),
                (&format!("{cpu}/cpu1/{driver}"), "acpi-cpufreq\n"),
            ],
        );
        let host = read(&planted.files());
        assert_eq!(host.memlock, Some(65536));
        assert_eq!(host.ptrace_scope, Some(2));
        assert_eq!(host.capabilities, 1 << 19);
        assert_eq!(host.rdma, ["mlx5_0"]);
        assert_eq!((host.load, host.quota), (2.5, Some(0.5)));
        assert_eq!((host.rmem_max, host.wmem_max), (Some(212_992), None));
        assert_eq!(host.clock, None);
        // This process may not use core 0.
        let slow = ("powersave".to_owned(), "acpi-cpufreq".to_owned());
        assert_eq!(host.governors, BTreeMap::from([(slow, 1)]));
    }

    #[test]
    fn files_that_are_missing_or_wrong_are_no_facts() {
        let planted = Planted::new(
            "wrong",
            &[
                ("proc/self/status", "CapEff:\tzz\nCpus_allowed_list:\t-\n"),
                ("proc/loadavg", "x"),
                ("proc/sys/kernel/yama/ptrace_scope", "-1"),
            ],
        );
        let host = read(&planted.files());
        assert_eq!((host.memlock, host.ptrace_scope), (None, None));
        assert_eq!((host.capabilities, host.load), (0, 0.0));
        assert!(host.cores.is_empty() && host.governors.is_empty());
    }

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
