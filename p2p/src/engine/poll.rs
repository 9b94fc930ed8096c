//! One poll iteration: progress of the transports, then what their callbacks left to do.

use super::incoming::Handler;
use super::protocol::Work;
use super::transports::Engine;
use crate::ids::TransportId;

/// Every poll with this number polls all transports, whatever the hint.
const ALL_EVERY: u32 = 8;
/// While this process is late, every poll with this number checks whether it still is.
const SKEW_EVERY: u32 = 64;

impl Engine {
    /// Polls all transports, or with a hint mostly that one. Returns the number of events.
    #[inline]
    pub(crate) fn poll(&mut self, hint: Option<TransportId>) -> usize {
        let mut events = 0;
        self.polls = self.polls.wrapping_add(1);
        let all = self.polls.is_multiple_of(ALL_EVERY);
        for (id, transport) in self.transports.iter_mut() {
            if all || hint.is_none_or(|hint| hint == id) {
                let mut handler = Handler {
                    protocol: &mut self.protocol,
                    transport: id,
                };
                events += transport.btl.progress(&mut handler);
            }
        }
        if self.protocol.skew.late && self.polls.is_multiple_of(SKEW_EVERY) {
            self.protocol.check_skew();
        }
        if self.protocol.must_poll() || !self.protocol.released.is_empty() {
            events += self.do_work();
        }
        events
    }

    /// Does the queued work and sends what peers have queued. Returns the number of steps.
    pub(crate) fn do_work(&mut self) -> usize {
        let mut done = 0;
        for transfer in std::mem::take(&mut self.protocol.again) {
            self.protocol.work.push_back(Work::Step(transfer));
        }
        for peer in std::mem::take(&mut self.protocol.dropping) {
            self.drop_peer(peer);
        }
        // Work that this work queues is done too, unless it waits for room (`again`).
        while let Some(work) = self.protocol.work.pop_front() {
            done += 1;
            match work {
                Work::Step(transfer) => self.step(transfer),
                Work::Failed(peer, reason) => self.end_requests_of(peer, reason),
            }
        }
        let spare = std::mem::take(&mut self.protocol.spare);
        let mut active = std::mem::replace(&mut self.protocol.active, spare);
        for peer in active.drain(..) {
            done += self.send_queued(peer);
        }
        self.protocol.spare = active;
        for (transport, handle) in std::mem::take(&mut self.protocol.released) {
            self.transports[transport].btl.deregister(handle);
        }
        self.protocol.buried.clear();
        done
    }
}
