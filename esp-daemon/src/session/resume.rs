//! Sockets of an earlier daemon that their programs bring (see
//! [`esp_client::control::Request::ResumeStream`]).
//!
//! The memory is untrusted. It is mapped only if it is sealed against shortening, and is read like
//! any other region. Its port is checked and its rings are charged as for a new socket. A peer
//! ignores a forged image, which lacks its nonces.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use esp_client::control::{ErrorKind, Rings};
use esp_engine::shm::{Region, RingSizes};
use esp_engine::{Command, Slot};
use esp_proto::{Port, ResumeError};

use super::Session;
use super::requests::in_use;
use crate::links;
use crate::node::Client;
use crate::ports::{PortClaim, Purpose};
use crate::refusal::Refusal;
use crate::slots::{Holdings, SlotUse};

impl Session {
    /// Resumes the connection of a stream.
    pub(super) async fn resume_stream(
        &self,
        client: &Client,
        slot: Slot,
        rings: Rings,
        descriptors: &[OwnedFd],
    ) -> Result<(), Refusal> {
        let (region, sizes) = self.adopt_region(rings, descriptors)?;
        let (image, own) = region.image().ok_or_else(|| {
            Refusal::bad_argument("the memory of this stream has no established connection")
        })?;
        let found = links::by_addr(&self.node.links, own);
        let (id, link) = found.ok_or_else(|| {
            let message = format!("esp-daemon serves no interface with the address {own}");
            Refusal::new(ErrorKind::NotFound, message)
        })?;
        self.check_port(image.local_port)?;
        // A connection within the node does not use the sockets of a lease of its port.
        let purpose = if image.peer == own {
            Purpose::Accepted
        } else {
            Purpose::Connection
        };
        let port = (link.esp).take(image.local_port, client.claimant(), purpose);
        let port = port.ok_or_else(|| in_use(link, image.local_port))?;
        let assigned = self.node.assign_port(client.claimant(), image.local_port);
        assigned.await?;
        self.reserve_at(client, SlotUse::Stream, slot, sizes, port)?;
        let command = |reply| Command::Resume {
            client: client.id,
            slot,
            link: id,
            image: Box::new(image),
            region,
            reply,
        };
        self.start(client, slot, command).await?;
        self.node.stats.streams_adopted.add();
        Ok(())
    }

    /// Binds the port of a datagram socket again.
    pub(super) async fn resume_edp(
        &self,
        client: &Client,
        (interface, port): (&str, Port),
        slot: Slot,
        rings: Rings,
        descriptors: &[OwnedFd],
    ) -> Result<(), Refusal> {
        let (region, sizes) = self.adopt_region(rings, descriptors)?;
        let (id, link) = links::by_name(&self.node.links, interface)?;
        if port == 0 {
            return Err(Refusal::bad_argument("invalid port 0"));
        }
        self.check_port(port)?;
        let at = (link, &link.edp);
        let claim = self.claim_port(client, at, port, Purpose::Sole).await?;
        self.reserve_at(client, SlotUse::Edp, slot, sizes, claim)?;
        let command = |reply| Command::BindEdp {
            client: client.id,
            slot,
            link: id,
            port,
            region,
            resume: true,
            reply,
        };
        self.start(client, slot, command).await
    }

    /// Maps the rings that a program brings, if they are within its limits.
    fn adopt_region(
        &self,
        rings: Rings,
        descriptors: &[OwnedFd],
    ) -> Result<(Arc<Region>, RingSizes), Refusal> {
        // An accepted stream may have a larger receive ring than is otherwise allowed.
        let mtu = self.node.links.iter().map(|link| link.info().mtu).max();
        let least = esp_proto::min_listener_capacity(mtu.unwrap_or(0)).next_power_of_two();
        let sizes = self.node.grant(rings, rings.rx.min(least))?;
        if (sizes.tx, sizes.rx) != (rings.tx, rings.rx) {
            let message = format!(
                "rings of {} and {} bytes are larger than now allowed: {} and {}",
                rings.tx, rings.rx, sizes.tx, sizes.rx
            );
            return Err(Refusal::new(ErrorKind::Limit, message));
        }
        // Lost in the kernel at the limit of open files.
        let file = descriptors
            .first()
            .ok_or_else(|| Refusal::new(ErrorKind::Limit, "esp-daemon is short of descriptors"))?;
        let region = Region::adopt(file.as_fd(), sizes).map_err(Refusal::bad_argument)?;
        Ok((region, sizes))
    }

    /// Takes the slot that a socket had before.
    fn reserve_at(
        &self,
        client: &Client,
        kind: SlotUse,
        slot: Slot,
        sizes: RingSizes,
        port: PortClaim,
    ) -> Result<(), Refusal> {
        let holdings = Holdings {
            charges: self.charge_socket(kind, sizes)?,
            rings: sizes,
            port: Some(port),
        };
        if client.slots().reserve_at(slot, kind, holdings) {
            return Ok(());
        }
        let message = format!("slot {slot} is in use, or out of range");
        Err(Refusal::bad_argument(message))
    }
}

impl From<ResumeError> for Refusal {
    fn from(error: ResumeError) -> Refusal {
        let kind = match error {
            ResumeError::BadImage => ErrorKind::BadArgument,
            ResumeError::InUse => ErrorKind::InUse,
            ResumeError::TooMany => ErrorKind::Limit,
        };
        Refusal::new(kind, error)
    }
}
