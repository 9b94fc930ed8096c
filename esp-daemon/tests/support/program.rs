//! A program that speaks the control protocol by hand, correctly or not.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use esp_client::control::codec::{Decoder, encode, receive};
use esp_client::control::{Envelope, ErrorKind, Reply, Request, Rings, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};

use super::PATIENCE;

/// Rings small enough for thousands of them.
pub const RINGS: Rings = Rings { tx: 4096, rx: 4096 };

/// Returns a socket whose close blocks until the second one, its peer, is closed.
pub fn blocking_descriptor() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    let linger = Some(Duration::from_secs(3600));
    sockopt::set_socket_linger(&socket, linger).unwrap();
    (socket.into(), peer)
}

pub struct Program {
    pub stream: UnixStream,
    decoder: Decoder<Reply>,
    next_id: u64,
    /// Id at the daemon, after [`Program::hello`].
    pub client: u64,
}

impl Program {
    #[track_caller]
    pub fn connect(socket: &Path) -> Program {
        let stream =
            UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Program {
            stream,
            decoder: Decoder::new(),
            next_id: 1,
            client: 0,
        }
    }

    #[track_caller]
    pub fn hello(&mut self, name: &str) -> Vec<OwnedFd> {
        let request = Request::Hello {
            version: VERSION,
            program: name.into(),
            engine: None,
        };
        let (reply, descriptors) = self.ask_all(request);
        let Reply::Hello { client, .. } = reply else {
            panic!("no hello: {reply:?}")
        };
        self.client = client;
        descriptors
    }

    /// Sends a request without waiting; returns its id.
    #[track_caller]
    pub fn post(&mut self, body: Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.stream
            .write_all(&encode(&Envelope { id, body }).unwrap())
            .unwrap();
        id
    }

    /// Sends raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a text framed as a message.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        let mut bytes = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        self.raw(&bytes)
    }

    /// Sends bytes with `count` descriptors.
    pub fn with_descriptors(&mut self, bytes: &[u8], count: usize) {
        let files: Vec<OwnedFd> = (0..count)
            .map(|_| std::fs::File::open("/dev/null").unwrap().into())
            .collect();
        self.pass(bytes, &files).unwrap();
    }

    /// Sends bytes with these descriptors.
    pub fn pass(&mut self, bytes: &[u8], files: &[OwnedFd]) -> io::Result<()> {
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        rustix::net::sendmsg(
            &self.stream,
            &[io::IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Returns the next reply with its id and descriptors; `None` if the daemon has disconnected.
    #[track_caller]
    pub fn next(&mut self) -> Option<(u64, Reply, Vec<OwnedFd>)> {
        loop {
            if let Some((Envelope { id, body }, descriptors)) = self.decoder.next().unwrap() {
                return Some((id, body, descriptors));
            }
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            let patience = Timespec {
                tv_sec: PATIENCE.as_secs().cast_signed(),
                tv_nsec: 0,
            };
            assert!(
                poll(&mut fds, Some(&patience)).unwrap() > 0,
                "no reply from the daemon"
            );
            match receive(&self.stream, &mut self.decoder) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the reply to a given request, which must be the next reply.
    #[track_caller]
    pub fn reply_to(&mut self, id: u64) -> (Reply, Vec<OwnedFd>) {
        let (of, reply, descriptors) = self.next().expect("a reply");
        assert_eq!(of, id, "{reply:?}");
        (reply, descriptors)
    }

    #[track_caller]
    pub fn ask_all(&mut self, request: Request) -> (Reply, Vec<OwnedFd>) {
        let id = self.post(request);
        self.reply_to(id)
    }

    #[track_caller]
    pub fn ask(&mut self, request: Request) -> Reply {
        self.ask_all(request).0
    }

    /// Sends a request with a descriptor, and returns the reply.
    #[track_caller]
    pub fn ask_with(&mut self, body: Request, file: BorrowedFd<'_>) -> Reply {
        let id = self.next_id;
        self.next_id += 1;
        let bytes = encode(&Envelope { id, body }).unwrap();
        let sent = esp_client::control::codec::send(&self.stream, &bytes, &[file]).unwrap();
        assert_eq!(sent, bytes.len());
        self.reply_to(id).0
    }

    /// Sends a request that must be refused.
    #[track_caller]
    pub fn refused(&mut self, request: Request) -> (ErrorKind, String) {
        match self.ask(request) {
            Reply::Error(error) => (error.kind, error.message),
            reply => panic!("not refused: {reply:?}"),
        }
    }

    /// Listens on all links; returns listener and port.
    #[track_caller]
    pub fn listen(&mut self, port: u16) -> (u64, u16) {
        match self.ask(listen(port)) {
            Reply::Listening { listener, port } => (listener, port),
            reply => panic!("{reply:?}"),
        }
    }

    /// Opens a stream; returns slot and local port.
    #[track_caller]
    pub fn open(&mut self, local_port: u16) -> (u16, u16) {
        match self.ask(connect(local_port)) {
            Reply::Stream {
                slot, local_port, ..
            } => (slot, local_port),
            reply => panic!("{reply:?}"),
        }
    }

    /// Binds a datagram socket; returns slot and port.
    #[track_caller]
    pub fn bind(&mut self, port: u16) -> (u16, u16) {
        match self.ask(bind(port)) {
            Reply::Edp { slot, port, .. } => (slot, port),
            reply => panic!("{reply:?}"),
        }
    }

    #[track_caller]
    pub fn done(&mut self, request: Request) {
        assert_eq!(self.ask(request), Reply::Done);
    }

    /// Reads until the daemon has disconnected; returns the last message.
    #[track_caller]
    pub fn last_words(&mut self) -> Option<Reply> {
        let mut last = None;
        while let Some((_, reply, _)) = self.next() {
            last = Some(reply);
        }
        last
    }

    /// Returns the kind of the last error.
    #[track_caller]
    pub fn cut_off(&mut self) -> ErrorKind {
        match self.last_words() {
            Some(Reply::Error(error)) => error.kind,
            reply => panic!("no error at the end: {reply:?}"),
        }
    }

    /// Discards input until the daemon has disconnected.
    pub fn drain(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut sink = [0; 65536];
        loop {
            match self.stream.read(&mut sink) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the daemon does not hang up: {error}"),
            }
        }
    }
}

pub fn listen(port: u16) -> Request {
    Request::Listen {
        interface: None,
        port,
        backlog: 8,
        key: vec![],
    }
}

pub fn connect(local_port: u16) -> Request {
    connect_to(local_port, 9)
}

pub fn connect_to(local_port: u16, peer_port: u16) -> Request {
    let peer = super::engine::PEER.into();
    Request::Connect {
        interface: None,
        local_port,
        peer,
        peer_port,
        key: vec![],
        rings: RINGS,
    }
}

pub fn bind(port: u16) -> Request {
    Request::BindEdp {
        interface: None,
        port,
        rings: RINGS,
    }
}

pub fn accept(listener: u64) -> Request {
    Request::Accept {
        listener,
        rings: RINGS,
    }
}
