//! Listeners as futures.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use super::EspStream;
use crate::addr::EspAddr;

/// [`crate::EspListener`] with an `accept` that is a future.
#[derive(Debug)]
pub struct EspListener(crate::EspListener);

impl EspListener {
    /// Listens on this port (0: any free one) of all interfaces, through the shared client. For
    /// options bind a [`crate::EspListener`] and take [`EspListener::from_std`]: binding asks only
    /// this node's daemon.
    pub async fn bind(port: u16) -> io::Result<EspListener> {
        let client = super::shared().await?;
        crate::EspListener::builder()
            .path(crate::Path::Daemon)
            .bind_at(&client, port)
            .map(EspListener)
    }

    /// Makes a future-based listener of a blocking one.
    pub fn from_std(listener: crate::EspListener) -> EspListener {
        EspListener(listener)
    }

    /// Converts to a blocking listener.
    pub fn into_std(self) -> crate::EspListener {
        self.0
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// The next connection and who made it. Dropped before it is ready, it loses no connection. Any
    /// number of tasks may wait.
    pub async fn accept(&self) -> io::Result<(EspStream, EspAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The poll behind [`EspListener::accept`].
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<(EspStream, EspAddr)>> {
        loop {
            match self.0.attempt()? {
                Ok((stream, peer)) => return Poll::Ready(Ok((EspStream::from_std(stream), peer))),
                Err(cell) => {
                    self.0.wake_later(cx);
                    ready!(cell.poll(cx));
                }
            }
        }
    }
}
