//! Command line of esperf.

use std::time::Duration;

use clap::Parser;

use super::datagrams;
use crate::ends::CarrierOptions;
use crate::out::Failure;
use crate::units;

/// Default of `-p`, as in iperf3.
const DEFAULT_PORT: u16 = 5201;
/// Maximum number of streams of a test.
pub(super) const MAX_STREAMS: u16 = 128;
/// Default of `-l` for streams.
const DEFAULT_LENGTH: u64 = 128 << 10;
/// Maximum length of a write, in bytes.
pub(super) const MAX_LENGTH: u64 = 1 << 20;

/// Measure the throughput of streams to another node, like iperf3(1) over TCP, or with -u, losses
/// and jitter of datagrams
///
/// Exit code: 0 if the test was completed, 1 if it was broken off, 2 if esperf could not run.
#[derive(Debug, Parser)]
#[command(name = "esperf", version = crate::version::version())]
#[command(override_usage = "esperf -s [OPTIONS]\n       esperf -c NODE [OPTIONS]")]
pub(super) struct Flags {
    /// Serve tests, one after the other
    #[arg(
        short,
        long,
        required_unless_present = "client",
        conflicts_with = "client"
    )]
    pub(super) server: bool,
    /// Run a test with the server at NODE: a MAC address, a name in /etc/ethers, or NAME.esp, over
    /// raw Ethernet; or an IP address or another name, followed by @PORT for a UDP port other than
    /// 2805, over UDP and without a daemon
    #[arg(short, long, value_name = "NODE")]
    pub(super) client: Option<String>,
    /// Port of the server
    #[arg(short, long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Time between two reports
    #[arg(short, long, value_name = "SECS", value_parser = units::pause, default_value = "1")]
    pub(super) interval: Duration,
    /// Print one JSON object at the end, with the names of iperf3
    #[arg(short = 'J', long)]
    pub(super) json: bool,
    /// Serve one test and exit
    #[arg(short = '1', long, requires = "server")]
    pub(super) one_off: bool,
    /// Time for which data is sent
    #[arg(short, long, value_name = "SECS", value_parser = units::pause, default_value = "10")]
    #[arg(conflicts_with = "server")]
    pub(super) time: Duration,
    /// Total number of bytes to send over all streams, instead of a time
    #[arg(short = 'n', long, value_name = "BYTES", value_parser = units::bytes)]
    #[arg(conflicts_with_all = ["time", "server"])]
    pub(super) bytes: Option<u64>,
    /// Use datagrams (EDP) instead of streams: count losses, and measure the jitter
    #[arg(short = 'u', long = "udp", conflicts_with = "server")]
    pub(super) datagrams: bool,
    /// With -u, bits per second of each sender; 0 for as fast as possible
    #[arg(short, long, value_name = "RATE", value_parser = bit_rate, default_value = "1mbit")]
    #[arg(conflicts_with = "server", requires = "datagrams")]
    pub(super) bitrate: u64,
    /// Number of streams
    #[arg(short = 'P', long, value_name = "STREAMS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_STREAMS)))]
    #[arg(conflicts_with = "server")]
    pub(super) parallel: u16,
    /// Let the server send
    #[arg(short = 'R', long, conflicts_with = "server")]
    pub(super) reverse: bool,
    /// Bytes per write and read, or per datagram [default: 128KiB, or the maximum of datagrams]
    #[arg(short, long, value_name = "BYTES", value_parser = units::bytes)]
    #[arg(conflicts_with = "server")]
    pub(super) length: Option<u64>,
    #[command(flatten)]
    pub(super) carrier: CarrierOptions,
}

/// A test, as the client describes it to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Plan {
    pub(super) streams: u16,
    pub(super) length: u64,
    pub(super) reverse: bool,
    /// Time for which data is sent, unless `bytes` is set.
    pub(super) time: Duration,
    pub(super) bytes: Option<u64>,
    /// Bits per second of each sender of datagrams, 0 without a limit; `None` for streams.
    #[serde(default)]
    pub(super) datagrams: Option<u64>,
}

/// Parses bits per second; 0 means no limit.
fn bit_rate(text: &str) -> Result<u64, String> {
    if text == "0" {
        Ok(0)
    } else {
        units::rate(text)
    }
}

impl Plan {
    /// Checks the values, which may be a peer's.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(1..=MAX_LENGTH).contains(&self.length) {
            return Err(format!(
                "invalid length {} for -l: write 1 to {MAX_LENGTH} bytes",
                self.length
            ));
        }
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            return Err(format!(
                "invalid number of streams {}: write 1 to {MAX_STREAMS}",
                self.streams
            ));
        }
        let least = datagrams::HEADER as u64;
        if self.datagrams.is_some() && self.length < least {
            return Err(format!(
                "invalid length {} for -l: a datagram has {least} bytes or more",
                self.length
            ));
        }
        if self.bytes == Some(0) || self.time > Duration::from_secs(86_400) {
            return Err("the test is empty, or longer than a day".into());
        }
        Ok(())
    }
}

impl Flags {
    /// Returns the test of a client. `longest` is the maximum length of a datagram.
    pub(super) fn plan(&self, longest: Option<usize>) -> Result<Plan, Failure> {
        let longest = longest.map(|longest| longest as u64);
        let plan = Plan {
            streams: self.parallel,
            length: self.length.or(longest).unwrap_or(DEFAULT_LENGTH),
            reverse: self.reverse,
            time: self.time,
            bytes: self.bytes,
            datagrams: self.datagrams.then_some(self.bitrate),
        };
        plan.check().map_err(Failure::new)?;
        if let Some(longest) = longest.filter(|longest| plan.length > *longest) {
            return Err(Failure::new(format!(
                "invalid length {} for -l: a datagram on this path has at most {longest} bytes",
                plan.length
            )));
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn plan(line: &str) -> Result<Plan, String> {
        let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        let longest = flags.datagrams.then_some(1489);
        flags.plan(longest).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn options_of_iperf3() {
        let expected = Plan {
            streams: 8,
            length: 65536,
            reverse: true,
            time: Duration::from_secs(5),
            bytes: None,
            datagrams: None,
        };
        let line = "esperf -c node1 -p 7000 -t 5 -P 8 -R -l 64K -i 0.5 --json";
        assert_eq!(plan(line), Ok(expected));
        let bytes = plan("esperf -c node1 -n 1M").map(|plan| plan.bytes);
        assert_eq!(bytes, Ok(Some(1 << 20)));
        let rate = |line: &str| plan(line).map(|plan| (plan.datagrams, plan.length));
        assert_eq!(rate("esperf -c node1"), Ok((None, 128 << 10)));
        assert_eq!(rate("esperf -c node1 -u"), Ok((Some(1_000_000), 1489)));
        assert_eq!(rate("esperf -c node1 -u -b 0 -l 99"), Ok((Some(0), 99)));
    }

    #[test]
    fn wrong_options_say_why() {
        for (line, why) in [
            ("esperf", "required"),
            ("esperf -s -c node1", "cannot be used"),
            ("esperf -s -R", "cannot be used"),
            ("esperf -c node1 -l 2M", "invalid length"),
            ("esperf -c node1 -P 0", "1..=128"),
            ("esperf -c node1 -n 0", "empty"),
            ("esperf -c node1 -t 1 -n 1", "cannot be used"),
            ("esperf -c node1 -t x", "invalid duration"),
            ("esperf -c node1 -b 1g", "required"),
            ("esperf -c node1 -u -b 1", "invalid rate"),
            ("esperf -c node1 -u -l 15", "16 bytes or more"),
            ("esperf -c node1 -u -l 1490", "at most 1489 bytes"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
