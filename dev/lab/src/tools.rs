//! Programs that create a lab: `ip`, `tc` and `nft` of the system, and our own.

use std::env;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Context, LabError};

/// A tool of the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub name: &'static str,
    debian: &'static str,
    fedora: &'static str,
}

pub(crate) const IP: Tool = Tool {
    name: "ip",
    debian: "iproute2",
    fedora: "iproute",
};
pub(crate) const TC: Tool = Tool {
    name: "tc",
    debian: "iproute2",
    fedora: "iproute-tc",
};
pub(crate) const SH: Tool = Tool {
    name: "sh",
    debian: "dash",
    fedora: "bash",
};
pub(crate) const NFT: Tool = Tool {
    name: "nft",
    debian: "nftables",
    fedora: "nftables",
};

impl Tool {
    /// Returns the tool's path. Also searches the superuser's folders, which often are not in PATH.
    pub(crate) fn find(self) -> Result<PathBuf, LabError> {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
            .map(|dir| dir.join(self.name))
            .find(|file| is_program(file))
            .ok_or(LabError::NoTool {
                tool: self.name,
                debian: self.debian,
                fedora: self.fedora,
            })
    }

    /// Runs the tool with `input` on its standard input by `enter`, a command that joins a
    /// namespace and runs its arguments. Returns its output.
    pub(crate) fn run(
        self,
        mut enter: Command,
        args: &[&str],
        input: &str,
        what: &str,
    ) -> Result<String, LabError> {
        let doing = || format!("{what}: running `{}`", self.name);
        enter.arg(self.find()?).args(args);
        enter
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = enter.spawn().at(doing)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that stops reading prints the reason.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().at(doing)?;
        if !output.status.success() {
            let text = one_line(&String::from_utf8_lossy(&output.stderr));
            return Err(LabError::Tool {
                what: what.to_owned(),
                tool: self.name,
                text,
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Joins lines into one.
pub(crate) fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

fn is_program(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Folder of our own programs.
#[derive(Clone, Debug)]
pub(crate) struct Programs(PathBuf);

impl Programs {
    /// Returns `dir`, or the folder of the running program; for a test in `deps`, the one above.
    pub(crate) fn locate(dir: Option<&Path>) -> Result<Programs, LabError> {
        if let Some(dir) = dir {
            return Ok(Programs(dir.to_owned()));
        }
        let exe = env::current_exe().at(|| "finding the running program".into())?;
        let mut dir = exe.parent().unwrap_or(Path::new("/"));
        if dir.file_name() == Some(OsStr::new("deps")) {
            dir = dir.parent().unwrap_or(dir);
        }
        Ok(Programs(dir.to_owned()))
    }

    /// Returns the folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// Returns `esplab`, which holds and enters the namespaces.
    pub(crate) fn esplab(&self) -> Result<PathBuf, LabError> {
        self.find("esplab", "cli")
    }

    /// Returns `esp-daemon`.
    pub(crate) fn daemon(&self) -> Result<PathBuf, LabError> {
        self.find("esp-daemon", "esp-daemon")
    }

    fn find(&self, program: &'static str, package: &'static str) -> Result<PathBuf, LabError> {
        let file = self.0.join(program);
        if is_program(&file) {
            Ok(file)
        } else {
            Err(LabError::NoProgram {
                program,
                package,
                dir: self.0.clone(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let tool = Tool {
            name: "no-such-tool-here",
            debian: "deb-x",
            fedora: "fed-y",
        };
        let text = tool
            .find()
            .map_err(|e| e.to_string())
            .expect_err("there is no such tool");
        assert!(
            text.contains("no-such-tool-here")
                && text.contains("apt install deb-x")
                && text.contains("dnf install fed-y"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_missing_program_names_the_command_to_build_it() {
        let programs = Programs(PathBuf::from("/nonexistent"));
        let text = programs
            .daemon()
            .map_err(|e| e.to_string())
            .expect_err("there is no such folder");
        assert!(
            text.contains("/nonexistent") && text.contains("cargo build -p esp-daemon"),
            "{text}"
        );
    }

    #[test]
    fn lines_are_joined() {
        assert_eq!(one_line("  a\n\n b \n"), "a; b");
    }
}
