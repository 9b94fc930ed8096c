//! Asynchronous streams, listeners and datagram sockets, with tokio's `AsyncRead` and `AsyncWrite`.
//!
//! They work under any executor: threads of this crate wake the tasks, and no timers are used (use
//! `tokio::time::timeout`). Streams opened here use the daemon, never a lease. To set options of a
//! listener or datagram socket, bind a blocking one and convert it with `from_std`.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use esp_proto::EdpKind;
use esp_proto::NodeAddr;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use crate::addr::{EspAddr, ToEspAddr};
use crate::client::Client;
use crate::edp::{DatagramInfo, NODE_PORT};
use crate::path::Path;
use crate::stream::StreamBuilder;

/// Runs a blocking call (names, the daemon's handshake, a peer's echo) on a thread of its own.
async fn aside<T: Send + 'static>(
    run: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("esp-client-wait".into())
        .spawn(move || {
            // Fails if the future was dropped.
            let _ = done.send(run());
        })?;
    let panicked = || io::Error::other("a helper thread of esp-client has panicked");
    result.await.unwrap_or_else(|_| Err(panicked()))
}

impl StreamBuilder {
    /// Connects through this client and the daemon; [`StreamBuilder::path`] and
    /// [`StreamBuilder::timeout`] have no effect. Dropping the future withdraws the attempt.
    ///
    /// If the daemon ends before the stream is connected, the attempt is repeated at the next one,
    /// for as long as calls wait for the next daemon ([`Client::set_daemon_wait`]).
    pub async fn connect_async_at(
        &self,
        client: &Client,
        address: impl ToEspAddr + Send + 'static,
    ) -> io::Result<EspStream> {
        let (builder, client) = (self.clone().path(Path::Daemon), client.clone());
        let (begin, limit) = (Instant::now(), client.session().patience());
        let resolver = client.clone();
        let peer = aside(move || Ok(address.to_esp_addr(&resolver)?)).await?;
        loop {
            let (builder, client, peer) = (builder.clone(), client.clone(), peer.clone());
            let mut attempt = aside(move || builder.begin_at(&client, &peer)).await?;
            let stream = poll_fn(|cx| attempt.poll_reply(cx)).await?;
            match poll_fn(|cx| stream.poll_connected(cx)).await {
                Err(_) if stream.is_unsent() && begin.elapsed() < limit => {}
                decided => return decided.map(|()| EspStream(stream)),
            }
        }
    }
}

/// [`crate::EspStream`] with tokio's traits. Streams that this type connects use the daemon, never
/// a lease.
#[derive(Debug)]
pub struct EspStream(crate::EspStream);

impl EspStream {
    /// Connects to `TARGET[%IF]:PORT` (or another form of address) through the shared client. For
    /// options see [`StreamBuilder::connect_async_at`].
    pub async fn connect(address: impl ToEspAddr + Send + 'static) -> io::Result<EspStream> {
        let client = aside(|| Ok(Client::shared()?)).await?;
        let builder = crate::EspStream::builder();
        builder.connect_async_at(&client, address).await
    }

    /// Converts a blocking stream.
    pub fn from_std(stream: crate::EspStream) -> EspStream {
        EspStream(stream)
    }

    /// Returns the blocking stream, for its addresses, `try_read` and `try_write`.
    pub fn get_ref(&self) -> &crate::EspStream {
        &self.0
    }
}

impl AsyncRead for EspStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A stream that always has bytes must let other tasks run, too.
        let turn = ready!(poll_proceed(cx));
        if buffer.remaining() > 0 {
            let n = ready!(self.0.poll_read(cx, buffer.initialize_unfilled()))?;
            buffer.advance(n);
            turn.made_progress();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for EspStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        let n = ready!(self.0.poll_write(cx, buffers))?;
        turn.made_progress();
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Sends the bytes that [`try_write_more`](crate::EspStream::try_write_more) holds back.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.send_held();
        Poll::Ready(Ok(()))
    }

    /// Ends the sending direction after the written bytes.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown(std::net::Shutdown::Write))
    }
}

/// [`crate::EspListener`] with an asynchronous `accept`. A listener that [`EspListener::bind`]
/// creates uses the daemon, never a lease.
#[derive(Debug)]
pub struct EspListener(crate::EspListener);

impl EspListener {
    /// Listens on this port (0: any free one) of all interfaces through the shared client.
    pub async fn bind(port: u16) -> io::Result<EspListener> {
        let builder = crate::EspListener::builder().path(Path::Daemon);
        aside(move || builder.bind(port)).await.map(EspListener)
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
        // Before the attempt, so that no arrival is missed in between.
        self.0.register(cx);
        loop {
            match self.0.attempt()? {
                Ok(stream) => {
                    let peer = stream.peer_addr();
                    return Poll::Ready(Ok((EspStream(stream), peer)));
                }
                Err(cell) => ready!(cell.poll(cx)),
            }
        }
    }
}

/// [`crate::EdpSocket`] with asynchronous calls. Any number of tasks may send and receive.
#[derive(Debug)]
pub struct EdpSocket(crate::EdpSocket);

impl EdpSocket {
    /// Binds this port (0: any free one) through the shared client.
    pub async fn bind(port: u16) -> io::Result<EdpSocket> {
        aside(move || crate::EdpSocket::bind(port))
            .await
            .map(EdpSocket)
    }

    /// Converts a blocking socket.
    pub fn from_std(socket: crate::EdpSocket) -> EdpSocket {
        EdpSocket(socket)
    }

    /// Returns the blocking socket, for its port, interface and limits.
    pub fn get_ref(&self) -> &crate::EdpSocket {
        &self.0
    }

    /// See [`crate::EdpSocket::send_to`].
    pub async fn send_to(&self, bytes: &[u8], dst: NodeAddr, dst_port: u16) -> io::Result<usize> {
        self.send((EdpKind::Data, dst, dst_port, 0), bytes).await
    }

    /// See [`crate::EdpSocket::send_echo`].
    pub async fn send_echo(&self, dst: NodeAddr, sequence: u16, body: &[u8]) -> io::Result<usize> {
        let to = (EdpKind::EchoRequest, dst, NODE_PORT, sequence);
        self.send(to, body).await
    }

    /// See [`crate::EdpSocket::send_info_request`].
    pub async fn send_info_request(&self, dst: NodeAddr, sequence: u16) -> io::Result<usize> {
        let to = (EdpKind::InfoRequest, dst, NODE_PORT, sequence);
        self.send(to, &[]).await
    }

    async fn send(&self, to: (EdpKind, NodeAddr, u16, u16), bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_send(cx, to, bytes)).await
    }

    /// See [`crate::EdpSocket::recv_from`]. Dropping the future loses no datagram.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        poll_fn(|cx| self.0.poll_recv(cx, buffer)).await
    }
}
