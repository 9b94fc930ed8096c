//! Command line of espcat.

use std::time::Duration;

use clap::Parser;

use crate::ends::CarrierOptions;
use crate::out::Failure;
use crate::units;

/// Connect standard input and output to a stream or datagrams of another node, like nc(1) over TCP
/// and UDP
///
/// At the end of standard input, the sending direction ends, and the peer reads the end of the
/// stream; espcat ends when both directions have ended. Datagrams have no end: espcat -u ends by -w
/// or a signal.
///
/// Exit code: 0 if everything was copied, 1 if the connection was refused, broke, or timed out, 2
/// if espcat could not run.
#[derive(Debug, Parser)]
#[command(name = "espcat", version = crate::version::version())]
#[command(override_usage = "espcat [OPTIONS] NODE PORT\n       espcat [OPTIONS] -l PORT")]
pub(super) struct Flags {
    /// NODE and PORT to connect to, or with -l the PORT to listen on. NODE is a MAC address, a name
    /// in /etc/ethers, or NAME.esp, over raw Ethernet; or an IP address or another name, followed
    /// by @PORT for a UDP port other than 2805, over UDP and without a daemon
    #[arg(required = true, num_args = 1..=2, value_names = ["NODE", "PORT"])]
    pub(super) operands: Vec<String>,
    /// Listen for one connection instead of connecting
    #[arg(short, long)]
    pub(super) listen: bool,
    /// Use datagrams instead of a stream: each read from standard input becomes one
    #[arg(short = 'u', long)]
    pub(super) datagrams: bool,
    /// Report the connection, the progress if standard error is a terminal, and the totals
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Do not read standard input
    #[arg(short = 'd', long)]
    pub(super) detached: bool,
    /// Limit on the time to connect, and on the time without any data in either direction
    #[arg(short = 'w', long = "timeout", value_name = "SECS", value_parser = units::seconds)]
    pub(super) wait: Option<Duration>,
    #[command(flatten)]
    pub(super) carrier: CarrierOptions,
}

/// Task of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Listen on this port.
    Listen(u16),
    /// Connect to this port of a node.
    Connect(String, u16),
}

impl Flags {
    /// Checks the operands.
    pub(super) fn job(&self) -> Result<Job, Failure> {
        if self.wait == Some(Duration::ZERO) {
            return Err(Failure::new("invalid time-out 0 for -w: write 1 or more"));
        }
        match (self.operands.as_slice(), self.listen) {
            ([port_text], true) => Ok(Job::Listen(port(port_text)?)),
            ([node, port_text], false) => Ok(Job::Connect(node.clone(), port(port_text)?)),
            ([_], false) => Err(Failure::new(
                "the port is missing: write `espcat NODE PORT`, or `espcat -l PORT`",
            )),
            _ => Err(Failure::new(
                "a server has no NODE: write `espcat -l PORT`, and -I IF for one interface",
            )),
        }
    }
}

fn port(text: &str) -> Result<u16, Failure> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        Failure::new(format_args!(
            "invalid port `{text}`: write a number from 1 to 65535"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn job(line: &str) -> Result<Job, String> {
        let flags = Flags::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
        flags.job().map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_consistent() {
        Flags::command().debug_assert();
    }

    #[test]
    fn a_server_has_a_port_and_a_client_a_node_too() {
        assert_eq!(job("espcat -l 5000"), Ok(Job::Listen(5000)));
        assert_eq!(
            job("espcat -u -v -w 1 node1 5000"),
            Ok(Job::Connect("node1".into(), 5000))
        );
    }

    #[test]
    fn wrong_operands_say_why() {
        for (line, why) in [
            ("espcat node1", "port is missing"),
            ("espcat -l node1 5000", "no NODE"),
            ("espcat -l 0", "1 to 65535"),
            ("espcat node1 70000", "1 to 65535"),
            ("espcat node1 -w 0 5000", "time-out 0"),
            ("espcat a b c", "unexpected"),
            ("espcat", "required"),
        ] {
            let error = job(line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
