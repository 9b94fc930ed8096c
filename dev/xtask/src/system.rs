//! System packages: what is needed, what is missing, and getting it.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::outcome::{Failure, cannot_run};
use crate::process::{find_program, line, output, run};

/// A program of the system, and the packages that bring it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    debian: &'static str,
    fedora: &'static str,
}

impl Tool {
    fn is_here(&self) -> bool {
        if !self.name.ends_with(".pc") {
            return find_program(self.name).is_some();
        }
        let multiarch = format!("/usr/lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH);
        let folders = [
            multiarch.as_str(),
            "/usr/lib64/pkgconfig",
            "/usr/lib/pkgconfig",
            "/usr/local/lib/pkgconfig",
        ];
        folders
            .iter()
            .any(|folder| Path::new(folder).join(self.name).is_file())
    }
}

const IP: Tool = Tool {
    name: "ip",
    debian: "iproute2",
    fedora: "iproute",
};
const TC: Tool = Tool {
    name: "tc",
    debian: "iproute2",
    fedora: "iproute-tc",
};
const NFT: Tool = Tool {
    name: "nft",
    debian: "nftables",
    fedora: "nftables",
};
const ETHTOOL: Tool = Tool {
    name: "ethtool",
    debian: "ethtool",
    fedora: "ethtool",
};
const CXX: Tool = Tool {
    name: "c++",
    debian: "g++",
    fedora: "gcc-c++",
};
const MPIRUN: Tool = Tool {
    name: "mpirun.openmpi",
    debian: "openmpi-bin",
    fedora: "openmpi",
};
const MPIEXEC: Tool = Tool {
    name: "mpiexec.hydra",
    debian: "mpich",
    fedora: "mpich",
};
/// Its headers say whether our bindings are right. The package has no program, but this file of pkg-config.
const PMIX: Tool = Tool {
    name: "pmix.pc",
    debian: "libpmix-dev",
    fedora: "pmix-devel",
};
/// The headers of the component's interface, and the compiler of MPI programs.
const OPENMPI: Tool = Tool {
    name: "ompi.pc",
    debian: "libopenmpi-dev",
    fedora: "openmpi-devel",
};
const NM: Tool = Tool {
    name: "nm",
    debian: "binutils",
    fedora: "binutils",
};

/// The virtual cluster.
pub(crate) const LAB: &[Tool] = &[IP, TC, NFT];
/// All tests and gates; the C++ compiler builds the fuzzer's runtime.
pub(crate) const CI: &[Tool] = &[
    IP, TC, NFT, ETHTOOL, CXX, NM, MPIRUN, MPIEXEC, PMIX, OPENMPI,
];

/// Packages that are missing, and the command that would bring them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    tools: Vec<Tool>,
}

impl Missing {
    /// Which of `tools` are not on this machine; `None` when all are.
    pub(crate) fn of(tools: &[Tool]) -> Option<Missing> {
        Missing::by(tools, |tool| tool.is_here())
    }

    fn by(tools: &[Tool], present: impl Fn(&Tool) -> bool) -> Option<Missing> {
        let tools: Vec<Tool> = tools
            .iter()
            .copied()
            .filter(|tool| !present(tool))
            .collect();
        if tools.is_empty() {
            None
        } else {
            Some(Missing { tools })
        }
    }

    fn packages(&self, name: impl Fn(&Tool) -> &'static str) -> Vec<&'static str> {
        let mut packages: Vec<_> = self.tools.iter().map(name).collect();
        packages.dedup();
        packages
    }

    /// What a person types to get them.
    fn advice(&self, manager: Option<Manager>, root: bool) -> String {
        let sudo = if root { "" } else { "sudo " };
        let debian = self.packages(|t| t.debian).join(" ");
        let fedora = self.packages(|t| t.fedora).join(" ");
        match manager {
            Some(Manager::Apt) => format!("{sudo}apt-get install {debian}"),
            Some(Manager::Dnf) => format!("{sudo}dnf install {fedora}"),
            None => format!("install {debian} (Debian's names) or {fedora} (Fedora's)"),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.tools.iter().map(|t| format!("`{}`", t.name)).collect();
        write!(
            f,
            "{} missing; run: {}",
            names.join(", "),
            self.advice(Manager::here(), is_root())
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Apt,
    Dnf,
}

impl Manager {
    fn here() -> Option<Manager> {
        if find_program("apt-get").is_some() {
            return Some(Manager::Apt);
        }
        find_program("dnf").map(|_| Manager::Dnf)
    }
}

/// This process is the superuser's.
pub(crate) fn is_root() -> bool {
    // `id` is coreutils; without it we are not told, and a wrong `no` only costs a line of advice.
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Makes sure that the tools are there: installs what is missing where that needs no question to anybody (superuser,
/// apt-get), else says which command does it.
pub(crate) fn ensure(tools: &[Tool]) -> Result<(), Failure> {
    let Some(missing) = Missing::of(tools) else {
        return Ok(());
    };
    if !is_root() || Manager::here() != Some(Manager::Apt) {
        return cannot_run(missing.to_string());
    }
    let packages = missing.packages(|t| t.debian);
    eprintln!(
        "Installing the system packages {} (this machine lacks them)",
        packages.join(", ")
    );
    run(&mut apt(&["update", "-q"]))?;
    let mut install = apt(&["install", "-q", "-y", "--no-install-recommends"]);
    install.args(&packages);
    run(&mut install)?;
    match Missing::of(tools) {
        None => Ok(()),
        Some(still) => cannot_run(format!("`{}` was done, but {still}", line(&install))),
    }
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    command
}

/// The nightly toolchain answers, so fuzzing is possible.
pub(crate) fn has_nightly() -> bool {
    output(crate::process::nightly_cargo(["--version"]).stderr(Stdio::null())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_missing_says_nothing() {
        assert_eq!(Missing::by(LAB, |_| true), None);
    }

    #[test]
    fn one_package_is_named_once_and_as_the_distribution_calls_it() {
        let missing = Missing::by(LAB, |tool| tool.name == "nft").expect("two tools are missing");
        assert_eq!(
            missing.advice(Some(Manager::Apt), true),
            "apt-get install iproute2"
        );
        assert_eq!(
            missing.advice(Some(Manager::Apt), false),
            "sudo apt-get install iproute2"
        );
        assert_eq!(
            missing.advice(Some(Manager::Dnf), false),
            "sudo dnf install iproute iproute-tc"
        );
        assert!(missing.advice(None, false).contains("iproute2"));
        assert!(missing.to_string().starts_with("`ip`, `tc` missing; run: "));
    }
}
