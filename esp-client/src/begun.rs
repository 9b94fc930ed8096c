//! Connecting without waiting.

use std::io;

use crate::addr::{EspAddr, ToEspAddr};
use crate::call::Call;
use crate::client::Client;
use crate::route::Route;
use crate::stream::{EspStream, StreamBuilder};

/// A connect request on its way to the daemon; made by [`StreamBuilder::begin_at`]. Dropped, the attempt is given up.
pub struct Begun {
    client: Client,
    builder: StreamBuilder,
    route: Option<Route>,
    call: Call,
    peer: EspAddr,
}

impl StreamBuilder {
    /// Asks the daemon to connect and waits for nothing. Where the interface is not named, and not the only one, finding it
    /// ([`Client::route`]) may wait for answers of the peer.
    pub fn begin_at(&self, client: &Client, address: impl ToEspAddr) -> io::Result<Begun> {
        let peer = address.to_esp_addr()?;
        let route = self.route(client, &peer)?;
        let call = client.session().call(&self.request(&peer, &route)?)?;
        Ok(Begun { client: client.clone(), builder: self.clone(), route: Some(route), call, peer })
    }
}

impl Begun {
    /// The stream, once the daemon has answered; given out once. It may not be connected yet, see [`EspStream::is_connected`]; what
    /// is written to it is sent when it is.
    pub fn poll(&mut self) -> Option<io::Result<EspStream>> {
        let outcome = self.call.take()?;
        let route = self.route.take()?;
        let made = outcome.and_then(|answer| self.builder.stream(&self.client, answer, route));
        Some(made.map_err(io::Error::from))
    }
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").field("peer", &self.peer).finish_non_exhaustive()
    }
}
