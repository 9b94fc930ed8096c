//! `espstat`: shows the node's connections and listeners, like ss(8) for sockets.

mod programs;
mod report;
mod sockets;

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use console::Term;
use esp_client::Client;
use esp_client::control::Status;

use crate::filter::Filter;
use crate::names::Names;
use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;
use crate::units;
use report::{Report, Selection};
use sockets::Sockets;

/// Show this node's ESP connections and listeners, like ss(8) for sockets
///
/// ESP is the Ethernet Streaming Protocol of esp-daemon, not IPsec's ESP; EDP is its datagram
/// protocol.
#[derive(Debug, Parser)]
#[command(name = "espstat", version = crate::version::version(), after_long_help = help())]
struct Flags {
    /// Sockets to show, such as `state established dport = 5000`; see below
    #[arg(value_name = "FILTER", conflicts_with = "counters")]
    filter: Vec<String>,
    /// Repeat every second, or every SECS seconds, with the time
    #[arg(short, long, value_name = "SECS", value_parser = units::pause)]
    #[arg(num_args = 0..=1, default_missing_value = "1")]
    watch: Option<Duration>,
    /// Show only listeners and bound datagram ports
    #[arg(short, long)]
    listening: bool,
    /// Show programs and process IDs: your own, or for root, those of all users
    #[arg(short, long, conflicts_with = "counters")]
    processes: bool,
    /// Show the internal state of connections: round trips, windows, losses
    #[arg(short, long, conflicts_with = "counters")]
    info: bool,
    /// Show user, bytes and packets of connections
    #[arg(short, long, conflicts_with = "counters")]
    extended: bool,
    /// Show the memory of connections and datagram ports: bytes in their rings
    #[arg(short, long, conflicts_with = "counters")]
    memory: bool,
    /// Show nonzero counters instead: frames, drops by reason, and so on
    #[arg(long, conflicts_with = "listening")]
    counters: bool,
    /// With --counters: include those that are zero
    #[arg(short, long, requires = "counters")]
    all: bool,
    /// Show sockets of programs under esprun instead, and whether they use ESP or TCP
    #[arg(long, conflicts_with_all = ["filter", "listening", "processes", "info", "extended"])]
    #[arg(conflicts_with_all = ["memory", "counters", "watch", "numeric"])]
    programs: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    numeric: bool,
    /// Print one JSON object per line, always with all known values
    #[arg(long)]
    json: bool,
}

/// Explanation of the columns, for `--help`.
const COLUMNS: &str = "\
Columns. `-` is a value that the daemon does not know: only the program of a lease knows
the state of its connections, and an older daemon may not report everything.
  State     of the connection
  Recv-Q    bytes received that the program has not read yet
  Send-Q    bytes written that the peer has not acknowledged yet
  Local     interface and port
  Peer      name or address of the node, and port
  Path      daemon, or lease if the program itself sends and receives the frames
  Program   -p: name[process id]; programs choose their name
  Listening protocol of a port: ESP, or EDP for datagrams
  Waiting   connections that wait to be accepted, at most Backlog
With -i, a second line for each connection; times are in µs:
  rtt       smoothed round-trip time / its variation
  minrtt    minimum round-trip time
  rto       retransmission timeout
  cwnd      congestion window, inflight: packets sent and not acknowledged
  credit    packets that the receivers still allow: peer's / own
  payload   bytes of a packet: in use / agreed on at set-up
  retrans   packets retransmitted, timeouts: expirations of rto, probes: tail probes
  dup, ooo  packets received twice, and received after a gap
With -e, likewise:
  uid       user
  sent      data packets sent, acked: bytes acknowledged
  received  data packets and bytes received
  moves     moves to another interface
With -m, likewise, for datagram ports, too:
  mem       bytes in use / of the ring that is shared with the program, tx: written and
            not acknowledged, rx: received and not read. Rings count against the limit
            ring_bytes of the user; pages that were never used take no memory
With --programs, for your programs, or for root, the programs of all users:
  Program   program that esprun started; sockets of its children are included
  Sent, Received  bytes; those of sockets of AF_ENET are not counted
  Way       ESP, copied: by the broker of esprun; or TCP and the reason, of the last
            connections that stayed TCP";

/// Returns the end of the long help.
fn help() -> String {
    format!("{COLUMNS}\n\n{}", crate::filter::HELP)
}

impl Flags {
    /// Returns what to show.
    fn selection(&self) -> Result<Selection, Failure> {
        if self.counters {
            return Ok(Selection::Counters { all: self.all });
        }
        let text = self.filter.join(" ");
        Ok(Selection::Sockets(Sockets {
            filter: Filter::parse(&text).map_err(Failure::new)?,
            listening: self.listening,
            processes: self.processes,
            info: self.info,
            extended: self.extended,
            memory: self.memory,
        }))
    }
}

/// Runs espstat.
pub fn main() -> std::process::ExitCode {
    let flags = Flags::parse_from(with_pause(std::env::args_os()));
    out::finish("espstat", run(&flags))
}

