//! Starts other programs.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::outcome::{Failure, cannot_run, failed};

/// The cargo that started this program.
pub(crate) fn cargo<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// The command as a person would type it, without its environment.
pub(crate) fn line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Runs the command on this terminal; a status other than 0 is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    eprintln!("$ {}", line(command));
    let status = command.status().or_else(|e| not_started(command, &e))?;
    ended(command, status)
}

/// Runs the command and returns its standard output; its error output stays on this terminal.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let output = child
        .and_then(Child::wait_with_output)
        .or_else(|e| not_started(command, &e))?;
    ended(command, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the command and returns its status and both outputs, for the caller to judge.
pub(crate) fn quietly(command: &mut Command) -> Result<(ExitStatus, String), Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .or_else(|e| not_started(command, &e))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status, String::from_utf8_lossy(&text).into_owned()))
}

/// Finds a program in the PATH and in the administrator's folders, which users often lack there.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(|file| {
            let metadata = file.metadata();
            metadata.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

fn not_started<T>(command: &Command, error: &std::io::Error) -> Result<T, Failure> {
    cannot_run(format!("`{}` did not start: {error}", line(command)))
}

fn ended(command: &Command, status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    failed(format!("`{}` ended with {status}", line(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let result = output(&mut Command::new("no-such-program-here"));
        assert!(
            matches!(&result, Err(Failure::CannotRun(t)) if t.contains("no-such-program-here")),
            "{result:?}"
        );
        assert_eq!(find_program("no-such-program-here"), None);
        assert!(find_program("sh").is_some());
    }

    #[test]
    fn a_failing_program_is_a_failure() {
        let result = run(Command::new("sh").args(["-c", "exit 3"]));
        assert!(matches!(result, Err(Failure::Failed(_))), "{result:?}");
    }
}
