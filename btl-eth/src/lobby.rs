//! Streams that were accepted and have not said yet who they are, or whose rank is not added yet.

use std::collections::VecDeque;

use crate::channel::Channel;
use crate::frame::{self, Hello, Record};

/// A stream that waits.
pub(crate) struct Guest {
    pub(crate) channel: Channel,
    /// Once it has said so.
    pub(crate) hello: Option<Hello>,
}

/// What came of looking at a guest.
pub(crate) enum Looked {
    /// Nothing new.
    Silent,
    /// It has introduced itself.
    Hello(Hello),
    /// It is gone, or wrote something else.
    Gone { malformed: bool },
}

/// Bounded: the oldest that has not introduced itself goes first.
pub(crate) struct Lobby {
    guests: VecDeque<Guest>,
    room: usize,
}

impl Lobby {
    pub(crate) fn new(room: usize) -> Lobby {
        Lobby {
            guests: VecDeque::new(),
            room,
        }
    }

    /// Returns who has to go for it.
    pub(crate) fn push(&mut self, guest: Guest) -> Option<Guest> {
        let evicted = if self.guests.len() >= self.room {
            let silent = self
                .guests
                .iter()
                .position(|guest| guest.hello.is_none())
                .unwrap_or(0);
            self.guests.remove(silent)
        } else {
            None
        };
        self.guests.push_back(guest);
        evicted
    }

    pub(crate) fn take(&mut self, slot: u16) -> Option<Guest> {
        let at = self
            .guests
            .iter()
            .position(|guest| guest.channel.slot() == slot)?;
        self.guests.remove(at)
    }

    /// The one of a rank that has introduced itself.
    pub(crate) fn take_rank(&mut self, rank: btl::Rank) -> Option<Guest> {
        let at = self
            .guests
            .iter()
            .position(|guest| guest.hello.is_some_and(|hello| hello.from == rank))?;
        self.guests.remove(at)
    }

    /// All, at the end.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Guest> {
        self.guests.drain(..)
    }

    /// The ranks that have introduced themselves.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = btl::Rank> {
        self.guests
            .iter()
            .filter_map(|guest| guest.hello.map(|hello| hello.from))
    }

    pub(crate) fn len(&self) -> usize {
        self.guests.len()
    }
}

impl Guest {
    /// Reads its introduction, and nothing behind it.
    pub(crate) fn look(&mut self) -> Looked {
        let (mut known, mut looked) = (self.channel.known, Looked::Silent);
        let mut shown = false;
        let read = self.channel.stream.try_read_with(known, |bytes| {
            shown = true;
            match frame::decode(bytes, 0, 0) {
                Ok(Some((Record::Hello(hello), length))) => {
                    looked = Looked::Hello(hello);
                    length
                }
                Ok(None) => {
                    known = bytes.len();
                    0
                }
                Ok(Some(_)) | Err(_) => {
                    looked = Looked::Gone { malformed: true };
                    0
                }
            }
        });
        match read {
            Ok(0) if !shown => return Looked::Gone { malformed: false },
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Looked::Gone { malformed: false };
            }
            _ => {}
        }
        if let Looked::Hello(_) = looked {
            (self.channel.due, known) = (1, 0);
        }
        self.channel.known = known;
        looked
    }
}
