//! One connection: copies between an ESP stream and a kernel socket, without blocking.

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use esp_client::{EspStream, Interest};
use rustix::event::epoll::EventFlags;
use rustix::net::{SendFlags, send};

use super::ACCEPTED;
use super::names::Name;

/// Maximum number of bytes that are copied in one direction before another connection has its turn.
const BUDGET: usize = 256 << 10;
/// Maximum wait for the acknowledgement of the last bytes.
const LAST_BYTES: Duration = Duration::from_secs(60);

/// State of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Open,
    /// Ended gracefully.
    Ended,
    /// Ended by an error of the stream.
    Failed,
    /// The program closed its socket with bytes unread, or died.
    EndedByProgram,
}

/// Condition under which a connection is served again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Its next turn: there is more to copy.
    Turn,
    /// An event.
    Event,
    /// Nothing: it has ended.
    End,
}

/// A stream and the broker's end of a program's socket, which does not block.
pub(super) struct Conn {
    stream: EspStream,
    socket: TcpStream,
    /// The socket is being connected to the program's listener.
    joining: bool,
    /// As of the last event of the socket, which reports changes only.
    readable: bool,
    writable: bool,
    hung_up: bool,
    /// Bytes of the program for which the stream had no room.
    unsent: Vec<u8>,
    to_stream: Direction,
    to_program: Direction,
    /// Time at which both directions had ended.
    ended: Option<Instant>,
    /// Declared after the socket, and so dropped after it.
    name: Name,
}

