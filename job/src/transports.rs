//! Creates the transports of a process.

use btl::Btl;
use btl_eth::{Carrier, EthBtl, EthConfig};
use esp_client::Protection;
use ib_btl::{IbBtl, IbConfig};
use shm_btl::{ShmBtl, ShmConfig};

use crate::options::MAX_RAILS;
use crate::tune::Rdma;
use crate::{Options, Transport};

/// Parameters of all transports.
pub(crate) struct TransportSetup<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Name that only the processes of this job know.
    pub(crate) key: &'a str,
    /// Protection of packets over UDP, or the reason why there is no transport over UDP.
    pub(crate) protection: Result<Protection, String>,
    /// Reason for excluding transports to other nodes that this does not protect. `None`: they are
    /// not excluded.
    pub(crate) only_protected: Option<String>,
    /// Ranks of other nodes are reached on use.
    pub(crate) lazy: bool,
    pub(crate) options: &'a Options,
}

/// Transports that were created, and the reasons why others were not.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) transports: Vec<Box<dyn Btl>>,
    pub(crate) without: Vec<(&'static str, String)>,
    /// True if one of them uses this node's daemon.
    pub(crate) by_daemon: bool,
}

/// Reason for excluding RDMA in a job whose ranks are reached on use.
const NOT_LAZY: &str = "rank 0 has no RDMA port, and a job of ESP_LAZY_FROM or more ranks then \
    uses only transports that can connect ranks on first use";

/// Creates the configured transports. A missing one is an error only if a peer needs it.
pub(crate) fn make(setup: &TransportSetup<'_>) -> Made {
    let mut made = Made::default();
    if setup.size == 1 {
        return made;
    }
    for &transport in &setup.options.transports {
        let result = match (transport, &setup.only_protected) {
            (Transport::Ib | Transport::Eth, Some(why)) => Err(why.clone()),
            (Transport::Ib, None) if setup.lazy => Err(NOT_LAZY.into()),
            (other, _) => make_one(setup, other, &mut made.by_daemon),
        };
        match result {
            Ok(transports) => made.transports.extend(transports),
            Err(why) => made.without.push((transport.name(), why)),
        }
    }
    made
}

/// Creates the rails of one transport.
fn make_one(
    setup: &TransportSetup<'_>,
    transport: Transport,
    by_daemon: &mut bool,
) -> Result<Vec<Box<dyn Btl>>, String> {
    match transport {
        Transport::Shm => shm(setup).map(|one| vec![one]),
        Transport::Ib => ib(setup),
        // The daemon protects its packets.
        Transport::Eth => eth(setup, Carrier::Raw, Protection::None, by_daemon),
        Transport::Udp => eth(setup, Carrier::Udp, setup.protection.clone()?, by_daemon),
    }
}

fn shm(setup: &TransportSetup<'_>) -> Result<Box<dyn Btl>, String> {
    let mut config = ShmConfig::new(setup.rank, setup.size, setup.key);
    if let Some(thresholds) = setup.options.thresholds {
        config.thresholds = thresholds;
    }
    let transport = ShmBtl::new(config).map_err(|e| e.to_string())?;
    Ok(Box::new(transport))
}

/// Creates one transport for each port; the layer above stripes long messages over them.
fn ib(setup: &TransportSetup<'_>) -> Result<Vec<Box<dyn Btl>>, String> {
    let ports = if setup.options.rdma_ports.is_empty() {
        let active = ib_btl::ports().map_err(|e| e.to_string())?;
        active
            .into_iter()
            .map(|(device, port)| format!("{device}:{port}"))
            .collect()
    } else {
        setup.options.rdma_ports.clone()
    };
    let make = |(rail, port)| {
        let transport = IbBtl::new(IbConfig {
            rail,
            device: Some(port),
            ..ib_config(setup)
        });
        Ok(Box::new(transport.map_err(|e| e.to_string())?) as Box<dyn Btl>)
    };
    rails((0..).zip(ports).take(MAX_RAILS).map(make))
}

/// Returns the rails that could be created, or the reason of the last failure if there is none.
fn rails(
    made: impl Iterator<Item = Result<Box<dyn Btl>, String>>,
) -> Result<Vec<Box<dyn Btl>>, String> {
    let (mut rails, mut why) = (Vec::new(), String::new());
    for rail in made {
        match rail {
            Ok(rail) => rails.push(rail),
            Err(error) => why = error,
        }
    }
    if rails.is_empty() {
        Err(why)
    } else {
        Ok(rails)
    }
}

/// Minimum number of ranks for which receive blocks are shared by default: separate blocks take 268
/// KiB per peer.
const SHARED_FROM: u32 = 257;

