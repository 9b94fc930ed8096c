//! The thread of a session: reads replies and events of one daemon after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esp_engine::shm::Events;
use rustix::event::{PollFd, PollFlags};

use super::call::Answer;
use super::connection::{CLOSED, Session, is_stopping, no_daemon};
use super::handshake::is_temporary;
use crate::control::Reply;
use crate::control::codec::{Decoder, receive};
use crate::error::EspError;
use crate::sync::lock;

impl Session {
    /// Serves one connection after the other.
    pub(super) fn run(&self, mut decoder: Decoder<Reply>, mut events: Option<Events>) {
        let mut unsent = VecDeque::new();
        loop {
            let error = self.read(&mut decoder, events.as_mut(), &mut unsent);
            if !self.lasting {
                self.fail(error);
                return;
            }
            let used = self.used_slots();
            match self.find_next(error) {
                Some(next) => {
                    (decoder, unsent) = (next.decoder, next.unsent);
                    match self.pass_events(next.events, used) {
                        Ok(of_thread) => events = of_thread,
                        Err(error) => {
                            self.fail(error);
                            return;
                        }
                    }
                    self.notify_poller();
                }
                None => return,
            }
        }
    }

    /// Reads replies and, without a poller, events, until the connection ends, and repeats these
    /// requests.
    fn read(
        &self,
        decoder: &mut Decoder<Reply>,
        mut events: Option<&mut Events>,
        unsent: &mut VecDeque<u64>,
    ) -> EspError {
        let Some(daemon) = self.daemon() else {
            return no_daemon();
        };
        loop {
            if let Err(error) = self.deliver(decoder) {
                break error;
            }
            let mut of_socket = PollFlags::IN;
            of_socket.set(PollFlags::OUT, !unsent.is_empty());
            let mut fds = [
                PollFd::new(&daemon.socket, of_socket),
                PollFd::new(&daemon.notify_fd, PollFlags::IN),
            ];
            let waited_for = if events.is_some() { 2 } else { 1 };
            match rustix::event::poll(&mut fds[..waited_for], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => break self.lost(format!("poll failed: {error}")),
            }
            if let Some(events) = &mut events
                && !fds[1].revents().is_empty()
            {
                let _ = rustix::io::read(&daemon.notify_fd, &mut [0u8; 64]);
                self.drain(events);
            }
            let ready = fds[0].revents();
            if ready.contains(PollFlags::OUT) {
                self.repeat(&daemon, unsent);
            }
            if ready.difference(PollFlags::OUT).is_empty() {
                continue;
            }
            match receive(&daemon.socket, decoder) {
                Ok(0) => {
                    break match decoder.finish() {
                        Ok(()) => self.lost(CLOSED),
                        Err(source) => self.bad_control(source),
                    };
                }
                Ok(_) => {}
                Err(error) if is_temporary(&error) => {}
                Err(error) => break self.lost(error.to_string()),
            }
        }
    }

    /// Delivers all complete replies.
    fn deliver(&self, decoder: &mut Decoder<Reply>) -> Result<(), EspError> {
        while let Some((envelope, descriptors)) =
            decoder.next().map_err(|source| self.bad_control(source))?
        {
            // A daemon that is stopping; the next one gets the request again.
            if self.lasting && is_stopping(&envelope.body) {
                return Err(self.lost(CLOSED));
            }
            // Replies to `post` have no cell.
            let Some((_, cell)) = lock(&self.calls).remove(&envelope.id) else {
                continue;
            };
            let answer = Answer {
                reply: envelope.body,
                descriptors,
                connection: self.lost.load(Ordering::Relaxed),
            };
            if let Some(Ok(unwanted)) = cell.finish(Ok(answer)) {
                self.give_back(&unwanted);
            }
            self.notify_poller();
        }
        Ok(())
    }

    /// Delivers the events of slots.
    fn drain(&self, events: &mut Events) {
        let mut woken = Vec::new();
        let slots = lock(&self.slots);
        events.drain(|slot| woken.extend(slots.get(&slot).map(|held| Arc::clone(&held.socket))));
        drop(slots);
        woken.iter().for_each(|socket| socket.waiting.tasks.wake());
    }
}
