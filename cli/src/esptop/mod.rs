//! `esptop`: shows the node's connections by rate, live, like top(1) for processes.
//!
//! `app` is the state, fed with snapshots and keys; `draw`, `details` and `help` draw it, `plain`
//! prints it; `groups` sums connections up by user or job, which `jobs` finds; `rates` computes
//! rates from two snapshots, and `columns` formats the cells of a connection.

mod app;
mod columns;
mod details;
mod draw;
mod groups;
mod help;
mod jobs;
#[cfg(test)]
mod picture;
mod plain;
mod rates;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use esp_client::Client;
use esp_client::control::Status;
use nix::unistd::{Uid, User};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::filter::{self, Filter};
use crate::names::Names;
use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use crate::units;
use app::{App, Order};
use columns::Column;
use groups::Grouping;

/// Interval between checks for signals and snapshots.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Show this node's ESP connections by rate, live, like top(1) for processes
///
/// `?` explains the keys. If standard output is not a terminal, one snapshot is printed.
#[derive(Debug, Parser)]
#[command(name = "esptop", version = crate::version::version(), after_long_help = filter::HELP)]
struct Flags {
    /// Connections to show, such as `state established dport = 5000`; see below
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Time between two snapshots
    #[arg(short, long, value_name = "SECS", value_parser = units::pause, default_value = "1")]
    interval: Duration,
    /// Column to sort by
    #[arg(short, long, value_name = "COLUMN", default_value = "rate")]
    sort: Column,
    /// Sort in reverse
    #[arg(short, long)]
    reverse: bool,
    /// Sum up connections; in the live view, Tab changes this
    #[arg(short, long, value_name = "BY", default_value = "connection")]
    group: Grouping,
    /// Print one snapshot, with the rates of one interval, and exit
    #[arg(short = '1', long)]
    once: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    numeric: bool,
}

/// Returns the command line, for its manual page and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Runs esptop.
pub fn main() -> ExitCode {
    out::finish("esptop", run(&Flags::parse()))
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let text = flags.filter.join(" ");
    let filter = Filter::parse(&text).map_err(Failure::new)?;
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let names = if flags.numeric {
        Names::default()
    } else {
        Names::load()
    };
    let order = Order {
        by: flags.sort,
        reversed: flags.reverse,
    };
    let mut app = App::new(names, (user_name, jobs::of), order, flags.group);
    app.set_filter(&text, filter);
    if flags.once || !io::stdout().is_terminal() {
        return once(&mut app, flags.interval, &interrupt);
    }
    let (sender, snapshots) = sync_channel(1);
    let interval = flags.interval;
    thread::Builder::new()
        .name("snapshots".into())
        .spawn(move || watch(interval, &sender))
        .doing("starting a thread")?;
    // This also restores the terminal before the message of a panic.
    let mut terminal = ratatui::try_init().doing("preparing the terminal")?;
    let ended = live(&mut app, &mut terminal, &snapshots, &interrupt);
    let restored = ratatui::try_restore().doing("restoring the terminal");
    ended.doing("drawing")?;
    restored?;
    Ok(Verdict::Done)
}

fn user_name(uid: u32) -> Option<String> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map(|user| user.name)
}

/// A status and its time in seconds, or the reason why there is none.
type Snapshot = (f64, Result<Status, String>);

/// Takes a snapshot. After a restart of the daemon, a new connection to it is opened.
fn snapshot(start: Instant) -> Snapshot {
    let status = Client::shared().and_then(|client| client.status());
    let at = start.elapsed().as_secs_f64();
    (at, status.map_err(|error| error.to_string()))
}

/// Sends snapshots until the receiver is gone.
fn watch(interval: Duration, sender: &SyncSender<Snapshot>) {
    let start = Instant::now();
    while sender.send(snapshot(start)).is_ok() {
        thread::sleep(interval);
    }
}

/// Draws until the user or a signal ends it.
fn live(
    app: &mut App,
    terminal: &mut DefaultTerminal,
    snapshots: &Receiver<Snapshot>,
    interrupt: &Interrupt,
) -> io::Result<()> {
    let mut changed = true;
    while !interrupt.is_set() {
        if changed {
            terminal.draw(|frame| draw::draw(app, frame))?;
        }
        changed = false;
        if event::poll(POLL_INTERVAL)? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && app.key(key)
            {
                return Ok(());
            }
        }
        for (at, snapshot) in snapshots.try_iter() {
            app.feed(at, snapshot);
            changed = true;
        }
    }
    Ok(())
}

/// Prints one snapshot, with the rates since another one that was taken an interval earlier.
fn once(app: &mut App, interval: Duration, interrupt: &Interrupt) -> Result<Verdict, Failure> {
    let start = Instant::now();
    for turn in 0..2 {
        if turn == 1 && interrupt.waits(interval) {
            return Ok(Verdict::Partly);
        }
        let (at, snapshot) = snapshot(start);
        app.feed(at, Ok(snapshot.map_err(Failure::new)?));
    }
    out::line(plain::text(app))?;
    Ok(Verdict::Done)
}
