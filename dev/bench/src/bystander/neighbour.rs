//! The program of the other user: it keeps to the limits of a user, and does as much as they allow
//! of what costs the engine most.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use esp_client::control::codec::{Decoder, encode, receive};
use esp_client::control::{Envelope, Reply, Request, Rings, VERSION};
use esp_client::{Client, EdpSocket, EspListener, EspStream, MacAddr, NodeAddr, Path};
use esp_engine::shm::record::{DgramHeader, EdpKind, MAX_DATAGRAM};
use esp_engine::shm::{ClientPage, Doorbell, EngineView, Region, RingSizes, SLOTS, TxProducer};
use serde::{Deserialize, Serialize};

use crate::task::HOLDING;
use lab::Node;

/// Activity of the other user's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbour {
    /// Sleeps.
    Idle,
    /// Computes, without the daemon: what others lose with the core alone.
    Computes,
    /// Rings all 4096 bells of its page, and has four sockets.
    Bells,
    /// Writes the longest records, which no link can carry, to 16 datagram sockets.
    Records,
    /// Sends datagrams to its own node from 64 sockets.
    Loops,
    /// Opens datagram sockets, writes to each, and closes it.
    Sockets,
    /// Listens and ends that, beside a thousand connections.
    Listeners,
    /// Asks for the status, beside a thousand connections.
    Status,
}

impl Neighbour {
    /// All of them, in the order they are measured.
    pub const ALL: [Neighbour; 8] = [
        Neighbour::Idle,
        Neighbour::Computes,
        Neighbour::Bells,
        Neighbour::Records,
        Neighbour::Loops,
        Neighbour::Sockets,
        Neighbour::Listeners,
        Neighbour::Status,
    ];

    /// Name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Neighbour::Idle => "idle",
            Neighbour::Computes => "computes",
            Neighbour::Bells => "bells",
            Neighbour::Records => "records",
            Neighbour::Loops => "loops",
            Neighbour::Sockets => "sockets",
            Neighbour::Listeners => "listeners",
            Neighbour::Status => "status",
        }
    }
}

/// Number of connections to the own node; each is two streams of the user.
const CONNECTIONS: usize = 500;
/// Port of the listener for these.
const PORT: u16 = 6900;
/// Bytes of the rings of a socket with the longest records.
const LONG_RINGS: Rings = Rings {
    tx: 1 << 20,
    rx: 1 << 16,
};

