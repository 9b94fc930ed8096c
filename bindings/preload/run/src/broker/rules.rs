//! Rules for TCP, from the file of `--rules`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use cli::out::{Context, Failure};
use serde::Deserialize;

/// Maximum length of the file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Contents of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tcp: Table,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    ports: Option<Vec<String>>,
    hosts: Option<Vec<String>>,
}

/// The ports and hosts whose TCP uses ESP; an empty list means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// First and last port of each range.
    ports: Vec<(u16, u16)>,
    /// Address and prefix length of each network.
    hosts: Vec<(IpAddr, u8)>,
}

/// Reads the file.
pub(crate) fn load(file: Option<&Path>) -> Result<Rules, Failure> {
    let Some(file) = file else {
        return Ok(Rules::default());
    };
    let length = fs::metadata(file).doing(file.display())?.len();
    if length > MAX_FILE {
        return Err(Failure::new(format_args!(
            "{} is longer than 1 MiB",
            file.display()
        )));
    }
    let text = fs::read_to_string(file).doing(file.display())?;
    parse(&text).doing(file.display())
}

fn parse(text: &str) -> Result<Rules, String> {
    let File { tcp } = toml::from_str(text).map_err(|error| error.to_string())?;
    let ports = tcp.ports.unwrap_or_default();
    let hosts = tcp.hosts.unwrap_or_default();
    Ok(Rules {
        ports: ports
            .iter()
            .map(|text| port_range(text))
            .collect::<Result<_, _>>()?,
        hosts: hosts
            .iter()
            .map(|text| network(text))
            .collect::<Result<_, _>>()?,
    })
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    port(first)
        .zip(port(last))
        .filter(|(first, last)| first <= last)
        .ok_or_else(|| format!("invalid port `{text}`: write \"6379\" or \"8000-8999\""))
}

fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let invalid = || format!("invalid host `{text}`: write \"10.1.0.7\" or \"10.1.0.0/16\"");
    let (addr, bits) = match text.split_once('/') {
        Some((addr, bits)) => (addr, Some(bits)),
        None => (text, None),
    };
    let addr: IpAddr = addr.parse().map_err(|_| invalid())?;
    let width = if addr.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| invalid()))?;
    if bits > width {
        return Err(invalid());
    }
    Ok((addr, bits))
}

impl Rules {
    /// Returns true if connections to this address may use ESP.
    pub(crate) fn allow(&self, peer: SocketAddr) -> bool {
        self.allow_port(peer.port()) && self.allow_host(peer.ip())
    }

    /// Returns true if connections from or to this host may use ESP.
    pub(crate) fn allow_host(&self, peer: IpAddr) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|net| is_in(peer, *net))
    }

    /// Returns true if listeners on this port may be reached over ESP.
    pub(crate) fn allow_port(&self, port: u16) -> bool {
        let is_in = |range: &(u16, u16)| (range.0..=range.1).contains(&port);
        self.ports.is_empty() || self.ports.iter().any(is_in)
    }
}

fn is_in(addr: IpAddr, (net, bits): (IpAddr, u8)) -> bool {
    let number = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()) << 96,
        IpAddr::V6(addr) => addr.to_bits(),
    };
    let difference = number(addr) ^ number(net);
    addr.is_ipv4() == net.is_ipv4() && difference.leading_zeros() >= u32::from(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        parse(text).expect("rules")
    }

    #[test]
    fn without_rules_all_is_allowed() {
        assert!(rules("").allow("10.1.0.7:80".parse().unwrap()));
    }

    #[test]
    fn ports_and_hosts_are_ranges() {
        let rules = rules("[tcp]\nports = [\"6379\", \"8000-8001\"]\nhosts = [\"10.1.0.0/16\"]");
        for (addr, allowed) in [
            ("10.1.2.3:6379", true),
            ("10.1.2.3:8001", true),
            ("10.1.2.3:8002", false),
            ("10.2.0.1:6379", false),
            ("[fd00::1]:6379", false),
        ] {
            assert_eq!(rules.allow(addr.parse().unwrap()), allowed, "{addr}");
        }
    }

    #[test]
    fn wrong_rules_say_why() {
        for (text, why) in [
            ("[tcp]\nports = [\"0\"]", "invalid port `0`"),
            ("[tcp]\nports = [\"9-8\"]", "invalid port `9-8`"),
            ("[tcp]\nports = [80]", "string"),
            ("[tcp]\nhosts = [\"node1\"]", "invalid host `node1`"),
            ("[tcp]\nhosts = [\"10.0.0.0/33\"]", "invalid host"),
            ("[tcp]\nport = []", "unknown field"),
            ("[udp]", "unknown field"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
