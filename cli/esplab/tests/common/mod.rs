//! Helpers of the tests of the virtual cluster.
#![allow(dead_code, unreachable_pub)] // each test program uses a part of it

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::{Lab, LabError, LabOptions};

pub type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Returns the folder of the programs built for this test.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_esplab"))
        .parent()
        .expect("the program has a folder")
        .to_owned()
}

/// Returns a name that no other test uses.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "t-{what}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Reports that a test did not run; fails it if skipping is forbidden.
pub fn skip(why: &str) {
    assert!(
        std::env::var_os("ESP_TEST_REQUIRE_PRIVILEGE").is_none_or(|v| v != "1"),
        "a privilege is missing: {why}"
    );
    eprintln!("SKIPPED: {why}");
}

/// Returns the options of a small lab without daemons.
pub fn bare(nodes: usize) -> LabOptions {
    let mut options = LabOptions::new(nodes);
    options.daemon = false;
    options.programs = Some(programs());
    options
}

/// Creates a lab that test threads can enter; `None` (and SKIPPED) if the system does not allow it.
pub fn lab(options: &LabOptions) -> Option<Lab> {
    if !rustix::process::geteuid().is_root() {
        skip("threads can enter the nodes of root's labs only");
        return None;
    }
    match Lab::create(options) {
        Ok(lab) => Some(lab),
        Err(LabError::Forbidden(why)) => {
            skip(&why);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Runs esplab and returns its output.
pub fn esplab(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esplab"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("ESPLAB")
        .env_remove("ESPLAB_STATE");
    command.output().expect("esplab was built for this test")
}

/// Runs esplab and asserts this exit code; returns its standard output.
#[track_caller]
pub fn esplab_ends(args: &[&str], code: i32) -> String {
    let output = esplab(args);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(
        output.status.code(),
        Some(code),
        "esplab {args:?}\n{out}\n{err}"
    );
    out.into_owned()
}

/// Ends the lab of this name on drop.
pub struct Downer(pub String);

impl Drop for Downer {
    fn drop(&mut self) {
        let _ = lab::down(&self.0);
    }
}

/// Waits for a condition; panics after a time that only a broken program exceeds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
