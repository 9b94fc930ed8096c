//! What is asked of the daemon before there is a transport.

use std::io;

use esp_client::control::InterfaceInfo;
use esp_client::{Client, EdpSocket};

use crate::channel::SPARE;
use crate::config::{EthConfig, EthError, LEAST_MESSAGE};
use crate::frame::HEAD;

/// The daemon's links that are to be used.
pub(crate) fn choose(
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
            "none of the daemon's interfaces ({have}) is one to be used (include: {:?}, exclude: {:?})",
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
            "{down}: the link is down (ip link says why)"
        )));
    }
    Ok(up)
}

/// The longest message, by the rings that the daemon gives. A datagram socket gets the same ones as a stream.
pub(crate) fn longest(
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
    let given = tx.min(rx);
    let most = config.max_send.min(given / 4);
    if most < LEAST_MESSAGE || given < HEAD + most + SPARE {
        return Err(EthError::Rings {
            given,
            needed: 4 * LEAST_MESSAGE,
        });
    }
    Ok(most)
}

pub(crate) fn typed(error: &io::Error) -> EthError {
    match esp_client::EspError::of(error) {
        Some(typed) => EthError::Daemon(typed.clone()),
        None => EthError::BadConfig(error.to_string()),
    }
}
