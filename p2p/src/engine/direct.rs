//! Blocking receives without a request.
//!
//! While the receiving thread polls with the lock held and no other receive is posted, a matching
//! eager message is copied straight into its buffer, without the matching tables. Any other event
//! that concerns receives (a failure, an RTS) first turns it into a posted receive, and so does the
//! thread before it releases the lock.

use super::protocol::Protocol;
use super::request::Request;
use crate::error::Error;
use crate::ids::{PeerId, Selector};
use crate::memory::Memory;
use crate::slab::place_of;
use crate::types::Status;

/// A direct receive.
#[derive(Debug)]
pub(crate) struct Direct {
    selector: Selector,
    memory: Memory,
    /// Sender, tag and length of the message that arrived.
    arrived: Option<(PeerId, u64, usize)>,
}

/// State of a direct receive after a poll.
pub(crate) enum Found {
    Nothing,
    Complete(Result<Status, Error>),
    /// It became this posted receive.
    Posted(u64),
}

impl Protocol {
    /// Starts a direct receive. Returns false if a message or another receive waits.
    #[inline]
    pub(crate) fn receive_direct(
        &mut self,
        memory: Memory,
        selector: Selector,
    ) -> Result<bool, Error> {
        if !self.posted.is_empty() || self.unexpected.len() != 0 {
            return Ok(false);
        }
        self.check_context(selector.context)?;
        self.check_source(&selector)?;
        self.direct = Some(Direct {
            selector,
            memory,
            arrived: None,
        });
        Ok(true)
    }

    /// Gives an eager message to the direct receive. Returns false if there is none that matches.
    #[inline]
    pub(crate) fn direct_takes(
        &mut self,
        context: u32,
        peer: PeerId,
        tag: u64,
        body: &[u8],
    ) -> bool {
        let Some(direct) = &mut self.direct else {
            return false;
        };
        let matches = direct.arrived.is_none() && direct.selector.matches(context, peer, tag);
        if matches {
            direct.memory.fill(0, body);
            direct.arrived = Some((peer, tag, body.len()));
        }
        matches
    }

    /// Returns the outcome of the direct receive.
    #[inline]
    pub(crate) fn direct_found(&mut self) -> Found {
        let Some(direct) = &self.direct else {
            return Found::Posted(self.demoted);
        };
        let Some((peer, tag, length)) = direct.arrived else {
            return Found::Nothing;
        };
        let (room, context) = (direct.memory.len(), direct.selector.context);
        self.direct = None;
        Found::Complete(self.received(context, peer, tag, (length, room)))
    }

    /// Turns the direct receive into a posted one, unless it has its message.
    #[cold]
    pub(crate) fn post_direct(&mut self) {
        if let Some(direct) = self.direct.take_if(|direct| direct.arrived.is_none()) {
            let request = Request::receive(direct.memory, &direct.selector, true);
            let key = self.requests.insert(request);
            self.posted.post(place_of(key), &direct.selector);
            self.demoted = key;
        }
    }
}