/// Runs the program until standard input ends. Calls `say` when it has begun.
///
/// # Errors
/// The daemon refuses what a user may have.
pub(super) fn work(what: Neighbour, say: impl FnOnce(&str) -> io::Result<()>) -> io::Result<()> {
    let mut step: Box<dyn FnMut() -> io::Result<()>> = match what {
        Neighbour::Idle => Box::new(|| {
            thread::sleep(Duration::from_millis(10));
            Ok(())
        }),
        Neighbour::Computes => Box::new(|| {
            (0..100_000u64).for_each(|n| _ = std::hint::black_box(n));
            Ok(())
        }),
        Neighbour::Bells => {
            let mut raw = Raw::new()?;
            let _sockets = raw.bind(4)?;
            Box::new(move || {
                let _ = &_sockets;
                (0..SLOTS).try_for_each(|slot| raw.ring(slot))
            })
        }
        Neighbour::Records => {
            let mut raw = Raw::new()?;
            let mut sockets = raw.bind(16)?;
            let bytes = vec![7; MAX_DATAGRAM];
            let header = DgramHeader {
                kind: EdpKind::Data,
                addr: MacAddr(Node(1).mac()).into(),
                port: 9,
                sequence: 0,
                timestamp_ns: 0,
            };
            Box::new(move || {
                for (slot, tx) in &mut sockets {
                    while tx.put_record(&header, &bytes) {}
                    raw.ring(usize::from(*slot))?;
                }
                Ok(())
            })
        }
        Neighbour::Loops => {
            let sockets: Vec<_> = (0..64)
                .map(|_| EdpSocket::bind(0))
                .collect::<io::Result<_>>()?;
            for socket in &sockets {
                socket.set_nonblocking(true)?;
            }
            let own: NodeAddr = MacAddr(Node(0).mac()).into();
            Box::new(move || {
                for socket in &sockets {
                    while socket.send_to(&[7; 1000], own, socket.port()).is_ok() {}
                }
                Ok(())
            })
        }
        Neighbour::Sockets => {
            let own: NodeAddr = MacAddr(Node(0).mac()).into();
            Box::new(move || {
                let socket = EdpSocket::bind(0)?;
                socket.set_nonblocking(true)?;
                while socket.send_to(&[7; 1000], own, 9).is_ok() {}
                Ok(())
            })
        }
        Neighbour::Listeners => {
            let connections = connections()?;
            Box::new(move || {
                let _ = &connections;
                EspListener::builder().path(Path::Daemon).bind(0).map(drop)
            })
        }
        Neighbour::Status => {
            let connections = connections()?;
            let client = Client::shared()?;
            Box::new(move || {
                let _ = &connections;
                client.status()?;
                Ok(())
            })
        }
    };
    step()?;
    say(HOLDING)?;
    let (ended, input) = channel();
    thread::spawn(move || {
        let _ = io::stdin().read(&mut [0; 1]);
        ended.send(())
    });
    loop {
        step()?;
        match input.recv_timeout(Duration::ZERO) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}

/// Opens connections to the own node, with small rings.
fn connections() -> io::Result<Vec<EspStream>> {
    let listener = EspListener::builder()
        .path(Path::Daemon)
        .backlog(1024)
        .rings(1 << 14, 1 << 14)
        .bind(PORT)?;
    let mut streams = Vec::with_capacity(2 * CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let builder = EspStream::builder()
            .path(Path::Daemon)
            .rings(1 << 14, 1 << 14);
        streams.push(builder.connect((MacAddr(Node(0).mac()), PORT))?);
        streams.push(listener.accept()?.0);
    }
    Ok(streams)
}

/// A program that speaks the control protocol by itself, because the library rings no bells and
/// writes no records that make no sense.
struct Raw {
    socket: UnixStream,
    decoder: Decoder<Reply>,
    doorbell: Doorbell,
    wake: OwnedFd,
}

impl Raw {
    fn new() -> io::Result<Raw> {
        let socket = UnixStream::connect(esp_client::socket_path())?;
        let mut decoder = Decoder::new();
        let hello = Request::Hello {
            version: VERSION,
            program: "neighbour".into(),
        };
        let (_, fds) = ask(&socket, &mut decoder, hello)?;
        let [engine, page, wake, _notify] = <[OwnedFd; 4]>::try_from(fds)
            .map_err(|_| io::Error::other("not the descriptors of a welcome"))?;
        let page = ClientPage::open(page.as_fd()).map_err(io::Error::other)?;
        let view = EngineView::open(engine.as_fd()).map_err(io::Error::other)?;
        Ok(Raw {
            socket,
            decoder,
            doorbell: Doorbell::new(page, view),
            wake,
        })
    }

    /// Binds datagram sockets. Returns their slots and send rings.
    fn bind(&mut self, count: usize) -> io::Result<Vec<(u16, TxProducer)>> {
        let one = |_| {
            let request = Request::BindEdp {
                interface: None,
                port: 0,
                rings: LONG_RINGS,
            };
            let (reply, fds) = ask(&self.socket, &mut self.decoder, request)?;
            let (Reply::Edp { slot, rings, .. }, Some(memory)) = (reply, fds.first()) else {
                return Err(io::Error::other("the daemon gives no datagram socket"));
            };
            let sizes = RingSizes {
                tx: rings.tx,
                rx: rings.rx,
            };
            let region = Region::open(memory.as_fd(), sizes).map_err(io::Error::other)?;
            Ok((slot, TxProducer::new(region)))
        };
        (0..count).map(one).collect()
    }

    fn ring(&mut self, slot: usize) -> io::Result<()> {
        if self.doorbell.ring(u16::try_from(slot).unwrap_or(0)) {
            rustix::io::write(&self.wake, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// Sends a request and waits for its reply.
fn ask(
    mut socket: &UnixStream,
    decoder: &mut Decoder<Reply>,
    body: Request,
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let bytes = encode(&Envelope { id: 1, body }).map_err(io::Error::other)?;
    io::Write::write_all(&mut socket, &bytes)?;
    loop {
        if let Some((envelope, fds)) = decoder.next().map_err(io::Error::other)? {
            return match envelope.body {
                Reply::Error(error) => Err(io::Error::other(error.message)),
                reply => Ok((reply, fds)),
            };
        }
        if receive(socket, decoder)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
