//! The checked request, with its defaults.

use std::time::Duration;

use esp_client::{NodeAddr, resolve, resolve_udp};

use super::flags::{Carrier, Flags};
use crate::out::Failure;

/// A checked command line.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) json: bool,
    pub(super) quiet: bool,
}

/// Kind of request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Send echo requests.
    Echo { target: Target, echo: Echo },
    /// Find the largest payload, with `tries` requests of each size and `wait` for each answer.
    Mtu {
        target: Target,
        tries: u32,
        wait: Duration,
    },
    /// Broadcast information requests.
    Discover {
        interface: Option<String>,
        requests: u64,
        interval: Duration,
        wait: Duration,
    },
}

/// Node to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// As typed.
    pub(super) text: String,
    pub(super) addr: NodeAddr,
    pub(super) interface: Option<String>,
}

/// Parameters of echo requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) count: Option<u64>,
    pub(super) interval: Duration,
    pub(super) size: usize,
    pub(super) deadline: Option<Duration>,
    pub(super) wait: Duration,
}

impl Plan {
    /// Resolves the target and fills in the defaults.
    pub(super) fn of(flags: Flags) -> Result<Plan, Failure> {
        let Flags {
            target,
            count,
            interval,
            size,
            deadline,
            wait,
            quiet,
            interface,
            json,
            mtu,
            discover,
            carrier,
        } = flags;
        let mode = if discover {
            let (interval, wait) = (
                interval.unwrap_or(Duration::from_millis(200)),
                wait.unwrap_or(Duration::from_secs(1)),
            );
            Mode::Discover {
                interface,
                requests: count.unwrap_or(3),
                interval,
                wait,
            }
        } else {
            let text = target.ok_or_else(|| {
                Failure::new("no target: write esping TARGET, or esping --discover")
            })?;
            // An IPv6 address has its own `%`, in brackets.
            let end = text.find(']').unwrap_or(0);
            let (name, behind) = match text.get(end..).and_then(|rest| rest.split_once('%')) {
                Some((rest, behind)) => (&text[..end + rest.len()], Some(behind.to_owned())),
                None => (text.as_str(), None),
            };
            let addr = match carrier {
                Some(Carrier::Udp) => resolve_udp(name),
                Some(Carrier::Raw) | None => resolve(name),
            };
            let addr = addr.map_err(|e| Failure::new(e.to_string()))?;
            if carrier == Some(Carrier::Raw) && addr.is_udp() {
                return Err(Failure::new(format!(
                    "{text} has no Ethernet address: add it to /etc/ethers, or leave out --carrier raw"
                )));
            }
            if addr.is_group() {
                return Err(Failure::new(format!(
                    "{text} is a group address: ask one node (esping --discover asks all)"
                )));
            }
            let target = Target {
                text: name.to_owned(),
                addr,
                interface: interface.or(behind),
            };
            if mtu {
                let tries = u32::try_from(count.unwrap_or(5)).unwrap_or(u32::MAX);
                Mode::Mtu {
                    target,
                    tries,
                    wait: wait.unwrap_or(Duration::from_millis(200)),
                }
            } else {
                let (interval, wait) = (
                    interval.unwrap_or(Duration::from_secs(1)),
                    wait.unwrap_or(Duration::from_secs(1)),
                );
                Mode::Echo {
                    target,
                    echo: Echo {
                        count,
                        interval,
                        size: size.unwrap_or(56),
                        deadline,
                        wait,
                    },
                }
            }
        };
        Ok(Plan { mode, json, quiet })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    fn plan(line: &str) -> Result<Plan, String> {
        let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        Plan::of(flags).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn habits_of_ping() -> Result<(), String> {
        let plan = plan("esping -c 20 -i 0.2 -s 1000 -w 5 -W 0.5 -q -I eth1 02:e5:00:00:00:02")?;
        let Mode::Echo { target, echo } = plan.mode else {
            return Err("not an echo".into());
        };
        assert_eq!(
            (target.addr, target.interface.as_deref()),
            (
                esp_client::MacAddr([2, 0xe5, 0, 0, 0, 2]).into(),
                Some("eth1")
            )
        );
        assert_eq!(
            (echo.count, echo.interval, echo.size),
            (Some(20), Duration::from_millis(200), 1000)
        );
        assert_eq!(
            (echo.deadline, echo.wait, plan.quiet),
            (
                Some(Duration::from_secs(5)),
                Duration::from_millis(500),
                true
            )
        );
        Ok(())
    }

    #[test]
    fn an_interface_may_stand_behind_the_target() -> Result<(), String> {
        let Mode::Mtu { target, .. } = plan("esping --mtu 02:e5:00:00:00:02%eth1")?.mode else {
            return Err("not a search".into());
        };
        assert_eq!(target.interface.as_deref(), Some("eth1"));
        Ok(())
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "esping",
            "esping -c 0 02:e5:00:00:00:02",
            "esping -i -1 02:e5:00:00:00:02",
            "esping ff:ff:ff:ff:ff:ff",
            "esping 01:00:5e:00:00:01",
            "esping --discover --mtu",
            "esping --discover 02:e5:00:00:00:02",
            "esping no-such-node-anywhere",
            "esping 02:e5",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
