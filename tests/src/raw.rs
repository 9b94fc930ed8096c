//! A program that speaks the control protocol by hand, so that it can violate it.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use esp_client::control::codec::{Decoder, encode, receive};
use esp_client::control::{Envelope, ErrorKind, Reply, Request, Rings, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, ftruncate};

use crate::PATIENCE;

/// A connection to a daemon's control socket.
pub struct RawProgram {
    /// For bytes that are not messages.
    pub socket: UnixStream,
    decoder: Decoder<Reply>,
    next_id: u64,
}

/// Input from the daemon.
#[derive(Debug)]
pub enum Heard {
    /// A reply with its id and descriptors.
    Reply(u64, Reply, Vec<OwnedFd>),
    /// The daemon disconnected.
    End,
}

/// Content of a welcome.
pub struct Welcome {
    /// Page in which the engine shows whether it sleeps; read-only.
    pub engine_page: OwnedFd,
    /// The program's doorbell and event bits.
    pub client_page: OwnedFd,
    /// Wakes the engine.
    pub doorbell: OwnedFd,
    /// Wakes the program.
    pub notify: OwnedFd,
}

/// A stream or datagram socket as its program receives it.
pub struct RawSocket {
    /// Number of the slot.
    pub slot: u16,
    /// Its memory: header page, send ring, receive ring.
    pub memory: OwnedFd,
    /// Sizes of the rings.
    pub rings: Rings,
}

impl RawProgram {
    /// Connects without sending anything.
    ///
    /// # Panics
    /// When the daemon cannot be reached.
    pub fn new(socket: &Path) -> RawProgram {
        let socket = UnixStream::connect(socket).expect("the daemon's socket");
        RawProgram {
            socket,
            decoder: Decoder::new(),
            next_id: 100,
        }
    }

    /// Connects and sends Hello.
    ///
    /// # Panics
    /// When it is refused.
    pub fn welcomed(socket: &Path) -> (RawProgram, Welcome) {
        let mut program = RawProgram::new(socket);
        let hello = Request::Hello {
            version: VERSION,
            program: "hand-made".into(),
            engine: None,
        };
        let (Reply::Hello { .. }, descriptors) = program.ask(hello) else {
            panic!("no welcome")
        };
        let [engine_page, client_page, doorbell, notify] =
            descriptors.try_into().expect("four descriptors");
        (
            program,
            Welcome {
                engine_page,
                client_page,
                doorbell,
                notify,
            },
        )
    }

    /// Sends bytes; returns false when the daemon has disconnected.
    pub fn bytes(&mut self, bytes: &[u8]) -> bool {
        self.socket.write_all(bytes).is_ok()
    }

    /// Sends a text with its length before it; returns false when the daemon has disconnected.
    ///
    /// # Panics
    /// When it is too long for a length.
    pub fn text(&mut self, text: &[u8]) -> bool {
        let len = u32::try_from(text.len()).expect("a length");
        self.bytes(&[&len.to_le_bytes(), text].concat())
    }

    /// Sends a request and returns its id.
    ///
    /// # Panics
    /// When it cannot be encoded.
    pub fn post(&mut self, body: Request) -> u64 {
        self.next_id += 1;
        let bytes = encode(&Envelope {
            id: self.next_id,
            body,
        })
        .expect("a request");
        self.bytes(&bytes);
        self.next_id
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Panics
    /// When the daemon disconnects.
    pub fn ask(&mut self, body: Request) -> (Reply, Vec<OwnedFd>) {
        let id = self.post(body);
        self.reply_to(id)
    }

    /// Returns the reply to a request; others are ignored.
    ///
    /// # Panics
    /// When the daemon disconnects.
    pub fn reply_to(&mut self, id: u64) -> (Reply, Vec<OwnedFd>) {
        loop {
            match self.hear() {
                Heard::Reply(of, reply, descriptors) if of == id => return (reply, descriptors),
                Heard::Reply(..) => {}
                Heard::End => panic!("the daemon hung up"),
            }
        }
    }

    /// Opens a stream, which is then connecting.
    ///
    /// # Panics
    /// When it is refused.
    pub fn connect(&mut self, peer: [u8; 6], peer_port: u16) -> RawSocket {
        let rings = Rings {
            tx: 1 << 16,
            rx: 1 << 16,
        };
        let (interface, local_port, key) = (None, 0, Vec::new());
        let request = Request::Connect {
            interface,
            local_port,
            peer: esp_client::MacAddr(peer).into(),
            peer_port,
            key,
            rings,
        };
        self.socket_of(request)
    }

    /// Listens; returns the listener's number.
    ///
    /// # Panics
    /// When it is refused.
    pub fn listen(&mut self, port: u16, backlog: u16) -> u64 {
        match self.ask(Request::Listen {
            interface: None,
            port,
            backlog,
            key: Vec::new(),
        }) {
            (Reply::Listening { listener, .. }, _) => listener,
            (other, _) => panic!("{other:?}"),
        }
    }

    /// Returns the socket that a request creates.
    ///
    /// # Panics
    /// When it creates none.
    pub fn socket_of(&mut self, request: Request) -> RawSocket {
        let (reply, mut descriptors) = self.ask(request);
        let (Reply::Stream { slot, rings, .. } | Reply::Edp { slot, rings, .. }) = reply else {
            panic!("{reply:?}")
        };
        RawSocket {
            slot,
            memory: descriptors.pop().expect("a region"),
            rings,
        }
    }

    /// Returns the next input from the daemon.
    ///
    /// # Panics
    /// After a timeout, or when it is not a message.
    pub fn hear(&mut self) -> Heard {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((envelope, descriptors)) = self.decoder.next().expect("messages") {
                return Heard::Reply(envelope.id, envelope.body, descriptors);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the daemon says nothing");
            let wait = Timespec::try_from(left.min(Duration::from_secs(1))).expect("a short time");
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait));
            match receive(&self.socket, &mut self.decoder) {
                Ok(0) => return Heard::End,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // Data that the daemon had not read when it disconnected.
                Err(_) => return Heard::End,
            }
        }
    }

    /// Waits until the daemon disconnects; returns its last error.
    pub fn cut_off(&mut self) -> Option<(ErrorKind, String)> {
        let mut last = None;
        loop {
            match self.hear() {
                Heard::Reply(_, Reply::Error(error), _) => last = Some((error.kind, error.message)),
                Heard::Reply(..) => {}
                Heard::End => return last,
            }
        }
    }
}

/// Returns true if the memory can be resized under the daemon's mapping, which must be refused for
/// all memory that it provides.
pub fn can_be_resized(memory: impl AsFd) -> bool {
    let len = fstat(&memory).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    ftruncate(&memory, 0).is_ok() || ftruncate(&memory, len + 4096).is_ok()
}
