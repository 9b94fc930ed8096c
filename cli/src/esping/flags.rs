//! Command line of esping.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use esp_client::{NodeAddr, resolve, resolve_udp};

use crate::out::Failure;
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
    /// MAC address, a name of /etc/ethers (or of the file $ESP_ETHERS names), or NAME.esp, the node
    /// that announces NAME: over raw Ethernet. IPv4 address, IPv6 address in brackets or another
    /// name: over UDP, to the daemon or, with @PORT behind it, a program
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
    #[arg(short = 'w', value_name = "SECS", value_parser = units::seconds)]
    #[arg(conflicts_with_all = ["mtu", "discover"])]
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
    /// With --discover: print lines for /etc/ethers, in the order of the names; names that
    /// contradict each other or are no host names go to standard error, and the exit code is 1
    #[arg(long, requires = "discover", conflicts_with_all = ["target", "mtu", "json", "quiet"])]
    pub(super) ethers: bool,
    /// Add the lines to FILE instead, and keep everything that is there
    #[arg(long, value_name = "FILE", requires = "ethers")]
    pub(super) write: Option<PathBuf>,
    /// Carrier of the requests [default: that of the target's address]
    #[arg(long, value_name = "CARRIER", conflicts_with = "discover")]
    pub(super) carrier: Option<Carrier>,
}

/// Node to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The target as typed.
    pub(super) text: String,
    pub(super) addr: NodeAddr,
    pub(super) interface: Option<String>,
}

impl Flags {
    /// Resolves the target.
    pub(super) fn target(&self) -> Result<Target, Failure> {
        let text = self.target.as_deref().unwrap_or_default();
        // An IPv6 address has its own `%`, in brackets.
        let end = text.find(']').unwrap_or(0);
        let (name, behind) = match text.get(end..).and_then(|rest| rest.split_once('%')) {
            Some((rest, behind)) => (&text[..end + rest.len()], Some(behind.to_owned())),
            None => (text, None),
        };
        let interface = self.interface.clone().or(behind);
        if let Some(node) = before_port(name) {
            return Err(Failure::new(format_args!(
                "{text} has a port: esping asks a node, not a program; write {node}"
            )));
        }
        let addr = match self.carrier {
            Some(Carrier::Udp) => resolve_udp(name),
            Some(Carrier::Raw) | None => resolve(name, interface.as_deref()),
        };
        let addr = addr.map_err(Failure::new)?;
        if self.carrier == Some(Carrier::Raw) && addr.is_udp() {
            return Err(Failure::new(format_args!(
                "{text} has no Ethernet address: add it to /etc/ethers, or leave out --carrier raw"
            )));
        }
        if addr.is_group() {
            return Err(Failure::new(format_args!(
                "{text} is a group address: ask one node (esping --discover asks all)"
            )));
        }
        Ok(Target {
            text: name.to_owned(),
            addr,
            interface,
        })
    }
}

/// Returns the node of `NODE:PORT`, which streams have as an address; `None` if this is no such
/// text.
fn before_port(name: &str) -> Option<&str> {
    let (node, port) = name.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_node = node.parse::<NodeAddr>().is_ok() || !node.contains(':');
    let is_addr = name.parse::<NodeAddr>().is_ok();
    (is_port && is_node && !node.is_empty() && !is_addr).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<(Flags, Target), String> {
        let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        let target = flags.target().map_err(|e| e.to_string())?;
        Ok((flags, target))
    }

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn options_of_ping() -> Result<(), String> {
        let (flags, target) =
            parse("esping -c 20 -i 0.2 -s 1000 -w 5 -W 0.5 -q -I eth1 02:e5:00:00:00:02")?;
        let addr = esp_client::MacAddr([2, 0xe5, 0, 0, 0, 2]).into();
        assert_eq!(
            (target.addr, target.interface.as_deref()),
            (addr, Some("eth1"))
        );
        assert_eq!(
            (flags.count, flags.size, flags.quiet),
            (Some(20), Some(1000), true)
        );
        assert_eq!(
            [flags.interval, flags.deadline, flags.wait],
            [200, 5000, 500].map(|ms| Some(Duration::from_millis(ms)))
        );
        Ok(())
    }

    #[test]
    fn an_interface_may_follow_the_target() -> Result<(), String> {
        let (_, target) = parse("esping --mtu 02:e5:00:00:00:02%eth1")?;
        assert_eq!(target.interface.as_deref(), Some("eth1"));
        Ok(())
    }

    #[test]
    fn a_port_is_refused_with_the_node_to_write() {
        for (target, node) in [
            ("beta:5000", "beta"),
            ("02:e5:00:00:00:02:5000", "02:e5:00:00:00:02"),
            ("10.1.0.7:5000", "10.1.0.7"),
            ("[fd00::7]:5000", "[fd00::7]"),
        ] {
            let error = parse(&format!("esping {target}")).map(|_| ()).unwrap_err();
            assert!(error.ends_with(&format!("write {node}")), "{error}");
        }
        for other in [
            "02:e5:00:00:00:02",
            "beta",
            "[fd00::7]",
            "beta:0",
            ":5",
            "a:b:5",
        ] {
            assert_eq!(before_port(other), None, "{other}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for line in [
            "esping",
            "esping -c 0 02:e5:00:00:00:02",
            "esping -i -1 02:e5:00:00:00:02",
            "esping ff:ff:ff:ff:ff:ff",
            "esping 01:00:5e:00:00:01",
            "esping --discover --mtu",
            "esping --discover 02:e5:00:00:00:02",
            "esping --ethers 02:e5:00:00:00:02",
            "esping --discover --write /tmp/ethers",
            "esping --discover --ethers --json",
            "esping no-such-node-anywhere",
            "esping 02:e5",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
