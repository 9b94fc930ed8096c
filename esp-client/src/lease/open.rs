//! New streams and listeners over leases.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esp_engine::Command;
use esp_engine::shm::{Region, RingSizes};
use esp_proto::{ConnectError, MacAddr};

use super::{LeasedListener, LeasedPorts, LeasedStream, Leases, denied, embedded};
use crate::control::{ErrorKind, Rings};
use crate::error::EspError;
use crate::session::lock;
use crate::stream::DEFAULT_RING;

/// Ports of a row: that many connections to one port of one peer go through one row.
const ROW: u16 = 32;
/// Rows of one interface at most.
const ROWS: usize = 8;

/// What a new stream is made of.
pub(crate) struct Opened {
    pub(crate) stream: LeasedStream,
    pub(crate) region: Arc<Region>,
    pub(crate) interface: String,
    pub(crate) local_port: u16,
    pub(crate) peer: MacAddr,
    pub(crate) peer_port: u16,
}

enum Attempt {
    PortTaken,
    Failed(EspError),
}

impl Leases {
    /// Opens a stream from any port of a row on this interface. It may still be connecting. While
    /// no daemon keeps the ports nothing new is opened, as on the daemon's path.
    pub(crate) fn connect(
        self: &Arc<Self>,
        interface: &str,
        (peer, peer_port): (MacAddr, u16),
        key: &[u8],
        rings: Rings,
    ) -> Result<Opened, EspError> {
        self.keeper().check()?;
        let sizes = sizes(rings, 0)?;
        for row in 0..ROWS {
            let rows = || {
                lock(&self.table)
                    .iter()
                    .filter(|p| p.serves(interface))
                    .nth(row)
                    .cloned()
            };
            let ports = match rows() {
                Some(ports) => ports,
                None => {
                    let ports = self.lease(interface, None, ROW)?;
                    self.prepare_standbys(&ports);
                    ports
                }
            };
            for _ in 0..ROW {
                match self.connect_from(&ports, (peer, peer_port), key, sizes) {
                    Err(Attempt::PortTaken) => {}
                    Err(Attempt::Failed(error)) => return Err(error),
                    Ok(opened) => return Ok(opened),
                }
            }
        }
        Err(denied(
            ErrorKind::InUse,
            "all leased ports are connected to that port",
        ))
    }

    fn connect_from(
        self: &Arc<Self>,
        ports: &Arc<LeasedPorts>,
        (peer, peer_port): (MacAddr, u16),
        key: &[u8],
        sizes: RingSizes,
    ) -> Result<Opened, Attempt> {
        let count = u32::from(*ports.ports.end() - *ports.ports.start()) + 1;
        let step = ports.next.fetch_add(1, Ordering::Relaxed) % count;
        // At most the last port of the row.
        let local_port = ports.ports.start() + u16::try_from(step).unwrap_or(0);
        let (region, slot) = self.prepare(sizes).map_err(Attempt::Failed)?;
        let (link, key, given) = (ports.link, key.to_vec(), Arc::clone(&region));
        let client = embedded::SELF;
        let answer = self.engine.connect(|reply| Command::Connect {
            client,
            slot,
            link,
            local_port,
            peer,
            peer_port,
            key,
            region: given,
            reply,
        });
        let failed = |attempt| {
            self.engine.withdraw_slot(slot);
            Err(attempt)
        };
        match answer {
            Some(Ok(_)) => {
                let stream = self.stream(ports, slot);
                let interface = ports.interface.clone();
                Ok(Opened {
                    stream,
                    region,
                    interface,
                    local_port,
                    peer,
                    peer_port,
                })
            }
            Some(Err(ConnectError::InUse)) => failed(Attempt::PortTaken),
            Some(Err(error)) => failed(Attempt::Failed(denied(
                ErrorKind::BadArgument,
                &error.to_string(),
            ))),
            None => failed(Attempt::Failed(denied(
                ErrorKind::Unavailable,
                "the engine does not answer",
            ))),
        }
    }

    pub(super) fn prepare(&self, sizes: RingSizes) -> Result<(Arc<Region>, u16), EspError> {
        let (region, _descriptor) = Region::create(sizes).map_err(|error| EspError::Memory {
            what: format!("make the rings: {error}"),
        })?;
        let slot = self.engine.take_slot().ok_or_else(|| {
            denied(
                ErrorKind::Limit,
                "a program may have 4096 streams over leases",
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

    /// Leases the port of a listener on these interfaces. What cannot be leased comes through the
    /// daemon, unless it `must` be.
    pub(crate) fn listen<'a>(
        self: &Arc<Self>,
        interfaces: impl Iterator<Item = &'a str>,
        (listener, port): (u64, u16),
        backlog: u16,
        key: &[u8],
        must: bool,
    ) -> Result<Vec<LeasedListener>, EspError> {
        // The listener's number is one of the daemon that the client began with.
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
        // Only when it has the port on all of them itself.
        leased.iter().for_each(|ports| self.prepare_standbys(ports));
        for ports in leased {
            let id = self
                .engine
                .listen(ports.link, port, backlog, key.to_vec())
                .ok_or_else(|| denied(ErrorKind::Unavailable, "the engine does not listen"))?;
            all.push(LeasedListener {
                ports,
                leases: Arc::downgrade(self),
                listener: id,
            });
        }
        Ok(all)
    }
}

/// The rings of a stream; 0 leaves a size to us, as it does at the daemon.
pub(super) fn sizes(wanted: Rings, least_rx: u32) -> Result<RingSizes, EspError> {
    let one = |size: u32| if size == 0 { DEFAULT_RING } else { size };
    let sizes = RingSizes {
        tx: one(wanted.tx),
        rx: one(wanted.rx).max(least_rx.next_power_of_two()),
    };
    sizes
        .check()
        .map_err(|error| denied(ErrorKind::BadArgument, &error.to_string()))?;
    Ok(sizes)
}
