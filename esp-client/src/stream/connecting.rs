//! [`Connecting`]: a connection attempt of a program that does not block.

use std::io;

use super::builder::StreamBuilder;
use super::socket::EspStream;
use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::route::Route;
use crate::session::Call;

/// Connection attempt, created by [`StreamBuilder::begin_at`]. Dropping it withdraws the attempt.
pub struct Connecting {
    client: Client,
    builder: StreamBuilder,
    state: State,
    peer: EspAddr,
}

enum State {
    /// Waits for the daemon's reply.
    Requested(Call, Route),
    /// Begun over a lease, without the daemon.
    Leased(Box<EspStream>),
    Taken,
}

impl StreamBuilder {
    /// Begins to connect and does not wait for the peer.
    ///
    /// It may block in two cases: if neither builder nor address names the interface and there are
    /// several ([`Client::route`]), and if it needs further leased ports of the daemon, which
    /// happens once for every 32 streams to the same port of a peer.
    pub fn begin_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<Connecting> {
        let peer = address.to_esp_addr()?;
        let route = self.route(client, &peer)?;
        let request = self.request(&peer, &route)?;
        let state = match self.begin_leased(client, &peer, &route)? {
            Some(stream) => {
                stream.rings.register_lease_later();
                client.session().notify_poller();
                State::Leased(Box::new(stream))
            }
            None => State::Requested(client.session().call(&request)?, route),
        };
        Ok(Connecting {
            client: client.clone(),
            builder: self.clone(),
            state,
            peer,
        })
    }
}

impl Connecting {
    /// Returns the stream, once, when the daemon has replied. It may still be connecting
    /// ([`EspStream::is_connected`]); bytes written before are sent afterwards.
    pub fn poll(&mut self) -> Option<io::Result<EspStream>> {
        let reply = match &self.state {
            State::Requested(call, _) => Some(call.take()?),
            State::Leased(_) | State::Taken => None,
        };
        match (std::mem::replace(&mut self.state, State::Taken), reply) {
            (State::Leased(stream), _) => Some(Ok(*stream)),
            (State::Requested(_, route), Some(reply)) => {
                let made =
                    reply.and_then(|answer| self.builder.stream(&self.client, answer, route));
                Some(made.map_err(io::Error::from))
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connecting")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
