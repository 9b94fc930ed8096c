//! Opens streams and listeners over leases.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esp_engine::Command;
use esp_engine::shm::{Region, RingSizes};
use esp_proto::ConnectError;

use super::embedded::SELF;
use super::leases::Leases;
use super::ports::LeasedPorts;
use super::stream::{LeasedListener, LeasedStream, Opened, sizes};
use crate::control::{ErrorKind, Rings};
use crate::error::{EspError, PeerName};
use crate::sync::lock;

/// Ports of a range, and so the number of its connections to one port of one peer.
const RANGE_PORTS: u16 = 32;
/// Maximum number of ranges of one interface.
const MAX_RANGES: usize = 8;

/// Failed attempt to connect from one port.
enum Attempt {
    PortTaken,
    Failed(EspError),
}

impl Leases {
    /// Opens a stream from any leased port of this interface. It may still be connecting. Without a
    /// daemon that keeps the ports, no new stream is opened.
    pub(crate) fn connect(
        self: &Arc<Self>,
        interface: &str,
        peer: PeerName,
        key: &[u8],
        rings: Rings,
    ) -> Result<Opened, EspError> {
        self.keeper().check()?;
        let sizes = sizes(rings, 0)?;
        for range in 0..MAX_RANGES {
            let leased = {
                let table = lock(&self.table);
                let mut ranges = table.iter().filter(|ports| ports.serves(interface));
                ranges.nth(range).cloned()
            };
            let ports = match leased {
                Some(ports) => ports,
                None => {
                    let ports = self.lease(interface, None, RANGE_PORTS)?;
                    self.prepare_standbys(&ports);
                    ports
                }
            };
            for _ in 0..RANGE_PORTS {
                match self.connect_from(&ports, peer, key, sizes) {
                    Err(Attempt::PortTaken) => {}
                    Err(Attempt::Failed(error)) => return Err(error),
                    Ok(opened) => return Ok(opened),
                }
            }
        }
        Err(EspError::denied(
            ErrorKind::InUse,
            "all leased ports are connected to that port",
        ))
    }

    fn connect_from(
        self: &Arc<Self>,
        ports: &Arc<LeasedPorts>,
        peer: PeerName,
        key: &[u8],
        sizes: RingSizes,
    ) -> Result<Opened, Attempt> {
        let count = u32::from(*ports.ports.end() - *ports.ports.start()) + 1;
        let step = ports.next.fetch_add(1, Ordering::Relaxed) % count;
        // At most the last port of the range.
        let local_port = ports.ports.start() + u16::try_from(step).unwrap_or(0);
        let (region, slot) = self.prepare(sizes).map_err(Attempt::Failed)?;
        let (link, key, given) = (ports.link, key.to_vec(), Arc::clone(&region));
        let answer = self.engine.ask(|reply| Command::Connect {
            client: SELF,
            slot,
            link,
            local_port,
            peer: peer.addr,
            peer_port: peer.port,
            key,
            region: given,
            reply,
        });
        let error = match answer {
            Some(Ok(_)) => {
                return Ok(Opened {
                    stream: self.stream(ports, slot),
                    region,
                    interface: ports.interface.clone(),
                    local_port,
                    peer,
                });
            }
            Some(Err(ConnectError::InUse)) => Attempt::PortTaken,
            Some(Err(error)) => {
                Attempt::Failed(EspError::denied(ErrorKind::BadArgument, error.to_string()))
            }
            None => Attempt::Failed(EspError::denied(
                ErrorKind::Unavailable,
                "the embedded engine does not respond",
            )),
        };
        self.engine.withdraw_slot(slot);
        Err(error)
    }

    /// Creates the region of a new stream and reserves a slot.
    pub(super) fn prepare(&self, sizes: RingSizes) -> Result<(Arc<Region>, u16), EspError> {
        let (region, _descriptor) = Region::create(sizes)
            .map_err(|error| EspError::resource("create the rings of a stream", error))?;
        let slot = self.engine.take_slot().ok_or_else(|| {
            EspError::denied(
                ErrorKind::Limit,
                "the limit of 4096 streams over leases is reached",
            )
        })?;
        Ok((region, slot))
    }

    pub(super) fn stream(self: &Arc<Self>, ports: &Arc<LeasedPorts>, slot: u16) -> LeasedStream {
        LeasedStream {
            ports: Arc::clone(ports),
            leases: Arc::downgrade(self),
            slot,
        }
    }

    /// Leases the port of a listener on these interfaces. An interface without a lease uses the
    /// daemon; with `must` it is an error.
    pub(crate) fn listen<'a>(
        self: &Arc<Self>,
        interfaces: impl Iterator<Item = &'a str>,
        (listener, port): (u64, u16),
        backlog: u16,
        key: &[u8],
        must: bool,
    ) -> Result<Vec<LeasedListener>, EspError> {
        // The listener's id is valid at the first daemon only.
        self.session.check()?;
        let (mut leased, mut all) = (Vec::new(), Vec::new());
        for interface in interfaces {
            let ports = match self.holder(Some(interface), port) {
                Some(ports) => ports,
                None => match self.lease(interface, Some(listener), 1) {
                    Ok(ports) => ports,
                    Err(error) if must => return Err(error),
                    Err(_) => continue,
                },
            };
            leased.push(ports);
        }
        // After the loop, because an interface with the port needs no standby.
        leased.iter().for_each(|ports| self.prepare_standbys(ports));
        for ports in leased {
            let id = self
                .engine
                .listen(ports.link, port, backlog, key.to_vec())
                .ok_or_else(|| {
                    EspError::denied(
                        ErrorKind::Unavailable,
                        "the embedded engine cannot listen on the port",
                    )
                })?;
            all.push(LeasedListener {
                ports,
                leases: Arc::downgrade(self),
                listener: id,
            });
        }
        Ok(all)
    }
}
