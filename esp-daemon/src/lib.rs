//! The per-node ESP service.
//!
//! Programs connect to its Unix socket. It assigns ports, creates the shared memory of each stream,
//! and runs the engine that sends and receives frames. Data does not pass through the control
//! plane: it goes from the program's ring to the engine's thread.
//!
//! ```text
//!  program ──control socket──▶ session ──Command──▶ engine thread ──▶ wire
//!          ◀──────reply──────     │    ◀──reply────      │
//!          ◀═══ shared memory ════╪══════════════════════╛
//!                                 ▼
//!               node: programs, listeners, ports of each link, users' charges
//! ```
//!
//! [`run`] is one run of the daemon, which `open` starts; [`server`] accepts programs, `session`
//! serves one, and [`node`] is shared by all sessions. Every resource of a program is held by a
//! value that releases it on drop, so it is released on every path. A panic ends the process (the
//! release profile aborts; in other builds [`main`] does); the service manager starts a new one,
//! which resets the peers of lost connections.
//!
//! `docs/daemon.md` is the operator's manual; `docs/threat-model.md` describes the security model.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod accounts;
pub mod args;
mod auth;
mod claim;
pub mod config;
pub mod engines;
pub mod error;
mod exporter;
mod leases;
mod links;
pub mod node;
mod open;
mod outbox;
pub mod peer;
mod ports;
mod refusal;
pub mod run;
pub mod server;
mod session;
pub mod settings;
mod slots;
pub mod stats;
mod status;
pub mod telemetry;
#[cfg(test)]
mod testing;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use esp_client::{Client, EspError, control};
use tracing_subscriber::EnvFilter;

use args::Args;
use error::{Failure, StartError};
use settings::Settings;

/// Runs the program with the process's command line; returns its exit code.
pub fn main() -> ExitCode {
    let args = Args::parse();
    abort_on_panic();
    match start(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Standard error may be closed; the exit code remains.
            let _ = writeln!(std::io::stderr(), "esp-daemon: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn start(args: &Args) -> Result<(), Failure> {
    if let Some(file) = &args.check_config {
        settings::check_config(file)?;
        let _ = writeln!(std::io::stdout(), "{}: ok", file.display());
        return Ok(());
    }
    start_log(args.log.as_deref())?;
    let settings = Settings::new(args, std::env::var_os("ESP_SOCKET").map(Into::into))?;
    if args.check_upgrade {
        settings.find_interfaces()?;
        let found = check_upgrade(&settings.config.socket.path)?;
        let _ = writeln!(std::io::stdout(), "{found}");
        return Ok(());
    }
    run::run(&settings)
}

/// Checks that programs of the daemon running at this socket could continue with this version.
/// Returns a description of the result.
///
/// # Errors
/// They could not, because that daemon has another version of the control protocol or does not
/// answer.
fn check_upgrade(socket: &Path) -> Result<String, StartError> {
    let at = socket.display();
    match Client::connect(socket) {
        Ok(_) => Ok(format!(
            "the daemon at {at} has this version's control protocol, {}: programs continue",
            control::VERSION
        )),
        Err(EspError::Unreachable { .. }) => Ok(format!("no daemon runs at {at}")),
        Err(error) => Err(StartError::new(format_args!(
            "programs of the daemon at {at} could not continue with this version: {error}"
        ))),
    }
}

fn start_log(filter: Option<&str>) -> Result<(), StartError> {
    let from_environment = std::env::var("ESP_LOG").ok();
    let filter = filter.or(from_environment.as_deref()).unwrap_or("info");
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|error| {
            StartError::new(format_args!(
                "--log {filter:?} is not a log filter ({error}): write error, warn, info, debug or trace"
            ))
        })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    // The journal adds its own timestamps.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    Ok(())
}

/// Ends the process when a task panics: the rest would continue in an inconsistent state.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}
