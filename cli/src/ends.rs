//! Finds the other end: the address of its node, and the client that reaches it.

use std::io::ErrorKind;

use clap::Args;
use esp_client::{Client, EspAddr, EspError, NodeAddr, resolve, resolve_udp};

use crate::esping::hint;
use crate::names::Names;
use crate::out::Failure;

/// Carrier of streams and datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Carrier {
    /// Raw Ethernet, through the node's daemon
    Raw,
    /// UDP, sent by this program itself
    Udp,
}

/// Options of the carrier and the interface, for all programs that open streams.
#[derive(Clone, Debug, Args)]
pub struct CarrierOptions {
    /// Interface to use [default: all for a server; the one that reaches the node for a client]
    #[arg(short = 'I', long, value_name = "IF")]
    pub interface: Option<String>,
    /// Carrier [default: raw for a server; that of the node's address for a client]
    #[arg(long, value_name = "CARRIER")]
    pub carrier: Option<Carrier>,
    /// With --carrier udp, the UDP port of a server; its clients write NODE@PORT if it is not 2805
    #[arg(long, value_name = "PORT", default_value_t = esp_proto::UDP_PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: u16,
}

impl CarrierOptions {
    /// Returns the client for a server: one of the daemon, or one that needs no daemon.
    ///
    /// # Errors
    /// There is no daemon, the UDP port is in use, or a key file cannot be used.
    pub fn serve(&self) -> Result<Client, Failure> {
        match self.carrier {
            Some(Carrier::Udp) => {
                Client::udp_at(self.udp_port).map_err(|error| match error.kind() {
                    // The text of the error ends with the advice to choose another port.
                    ErrorKind::AddrInUse => Failure::new(format_args!("{error} (--udp-port)")),
                    _ => Failure::new(error),
                })
            }
            Some(Carrier::Raw) | None => Client::shared().map_err(Failure::new),
        }
    }

    /// Returns the client that reaches a node, and the address of this port there.
    ///
    /// # Errors
    /// The name is unknown, the carrier does not match the address, or there is no daemon.
    pub fn reach(&self, node: &str, port: u16) -> Result<(Client, EspAddr), Failure> {
        let hint = |name: &str| hint::of(name, &Names::load());
        let addr = look_up(node, self.interface.as_deref(), self.carrier, hint)?;
        let client = if addr.is_udp() {
            Client::udp()
        } else {
            Client::shared()
        };
        let mut addr = EspAddr::new(addr, port);
        addr.interface.clone_from(&self.interface);
        Ok((client.map_err(Failure::new)?, addr))
    }
}

/// Describes an error of a connection; if a name is unknown, with a suggestion.
pub fn describe(error: &std::io::Error) -> String {
    let hint = match EspError::of(error) {
        Some(EspError::UnknownName { name, .. }) => hint::of(name, &Names::load()),
        _ => None,
    };
    hint.map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"))
}

/// Returns the address of a node by its address or name. `hint` adds to the error of an unknown
/// name.
///
/// # Errors
/// The name is unknown, the carrier does not match the address, or it is a group address.
pub(crate) fn look_up(
    node: &str,
    interface: Option<&str>,
    carrier: Option<Carrier>,
    hint: impl Fn(&str) -> Option<String>,
) -> Result<NodeAddr, Failure> {
    let addr = match carrier {
        Some(Carrier::Udp) => resolve_udp(node),
        Some(Carrier::Raw) | None => resolve(node, interface),
    };
    let addr = addr.map_err(|error| match &error {
        EspError::UnknownName { .. } => match hint(node) {
            Some(hint) => Failure::new(format_args!("{error}; {hint}")),
            None => Failure::new(error),
        },
        _ => Failure::new(error),
    })?;
    if carrier == Some(Carrier::Raw) && addr.is_udp() {
        return Err(Failure::new(format_args!(
            "{node} has no Ethernet address: add it to /etc/ethers, or omit --carrier raw"
        )));
    }
    if addr.is_group() {
        return Err(Failure::new(format_args!(
            "{node} is a group address: write the address of one node (esping --discover shows all)"
        )));
    }
    Ok(addr)
}
