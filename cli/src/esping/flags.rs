//! Command line of esping.

use std::time::Duration;

use clap::Parser;

use crate::units;

/// Carrier of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Carrier {
    /// Raw Ethernet, by the node's daemon
    Raw,
    /// UDP, by this program
    Udp,
}

/// Ask nodes for an echo over raw Ethernet or UDP (EDP), as ping(8) does over IP
///
/// Exit code: 0 when every request was answered, 1 when some were not, 2 when esping could not run.
#[derive(Debug, Parser)]
#[command(name = "esping", version)]
pub(super) struct Flags {
    /// MAC address or a name of /etc/ethers (or of the file $ESP_ETHERS names): over raw Ethernet.
    /// IPv4 address, IPv6 address in brackets or another name: over UDP, to the daemon or, with
    /// @PORT behind it, a program
    #[arg(required_unless_present = "discover")]
    pub(super) target: Option<String>,
    /// Stop after COUNT requests
    #[arg(short, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
    /// Time between requests; with 0 the next one is sent as soon as one is answered
    #[arg(short, value_name = "SECS", value_parser = units::seconds)]
    pub(super) interval: Option<Duration>,
    /// Bytes of data in a request [default: 56]
    #[arg(short, value_name = "BYTES", conflicts_with_all = ["mtu", "discover"])]
    pub(super) size: Option<usize>,
    /// Stop after SECS seconds, answered or not
    #[arg(short = 'w', value_name = "SECS", value_parser = units::seconds, conflicts_with_all = ["mtu", "discover"])]
    pub(super) deadline: Option<Duration>,
    /// Time to wait for an answer
    #[arg(short = 'W', value_name = "SECS", value_parser = units::seconds)]
    pub(super) wait: Option<Duration>,
    /// Only the summary
    #[arg(short)]
    pub(super) quiet: bool,
    /// Interface to use [default: the one that reaches the target]
    #[arg(short = 'I', value_name = "IF")]
    pub(super) interface: Option<String>,
    /// One JSON object per line
    #[arg(long)]
    pub(super) json: bool,
    /// Find and verify the largest payload that passes
    #[arg(long, conflicts_with = "discover")]
    pub(super) mtu: bool,
    /// List the daemons that answer a broadcast
    #[arg(long, conflicts_with = "target")]
    pub(super) discover: bool,
    /// Carrier of the requests [default: that of the target's address]
    #[arg(long, value_name = "CARRIER", conflicts_with = "discover")]
    pub(super) carrier: Option<Carrier>,
}