impl Conn {
    /// Creates a connection from a stream and the socket of a program that connected it.
    pub(super) fn new(stream: EspStream, socket: TcpStream, name: Name) -> io::Result<Conn> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Conn {
            stream,
            socket,
            joining: false,
            readable: false,
            writable: false,
            hung_up: false,
            unsent: Vec::new(),
            to_stream: Direction::Open,
            to_program: Direction::Open,
            ended: None,
            name,
        })
    }

    /// Creates a connection from a stream and a socket that is being connected to the listener of a
    /// program. The peer gets [`ACCEPTED`] when it is connected.
    pub(super) fn joining(stream: EspStream, socket: TcpStream, name: Name) -> io::Result<Conn> {
        Ok(Conn {
            joining: true,
            ..Conn::new(stream, socket, name)?
        })
    }

    pub(super) fn slot(&self) -> u16 {
        self.stream.slot()
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns true if both directions have ended, and the last bytes may still be on their way.
    pub(super) fn is_ending(&self) -> bool {
        self.ended.is_some()
    }

    /// Records an event of the socket.
    pub(super) fn note(&mut self, flags: EventFlags) {
        let over = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.hung_up |= flags.intersects(over);
        self.readable |= flags.intersects(over | EventFlags::IN);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
    }

    /// Copies all available bytes for which there is room. `block` is a buffer for this.
    pub(super) fn serve(&mut self, block: &mut [u8]) -> Next {
        if self.joining {
            if !self.writable {
                return Next::Event;
            }
            if !matches!(self.socket.take_error(), Ok(None)) {
                return Next::End;
            }
            self.joining = false;
            // After an error, `receive` finds it, too.
            let _ = self.stream.try_write(&[ACCEPTED]);
        }
        let more = self.send(block) | self.receive();
        if self.to_stream == Direction::Failed && !self.writable {
            // The program writes and does not read the bytes before the error, so it would not
            // learn of the error: the broker no longer reads, and the program would wait for room.
            // With plain TCP, too, a reset overtakes bytes for which the program's socket has no
            // room.
            self.to_program = Direction::Failed;
        }
        match (self.to_stream, self.to_program) {
            (Direction::Open, _) | (_, Direction::Open) if more => Next::Turn,
            (Direction::Open, _) | (_, Direction::Open) => Next::Event,
            (Direction::Ended, Direction::Ended) => self.wait_for_last_bytes(),
            _ => Next::End,
        }
    }

    /// Waits until the peer's node has the last bytes of the program, and the program those of the
    /// peer: until then, the program can ask for the connection's addresses.
    fn wait_for_last_bytes(&mut self) -> Next {
        let since = *self.ended.get_or_insert_with(Instant::now);
        self.stream.arm(Interest::Writable);
        let is_open = self.stream.is_connected().is_ok();
        let is_sending =
            is_open && self.stream.unacknowledged() > 0 && since.elapsed() < LAST_BYTES;
        if is_sending || self.socket.peer_addr().is_ok() {
            Next::Event
        } else {
            Next::End
        }
    }

    /// Ends the connection. If the program has closed its socket with bytes unread, the peer gets
    /// an error; unless the end was graceful, the program gets one.
    pub(super) fn end(self) {
        let has = |direction| self.to_stream == direction || self.to_program == direction;
        let is_by_program = has(Direction::EndedByProgram);
        if is_by_program || has(Direction::Failed) {
            self.set_linger(Some(Duration::ZERO));
        }
        if is_by_program {
            self.stream.abort();
        }
    }

    /// Copies from the program to the stream. Returns true if there is more.
    fn send(&mut self, block: &mut [u8]) -> bool {
        let mut budget = BUDGET;
        while self.to_stream == Direction::Open {
            if !self.unsent.is_empty() {
                let unsent = std::mem::take(&mut self.unsent);
                self.put(&unsent);
                if !self.unsent.is_empty() {
                    // A peer that does not read would keep the connection forever; the kernel
                    // discards these bytes, too.
                    if self.to_program == Direction::EndedByProgram {
                        self.to_stream = Direction::EndedByProgram;
                    }
                    return false;
                }
                continue;
            }
            if !self.readable {
                return false;
            }
            if budget == 0 {
                return true;
            }
            match (&self.socket).read(block) {
                Ok(0) => self.program_ended(),
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    // Further bytes cause another event, but an end that has been reported does
                    // not.
                    self.readable = count == block.len() || self.hung_up;
                    self.put(block.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // The peer gets a reset instead of an end.
                    self.to_stream = Direction::EndedByProgram;
                    self.to_program = Direction::EndedByProgram;
                }
            }
        }
        false
    }

    /// Ends the direction to the stream after the program's last byte.
    fn program_ended(&mut self) {
        self.to_stream = Direction::Ended;
        if self.to_program == Direction::EndedByProgram {
            self.to_stream = Direction::EndedByProgram;
        } else {
            // After an error, `receive` finds it, too.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Writes to the stream, and keeps the bytes for which it has no room; an event follows when it
    /// has room again.
    fn put(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        let mut is_armed = false;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // The other direction finds the error after the bytes that have arrived.
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    self.to_stream = Direction::Failed;
                    return;
                }
                Err(_) if is_armed => break,
                Err(_) => {
                    self.stream.arm(Interest::Writable);
                    is_armed = true;
                }
            }
        }
        self.name.count_sent(bytes.len() - rest.len());
        self.unsent.extend_from_slice(rest);
    }

    /// Copies from the stream to the program. Returns true if there is more.
    fn receive(&mut self) -> bool {
        let mut budget = BUDGET;
        let mut is_armed = false;
        while self.to_program == Direction::Open && self.writable {
            if budget == 0 {
                return true;
            }
            let mut failed = None;
            let socket = &self.socket;
            let taken = self.stream.try_read_with(0, |bytes| {
                let sent = send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                sent.unwrap_or_else(|error| {
                    failed = Some(io::Error::from(error));
                    0
                })
            });
            match (taken, failed.map(|error| error.kind())) {
                (_, Some(ErrorKind::WouldBlock)) => self.writable = false,
                (_, Some(ErrorKind::Interrupted)) => {}
                (_, Some(_)) => self.program_closed(),
                (Ok(0), None) => {
                    self.to_program = Direction::Ended;
                    // Keep the bytes that the program has not read yet.
                    self.set_linger(None);
                    // Fails if the program has closed its end.
                    let _ = self.socket.shutdown(Shutdown::Write);
                }
                (Ok(count), None) => {
                    self.name.count_received(count);
                    budget = budget.saturating_sub(count);
                }
                (Err(error), None) if error.kind() != ErrorKind::WouldBlock => {
                    self.to_stream = Direction::Failed;
                    self.to_program = Direction::Failed;
                }
                (Err(_), None) if is_armed => return false,
                (Err(_), None) => {
                    self.stream.arm(Interest::Readable);
                    is_armed = true;
                }
            }
        }
        false
    }

    /// Ends the direction to a program that has closed its socket. Its last bytes are still sent,
    /// then the peer gets an error.
    fn program_closed(&mut self) {
        self.to_program = Direction::EndedByProgram;
        self.readable = true;
        if self.to_stream != Direction::Open {
            self.to_stream = Direction::EndedByProgram;
        }
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Sets whether closing the socket resets it (a time of zero) or ends it gracefully in the
    /// background (`None`).
    fn set_linger(&self, time: Option<Duration>) {
        // Cannot fail for an open socket.
        let _ = socket2::SockRef::from(&self.socket).set_linger(time);
    }
}
