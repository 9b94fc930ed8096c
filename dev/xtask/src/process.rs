//! Running other programs, so that a person sees which.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use crate::outcome::{Failure, cannot_run, failed};

/// The cargo this program was started by.
pub(crate) fn cargo<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// Cargo of the nightly toolchain, by way of rustup.
pub(crate) fn nightly_cargo<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(args);
    // What the stable cargo told us about itself is not true for the other one.
    for name in [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "LD_LIBRARY_PATH",
    ] {
        command.env_remove(name);
    }
    command
}

/// The same command. In CI, where nobody watches, it is ended with all that it started once `limit` is over.
pub(crate) fn patient(command: &Command, limit: Duration) -> Command {
    let in_ci = env::var_os("CI").is_some();
    copy(command, in_ci.then_some(limit))
}

fn copy(command: &Command, limit: Option<Duration>) -> Command {
    let mut copy = match limit {
        None => Command::new(command.get_program()),
        Some(limit) => {
            let mut timeout = Command::new("timeout");
            timeout
                .arg("--kill-after=20")
                .arg(limit.as_secs().to_string())
                .arg(command.get_program());
            timeout
        }
    };
    copy.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        copy.current_dir(dir);
    }
    copy
}

/// A command as one would type it, without its environment.
pub(crate) fn line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let program = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    let args = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(program)
        .chain(args)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs it on this terminal; a status other than 0 is a failure.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    announce(command);
    let status = command.status().or_else(|e| not_started(command, &e))?;
    ended(command, status)
}

/// Runs it and gives what it printed to its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    // Not `Command::output`, which would swallow what it says to its error output.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let output = child
        .and_then(Child::wait_with_output)
        .or_else(|e| not_started(command, &e))?;
    ended(command, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs it and gives its status and all that it printed, on either side, for the caller to judge.
pub(crate) fn quietly(command: &mut Command) -> Result<(ExitStatus, String), Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .or_else(|e| not_started(command, &e))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status, String::from_utf8_lossy(&text).into_owned()))
}

/// Which output of a program a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Standard,
    Error,
}

/// Runs it and gives each line of its outputs to `show`, which says whether to print it. Lines of one output keep their
/// order. Returns whether its status was 0.
pub(crate) fn filtered(
    command: &mut Command,
    mut show: impl FnMut(Output, &str) -> bool,
) -> Result<bool, Failure> {
    announce(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().or_else(|e| not_started(command, &e))?;
    let (standard, error) = (child.stdout.take(), child.stderr.take());
    let (lines, arrived) = std::sync::mpsc::sync_channel(64);
    thread::scope(|scope| {
        let second = lines.clone();
        scope.spawn(move || pass_on(standard, Output::Standard, &lines));
        scope.spawn(move || pass_on(error, Output::Error, &second));
        for (output, text) in arrived {
            if show(output, &text) {
                println!("{text}");
            }
        }
    });
    let status = child.wait().or_else(|e| not_started(command, &e))?;
    Ok(status.success())
}

/// Sends lines until there are no more.
fn pass_on(from: Option<impl Read>, output: Output, to: &SyncSender<(Output, String)>) {
    let Some(from) = from else { return };
    for bytes in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if to
            .send((output, String::from_utf8_lossy(&bytes).into_owned()))
            .is_err()
        {
            return;
        }
    }
}

/// Finds a program in the PATH, and where the superuser's programs are: users often have those not in their PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let is_program = |f: &PathBuf| {
        f.metadata()
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(is_program)
}

fn announce(command: &Command) {
    eprintln!("$ {}", line(command));
}

fn not_started<T>(command: &Command, error: &std::io::Error) -> Result<T, Failure> {
    cannot_run(format!("`{}` did not start: {error}", line(command)))
}

fn ended(command: &Command, status: ExitStatus) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(124) if command.get_program() == "timeout" => {
            failed(format!("`{}` took too long", line(command)))
        }
        _ => failed(format!("`{}` ended with {status}", line(command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filtered_sees_both_outputs_and_the_status() {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; printf three; exit 3"]);
        let passed = filtered(&mut command, |output, text| {
            seen.push((output == Output::Error, text.to_owned()));
            false
        });
        assert_eq!(passed, Ok(false));
        seen.sort();
        assert_eq!(
            seen,
            [
                (false, "one".into()),
                (false, "three".into()),
                (true, "two".into())
            ]
        );
    }

    #[test]
    fn a_limited_command_keeps_its_environment_and_is_ended() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "test \"$XTASK_PLANTED\" = yes && exec sleep 60"])
            .env("XTASK_PLANTED", "yes");
        let result = run(&mut copy(&command, Some(Duration::from_secs(1))));
        assert!(
            matches!(&result, Err(Failure::Failed(text)) if text.contains("too long")),
            "{result:?}"
        );
    }

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
}
