//! Description of the machine and of the run.

use std::fs;
use std::time::SystemTime;

use crate::cores::Cores;

/// Returns the date of today, such as 2026-01-31.
pub(crate) fn date() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}

/// Label and value.
pub(crate) type Fact = (&'static str, String);

/// Returns a table of the facts.
pub(super) fn table(facts: &[Fact]) -> String {
    let row = |(label, value): &Fact| format!("| {label} | {value} |\n");
    let rows: String = facts.iter().map(row).collect();
    format!("| the machine of the last run | |\n| --- | --- |\n{rows}")
}

/// Returns the facts that distinguish machines, in one line.
pub(crate) fn summary() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let text = format!(
        "{}, {} cores{}, Linux {}",
        model(&cpuinfo),
        processors(&cpuinfo),
        guest(&cpuinfo),
        read("/proc/sys/kernel/osrelease").trim()
    );
    text.replace(char::is_control, " ")
        .chars()
        .take(100)
        .collect()
}

/// Returns the facts that a figure depends on.
pub(crate) fn facts(cores: &Cores) -> Vec<Fact> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let cpuinfo = read("/proc/cpuinfo");
    let processors = processors(&cpuinfo);
    let user = if rustix::process::geteuid().is_root() {
        "root, which has CAP_NET_RAW and may lease ports"
    } else {
        "an ordinary user, who is root in the lab's user namespace"
    };
    let build = if cfg!(debug_assertions) {
        ", built without optimisation: the figures of ESP are too low"
    } else {
        ", optimised"
    };
    vec![
        ("version", format!("{}{build}", env!("CARGO_PKG_VERSION"))),
        (
            "kernel",
            format!("Linux {}, {}", kernel.trim(), std::env::consts::ARCH),
        ),
        (
            "processor",
            format!("{}, {processors} cores{}", model(&cpuinfo), guest(&cpuinfo)),
        ),
        ("cores used", cores.to_string()),
        (
            "links",
            "virtual: network namespaces, veth pairs and a bridge; the MTU is in each table".into(),
        ),
        ("run by", user.into()),
    ]
}

/// Returns the number of processors.
fn processors(cpuinfo: &str) -> usize {
    let lines = cpuinfo.lines();
    lines.filter(|line| line.starts_with("processor")).count()
}

/// Returns the model name of the first processor.
fn model(cpuinfo: &str) -> &str {
    cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim())
}

fn guest(cpuinfo: &str) -> &'static str {
    let has_flag = |line: &str| {
        line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor")
    };
    if cpuinfo.lines().any(has_flag) {
        ", in a virtual machine"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_described() {
        let text = "processor\t: 0\nmodel name\t: Fast 9000\nflags\t\t: fpu hypervisor sse\n";
        assert_eq!(
            (model(text), guest(text)),
            ("Fast 9000", ", in a virtual machine")
        );
        assert_eq!((model(""), guest("")), ("unknown processor", ""));
    }
}
