//! What was typed.

use std::time::Duration;

use clap::Parser;

use super::report::What;
use crate::out::Failure;
use crate::units;

/// Show the node's ESP connections and listeners
#[derive(Debug, Parser)]
#[command(name = "espstat", version)]
pub(super) struct Flags {
    /// Repeat each SECS seconds
    #[arg(short, long, value_name = "SECS", value_parser = units::seconds)]
    pub(super) watch: Option<Duration>,
    /// Only listeners and bound datagram ports
    #[arg(short, long)]
    pub(super) listening: bool,
    /// Counters instead: frames, drops by reason, and so on; those that are not zero
    #[arg(long, conflicts_with = "listening")]
    pub(super) counters: bool,
    /// With --counters: also those that are zero
    #[arg(short, long, requires = "counters")]
    pub(super) all: bool,
    /// Addresses, no names
    #[arg(short, long)]
    pub(super) numeric: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(super) json: bool,
}

impl Flags {
    /// Time between two outputs. Twenty a second at most.
    pub(super) fn repeat(&self) -> Result<Option<Duration>, Failure> {
        match self.watch {
            Some(pause) if pause < Duration::from_millis(50) => {
                Err(Failure::new("-w: at least 0.05 seconds"))
            }
            watch => Ok(watch),
        }
    }

    /// What to show.
    pub(super) fn what(&self) -> What {
        match (self.counters, self.listening) {
            (true, _) => What::Counters { all: self.all },
            (_, true) => What::Listeners,
            _ => What::Sockets,
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
    fn what_is_meant() -> Result<(), clap::Error> {
        let flags = |line: &str| Flags::try_parse_from(line.split(' '));
        assert_eq!(flags("espstat")?.what(), What::Sockets);
        assert_eq!(flags("espstat -l")?.what(), What::Listeners);
        assert_eq!(
            flags("espstat --counters -a")?.what(),
            What::Counters { all: true }
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
