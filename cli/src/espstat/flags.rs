//! Command line of espstat.

use std::time::Duration;

use clap::Parser;

use super::report::Selection;
use crate::out::Failure;
use crate::units;

/// Show this node's ESP connections and listeners, as ss(8) shows sockets
///
/// ESP is the Ethernet Streaming Protocol of esp-daemon, not IPsec's ESP; EDP is its datagram
/// protocol. The path of a connection is `daemon`, or `lease` if the program itself sends and
/// receives the frames.
#[derive(Debug, Parser)]
#[command(name = "espstat", version)]
pub(super) struct Flags {
    /// Repeat every SECS seconds, with the time
    #[arg(short, long, value_name = "SECS", value_parser = units::seconds)]
    pub(super) watch: Option<Duration>,
    /// Only listeners and bound datagram ports
    #[arg(short, long)]
    pub(super) listening: bool,
    /// Counters that are not zero instead: frames, drops by reason, and so on
    #[arg(long, conflicts_with = "listening")]
    pub(super) counters: bool,
    /// With --counters: include those that are zero
    #[arg(short, long, requires = "counters")]
    pub(super) all: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    pub(super) numeric: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

impl Flags {
    /// Returns the time between two outputs, at least 50 ms.
    ///
    /// # Errors
    /// The interval is shorter.
    pub(super) fn repeat(&self) -> Result<Option<Duration>, Failure> {
        match self.watch {
            Some(pause) if pause < Duration::from_millis(50) => Err(Failure::new(
                "invalid interval for -w: write at least 0.05 seconds",
            )),
            watch => Ok(watch),
        }
    }

    /// Selection to show.
    pub(super) fn selection(&self) -> Selection {
        match (self.counters, self.listening) {
            (true, _) => Selection::Counters { all: self.all },
            (_, true) => Selection::Listeners,
            _ => Selection::Sockets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
        assert!(flags("espstat -w 0")?.repeat().is_err());
        assert!(
            flags("espstat -w 2")?
                .repeat()
                .is_ok_and(|r| r == Some(Duration::from_secs(2)))
        );
        assert!(flags("espstat -a").is_err());
        assert!(flags("espstat -w x").is_err());
        Ok(())
    }
}
