//! Command line of esping.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use esp_client::NodeAddr;

use super::echo::Pace;
use crate::ends::{Carrier, look_up};
use crate::out::Failure;
use crate::units;

/// Send echo requests to nodes over raw Ethernet or UDP (EDP), like ping(8) over IP
///
/// Exit code: 0 if every request was answered, 1 if some were not, 2 if esping could not run.
#[derive(Debug, Parser)]
#[command(name = "esping", version = crate::version::version())]
pub(super) struct Flags {
    /// MAC address, a name in /etc/ethers (or in the file that $ESP_ETHERS names), or NAME.esp, the
    /// node that announces NAME: over raw Ethernet. IPv4 address, IPv6 address in brackets or
    /// another name: over UDP, to the daemon or, if followed by @PORT, to a program. Several
    /// targets are probed concurrently
    #[arg(required_unless_present = "discover", value_name = "TARGET")]
    pub(super) targets: Vec<String>,
    /// Stop after COUNT requests to each target
    #[arg(short, long, value_name = "COUNT", value_parser = units::count)]
    pub(super) count: Option<u64>,
    /// Time between requests [default: 1]; with 0, the next one is sent as soon as one is answered.
    /// Less than 2 ms is only for root
    #[arg(short, long, value_name = "SECS", value_parser = units::seconds)]
    pub(super) interval: Option<Duration>,
    /// Flood: send as fast as answers arrive, but at least 100 times per second; draw a dot for
    /// each request and remove it for each answer. Without -i, only for root
    #[arg(short, long, conflicts_with_all = ["adaptive", "mtu", "discover", "verbose"])]
    pub(super) flood: bool,
    /// Adapt to the round trip: send the next request when one is answered, at most 500 per second
    /// unless root, or after the interval without an answer
    #[arg(short = 'A', long, conflicts_with_all = ["mtu", "discover"])]
    pub(super) adaptive: bool,
    /// Bytes of data in a request [default: 56]
    #[arg(short, long, value_name = "BYTES", value_parser = units::bytes)]
    #[arg(conflicts_with_all = ["mtu", "discover"])]
    pub(super) size: Option<u64>,
    /// Stop after SECS seconds, even without all answers
    #[arg(short = 'w', long, value_name = "SECS", value_parser = units::seconds)]
    #[arg(conflicts_with_all = ["mtu", "discover"])]
    pub(super) deadline: Option<Duration>,
    /// Maximum wait for an answer [default: 1]
    #[arg(short = 'W', long = "timeout", value_name = "SECS", value_parser = units::seconds)]
    pub(super) wait: Option<Duration>,
    /// Print only the summary
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Show the time before each line, in seconds since 1970
    #[arg(short = 'D', long)]
    pub(super) timestamps: bool,
    /// Report a request without an answer before the next one is sent
    #[arg(short = 'O', long, conflicts_with_all = ["flood", "mtu", "discover"])]
    pub(super) outstanding: bool,
    /// Show addresses instead of names
    #[arg(short, long)]
    pub(super) numeric: bool,
    /// Show answers that match no request of this run, too
    #[arg(short, long, conflicts_with_all = ["mtu", "discover"])]
    pub(super) verbose: bool,
    /// Interface to use [default: the one that reaches the target]
    #[arg(short = 'I', long, value_name = "IF")]
    pub(super) interface: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
    /// Find and verify the maximum payload that passes
    #[arg(long, conflicts_with = "discover")]
    pub(super) mtu: bool,
    /// List the daemons that answer a broadcast
    #[arg(long, conflicts_with = "targets")]
    pub(super) discover: bool,
    /// With --discover: print lines for /etc/ethers, sorted by name; contradictory names and names
    /// that are not host names are reported on standard error, and the exit code is 1
    #[arg(long, requires = "discover", conflicts_with_all = ["targets", "mtu", "json", "quiet"])]
    pub(super) ethers: bool,
    /// Add the lines to FILE instead, and keep its contents
    #[arg(long, value_name = "FILE", requires = "ethers")]
    pub(super) write: Option<PathBuf>,
    /// Carrier of the requests [default: that of the target's address]
    #[arg(long, value_name = "CARRIER", conflicts_with = "discover")]
    pub(super) carrier: Option<Carrier>,
}

/// Default time between requests.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// Default maximum wait for an answer.
pub(super) const DEFAULT_WAIT: Duration = Duration::from_secs(1);
/// Minimum time between requests of users, as in ping(8).
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// Time after which a flood sends the next request without an answer.
const FLOOD_INTERVAL: Duration = Duration::from_millis(10);

/// A node to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The target as typed.
    pub(super) text: String,
    pub(super) addr: NodeAddr,
    pub(super) interface: Option<String>,
}

