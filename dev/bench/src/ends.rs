//! One end of a connection over any protocol.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use esp_client::{Client, EspListener, EspStream, MacAddr, NodeAddr, Spin};
use p2p::Comm;

use crate::protect;
use crate::task::{Protocol, Role, Task, Wait};
use lab::Node;

/// A connected stream. With [`Wait::Poll`], `read` may return `WouldBlock`; `write` never does.
pub(super) trait End: Read + Write {
    /// Ends the direction of this end.
    fn finish(&mut self) -> io::Result<()>;
}

/// Connects, or accepts the one connection of the task.
pub(super) fn open(
    job: &Task,
    listening: impl FnOnce() -> io::Result<()>,
) -> io::Result<Box<dyn End>> {
    match job.path {
        Protocol::Tcp | Protocol::TcpTls | Protocol::TcpNoOffload => {
            let stream = match job.role {
                Role::Server => {
                    let listener = TcpListener::bind((Node(job.node).ip(), job.port))?;
                    listening()?;
                    listener.accept()?.0
                }
                Role::Client => TcpStream::connect((Node(job.node).ip(), job.port))?,
            };
            if job.path == Protocol::TcpTls {
                protect::start_tls(&stream, job.role)?;
            }
            Ok(Box::new(tcp_end(stream, job.wait)?))
        }
        Protocol::Daemon | Protocol::Lease | Protocol::UdpDaemon => {
            Ok(Box::new(EspEnd(esp_stream(job, listening)?)))
        }
        Protocol::Udp => Ok(Box::new(EspEnd(udp_stream(job, listening)?))),
        Protocol::P2p | Protocol::P2pUdp => {
            if job.role == Role::Server {
                listening()?;
            }
            Ok(Box::new(P2pEnd::join(job)?))
        }
        Protocol::Raw | Protocol::RawUdp => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the bare loop has no stream",
        )),
    }
}

fn esp_stream(job: &Task, listening: impl FnOnce() -> io::Result<()>) -> io::Result<EspStream> {
    let spin = esp_spin(job);
    let path = if job.path == Protocol::Lease {
        esp_client::Path::Lease
    } else {
        esp_client::Path::Daemon
    };
    match job.role {
        Role::Server => {
            let mut builder = EspListener::builder().path(path);
            if let Some(spin) = spin {
                builder = builder.spin(spin);
            }
            let listener = builder.bind(job.port)?;
            listening()?;
            Ok(listener.accept()?.0)
        }
        Role::Client => {
            let mut builder = EspStream::builder().path(path);
            if let Some(spin) = spin {
                builder = builder.spin(spin);
            }
            let node = Node(job.node);
            let addr: NodeAddr = match job.path {
                // At the default port of daemons.
                Protocol::UdpDaemon => node.ip().to_string().parse().map_err(io::Error::other)?,
                _ => MacAddr(node.mac()).into(),
            };
            builder.connect((addr, job.port))
        }
    }
}

/// Connects without a daemon: the server's UDP port is that of the task.
fn udp_stream(job: &Task, listening: impl FnOnce() -> io::Result<()>) -> io::Result<EspStream> {
    let spin = esp_spin(job);
    match job.role {
        Role::Server => {
            let client = Client::udp_at(job.port)?;
            let mut builder = EspListener::builder();
            if let Some(spin) = spin {
                builder = builder.spin(spin);
            }
            let listener = builder.bind_at(&client, job.port)?;
            listening()?;
            Ok(listener.accept()?.0)
        }
        Role::Client => {
            let mut builder = EspStream::builder();
            if let Some(spin) = spin {
                builder = builder.spin(spin);
            }
            let server = SocketAddr::from((Node(job.node).ip(), job.port));
            builder.connect_at(&Client::udp()?, (NodeAddr::Udp(server), job.port))
        }
    }
}

/// Returns how an ESP end waits: by default for [`Wait::Block`]; for [`Wait::Poll`] it spins
/// without a limit, or yields if the daemon shares its core.
fn esp_spin(job: &Task) -> Option<Spin> {
    // Leases and UDP need no daemon.
    match (
        job.wait,
        job.own_core || matches!(job.path, Protocol::Lease | Protocol::Udp),
    ) {
        (Wait::Block, _) => None,
        (Wait::Poll, true) => Some(Spin {
            spins: u32::MAX,
            yields: u32::MAX,
        }),
        (Wait::Poll, false) => Some(Spin {
            spins: 0,
            yields: u32::MAX,
        }),
    }
}

struct EspEnd(EspStream);

impl Read for EspEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for EspEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for EspEnd {
    fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }
}

/// Each write is a message and each read takes one; an empty message ends the stream.
struct P2pEnd {
    world: Comm,
    peer: u32,
    job: Option<job::Job>,
}

impl P2pEnd {
    fn join(work: &Task) -> io::Result<P2pEnd> {
        let mut options = job::Options::from_env().map_err(io::Error::other)?;
        options.transports = match work.path {
            Protocol::P2pUdp => vec![job::Transport::Udp],
            _ => vec![job::Transport::Eth],
        };
        let forever = Duration::from_secs(3600);
        match (work.wait, work.own_core) {
            (Wait::Block, _) => {}
            (Wait::Poll, true) => options.p2p.spin = Some(forever),
            // Yields, and sleeps only after a millisecond without a message.
            (Wait::Poll, false) => options.p2p.spin = Some(Duration::ZERO),
        }
        let job = job::join_with(options).map_err(io::Error::other)?;
        Ok(P2pEnd {
            world: job.world(),
            peer: 1 - job.rank().min(1),
            job: Some(job),
        })
    }
}

impl Drop for P2pEnd {
    fn drop(&mut self) {
        // If the other rank failed, it reports its own error.
        let _ = self.job.take().map(job::Job::finalize);
    }
}

impl Read for P2pEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self
            .world
            .recv(buffer, self.peer, 0)
            .map_err(io::Error::other)?
            .length)
    }
}

impl Write for P2pEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.world
            .send(bytes, self.peer, 0)
            .map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for P2pEnd {
    fn finish(&mut self) -> io::Result<()> {
        self.world.send(&[], self.peer, 0).map_err(io::Error::other)
    }
}

/// Creates an end of a TCP connection.
pub(super) fn tcp_end(stream: TcpStream, wait: Wait) -> io::Result<impl End> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(wait == Wait::Poll)?;
    Ok(TcpEnd(stream))
}

struct TcpEnd(TcpStream);

impl Read for TcpEnd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for TcpEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl End for TcpEnd {
    fn finish(&mut self) -> io::Result<()> {
        match self.0.shutdown(Shutdown::Write) {
            // The peer has closed the connection already.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        }
    }
}
