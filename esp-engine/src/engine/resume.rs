//! Adoption of streams and datagram sockets whose engine has ended: their programs bring the memory
//! of their rings, in which the earlier engine left the connection's image.

#[cfg(all(test, not(loom)))]
pub(super) mod tests;

use std::sync::Arc;

use esp_proto::{ConnImage, Instant, Positions, ResumeError};

use super::Engine;
use super::clients::Object;
use super::commands::buffers;
use super::streams::{Joined, Owner, Stream};
use crate::command::{ClientId, ConnHandle, LinkId, Slot};
use crate::shm::{Region, RxProducer, StreamState, TxConsumer, Wake};

impl Engine {
    /// Resumes a connection with the rings of its program. Whatever is wrong in the region refuses
    /// this stream alone.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        (client, slot): (ClientId, Slot),
        link: LinkId,
        image: &ConnImage,
        region: Arc<Region>,
    ) -> Result<ConnHandle, ResumeError> {
        let client = self.clients.index(client).ok_or(ResumeError::InUse)?;
        let at = self.links.get_mut(link).ok_or(ResumeError::BadImage)?;
        let ends = TxConsumer::resume(Arc::clone(&region)).and_then(|(tx, view)| {
            let rx = RxProducer::resume(Arc::clone(&region))?;
            Ok((tx, rx, view))
        });
        let (tx, rx, view) = ends.map_err(|_| ResumeError::BadImage)?;
        let positions = Positions {
            acked: tx.released(),
            written: view.total,
            finished: view.finished,
            delivered: rx.put_total(),
            consumed: rx.consumed(),
            peer_finished: rx.is_finished(),
        };
        if self.clients.object(client, slot) != Object::Free {
            return Err(ResumeError::InUse);
        }
        let conn = (at.endpoint).resume(now, image, &positions, buffers(&region))?;
        let handle = ConnHandle { link, conn };
        if !self.clients.occupy(client, slot, Object::Stream(handle)) {
            // Out of range.
            at.endpoint
                .abort(now, conn, esp_proto::ResetReason::Resources);
            return Err(ResumeError::BadImage);
        }
        let mut joined = Joined::with(conn, Owner { client, slot }, region, (tx, rx));
        joined.finished = view.finished;
        joined.keep_image(&at.endpoint);
        joined.region.set_state(StreamState::Open);
        // Waiters check again, because the earlier engine may have published without waking them.
        let (clients, stats) = (&self.clients, &mut self.stats);
        super::publish::wake(joined.waiters(), Wake::All, clients, stats);
        at.endpoint.set_owner(conn, clients.user(client));
        at.standby = false;
        at.insert_stream(Stream::Joined(joined));
        Ok(handle)
    }

    /// Answers no frame of an unknown connection before this instant, on any link.
    pub(super) fn expect_resumptions(&mut self, until: Instant) {
        for link in self.links.iter_mut() {
            link.endpoint.expect_resumptions(until);
        }
    }
}
