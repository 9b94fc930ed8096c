//! [`EspStream`] with `AsyncRead` and `AsyncWrite`.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::error::EspError;
use crate::probe;
use crate::route::Route;
use crate::stream::{StreamBuilder, StreamRings};

impl StreamBuilder {
    /// Connects through the shared client and the daemon; [`StreamBuilder::path`] and
    /// [`StreamBuilder::timeout`] have no effect. Dropping the future withdraws the attempt.
    pub async fn connect_async(&self, address: impl ToEspAddr) -> io::Result<EspStream> {
        let address = address.to_esp_addr()?;
        self.connect_async_at(&super::shared().await?, address)
            .await
    }

    /// Connects through this client; see [`StreamBuilder::connect_async`].
    pub async fn connect_async_at(
        &self,
        client: &Client,
        address: impl ToEspAddr,
    ) -> io::Result<EspStream> {
        let address = address.to_esp_addr()?;
        let route = self.route_async(client, &address).await?;
        let call = client.session().call(&self.request(&address, &route)?)?;
        let answer = poll_fn(|cx| call.poll(cx)).await?;
        let mut attempt = Attempt(Some(self.stream(client, answer, route)?));
        poll_fn(|cx| attempt.poll(cx)).await
    }

    async fn route_async(&self, client: &Client, address: &EspAddr) -> io::Result<Route> {
        let peer = address.addr;
        if self.named_interface(address).is_some() || probe::is_immediate(client, peer) {
            return Ok(self.route(client, address)?);
        }
        let client = client.clone();
        super::aside(move || client.route(peer)).await
    }
}

/// A connection attempt; dropping it withdraws the attempt.
struct Attempt(Option<crate::EspStream>);

impl Attempt {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<EspStream>> {
        let Some(stream) = self.0.take() else {
            return Poll::Pending;
        };
        match stream.rings.poll_connected(cx) {
            Poll::Pending => {
                self.0 = Some(stream);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(EspStream(stream))),
            Poll::Ready(Err(error)) => {
                stream.connect_failed(&error);
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            stream.connect_failed(&EspError::ConnectCallTimedOut(stream.rings.peer));
        }
    }
}

/// [`crate::EspStream`] with tokio's traits. Streams that this type connects use the daemon, never
/// a lease.
#[derive(Debug)]
pub struct EspStream(crate::EspStream);

impl EspStream {
    /// Connects to `TARGET[%IF]:PORT` (or another form of address) through the shared client. For
    /// options see [`StreamBuilder::connect_async`].
    pub async fn connect(address: impl ToEspAddr) -> io::Result<EspStream> {
        crate::EspStream::builder().connect_async(address).await
    }

    /// Converts a blocking stream.
    pub fn from_std(stream: crate::EspStream) -> EspStream {
        EspStream(stream)
    }

    /// Returns the blocking stream, for its addresses, route, `try_read` and `try_write`.
    pub fn get_ref(&self) -> &crate::EspStream {
        &self.0
    }

    /// Returns the local address; see [`crate::EspStream::local_addr`].
    pub fn local_addr(&self) -> EspAddr {
        self.0.local_addr()
    }

    /// Returns the peer's address; see [`crate::EspStream::peer_addr`].
    pub fn peer_addr(&self) -> EspAddr {
        self.0.peer_addr()
    }

    /// Splits the stream into halves for two tasks. Dropping the writing half ends the sending
    /// direction; the stream closes when both are dropped.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (reader, writer) = self.0.into_split();
        (OwnedReadHalf(reader), OwnedWriteHalf(writer))
    }
}

fn read(rings: &StreamRings, cx: &Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    // A stream that always has bytes must let other tasks run, too.
    let turn = ready!(poll_proceed(&mut Context::from_waker(cx.waker())));
    if buffer.remaining() == 0 {
        return Poll::Ready(Ok(()));
    }
    let n = ready!(rings.poll_read(cx, buffer.initialize_unfilled()))?;
    buffer.advance(n);
    turn.made_progress();
    Poll::Ready(Ok(()))
}

fn write(
    rings: &StreamRings,
    cx: &Context<'_>,
    buffers: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let turn = ready!(poll_proceed(&mut Context::from_waker(cx.waker())));
    let n = ready!(rings.poll_write(cx, buffers))?;
    turn.made_progress();
    Poll::Ready(Ok(n))
}

fn finish(rings: &StreamRings) -> Poll<io::Result<()>> {
    rings.client.check()?;
    rings.finish_writing();
    Poll::Ready(Ok(()))
}

/// Implements `AsyncRead` for a wrapper of a type with a field `rings`.
macro_rules! async_read {
    ($($type:ty),*) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                read(&self.0.rings, cx, buffer)
            }
        }
    )*};
}
async_read!(EspStream, OwnedReadHalf);

/// Implements `AsyncWrite` for a wrapper of a type with a field `rings`.
macro_rules! async_write {
    ($($type:ty),*) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                write(&self.0.rings, cx, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                write(&self.0.rings, cx, buffers)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Sends what [`try_write_more`](crate::EspStream::try_write_more) holds back.
            fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.0.rings.flush();
                Poll::Ready(Ok(()))
            }

            /// Ends the sending direction behind the written bytes.
            fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                finish(&self.0.rings)
            }
        }
    )*};
}
async_write!(EspStream, OwnedWriteHalf);

/// Reading half of an [`EspStream`].
#[derive(Debug)]
pub struct OwnedReadHalf(crate::ReadHalf);

/// Writing half of an [`EspStream`]. Dropping it ends the sending direction.
#[derive(Debug)]
pub struct OwnedWriteHalf(crate::WriteHalf);
