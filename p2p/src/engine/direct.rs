//! The short way of a blocking receive: while its thread spins with the lock held, and no other receive is posted, an ordinary message that
//! fits goes straight into its buffer, without a request and without the tables of the matching.
//!
//! Nothing else changes: whatever comes that is not such a message, or needs to know of all receives (a failure, an announcement), turns it into a
//! posted receive first, and so does its thread before it lets go of the lock.

use btl::Rank;

use super::{Core, Engine, Request};
use crate::error::Error;
use crate::memory::WriteMem;
use crate::shared::Wanted;
use crate::slab::place_of;
use crate::types::Status;

/// See the module.
#[derive(Debug)]
pub(crate) struct Direct {
    wanted: Wanted,
    memory: WriteMem,
    /// The message's sender, tag and length.
    over: Option<(Rank, i32, usize)>,
}

/// What became of one.
pub(crate) enum Found {
    Nothing,
    Over(Result<Status, Error>),
    /// It is this posted receive now.
    Posted(u64),
}

impl Core {
    /// Begins such a receive. False: there is a message, or other receives, or it is one to be shown.
    #[inline]
    pub(crate) fn receive_direct(
        &mut self,
        memory: WriteMem,
        wanted: Wanted,
    ) -> Result<bool, Error> {
        let engine = &mut self.engine;
        if !engine.posted.is_empty()
            || engine.unexpected.len() != 0
            || memory.len() >= engine.show_from
        {
            return Ok(false);
        }
        engine.check_context(wanted.context)?;
        engine.can_come(&wanted)?;
        engine.direct = Some(Direct {
            wanted,
            memory,
            over: None,
        });
        Ok(true)
    }
}

impl Engine {
    /// Gives an ordinary message to the direct receive. False: there is none, or it wants another one.
    #[inline]
    pub(crate) fn direct_takes(&mut self, context: u32, rank: Rank, tag: i32, body: &[u8]) -> bool {
        let Some(direct) = &mut self.direct else {
            return false;
        };
        let wanted = &direct.wanted;
        let fits = direct.over.is_none()
            && wanted.context == context
            && wanted.source.is_none_or(|source| source == rank)
            && wanted.tag.is_none_or(|wanted| wanted == tag);
        if fits {
            direct.memory.fill(0, body);
            direct.over = Some((rank, tag, body.len()));
            self.stats.eager_received += 1;
        }
        fits
    }

    /// After a turn.
    #[inline]
    pub(crate) fn direct_found(&mut self) -> Found {
        let Some(direct) = &self.direct else {
            return Found::Posted(self.demoted);
        };
        let Some((rank, tag, length)) = direct.over else {
            return Found::Nothing;
        };
        let (room, context) = (direct.memory.len(), direct.wanted.context);
        self.direct = None;
        let source = self.local_rank(context, rank);
        Found::Over(if length > room {
            Err(Error::Truncated {
                source_rank: source,
                tag,
                length,
                room,
            })
        } else {
            Ok(Status {
                source,
                tag,
                length,
            })
        })
    }

    /// Makes it a posted receive. The answer of [`Engine::direct_found`] is then its number.
    #[cold]
    pub(crate) fn post_direct(&mut self) {
        if self
            .direct
            .as_ref()
            .is_none_or(|direct| direct.over.is_some())
        {
            return;
        }
        let Some(Direct { wanted, memory, .. }) = self.direct.take() else {
            return;
        };
        let key = self.requests.insert(Request::receive(memory, &wanted));
        self.posted.post(place_of(key), &wanted);
        self.count_private(wanted.source);
        self.demoted = key;
    }
}