fn ib_config(setup: &TransportSetup<'_>) -> IbConfig {
    let mut config = IbConfig::new(setup.rank, setup.size, setup.key.as_bytes());
    let Rdma {
        blocks,
        held_from,
        long_from,
        shared,
        shared_blocks,
        timeout,
        retries,
    } = setup.options.rdma;
    config.blocks = blocks.unwrap_or(config.blocks);
    config.held_from = held_from.or(config.held_from);
    config.long_from = long_from.unwrap_or(config.long_from);
    config.shared_blocks = shared_blocks.unwrap_or(config.shared_blocks);
    config.timeout = timeout.unwrap_or(config.timeout);
    config.retries = retries.unwrap_or(config.retries);
    if shared.unwrap_or(setup.size >= SHARED_FROM) {
        config.shared()
    } else {
        config
    }
}

/// Number of processes above which a job has smaller rings over Ethernet.
const LARGE: u32 = 64;
/// Size of these rings in bytes. A process may have hundreds of connections, with two rings each.
const LARGE_RINGS: u32 = 512 << 10;

/// Creates one transport for each interface.
fn eth(
    setup: &TransportSetup<'_>,
    carrier: Carrier,
    protection: Protection,
    by_daemon: &mut bool,
) -> Result<Vec<Box<dyn Btl>>, String> {
    let mut config = EthConfig::new(setup.rank, setup.size, setup.key.as_bytes());
    config.carrier = carrier;
    if setup.size > LARGE {
        config.rings = LARGE_RINGS;
    }
    config.protection = Some(protection);
    config.include.clone_from(&setup.options.interfaces);
    config.exclude.clone_from(&setup.options.not_interfaces);
    let names = config.interfaces().map_err(|e| e.to_string())?;
    let make = |names: &[String]| {
        let transport = EthBtl::new(EthConfig {
            include: names.to_vec(),
            ..config.clone()
        });
        let transport = transport.map_err(|e| e.to_string())?;
        *by_daemon |= transport.uses_daemon();
        Ok(Box::new(transport) as Box<dyn Btl>)
    };
    rails(share(&names, setup.options.rails).into_iter().map(make))
}

/// Distributes interfaces over rails: one each, and all remaining ones to the last rail.
fn share(names: &[String], rails: usize) -> Vec<&[String]> {
    let (single, rest) = names.split_at(names.len().min(rails.saturating_sub(1)));
    let mut all: Vec<&[String]> = single.chunks(1).collect();
    if !rest.is_empty() {
        all.push(rest);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The options select separate or shared receive blocks.
    #[test]
    fn receive_blocks_are_separate_or_shared() {
        let config = |size, rdma| {
            let options = Options {
                rdma,
                ..Options::default()
            };
            ib_config(&TransportSetup {
                rank: 0,
                size,
                key: "key",
                protection: Ok(Protection::None),
                only_protected: None,
                lazy: false,
                options: &options,
            })
        };
        let few = config(256, Rdma::default());
        assert!(few.blocks > 0 && few.message_memory(255) > 255 * few.blocks * ib_btl::BLOCK);
        let many = config(257, Rdma::default());
        assert_eq!(
            (many.blocks, many.message_memory(256)),
            (0, many.message_memory(1))
        );
        let said = Rdma {
            shared: Some(false),
            blocks: Some(8),
            long_from: Some(1),
            ..Rdma::default()
        };
        let (said, shared) = (
            config(1000, said),
            config(
                2,
                Rdma {
                    shared: Some(true),
                    ..said
                },
            ),
        );
        let other = Rdma {
            held_from: Some(2),
            timeout: Some(3),
            retries: Some(4),
            ..Rdma::default()
        };
        let other = config(2, other);
        assert_eq!(
            (other.held_from, other.timeout, other.retries),
            (Some(2), 3, 4)
        );
        assert_eq!(
            (said.blocks, said.long_from, shared.blocks, shared.long_from),
            (8, 1, 0, 1)
        );
    }

    #[test]
    fn every_interface_has_a_rail() {
        let names: Vec<String> = (0..6).map(|n| format!("eth{n}")).collect();
        let counts = |count: usize, rails| {
            share(&names[..count], rails)
                .iter()
                .map(|rail| rail.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(1, 4), [1]);
        assert_eq!(counts(2, 4), [1, 1]);
        assert_eq!(counts(4, 4), [1, 1, 1, 1]);
        assert_eq!(counts(6, 4), [1, 1, 1, 3]);
        assert_eq!(counts(6, 1), [6]);
        assert_eq!(counts(0, 4), [0usize; 0]);
    }
}