/// Returns the command line, for its manual pages and completions.
pub fn command() -> clap::Command {
    Flags::command()
}

/// Gives `--watch` its value where a filter follows instead, which begins with no digit.
fn with_pause(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    let is_pause = |arg: &OsStr| {
        let first = arg.as_encoded_bytes().first();
        first.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.')
    };
    for arg in args {
        if all.last().is_some_and(|before| is_watch(before)) && !is_pause(&arg) {
            all.push("1".into());
        }
        all.push(arg);
    }
    all
}

/// Returns true for `--watch` and for short options that end with `w`.
fn is_watch(arg: &OsStr) -> bool {
    let arg = arg.as_encoded_bytes();
    let short = arg
        .strip_prefix(b"-")
        .and_then(|arg| arg.strip_suffix(b"w"));
    arg == b"--watch" || short.is_some_and(|rest| rest.iter().all(u8::is_ascii_alphabetic))
}

fn run(flags: &Flags) -> Result<Verdict, Failure> {
    if flags.programs {
        programs::show(flags.json)?;
        return Ok(Verdict::Done);
    }
    let selection = flags.selection()?;
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let names = if flags.numeric {
        Names::default()
    } else {
        Names::load()
    };
    let mut report = Report::new(flags.json, selection, names);
    let Some(pause) = flags.watch else {
        report.show(&status()?, None)?;
        return Ok(Verdict::Done);
    };
    let screen = Screen::of(flags.json);
    let mut first = Some(status()?);
    let mut gone = false;
    loop {
        match first.take().map_or_else(status, Ok) {
            Ok(status) => {
                gone = false;
                screen.clear()?;
                report.show(&status, Some(out::clock()))?;
            }
            // The daemon was restarted, or is about to be.
            Err(failure) => {
                if !gone {
                    out::note(format_args!("espstat: {failure}; trying again"));
                }
                gone = true;
            }
        }
        if interrupt.waits(pause) {
            return Ok(Verdict::Done);
        }
    }
}

/// Asks the daemon; after its restart, by a new connection.
fn status() -> Result<Status, Failure> {
    let status = Client::shared().and_then(|client| client.status());
    status.map_err(Failure::new)
}

/// The terminal that `--watch` clears before each output, as watch(1) does.
struct Screen(Option<Term>);

impl Screen {
    fn of(json: bool) -> Screen {
        let term = Term::stdout();
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Screen((term.is_term() && !json && !is_dumb).then_some(term))
    }

    fn clear(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), Term::clear_screen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    fn selection(line: &str) -> Result<Selection, String> {
        let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        flags.selection().map_err(|e| e.to_string())
    }

    #[test]
    fn flags_select_a_part() -> Result<(), String> {
        let sockets = |line| match selection(line)? {
            Selection::Sockets(sockets) => Ok(sockets),
            Selection::Counters { .. } => Err(format!("{line}: counters")),
        };
        assert_eq!(sockets("espstat")?, Sockets::default());
        assert!(sockets("espstat -l")?.listening);
        let all = sockets("espstat -piem state established dport = 5000")?;
        assert!(all.processes && all.info && all.extended && all.memory);
        assert!(!all.filter.is_empty());
        assert_eq!(
            selection("espstat --counters -a")?,
            Selection::Counters { all: true }
        );
        Ok(())
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for (line, part) in [
            ("espstat -w 0", "at least 0.05"),
            ("espstat -w x", "invalid duration"),
            ("espstat -a", "--counters"),
            ("espstat --counters dport 5000", "cannot be used with"),
            ("espstat --counters -p", "cannot be used with"),
            ("espstat --programs -l", "cannot be used with"),
            ("espstat stat established", "did you mean `state`?"),
        ] {
            let error = selection(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_time_between_outputs_has_a_unit() -> Result<(), clap::Error> {
        for (line, millis, filter) in [
            ("espstat --watch 200ms dport 1", 200, 2),
            ("espstat -iw .2 dport 1", 200, 2),
            ("espstat -w", 1000, 0),
            ("espstat -iw dport 1", 1000, 2),
            ("espstat --watch -n dport 1", 1000, 2),
            ("espstat --watch=5", 5000, 0),
        ] {
            let args = with_pause(line.split(' ').map(OsString::from));
            let flags = Flags::try_parse_from(args)?;
            assert_eq!(flags.watch, Some(Duration::from_millis(millis)), "{line}");
            assert_eq!(flags.filter.len(), filter, "{line}");
        }
        Ok(())
    }

    #[test]
    fn the_help_explains_each_column() {
        let help = Flags::command().render_long_help().to_string();
        let headings = sockets::CONNECTION.iter().chain(&sockets::LISTENER);
        let headings = headings.chain(&programs::PROGRAM);
        for heading in headings {
            let name = heading.trim_start_matches('>');
            assert!(help.contains(name), "{name}");
        }
        assert!(help.contains("  mem  "));
    }
}
