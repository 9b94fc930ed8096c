//! `esplab rsh`: runs a shell command in a node of a lab, with the arguments of ssh.

use std::ffi::{OsStr, OsString};

use clap::Args;

use super::Name;
use cli::out::{Failure, Verdict};
use lab::{LabError, Node};

/// Run a shell command in a node, with the arguments of ssh, for launchers of MPI jobs
///
/// Examples: mpirun --mca plm_rsh_agent "$ESPLAB_RSH" …, mpiexec -launcher ssh -launcher-exec
/// "$ESPLAB_RSH" …; docs/launchers.md has the full commands. Options of ssh before the node are
/// accepted and ignored.
#[derive(Debug, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    name: Name,
    /// [OPTIONS OF SSH] NODE CMD…: the node is node1, or 1; the words of the command are joined by
    /// spaces and passed to sh
    #[arg(
        value_name = "NODE",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    words: Vec<OsString>,
}

/// Options of ssh that have a value.
const WITH_VALUE: &str = "BbcDEeFIiJLlmOopQRSWw";

/// Parses the arguments. Returns the node, and the line for its shell.
fn plan(words: &[OsString]) -> Result<(usize, OsString), LabError> {
    let mut words = words.iter();
    let node = loop {
        let word = words.next().ok_or_else(|| {
            LabError::BadOption("rsh: no node was given: write node0, node1, …".into())
        })?;
        let Some(option) = word.to_str().and_then(|w| w.strip_prefix('-')) else {
            break word;
        };
        // `-l user` has a separate value, `-luser` and `-x` have none.
        if option.len() == 1 && WITH_VALUE.contains(option) {
            words.next();
        }
    };
    let text = node.to_string_lossy();
    let host = text.rsplit_once('@').map_or(&*text, |(_user, host)| host);
    let Node(number) = host.parse()?;
    let line = words
        .map(OsString::as_os_str)
        .collect::<Vec<_>>()
        .join(OsStr::new(" "));
    if line.is_empty() {
        return Err(LabError::BadOption(
            "rsh: no command was given (a shell: esplab exec NODE sh)".into(),
        ));
    }
    Ok((number, line))
}

pub(super) fn run(flags: Flags) -> Result<Verdict, Failure> {
    let (node, line) = plan(&flags.words)?;
    let command = ["/bin/sh".into(), "-c".into(), line];
    Err(lab::exec(&flags.name.resolve(), node, &[], &command).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(line: &str) -> Result<(usize, String), String> {
        let words: Vec<OsString> = line
            .split(' ')
            .filter(|w| !w.is_empty())
            .map(Into::into)
            .collect();
        let planned = plan(&words).map_err(|e| e.to_string());
        planned.map(|(node, line)| (node, line.to_string_lossy().into_owned()))
    }

    #[test]
    fn arguments_of_launchers_are_parsed() {
        for (line, node, command) in [
            ("node1 true", 1, "true"),
            ("-x node12 'a b' --x", 12, "'a b' --x"),
            (
                "-o StrictHostKeyChecking=no -q -luser -p 22 root@node0 ls -l",
                0,
                "ls -l",
            ),
            ("3 ls", 3, "ls"),
        ] {
            assert_eq!(planned(line), Ok((node, command.to_owned())), "{line}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            "",
            "-x",
            "-l node1",
            "node1",
            "node ls",
            "node01 ls",
            "host ls",
            "node-1 ls",
            "+1 ls",
        ] {
            assert!(planned(line).is_err(), "{line}: {:?}", planned(line));
        }
    }
}
