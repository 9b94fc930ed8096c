//! [`EspListener`] with an asynchronous `accept`.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use super::EspStream;
use crate::addr::EspAddr;
use crate::path::Path;

/// [`crate::EspListener`] with an asynchronous `accept`. A listener that [`EspListener::bind`]
/// creates uses the daemon, never a lease.
#[derive(Debug)]
pub struct EspListener(crate::EspListener);

impl EspListener {
    /// Listens on this port (0: any free one) of all interfaces through the shared client. To set
    /// options, bind a [`crate::EspListener`] and convert it with [`EspListener::from_std`].
    pub async fn bind(port: u16) -> io::Result<EspListener> {
        let client = super::shared().await?;
        crate::EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&client, port)
            .map(EspListener)
    }

    /// Converts a blocking listener.
    pub fn from_std(listener: crate::EspListener) -> EspListener {
        EspListener(listener)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Waits for the next connection and returns it with the peer's address. Dropping the future
    /// loses no connection. Any number of tasks may wait.
    pub async fn accept(&self) -> io::Result<(EspStream, EspAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<(EspStream, EspAddr)>> {
        loop {
            match self.0.attempt()? {
                Ok(stream) => {
                    let peer = stream.peer_addr();
                    return Poll::Ready(Ok((EspStream::from_std(stream), peer)));
                }
                Err(cell) => {
                    self.0.wake_later(cx);
                    ready!(cell.poll(cx));
                }
            }
        }
    }
}
