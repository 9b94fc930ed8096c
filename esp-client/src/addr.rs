//! Addresses and names: `TARGET[%IF]:PORT`.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use esp_proto::{MacAddr, NodeAddr};

use crate::announced::{announced_name, find};
use crate::client::Client;
use crate::error::{EspError, PeerName};

/// Environment variable with the path of a file of `MAC name` lines; see [`ethers_path`].
const ETHERS_VARIABLE: &str = "ESP_ETHERS";
/// Path of the file of node names if [`ETHERS_VARIABLE`] is not set; see ethers(5).
const DEFAULT_ETHERS: &str = "/etc/ethers";
/// Maximum length of that file, in bytes.
const MAX_ETHERS: u64 = 1 << 20;

/// Address of a listener: a node's address, a port, and optionally the local interface to use.
///
/// Its text form is `TARGET[%IF]:PORT` with an address ([`NodeAddr`]) or a name ([`resolve`]) as
/// TARGET, such as `02:00:00:00:00:01:5000`, `10.1.0.7:5000` or `node7%eth1:5000`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EspAddr {
    /// Address of the node.
    pub addr: NodeAddr,
    /// Port.
    pub port: u16,
    /// Interface of this node; `None`: chosen by [`Client::route`](crate::Client::route).
    pub interface: Option<String>,
}

impl EspAddr {
    /// Returns an address without an interface.
    pub fn new(addr: impl Into<NodeAddr>, port: u16) -> EspAddr {
        EspAddr {
            addr: addr.into(),
            port,
            interface: None,
        }
    }

    /// Sets the interface.
    #[must_use]
    pub fn via(mut self, interface: impl Into<String>) -> EspAddr {
        self.interface = Some(interface.into());
        self
    }

    pub(crate) fn peer(&self) -> PeerName {
        PeerName {
            addr: self.addr,
            port: self.port,
        }
    }
}

impl fmt::Display for EspAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{}:{}", self.addr, interface, self.port),
            None => write!(f, "{}:{}", self.addr, self.port),
        }
    }
}

impl FromStr for EspAddr {
    type Err = EspError;

    /// Parses the text form and looks up names ([`resolve`]).
    fn from_str(text: &str) -> Result<EspAddr, EspError> {
        parse(text, None)
    }
}

/// Parses the text form. Announced names are requested through this client, or the shared one.
fn parse(text: &str, client: Option<&Client>) -> Result<EspAddr, EspError> {
    let no_port = || bad_address(text, "the port is missing");
    if text.parse::<NodeAddr>().is_ok() {
        return Err(no_port());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
    let port = parse_port(port)
        .ok_or_else(|| bad_address(text, "the port is not a number from 1 to 65535"))?;
    at_port(host, port, client)
}

/// Returns the address of this port of `TARGET[%IF]`.
fn at_port(host: &str, port: u16, client: Option<&Client>) -> Result<EspAddr, EspError> {
    // An IPv6 address has its own `%`, in the brackets.
    let after = host.find(']').unwrap_or(0);
    let percent = host[after..].find('%').map(|at| host.split_at(after + at));
    let (target, interface) = match percent.map(|(target, rest)| (target, &rest[1..])) {
        None => (host, None),
        Some((_, "")) => return Err(bad_address(host, "the interface after % is missing")),
        Some((target, interface)) => (target, Some(interface)),
    };
    Ok(EspAddr {
        addr: look_up(target, interface, client)?,
        port,
        interface: interface.map(str::to_owned),
    })
}

fn bad_address(text: &str, why: &str) -> EspError {
    EspError::BadArgument(format!(
        "{text:?} is not an ESP address: {why} (like 02:00:00:00:00:01:5000 or node1%eth0:5000)"
    ))
}

fn parse_port(text: &str) -> Option<u16> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&port| port != 0)
}

/// Address argument of [`EspStream::connect`](crate::EspStream::connect).
pub trait ToEspAddr {
    /// Returns the address; looks up names ([`resolve`]), announced ones through this client.
    fn to_esp_addr(&self, client: &Client) -> Result<EspAddr, EspError>;
}

impl ToEspAddr for EspAddr {
    fn to_esp_addr(&self, _client: &Client) -> Result<EspAddr, EspError> {
        Ok(self.clone())
    }
}

impl ToEspAddr for (MacAddr, u16) {
    fn to_esp_addr(&self, _client: &Client) -> Result<EspAddr, EspError> {
        Ok(EspAddr::new(self.0, self.1))
    }
}

impl ToEspAddr for (NodeAddr, u16) {
    fn to_esp_addr(&self, _client: &Client) -> Result<EspAddr, EspError> {
        Ok(EspAddr::new(self.0, self.1))
    }
}

impl ToEspAddr for (&str, u16) {
    fn to_esp_addr(&self, client: &Client) -> Result<EspAddr, EspError> {
        at_port(self.0, self.1, Some(client))
    }
}

impl ToEspAddr for str {
    fn to_esp_addr(&self, client: &Client) -> Result<EspAddr, EspError> {
        parse(self, Some(client))
    }
}

impl ToEspAddr for String {
    fn to_esp_addr(&self, client: &Client) -> Result<EspAddr, EspError> {
        parse(self, Some(client))
    }
}

impl<T: ToEspAddr + ?Sized> ToEspAddr for &T {
    fn to_esp_addr(&self, client: &Client) -> Result<EspAddr, EspError> {
        (**self).to_esp_addr(client)
    }
}

/// Returns the file in which names are looked up: `ESP_ETHERS`, else `/etc/ethers`.
pub fn ethers_path() -> PathBuf {
    match std::env::var_os(ETHERS_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_ETHERS.into(),
    }
}

