//! Checks of the machine: permissions and limits of the kernel, and settings that cost time.

use super::facts::{Facts, Host};
use super::finding::Finding;

/// Locked memory that RDMA needs for the queues and buffers of a small job, in bytes.
const MEMLOCK: u64 = 64 << 20;
/// Bit of `CAP_SYS_PTRACE`.
const SYS_PTRACE: u32 = 19;
/// Clock sources that programs can read only through the kernel or a slow device.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// Checks the machine.
pub(super) fn check(facts: &Facts, findings: &mut Vec<Finding>) {
    let host = &facts.host;
    memlock(host, findings);
    cross_memory(host, findings);
    governor(host, findings);
    cores(host, findings);
    clock(host, findings);
    buffers(host, findings);
}

fn memlock(host: &Host, findings: &mut Vec<Finding>) {
    let Some(limit) = host.memlock.filter(|limit| *limit < MEMLOCK) else {
        return findings.push(Finding::ok("host.memlock", "enough memory may be locked"));
    };
    let (kib, devices) = (limit >> 10, host.rdma.join(", "));
    let for_what = if host.rdma.is_empty() {
        "too little for RDMA, which this node does not have".to_owned()
    } else {
        format!("too little for RDMA over {devices}")
    };
    let text = format!("only {kib} KiB of memory may be locked: {for_what}");
    let finding = Finding::warning_if(!host.rdma.is_empty(), "host.memlock", text);
    findings.push(
        finding
            .fix("echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf; log in again"),
    );
}

/// Checks the direct copies between processes of a node (process_vm_readv).
fn cross_memory(host: &Host, findings: &mut Vec<Finding>) {
    if let Some(error) = &host.cross_memory {
        findings.push(
            Finding::warning(
                "host.cma",
                format!(
                    "a sandbox refuses copies between processes ({error}): long messages within \
                     the node are copied twice"
                ),
            )
            .fix("start the container with --cap-add SYS_PTRACE"),
        );
        return;
    }
    let privileged = host.capabilities & (1 << SYS_PTRACE) != 0;
    match host.ptrace_scope {
        Some(scope) if scope >= 3 || (scope == 2 && !privileged) => findings.push(
            Finding::warning(
                "host.ptrace",
                format!(
                    "kernel.yama.ptrace_scope is {scope}, which refuses copies between processes: \
                     long messages within the node are copied twice"
                ),
            )
            .fix(if scope >= 3 {
                "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d; 3 stays until a reboot"
            } else {
                "sysctl -w kernel.yama.ptrace_scope=1"
            }),
        ),
        _ => findings.push(Finding::ok(
            "host.cma",
            "processes may copy from each other",
        )),
    }
}

fn governor(host: &Host, findings: &mut Vec<Finding>) {
    let slow = host
        .governors
        .iter()
        .filter(|((governor, _), _)| governor != "performance");
    for ((governor, driver), cores) in slow {
        // With the pstate drivers, the device chooses the frequency even under this governor.
        let fixed =
            governor == "powersave" && !driver.ends_with("pstate") && driver != "amd-pstate-epp";
        let text = format!("{cores} cores have the frequency governor {governor} ({driver})");
        let finding = Finding::warning_if(fixed, "host.governor", text);
        findings.push(finding.fix("cpupower frequency-set -g performance"));
    }
}

fn cores(host: &Host, findings: &mut Vec<Finding>) {
    let cores = host.cores.len();
    if cores == 0 {
        return;
    }
    if let Some(quota) = host.quota.filter(|quota| *quota < cores as f64) {
        findings.push(
            Finding::note(
                "host.quota",
                format!(
                    "the control group is limited to {quota:.1} of {cores} cores, and throttled \
                     beyond that"
                ),
            )
            .fix("raise the CPU limit of the container or service (cpu.max, CPUQuota=)"),
        );
    }
    if host.load > cores as f64 {
        findings.push(
            Finding::note(
                "host.load",
                format!(
                    "{:.1} processes want to run on {cores} cores: messages wait for a core",
                    host.load
                ),
            )
            .fix("start fewer processes, or leave a core to the daemon"),
        );
    } else {
        findings.push(Finding::ok(
            "host.load",
            format!("load {:.1} on {cores} cores", host.load),
        ));
    }
}

fn clock(host: &Host, findings: &mut Vec<Finding>) {
    let Some(clock) = host.clock.as_deref() else {
        return;
    };
    if SLOW_CLOCKS.contains(&clock) {
        findings.push(
            Finding::warning(
                "host.clock",
                format!("the clock source {clock} takes microseconds to read"),
            )
            .fix("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"),
        );
    }
}

fn buffers(host: &Host, findings: &mut Vec<Finding>) {
    let limits = [("rmem_max", host.rmem_max), ("wmem_max", host.wmem_max)];
    let small = |(_, limit): &(&str, Option<u64>)| limit.is_some_and(|limit| limit < 1024 * 9216);
    if let Some((name, Some(limit))) = limits.into_iter().find(small) {
        findings.push(
            Finding::note(
                "host.buffers",
                format!(
                    "net.core.{name} is {limit}: without CAP_NET_ADMIN, sockets get no more, too \
                     little for fast links"
                ),
            )
            .fix("sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216"),
        );
    }
}
