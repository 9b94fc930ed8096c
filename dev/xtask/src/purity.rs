//! Proof that the protocol core reaches no clock and no I/O: a program without `std`, with a panic
//! handler of its own, is built from it.
//!
//! Were `std` anywhere in it, the compiler would refuse the second panic handler. That it does is
//! shown each time by a build with `std` planted. (`cargo xtask deny` keeps the list of crates that
//! the core is built with, and its `clippy.toml` bans clocks and sockets for its tests.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::outcome::{Failure, Outcome, cannot_run, failed};
use crate::process::{cargo, find_program, output, quietly};
use crate::workspace::{Workspace, root};

const CORE: &str = "esp-proto";

/// A static library: it contains everything the core needs, and nothing has to start it.
const MANIFEST: &str = r#"
[workspace]

[package]
name = "probe"
version = "0.0.0"
edition = "2024"
publish = false

[lib]
crate-type = ["staticlib"]
path = "probe.rs"

[features]
planted = []

[dependencies]
esp-proto = { path = "CORE_DIR" }

[profile.dev]
panic = "abort"
"#;

const PROGRAM: &str = r#"
#![no_std]

// The violation that the check must find: std brings a panic handler, too.
#[cfg(feature = "planted")]
extern crate std;
extern crate esp_proto;

use core::alloc::{GlobalAlloc, Layout};

struct NoMemory;

// SAFETY: a null pointer is the answer for `no memory`; nothing is handed out or taken back.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static MEMORY: NoMemory = NoMemory;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
"#;

/// Builds it.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let dir = workspace.target.join("xtask/probe");
    write(&dir, &workspace.package(CORE)?.dir)?;

    let (status, text) = quietly(&mut build(&dir, &["--features=planted"]))?;
    if status.success() || !(text.contains("E0152") && text.contains("panic_impl")) {
        not_caught(
            "self-test: a build with std planted was not refused for its second panic handler",
            &text,
        )?;
    }
    let (status, text) = quietly(&mut build(&dir, &[]))?;
    if !status.success() {
        not_caught(&format!("{CORE} cannot be linked without std"), &text)?;
    }
    let symbols = symbols(&dir.join("target/debug/libprobe.a"))?;
    let own = symbols.lines().filter(|s| s.contains("esp_proto")).count();
    if own == 0 {
        return failed(format!(
            "no symbol of {CORE} is in the probe: nothing was checked"
        ));
    }
    if let Some(symbol) = symbols.lines().find(|s| is_of_std(s)) {
        return failed(format!("the probe has a symbol of std: {symbol}"));
    }
    Ok(format!("linked without std ({own} symbols)"))
}

fn write(dir: &Path, core: &Path) -> Result<(), Failure> {
    let manifest = MANIFEST.replace("CORE_DIR", &core.display().to_string());
    let result = fs::create_dir_all(dir)
        .and_then(|()| fs::write(dir.join("Cargo.toml"), manifest))
        .and_then(|()| fs::write(dir.join("probe.rs"), PROGRAM))
        // The versions the workspace is built with.
        .and_then(|()| fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")));
    match result {
        Ok(_) => Ok(()),
        Err(e) => cannot_run(format!("writing {}: {e}", dir.display())),
    }
}

fn build(dir: &Path, args: &[&str]) -> Command {
    let mut command = cargo(["build", "--quiet", "--target-dir"]);
    command.arg(dir.join("target")).args(args).current_dir(dir);
    // Flags of a coverage or sanitizer run would bring std in.
    command
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

fn symbols(archive: &PathBuf) -> Result<String, Failure> {
    let Some(nm) = find_program("nm") else {
        return cannot_run("`nm` is missing; it is in the package binutils");
    };
    // nm complains about members without symbols.
    output(
        Command::new(nm)
            .arg("--defined-only")
            .arg(archive)
            .stderr(Stdio::null()),
    )
}

/// A build that had to fail did not, or failed for another reason.
fn not_caught(what: &str, compiler_output: &str) -> Result<(), Failure> {
    let lines: Vec<&str> = compiler_output.lines().collect();
    let tail = &lines[lines.len().saturating_sub(15)..];
    failed(format!("{what}\n{}", tail.join("\n")))
}

/// A mangled name, old style (`_ZN3std…`) or new (`_RNv…_3std…`).
fn is_of_std(symbol: &str) -> bool {
    symbol.contains("_ZN3std") || symbol.contains("_3std")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_std_are_known() {
        assert!(is_of_std(
            "0000 T _ZN3std2io5stdio6_print17h0123456789abcdefE"
        ));
        assert!(is_of_std("0000 T _RNvNtNtCs1234_3std2io5stdio6__print"));
        assert!(!is_of_std(
            "0000 T _ZN9esp_proto4time7Instant3now17h0123456789abcdefE"
        ));
    }
}
