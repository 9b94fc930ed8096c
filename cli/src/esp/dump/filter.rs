//! Selection of packets: `esp`, `edp`, `host NAME|ADDRESS`, `port NUMBER`, joined by `and`.

use std::net::IpAddr;

use esp_client::{MacAddr, NodeAddr, resolve};

use super::decode::{Packet, Protocol};
use crate::out::Failure;

/// Conditions, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter(Vec<Condition>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Is(Protocol),
    /// An Ethernet address, or an IP address and UDP port.
    Node(NodeAddr),
    /// An IP address with any UDP port.
    Host(IpAddr),
    Port(u16),
}

impl Filter {
    /// Parses the words of the command line.
    pub(super) fn parse(words: &[String]) -> Result<Filter, Failure> {
        // A quoted filter is a single word for the shell.
        let mut words = words.iter().flat_map(|word| word.split_whitespace());
        let mut conditions = Vec::new();
        while let Some(word) = words.next() {
            let mut argument = |what: &str| {
                words
                    .next()
                    .ok_or_else(|| Failure::new(format!("filter: `{word}` needs {what}")))
            };
            conditions.push(match word {
                "and" if !conditions.is_empty() => continue,
                "esp" => Condition::Is(Protocol::Esp),
                "edp" => Condition::Is(Protocol::Edp),
                "host" => host(argument("a name or an address")?)?,
                "port" => Condition::Port(port(argument("a number")?)?),
                other => {
                    return Err(Failure::new(format!(
                        "filter: unknown word `{other}`: write esp, edp, host NAME or port NUMBER, \
                         such as `host node1 and port 5000`"
                    )));
                }
            });
        }
        Ok(Filter(conditions))
    }

    /// Returns true for a packet for which all conditions hold.
    pub(super) fn accepts(&self, packet: &Packet<'_>) -> bool {
        self.0.iter().all(|condition| condition.holds(packet))
    }
}

impl Condition {
    fn holds(&self, packet: &Packet<'_>) -> bool {
        let ends = [packet.src, packet.dst];
        match *self {
            Condition::Is(protocol) => packet.protocol == protocol,
            Condition::Node(addr) => ends.contains(&addr),
            Condition::Host(ip) => ends
                .iter()
                .any(|end| matches!(end, NodeAddr::Udp(at) if at.ip() == ip)),
            Condition::Port(port) => packet
                .header
                .is_some_and(|header| header.src_port == port || header.dst_port == port),
        }
    }
}

fn host(text: &str) -> Result<Condition, Failure> {
    if let Ok(mac) = text.parse::<MacAddr>() {
        return Ok(Condition::Node(mac.into()));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse() {
        return Ok(Condition::Host(ip));
    }
    let addr = resolve(text, None).map_err(|e| Failure::new(format!("filter: {e}")))?;
    Ok(match addr {
        NodeAddr::Udp(at) if !text.contains('@') => Condition::Host(at.ip()),
        addr => Condition::Node(addr),
    })
}

fn port(text: &str) -> Result<u16, Failure> {
    text.parse().map_err(|_| {
        Failure::new(format!(
            "filter: invalid port `{text}`: write a number from 0 to 65535"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Types, decode};
    use super::*;

    fn parse(text: &str) -> Result<Filter, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        Filter::parse(&words).map_err(|e| e.to_string())
    }

    #[test]
    fn all_conditions_have_to_hold() -> Result<(), String> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for word in [0x88b5u16, 1000, 5000, 1, 1, 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.push(2);
        let types = Types {
            esp: 0x88b5,
            edp: 0x88b6,
        };
        let (_, packets) = decode(&frame, frame.len(), types).expect("a packet");
        for (text, wanted) in [
            ("esp", true),
            ("edp", false),
            ("port 1000", true),
            ("port 5000", true),
            ("port 5001", false),
            ("host 02:00:00:00:00:01", true),
            ("host 02:00:00:00:00:03", false),
            ("host 10.0.0.1", false),
            ("esp and port 1000", true),
            ("esp port 1000", true),
            ("edp and port 1000", false),
        ] {
            assert_eq!(parse(text)?.accepts(&packets[0]), wanted, "{text}");
        }
        assert!(Filter::default().accepts(&packets[0]));
        Ok(())
    }

    #[test]
    fn ip_addresses_have_any_udp_port_unless_one_is_given() -> Result<(), String> {
        let ip = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(parse("host 10.0.0.1")?.0, [Condition::Host(ip)]);
        let at = NodeAddr::Udp((ip, 4000).into());
        assert_eq!(parse("host 10.0.0.1@4000")?.0, [Condition::Node(at)]);
        assert_eq!(
            parse("host [fd00::1]")?.0,
            [Condition::Host("fd00::1".parse().expect("an address"))]
        );
        Ok(())
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, part) in [
            ("port", "`port` needs a number"),
            ("port x", "invalid port"),
            ("port 70000", "invalid port"),
            ("host", "`host` needs a name"),
            ("tcp", "unknown word `tcp`"),
            ("and", "unknown word `and`"),
            ("host no-such-node-anywhere", "no-such-node-anywhere"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
