//! `espstat`: shows the node's connections and listeners, as ss(8) shows sockets.

mod flags;
mod report;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use esp_client::Client;

use crate::names::Names;
use crate::out::{self, Failure, Verdict};
use crate::signal::Interrupt;
use flags::Flags;
use report::Report;

/// Runs espstat.
pub fn main() -> std::process::ExitCode {
    out::finish("espstat", run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let repeat = flags.repeat()?;
    let interrupt =
        Interrupt::watch().map_err(|e| Failure::new(format!("watching for signals: {e}")))?;
    let client = Client::shared().map_err(|e| Failure::new(e.to_string()))?;
    let names = if flags.numeric {
        Names::default()
    } else {
        Names::load()
    };
    let mut report = Report::new(flags.json, flags.selection(), names);
    loop {
        let status = client.status().map_err(|e| Failure::new(e.to_string()))?;
        report.show(&status, repeat.map(|_| clock()))?;
        let Some(pause) = repeat else { break };
        if wait(pause, &interrupt) {
            break;
        }
    }
    Ok(Verdict::Done)
}

/// Waits; returns true if the user interrupted.
fn wait(mut pause: Duration, interrupt: &Interrupt) -> bool {
    while !pause.is_zero() && !interrupt.is_set() {
        let step = pause.min(Duration::from_millis(50));
        std::thread::sleep(step);
        pause -= step;
    }
    interrupt.is_set()
}

/// Returns the seconds since 1970.
fn clock() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}
