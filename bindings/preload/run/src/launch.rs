//! Starts the broker, then becomes the program.

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cli::out::{self, Context, Failure, Verdict};
use esp_client::{Client, Protection};
use nix::unistd::{close, execvpe, geteuid};
use preload_wire::{Broker, VARIABLE};
use rustix::process::Signal;

use crate::broker::{READY, rules};
use crate::flags::Flags;

/// The library's file name.
const LIBRARY: &str = "libesp_preload.so";
/// Environment variable that makes the dynamic linker load the library.
const PRELOAD: &str = "LD_PRELOAD";
/// Environment variable that makes the library print why a call failed.
const VERBOSE: &str = "ESPRUN_VERBOSE";

/// Returns true if this process ignores SIGPIPE.
pub fn ignores_pipe() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|set| (set >> (Signal::PIPE.as_raw() - 1)) & 1 == 1)
}

/// Starts the broker and replaces this process with the program, which ignores SIGPIPE if
/// `ignores_pipe`.
pub(crate) fn run(flags: &Flags, ignores_pipe: bool) -> Result<Verdict, Failure> {
    let Some((program, arguments)) = flags.program.split_first() else {
        return Err(Failure::new("no program: write esprun PROGRAM"));
    };
    let library = library()?;
    rules::load(flags.rules.as_deref())?;
    if flags.tcp {
        // With an invalid key, the broker would leave all connections to TCP.
        Protection::from_environment().map_err(Failure::new)?;
    } else if let Err(error) = Client::shared() {
        out::note(format_args!(
            "esprun: {error}; without a daemon, sockets of AF_ENET fail with EAFNOSUPPORT"
        ));
    }
    let broker = Broker {
        id: random::<4>()?,
        secret: random::<16>()?,
        uid: geteuid().as_raw(),
        tcp: flags.tcp,
    };
    start(&broker, flags)?;
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut set = vec![(PRELOAD, preload), (VARIABLE, broker.value().into())];
    if flags.verbose {
        set.push((VERBOSE, "1".into()));
    }
    let error = if ignores_pipe {
        let Err(error) = exec_as_it_is(&flags.program, &set);
        error
    } else {
        Command::new(program).args(arguments).envs(set).exec()
    };
    let code = if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    };
    let text = format!("{}: {error}", program.to_string_lossy());
    Err(Failure::Command(code, text))
}

/// Replaces this process with a program, with these variables set. After [`CommandExt::exec`],
/// SIGPIPE would end the program.
fn exec_as_it_is(program: &[OsString], set: &[(&str, OsString)]) -> io::Result<Infallible> {
    let is_kept = |(name, _): &(OsString, OsString)| set.iter().all(|(own, _)| name != own);
    let own = set
        .iter()
        .map(|(name, value)| (OsString::from(name), value.clone()));
    let all = env::vars_os().filter(is_kept).chain(own);
    let variables = all.map(|(mut text, value)| {
        text.push("=");
        text.push(value);
        CString::new(text.into_vec())
    });
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    let arguments = program.iter().map(|text| CString::new(text.as_bytes()));
    let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
    let file = arguments.first().ok_or(ErrorKind::InvalidInput)?;
    Ok(execvpe(file, &arguments, &variables)?)
}

/// Returns the path of the library: in the folder of this program, or in the folder `lib/esp` or
/// `lib` next to that folder.
fn library() -> Result<PathBuf, Failure> {
    let exe = env::current_exe().doing("finding the running program")?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let above = dir.parent().unwrap_or(dir).join("lib");
    let places = [dir.to_owned(), above.join("esp"), above];
    let file = places.iter().map(|place| place.join(LIBRARY));
    let found = file.clone().find(|file| file.is_file());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        Failure::new(format_args!(
            "no {LIBRARY} in {}: install the package esp-preload, or copy it there",
            places.join(", ")
        ))
    })
}

/// Returns N random bytes in hexadecimal digits.
fn random<const N: usize>() -> Result<String, Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).doing("reading random numbers")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Starts the broker and waits until it serves. It is not a child of the program, which might wait
/// for children.
fn start(broker: &Broker, flags: &Flags) -> Result<(), Failure> {
    let mut command = own_command(std::process::id(), flags.rules.as_deref())?;
    let status = command
        .env(VARIABLE, broker.value())
        .stdin(Stdio::null())
        .status()
        .doing("starting the broker")?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new("the broker did not start; see above"))
}

/// Starts the broker as another process, waits until it serves, and lets it run.
pub(crate) fn detach(program: u32, rules: Option<&Path>) -> Result<Verdict, Failure> {
    close_inherited().doing("closing inherited descriptors")?;
    let mut command = own_command(program, rules)?;
    let mut child = command
        .arg("--serve")
        .stdout(Stdio::piped())
        .spawn()
        .doing("starting the broker")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .doing("waiting for the broker")?;
    }
    match line.trim_end() {
        READY => Ok(Verdict::Done),
        why => Err(Failure::new(format_args!("the broker has ended: {why}"))),
    }
}

/// Closes all descriptors except standard input, output and error. They are for the program: if the
/// broker kept them, the program's pipes would not end, and its sockets would stay bound. This
/// process has not opened any yet.
fn close_inherited() -> io::Result<()> {
    let mut inherited: Vec<RawFd> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        inherited.extend(number.filter(|number| *number > 2));
    }
    for number in inherited {
        // The descriptor of the folder itself is closed already.
        let _ = close(number);
    }
    Ok(())
}

fn own_command(program: u32, rules: Option<&Path>) -> Result<Command, Failure> {
    let exe = env::current_exe().doing("finding the running program")?;
    let mut command = Command::new(exe);
    command.arg("--broker-of").arg(program.to_string());
    // Under another esprun, too, the broker uses sockets of the kernel.
    command.env_remove(PRELOAD);
    if let Some(rules) = rules {
        let value: OsString = rules.as_os_str().to_owned();
        command.arg("--tcp").arg("--rules").arg(value);
    }
    Ok(command)
}
