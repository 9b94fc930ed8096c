//! Interfaces and limits that the daemon grants, read before the transport is made.

use std::io;

use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpSocket};

use crate::channel::RESERVE;
use crate::config::{EthConfig, EthError, MIN_MAX_SEND};
use crate::record::HEAD;

/// Returns the daemon's interfaces that the configuration selects and that are up.
pub(crate) fn choose_interfaces(
    config: &EthConfig,
    all: &[InterfaceInfo],
) -> Result<Vec<InterfaceInfo>, EthError> {
    let wanted: Vec<_> = all.iter().filter(|info| config.wants(&info.name)).collect();
    let names = |list: &[&InterfaceInfo]| {
        list.iter()
            .map(|info| info.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if wanted.is_empty() {
        let have = names(&all.iter().collect::<Vec<_>>());
        return Err(EthError::NoInterface(format!(
            "none of the daemon's interfaces ({have}) is selected (include: {:?}, exclude: {:?})",
            config.include, config.exclude
        )));
    }
    let up: Vec<_> = wanted
        .iter()
        .filter(|info| info.up)
        .map(|info| (*info).clone())
        .collect();
    if up.is_empty() {
        let down = names(&wanted);
        return Err(EthError::NoInterface(format!(
            "{down}: the link is down: check `ip link`"
        )));
    }
    Ok(up)
}

/// Returns the maximum length of a message for the rings that the daemon grants. A datagram socket
/// is granted the same rings as a stream.
pub(crate) fn max_send(
    config: &EthConfig,
    client: &Client,
    interface: &InterfaceInfo,
) -> Result<usize, EthError> {
    let rings = config.rings;
    let trial: EdpSocket = EdpSocket::builder()
        .interface(&interface.name)
        .rings(rings, rings)
        .bind_at(client, 0)?;
    let (tx, rx) = trial.ring_sizes();
    let granted = tx.min(rx);
    let max_send = config.max_send.min(granted / 4);
    if max_send < MIN_MAX_SEND || granted < HEAD + max_send + RESERVE {
        return Err(EthError::Rings {
            granted,
            needed: 4 * MIN_MAX_SEND,
        });
    }
    Ok(max_send)
}

pub(crate) fn daemon_error(error: &io::Error) -> EthError {
    match esp_client::EspError::of(error) {
        Some(typed) => EthError::Daemon(typed.clone()),
        None => EthError::BadConfig(error.to_string()),
    }
}
