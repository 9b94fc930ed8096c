//! `espstat`: shows the node's connections and listeners, as ss(8) shows sockets.

mod report;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{CommandFactory, Parser};
use esp_client::Client;

use crate::names::Names;
use crate::out::{self, Doing, Failure, Verdict};
use crate::signal::Interrupt;
use crate::units;
use report::{Report, Selection};

/// Show this node's ESP connections and listeners, as ss(8) shows sockets
///
/// ESP is the Ethernet Streaming Protocol of esp-daemon, not IPsec's ESP; EDP is its datagram
/// protocol. The path of a connection is `daemon`, or `lease` if the program itself sends and
/// receives the frames.
#[derive(Debug, Parser)]
#[command(name = "espstat", version)]
struct Flags {
    /// Repeat every SECS seconds, with the time
    #[arg(short, long, value_name = "SECS", value_parser = interval)]
    watch: Option<Duration>,
    /// Only listeners and bound datagram ports
    #[arg(short, long)]
    listening: bool,
    /// Counters that are not zero instead: frames, drops by reason, and so on
    #[arg(long, conflicts_with = "listening")]
    counters: bool,
    /// With --counters: include those that are zero
    #[arg(short, long, requires = "counters")]
    all: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    numeric: bool,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// Parses the time between two outputs.
fn interval(text: &str) -> Result<Duration, String> {
    match units::seconds(text)? {
        pause if pause < Duration::from_millis(50) => Err("write at least 0.05 seconds".into()),
        pause => Ok(pause),
    }
}

impl Flags {
    /// Selection to show.
    fn selection(&self) -> Selection {
        match (self.counters, self.listening) {
            (true, _) => Selection::Counters { all: self.all },
            (_, true) => Selection::Listeners,
            _ => Selection::Sockets,
        }
    }
}

/// Runs espstat.
pub fn main() -> std::process::ExitCode {
    out::finish("espstat", run(&Flags::parse()))
}

/// Returns the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let client = Client::shared().map_err(Failure::new)?;
    let names = if flags.numeric {
        Names::default()
    } else {
        Names::load()
    };
    let mut report = Report::new(flags.json, flags.selection(), names);
    loop {
        let status = client.status().map_err(Failure::new)?;
        report.show(&status, flags.watch.map(|_| clock()))?;
        let Some(pause) = flags.watch else { break };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn flags_select_a_part() -> Result<(), clap::Error> {
        let flags = |line: &str| Flags::try_parse_from(line.split(' '));
        assert_eq!(flags("espstat")?.selection(), Selection::Sockets);
        assert_eq!(flags("espstat -l")?.selection(), Selection::Listeners);
        assert_eq!(
            flags("espstat --counters -a")?.selection(),
            Selection::Counters { all: true }
        );
        assert!(flags("espstat -w 0").is_err());
        assert_eq!(flags("espstat -w 2")?.watch, Some(Duration::from_secs(2)));
        assert!(flags("espstat -a").is_err());
        assert!(flags("espstat -w x").is_err());
        Ok(())
    }
}
