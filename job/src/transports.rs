//! Making the transports.

use btl::Btl;
use btl_eth::{EthBtl, EthConfig};
use shm_btl::{ShmBtl, ShmConfig};

use crate::{Options, Transport};

/// What transports are made from.
pub(crate) struct Place<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// A name that only the processes of this job know.
    pub(crate) key: &'a str,
    pub(crate) options: &'a Options,
}

/// The transports that could be made, and why others could not.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) transports: Vec<Box<dyn Btl>>,
    pub(crate) without: Vec<(&'static str, String)>,
}

/// Makes what was asked for. One that cannot be had is no error yet: perhaps nobody needs it.
pub(crate) fn make(place: &Place<'_>) -> Made {
    let mut made = Made::default();
    if place.size == 1 {
        return made;
    }
    for &transport in &place.options.transports {
        let result = match transport {
            Transport::Shm => shm(place),
            Transport::Eth => eth(place),
        };
        match result {
            Ok(transport) => made.transports.push(transport),
            Err(why) => made.without.push((transport.name(), why)),
        }
    }
    made
}

fn shm(place: &Place<'_>) -> Result<Box<dyn Btl>, String> {
    let mut config = ShmConfig::new(place.rank, place.size, place.key);
    if let Some(thresholds) = place.options.thresholds {
        config.thresholds = thresholds;
    }
    let transport = ShmBtl::new(config).map_err(|e| e.to_string())?;
    Ok(Box::new(transport))
}

fn eth(place: &Place<'_>) -> Result<Box<dyn Btl>, String> {
    let mut config = EthConfig::new(place.rank, place.size, place.key.as_bytes());
    config.include.clone_from(&place.options.interfaces);
    config.exclude.clone_from(&place.options.not_interfaces);
    let transport = EthBtl::new(config).map_err(|e| e.to_string())?;
    Ok(Box::new(transport))
}
