//! [`EdpSocket`] with asynchronous calls.

use std::future::poll_fn;
use std::io;

use esp_proto::{EdpKind, NodeAddr};

use crate::edp::{DatagramInfo, NODE_PORT};

/// [`crate::EdpSocket`] with asynchronous calls. Any number of tasks may send and receive.
#[derive(Debug)]
pub struct EdpSocket(crate::EdpSocket);

impl EdpSocket {
    /// Binds this port (0: any free one) through the shared client. To set options, bind a
    /// [`crate::EdpSocket`] and convert it with [`EdpSocket::from_std`].
    pub async fn bind(port: u16) -> io::Result<EdpSocket> {
        let client = super::shared().await?;
        Ok(EdpSocket(
            crate::EdpSocket::builder().bind_at(&client, port)?,
        ))
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
        self.send((EdpKind::EchoRequest, dst, NODE_PORT, sequence), body)
            .await
    }

    /// See [`crate::EdpSocket::send_info_request`].
    pub async fn send_info_request(&self, dst: NodeAddr, sequence: u16) -> io::Result<usize> {
        self.send((EdpKind::InfoRequest, dst, NODE_PORT, sequence), &[])
            .await
    }

    async fn send(&self, to: (EdpKind, NodeAddr, u16, u16), bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.0.poll_send(cx, to, bytes)).await
    }

    /// See [`crate::EdpSocket::recv_from`]. Dropping the future loses no datagram.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, DatagramInfo)> {
        poll_fn(|cx| self.0.poll_recv(cx, buffer)).await
    }
}
