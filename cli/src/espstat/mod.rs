//! `espstat`: shows the node's connections and listeners, as ss(8) shows sockets.

mod report;
mod sockets;

use std::time::Duration;

use clap::{CommandFactory, Parser};
use esp_client::Client;

use crate::filter::Filter;
use crate::names::Names;
use crate::out::{self, Doing, Failure, Verdict};
use crate::signal::Interrupt;
use crate::units;
use report::{Report, Selection};
use sockets::Sockets;

/// Show this node's ESP connections and listeners, as ss(8) shows sockets
///
/// ESP is the Ethernet Streaming Protocol of esp-daemon, not IPsec's ESP; EDP is its datagram
/// protocol.
#[derive(Debug, Parser)]
#[command(name = "espstat", version, after_long_help = help())]
struct Flags {
    /// Sockets to show, such as `state established dport = 5000`; see below
    #[arg(value_name = "FILTER", conflicts_with = "counters")]
    filter: Vec<String>,
    /// Repeat every SECS seconds, with the time
    #[arg(short, long, value_name = "SECS", value_parser = units::pause)]
    watch: Option<Duration>,
    /// Only listeners and bound datagram ports
    #[arg(short, long)]
    listening: bool,
    /// Programs and process ids: your own, or those of all users for root
    #[arg(short, long, conflicts_with = "counters")]
    processes: bool,
    /// Internal state of connections: round trips, windows, losses
    #[arg(short, long, conflicts_with = "counters")]
    info: bool,
    /// User, bytes and packets of connections
    #[arg(short, long, conflicts_with = "counters")]
    extended: bool,
    /// Counters that are not zero instead: frames, drops by reason, and so on
    #[arg(long, conflicts_with = "listening")]
    counters: bool,
    /// With --counters: include those that are zero
    #[arg(short, long, requires = "counters")]
    all: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    numeric: bool,
    /// One JSON object per line, always with all that is known
    #[arg(long)]
    json: bool,
}

/// Explanation of the columns, for `--help`.
const COLUMNS: &str = "\
Columns. `-` is what the daemon does not know: only the program of a lease knows the
state of its connections, and an older daemon may not report everything.
  State     of the connection
  Recv-Q    bytes received that the program has not read yet
  Send-Q    bytes written that the peer has not acknowledged yet
  Local     interface and port
  Peer      name or address of the node, and port
  Path      daemon, or lease if the program itself sends and receives the frames
  Program   -p: name[process id]; programs choose their name
  Listening protocol of a port: ESP, or EDP for datagrams
  Waiting   connections that wait to be accepted, of at most Backlog
With -i, a second line for each connection; times are in µs:
  rtt       smoothed round-trip time / its variation
  minrtt    shortest round-trip time
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
  moves     moves to another interface";

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
        }))
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
    let selection = flags.selection()?;
    let interrupt = Interrupt::watch().doing("watching for signals")?;
    let client = Client::shared().map_err(Failure::new)?;
    let names = if flags.numeric {
        Names::default()
    } else {
        Names::load()
    };
    let mut report = Report::new(flags.json, selection, names);
    loop {
        let status = client.status().map_err(Failure::new)?;
        report.show(&status, flags.watch.map(|_| out::clock()))?;
        let Some(pause) = flags.watch else { break };
        if interrupt.waits(pause) {
            break;
        }
    }
    Ok(Verdict::Done)
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
        let all = sockets("espstat -pie state established dport = 5000")?;
        assert!(all.processes && all.info && all.extended && !all.filter.is_empty());
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
            ("espstat stat established", "did you mean `state`?"),
        ] {
            let error = selection(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_time_between_outputs_has_a_unit() -> Result<(), clap::Error> {
        let flags = Flags::try_parse_from(["espstat", "--watch", "200ms", "dport", "1"])?;
        assert_eq!(flags.watch, Some(Duration::from_millis(200)));
        Ok(())
    }

    #[test]
    fn the_help_explains_each_column() {
        let help = Flags::command().render_long_help().to_string();
        let headings = sockets::CONNECTION.iter().chain(&sockets::LISTENER);
        for heading in headings {
            let name = heading.trim_start_matches('>');
            assert!(help.contains(name), "{name}");
        }
    }
}