/// Returns the address of a text: the address itself, or that of a name.
///
/// A name in [`ethers_path`] has an Ethernet address. `NAME.esp` is the node that announces NAME:
/// requests are sent through the shared client, on this interface or on all, for at most 0.3 s. Any
/// other name is looked up by the system's resolver (`/etc/hosts`, DNS) and is reached by UDP.
///
/// # Errors
/// [`EspError::UnknownName`]; [`EspError::AmbiguousName`] if several nodes announce the name; for
/// an announced name, the errors of [`Client::shared`], too.
pub fn resolve(target: &str, interface: Option<&str>) -> Result<NodeAddr, EspError> {
    look_up(target, interface, None)
}

fn look_up(
    target: &str,
    interface: Option<&str>,
    client: Option<&Client>,
) -> Result<NodeAddr, EspError> {
    if let Ok(addr) = target.parse() {
        return Ok(addr);
    }
    if target.is_empty() || target.contains([':', '%']) || target.contains(char::is_whitespace) {
        return Err(bad_address(target, "it is neither an address nor a name"));
    }
    let in_file = resolve_in(&ethers_path(), target).map(NodeAddr::Mac);
    match (in_file, announced_name(target)) {
        (Ok(addr), _) => Ok(addr),
        (Err(_), Some(name)) => match client {
            Some(client) => find(client, name, interface),
            None => find(&Client::shared()?, name, interface),
        },
        (Err(error), None) => resolve_udp(target).map_err(|_| error),
    }
}

/// Returns the UDP address of a text: an IP address, or a name that the system's resolver knows.
pub fn resolve_udp(target: &str) -> Result<NodeAddr, EspError> {
    if let Ok(addr @ NodeAddr::Udp(_)) = target.parse() {
        return Ok(addr);
    }
    let found = (target, esp_proto::UDP_PORT).to_socket_addrs();
    let mut found = found.map_err(|error| unknown(target, error.to_string()))?;
    let first = found.next().map(NodeAddr::Udp);
    first.ok_or_else(|| unknown(target, "the resolver has no address"))
}

/// Returns the address of a name in this file of `MAC name` lines. `#` starts a comment; the case
/// of names is ignored.
fn resolve_in(file: &Path, name: &str) -> Result<MacAddr, EspError> {
    let unknown = |why: String| unknown(name, why);
    let text = read_bounded(file).map_err(|error| {
        unknown(format!(
            "{} cannot be read ({error}); use a MAC address, or add the name to that file",
            file.display()
        ))
    })?;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let (Some(mac), Some(found)) = (words.next(), words.next()) else {
            continue;
        };
        if found.eq_ignore_ascii_case(name) {
            return mac.parse().map_err(|_| {
                unknown(format!(
                    "line {} of {} has {mac:?}, which is not a MAC address",
                    number + 1,
                    file.display()
                ))
            });
        }
    }
    Err(unknown(format!(
        "it is neither in {} nor known to the resolver; add a line such as \"02:00:00:00:00:01 {name}\"",
        file.display()
    )))
}

fn unknown(name: &str, why: impl Into<String>) -> EspError {
    EspError::UnknownName {
        name: name.to_owned(),
        why: why.into(),
    }
}

fn read_bounded(file: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?
        .take(MAX_ETHERS + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_ETHERS {
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            "longer than 1 MiB",
        ));
    }
    // Other lines may have names in any encoding.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn text_form_round_trips() {
        let plain = EspAddr::new(NODE, 5000);
        assert_eq!(plain.to_string(), "02:00:00:00:00:01:5000");
        assert_eq!("02:00:00:00:00:01:5000".parse(), Ok(plain.clone()));
        assert_eq!(
            "02-00-00-00-00-01%eth1:5000".parse(),
            Ok(plain.clone().via("eth1"))
        );
        assert_eq!(plain.via("eth1").to_string(), "02:00:00:00:00:01%eth1:5000");
    }

    #[test]
    fn malformed_addresses_say_why() {
        for (text, why) in [
            ("02:00:00:00:00:01", "port is missing"),
            ("node", "port is missing"),
            ("02:00:00:00:00:01:0", "1 to 65535"),
            ("02:00:00:00:00:01:65536", "1 to 65535"),
            ("02:00:00:00:00:01:+5", "1 to 65535"),
            ("02:00:00:00:00:01:", "1 to 65535"),
            ("02:00:00:00:00:01%:5", "interface after %"),
            ("02:00:00:00:00:0g:5", "neither"),
            (":5", "neither"),
            ("a b:5", "neither"),
        ] {
            let error = text.parse::<EspAddr>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn names_come_from_the_ethers_file() {
        let file = std::env::temp_dir().join(format!("esp-ethers-{}", std::process::id()));
        std::fs::write(
            &file,
            b"# cluster\n02:00:00:00:00:01  Node1 # first\n\n2:0:0:0:0:2 node2\nxx node3\n02:00:00:00:00:09\n\xff\xfe y\n",
        )
        .unwrap();
        assert_eq!(resolve_in(&file, "node1"), Ok(NODE));
        assert_eq!(resolve_in(&file, "NODE2"), Ok(MacAddr([2, 0, 0, 0, 0, 2])));
        let malformed = resolve_in(&file, "node3").unwrap_err().to_string();
        assert!(
            malformed.contains("line 5 of") && malformed.contains("\"xx\""),
            "{malformed}"
        );
        let missing = resolve_in(&file, "node4").unwrap_err().to_string();
        assert!(missing.contains(&file.display().to_string()), "{missing}");
        std::fs::remove_file(&file).unwrap();
        let unreadable = resolve_in(&file, "node1").unwrap_err().to_string();
        assert!(unreadable.contains("cannot be read"), "{unreadable}");
    }
}
