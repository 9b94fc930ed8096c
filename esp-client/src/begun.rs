//! Connecting without waiting.

use std::io;

use crate::addr::{EspAddr, ToEspAddr};
use crate::call::Call;
use crate::client::Client;
use crate::route::Route;
use crate::stream::{EspStream, StreamBuilder};

/// A connect request on its way to the daemon; made by [`StreamBuilder::begin_at`]. Dropped, the
/// attempt is given up.
pub struct Begun {
    client: Client,
    builder: StreamBuilder,
    way: Way,
    peer: EspAddr,
}

enum Way {
    Asked(Call, Route),
    /// Over a lease nobody has to be asked.
    Begun(Box<EspStream>),
    Given,
}

impl StreamBuilder {
    /// Asks the daemon to connect and waits for nothing. Where the interface is not named, and not
    /// the only one, finding it ([`Client::route`]) may wait for answers of the peer. Over a lease
    /// the daemon is asked for ports, by the first such call and every 32nd one to the same port of
    /// a peer, and its answer is waited for.
    pub fn begin_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<Begun> {
        let peer = address.to_esp_addr()?;
        let route = self.route(client, &peer)?;
        let request = self.request(&peer, &route)?;
        let way = match self.begin_leased(client, &peer, &route)? {
            Some(stream) => {
                stream.core.begun();
                client.session().tell();
                Way::Begun(Box::new(stream))
            }
            None => Way::Asked(client.session().call(&request)?, route),
        };
        Ok(Begun {
            client: client.clone(),
            builder: self.clone(),
            way,
            peer,
        })
    }
}

impl Begun {
    /// The stream, once the daemon has answered; given out once. It may not be connected yet, see
    /// [`EspStream::is_connected`]; what is written to it is sent when it is.
    pub fn poll(&mut self) -> Option<io::Result<EspStream>> {
        let outcome = match &self.way {
            Way::Asked(call, _) => Some(call.take()?),
            Way::Begun(_) => None,
            Way::Given => return None,
        };
        match (std::mem::replace(&mut self.way, Way::Given), outcome) {
            (Way::Begun(stream), _) => Some(Ok(*stream)),
            (Way::Asked(_, route), Some(outcome)) => {
                let made =
                    outcome.and_then(|answer| self.builder.stream(&self.client, answer, route));
                Some(made.map_err(io::Error::from))
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
