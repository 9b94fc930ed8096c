//! Addresses and names: `TARGET[%IF]:PORT`.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use esp_proto::MacAddr;

use crate::error::{EspError, PeerName};

/// Names a file of `MAC name` lines to use instead of [`DEFAULT_ETHERS`].
pub const ETHERS_VARIABLE: &str = "ESP_ETHERS";
/// Where node names are looked up, see ethers(5).
pub const DEFAULT_ETHERS: &str = "/etc/ethers";
/// A longer file is refused.
const MAX_ETHERS: u64 = 1 << 20;

/// Where a program listens: an Ethernet address, a port, and the interface to go through if it
/// matters.
///
/// As text `TARGET[%IF]:PORT`, TARGET a MAC address or a name ([`resolve`]):
/// `02:00:00:00:00:01:5000`, `node7%eth1:5000`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EspAddr {
    /// Ethernet address.
    pub mac: MacAddr,
    /// Port.
    pub port: u16,
    /// Interface of this node; `None`: the one that leads there.
    pub interface: Option<String>,
}

impl EspAddr {
    /// An address without an interface.
    pub fn new(mac: MacAddr, port: u16) -> EspAddr {
        EspAddr {
            mac,
            port,
            interface: None,
        }
    }

    /// The same through this interface.
    #[must_use]
    pub fn via(mut self, interface: impl Into<String>) -> EspAddr {
        self.interface = Some(interface.into());
        self
    }

    pub(crate) fn peer(&self) -> PeerName {
        PeerName {
            mac: self.mac,
            port: self.port,
        }
    }
}

impl fmt::Display for EspAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{}:{}", self.mac, interface, self.port),
            None => write!(f, "{}:{}", self.mac, self.port),
        }
    }
}

impl FromStr for EspAddr {
    type Err = EspError;

    /// Looks up names ([`resolve`]).
    fn from_str(text: &str) -> Result<EspAddr, EspError> {
        let bad = |why| EspError::BadAddress {
            text: text.to_owned(),
            why,
        };
        if text.parse::<MacAddr>().is_ok() {
            return Err(bad("the port is missing"));
        }
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| bad("the port is missing"))?;
        let port =
            parse_port(port).ok_or_else(|| bad("the port is not a number from 1 to 65535"))?;
        let (target, interface) = split_interface(host).map_err(bad)?;
        Ok(EspAddr {
            mac: resolve(target)?,
            port,
            interface: interface.map(str::to_owned),
        })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&port| port != 0)
}

fn split_interface(host: &str) -> Result<(&str, Option<&str>), &'static str> {
    match host.split_once('%') {
        None => Ok((host, None)),
        Some((_, "")) => Err("the interface behind % is missing"),
        Some((target, interface)) => Ok((target, Some(interface))),
    }
}

/// Address argument of [`EspStream::connect`](crate::EspStream::connect).
pub trait ToEspAddr {
    /// The address; names are looked up.
    fn to_esp_addr(&self) -> Result<EspAddr, EspError>;
}

impl ToEspAddr for EspAddr {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        Ok(self.clone())
    }
}

impl ToEspAddr for (MacAddr, u16) {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        Ok(EspAddr::new(self.0, self.1))
    }
}

impl ToEspAddr for (&str, u16) {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        let bad = |why| EspError::BadAddress {
            text: self.0.to_owned(),
            why,
        };
        let (target, interface) = split_interface(self.0).map_err(bad)?;
        Ok(EspAddr {
            mac: resolve(target)?,
            port: self.1,
            interface: interface.map(str::to_owned),
        })
    }
}

impl ToEspAddr for str {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        self.parse()
    }
}

impl ToEspAddr for String {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        self.parse()
    }
}

impl<T: ToEspAddr + ?Sized> ToEspAddr for &T {
    fn to_esp_addr(&self) -> Result<EspAddr, EspError> {
        (**self).to_esp_addr()
    }
}

/// Returns the file in which names are looked up: `ESP_ETHERS`, else `/etc/ethers`.
pub fn ethers_path() -> PathBuf {
    match std::env::var_os(ETHERS_VARIABLE) {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_ETHERS.into(),
    }
}

/// The address a text stands for: a MAC address, or a name of [`ethers_path`].
pub fn resolve(target: &str) -> Result<MacAddr, EspError> {
    if let Ok(mac) = target.parse() {
        return Ok(mac);
    }
    if target.is_empty() || target.contains([':', '%']) || target.contains(char::is_whitespace) {
        let why = "it is neither six hexadecimal bytes nor a name";
        return Err(EspError::BadAddress {
            text: target.to_owned(),
            why,
        });
    }
    resolve_in(&ethers_path(), target)
}

/// The address of a name in this file of `MAC name` lines; `#` begins a comment, names are compared
/// without case.
pub fn resolve_in(file: &Path, name: &str) -> Result<MacAddr, EspError> {
    let unknown = |why: String| EspError::UnknownName {
        name: name.to_owned(),
        why,
    };
    let text = read_bounded(file).map_err(|error| {
        unknown(format!(
            "{} cannot be read ({error}); write a MAC address, or add the name there",
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
                    "line {} of {} has {mac:?} for it, not a MAC address",
                    number + 1,
                    file.display()
                ))
            });
        }
    }
    Err(unknown(format!(
        "no line of {} has it; add one like \"02:00:00:00:00:01 {name}\"",
        file.display()
    )))
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
    // Names of other lines may be in any encoding; they must not hide ours.
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
            ("02:00:00:00:00:01%:5", "interface behind %"),
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