impl Flags {
    /// Resolves the targets. `hint` adds to the error of an unknown name.
    pub(super) fn targets(
        &self,
        hint: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Target>, Failure> {
        let mut targets: Vec<Target> = Vec::new();
        for text in &self.targets {
            let target = self.target(text, &hint)?;
            let is_same = |other: &&Target| other.addr == target.addr;
            if let Some(other) = targets.iter().find(is_same) {
                return Err(Failure::new(format_args!(
                    "{} and {text} are one node, {}: write it once",
                    other.text, other.addr
                )));
            }
            targets.push(target);
        }
        Ok(targets)
    }

    fn target(&self, text: &str, hint: impl Fn(&str) -> Option<String>) -> Result<Target, Failure> {
        // An IPv6 address may contain a `%` itself, in brackets.
        let end = text.find(']').unwrap_or(0);
        let (name, after) = match text.get(end..).and_then(|rest| rest.split_once('%')) {
            Some((rest, after)) => (&text[..end + rest.len()], Some(after.to_owned())),
            None => (text, None),
        };
        let interface = self.interface.clone().or(after);
        if let Some(node) = before_port(name) {
            return Err(Failure::new(format_args!(
                "{text} has a port: esping asks a node, not a program; write {node}"
            )));
        }
        let addr = look_up(name, interface.as_deref(), self.carrier, hint)?;
        let shown = if self.numeric {
            addr.to_string()
        } else {
            name.to_owned()
        };
        Ok(Target {
            text: shown,
            addr,
            interface,
        })
    }

    /// Returns the times of the requests, for root or another user.
    pub(super) fn pace(&self, is_root: bool) -> Result<Pace, Failure> {
        let wait = self.wait.unwrap_or(DEFAULT_WAIT);
        if let Some(interval) = self.interval.filter(|time| *time < MIN_INTERVAL)
            && !is_root
        {
            return Err(Failure::new(format_args!(
                "invalid interval {interval:?}: only root may send requests less than 2 ms apart; \
                 write -i 2ms or more"
            )));
        }
        let pace = |interval, after_answer| Pace {
            interval,
            after_answer,
        };
        Ok(match (self.flood, self.interval) {
            (true, None) if !is_root => {
                return Err(Failure::new(
                    "-f without an interval is only for root: add -i 2ms, or more",
                ));
            }
            (true, None) => pace(FLOOD_INTERVAL, Some(Duration::ZERO)),
            (_, Some(interval)) if interval.is_zero() => pace(wait, Some(Duration::ZERO)),
            (_, interval) => {
                let least = if is_root {
                    Duration::ZERO
                } else {
                    MIN_INTERVAL
                };
                let after_answer = self.adaptive.then_some(least);
                pace(interval.unwrap_or(DEFAULT_INTERVAL), after_answer)
            }
        })
    }
}

/// Returns the node in `NODE:PORT`, which is an address of a stream; `None` for other texts.
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
        let targets = flags.targets(|_| None).map_err(|e| e.to_string())?;
        let [target] = <[Target; 1]>::try_from(targets).map_err(|all| format!("{all:?}"))?;
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
    fn options_have_long_names() -> Result<(), String> {
        let (flags, _) = parse(
            "esping --count 20 --interval 0.2 --size 1000 --deadline 5 --timeout 0.5 --quiet \
             --interface eth1 --timestamps --outstanding --numeric --verbose --adaptive \
             02:e5:00:00:00:02",
        )?;
        assert_eq!(
            (flags.count, flags.size, flags.wait),
            (Some(20), Some(1000), Some(Duration::from_millis(500)))
        );
        assert!(flags.quiet && flags.timestamps && flags.outstanding && flags.adaptive);
        Ok(())
    }

    #[test]
    fn several_targets_are_different_nodes() -> Result<(), String> {
        let targets = |line: &str| {
            let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
            flags.targets(|_| None).map_err(|e| e.to_string())
        };
        let two = targets("esping -c 1 02:e5:00:00:00:02 02:e5:00:00:00:03%eth1")?;
        assert_eq!((two.len(), two[1].interface.as_deref()), (2, Some("eth1")));
        let error = targets("esping 02:e5:00:00:00:02 02-e5-00-00-00-02").expect_err("one node");
        assert!(error.contains("are one node"), "{error}");
        Ok(())
    }

    #[test]
    fn unknown_names_have_a_hint() -> Result<(), String> {
        let flags = Flags::try_parse_from(["esping", "no-such-node-anywhere"])
            .map_err(|e| e.to_string())?;
        let hint = |name: &str| Some(format!("hint for {name}"));
        let error = flags.targets(hint).expect_err("unknown").to_string();
        assert!(
            error.ends_with("; hint for no-such-node-anywhere"),
            "{error}"
        );
        Ok(())
    }

    #[test]
    fn short_intervals_are_for_root() -> Result<(), String> {
        let pace = |options: &str, is_root| {
            let (flags, _) = parse(&format!("esping {options} 02:e5:00:00:00:02"))?;
            flags.pace(is_root).map_err(|e| e.to_string())
        };
        let millis = Duration::from_millis;
        for (options, root, user) in [
            ("-c 1", Some((1000, None)), Some((1000, None))),
            ("-i 2ms", Some((2, None)), Some((2, None))),
            ("-i 1ms", Some((1, None)), None),
            ("-i 0", Some((1000, Some(0))), None),
            ("-i 0 -W 0.2", Some((200, Some(0))), None),
            ("-f", Some((10, Some(0))), None),
            ("-f -i 5ms", Some((5, None)), Some((5, None))),
            ("-f -i 1ms", Some((1, None)), None),
            ("-A", Some((1000, Some(0))), Some((1000, Some(2)))),
            ("-A -i 0.1", Some((100, Some(0))), Some((100, Some(2)))),
        ] {
            for (is_root, wanted) in [(true, root), (false, user)] {
                let wanted = wanted.map(|(interval, after)| Pace {
                    interval: millis(interval),
                    after_answer: after.map(millis),
                });
                let found = pace(options, is_root);
                assert_eq!(found.clone().ok(), wanted, "{options} {is_root} {found:?}");
            }
        }
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
            "esping -f -A 02:e5:00:00:00:02",
            "esping -f --mtu 02:e5:00:00:00:02",
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
