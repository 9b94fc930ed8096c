//! Streams of different protocols between nodes, for benchmarks that only read and write.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use esp_client::{EspListener, EspStream, MacAddr};

use crate::task::Protocol;
use lab::Node;

/// A stream of any protocol.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

fn client_path(path: Protocol) -> io::Result<esp_client::Path> {
    match path {
        Protocol::Lease => Ok(esp_client::Path::Lease),
        Protocol::Daemon => Ok(esp_client::Path::Daemon),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this benchmark does not have that path",
        )),
    }
}

fn is_tcp(path: Protocol) -> bool {
    matches!(path, Protocol::Tcp | Protocol::TcpNoOffload)
}

/// Connects to a port of a node.
pub(crate) fn connect(path: Protocol, node: usize, port: u16) -> io::Result<Box<dyn Stream>> {
    if is_tcp(path) {
        let stream = TcpStream::connect((Node(node).ip(), port))?;
        stream.set_nodelay(true)?;
        return Ok(Box::new(stream));
    }
    Ok(Box::new(
        EspStream::builder()
            .path(client_path(path)?)
            .connect((MacAddr(Node(node).mac()), port))?,
    ))
}

/// Accepts the next stream.
pub(crate) type Accept = Box<dyn FnMut() -> io::Result<Box<dyn Stream>>>;

/// Listens on a port of this node.
pub(crate) fn listen(path: Protocol, node: usize, port: u16) -> io::Result<Accept> {
    if is_tcp(path) {
        let listener = TcpListener::bind((Node(node).ip(), port))?;
        return Ok(Box::new(move || {
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }));
    }
    let listener = EspListener::builder().path(client_path(path)?).bind(port)?;
    Ok(Box::new(move || Ok(Box::new(listener.accept()?.0))))
}
