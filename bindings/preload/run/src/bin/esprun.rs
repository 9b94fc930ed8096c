//! Runs a program whose sockets use ESP.

use std::sync::atomic::{AtomicBool, Ordering};

/// True if this program was started with SIGPIPE ignored. Rust's runtime ignores it before `main`,
/// so this is checked earlier.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the dynamic linker calls the functions of this section once, before the program runs.
#[unsafe(link_section = ".init_array")]
static STARTED: extern "C" fn() = started;

extern "C" fn started() {
    IGNORES_PIPE.store(esprun::ignores_pipe(), Ordering::Relaxed);
}

fn main() -> std::process::ExitCode {
    esprun::main(IGNORES_PIPE.load(Ordering::Relaxed))
}
