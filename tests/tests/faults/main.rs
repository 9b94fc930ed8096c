//! Each system call of a client program, and of a daemon, fails in turn: nothing hangs, crashes,
//! leaks or delivers wrong bytes, and the daemon keeps no resources.
//!
//! For each call one error is tried at one place; with `ESP_FAULTS=all` all errors at many places
//! (minutes: run it by `cargo test -p esp-tests --test faults`).

mod client;
mod daemon;
mod strace;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::{Command, Stdio};

use esp_client::{EspListener, EspStream};
use esp_tests::process::{Finished, TempFile, programs};
use esp_tests::{byte, client};
use lab::Lab;

/// Port of the service that sends back what it receives.
const PORT: u16 = 7000;
/// Length of a transfer there and back.
const LENGTH: u64 = 60_000;

/// A service on node 1 that sends back what it receives, until the process ends.
fn echo(lab: &Lab) {
    let listener = EspListener::builder();
    let listener = listener.bind_at(&client(lab, 1), PORT).expect("listen");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            std::thread::spawn(move || send_back(&stream));
        }
    });
}

/// Clients end in every way, so this test ignores errors.
fn send_back(mut stream: &EspStream) -> Option<()> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    stream.write_all(&all).ok()?;
    stream.shutdown(Shutdown::Write).ok()
}

/// The bytes of a transfer.
struct Content(Vec<u8>, TempFile);

impl Content {
    fn new() -> Content {
        let bytes: Vec<u8> = (0..LENGTH).map(|at| byte(at, 5)).collect();
        let file = TempFile::new("");
        std::fs::write(file.path(), &bytes).expect("write a file");
        Content(bytes, file)
    }
}

/// A transfer's end.
#[derive(Debug)]
struct Transfer {
    finished: Finished,
    bytes: Vec<u8>,
}

impl Transfer {
    /// Runs espcat on node 0 through a wrapper, with this content and a limit of time.
    fn run(lab: &Lab, content: &Content, wrapper: &[String]) -> Transfer {
        let mut command: Command = lab.command(0, "timeout").expect("a command");
        command.args(["-k", "5", "40"]).args(wrapper);
        command.arg(programs().join("espcat"));
        command.args(["-w", "5", "node1", &PORT.to_string()]);
        let input = std::fs::File::open(content.1.path()).expect("open a file");
        let done = command.stdin(input).stderr(Stdio::piped()).output();
        let done = done.expect("run espcat");
        Transfer {
            finished: Finished {
                code: done.status.code(),
                out: String::new(),
                err: String::from_utf8_lossy(&done.stderr).into_owned(),
            },
            bytes: done.stdout,
        }
    }

    /// Returns what is wrong: a hang, a crash, wrong bytes, or an error without a text.
    fn fault(&self, content: &Content) -> Option<&'static str> {
        let Finished { code, err, .. } = &self.finished;
        if let Some(what) = crash(*code, err) {
            return Some(what);
        }
        match code {
            Some(0) if self.bytes != content.0 => Some("success with wrong bytes"),
            Some(0) => None,
            _ if err.trim().is_empty() => Some("an error without a text"),
            _ if !content.0.starts_with(&self.bytes) => Some("wrong bytes before an error"),
            _ => None,
        }
    }
}

/// Returns how a program ended that did not end by itself.
fn crash(code: Option<i32>, err: &str) -> Option<&'static str> {
    match code {
        Some(124 | 137) => Some("a hang"),
        _ if err.contains("panicked") => Some("a panic"),
        // The language has no other answer to an allocation that fails.
        _ if err.contains("memory allocation of") => None,
        None | Some(128..) => Some("a crash"),
        _ => None,
    }
}

/// Asserts that nothing failed, and that faults took place.
#[track_caller]
fn conclude(tried: usize, injected: usize, failures: &[String]) {
    eprintln!("{injected} of {tried} faults took place");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(
        2 * injected > tried && injected > 5,
        "{injected} of {tried}"
    );
}

/// Returns the path's last name.
fn name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .expect("a name")
}
