//! A simulated program's end of a connection: its buffers (by position only: contents are a
//! function of stream and position, see [`crate::pattern`]) and its behaviour.

use crate::carrier::Carrier;
use crate::pattern::{self, NAME_LEN};
use crate::plan::{End, Side, SidePlan, Write};
use esp_proto::{ConnId, Datagram, EdpKind, Instant, MacAddr, Port, ResetReason, Sink};
use std::collections::BTreeMap;

/// One direction of a connection, as its writer sees it.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Writer: node and port.
    pub writer: (MacAddr, Port),
    /// Reader: node and port.
    pub reader: (MacAddr, Port),
    /// Bytes written.
    pub written: u64,
    /// No more bytes will follow.
    pub finished: bool,
    /// Bytes that reached the reader.
    pub delivered: u64,
    /// The reader's connection, once it knows the stream's id.
    pub claimed: Option<ConnId>,
}

/// All streams of the world.
#[derive(Debug, Default)]
pub struct Streams(Vec<Stream>);

/// Base of stream ids, so that they do not look like small numbers.
const NAME_BASE: u64 = 0x5353_5353_0000_0000;

impl Streams {
    /// Creates a stream; returns its id.
    pub fn open(&mut self, writer: (MacAddr, Port), reader: (MacAddr, Port)) -> u64 {
        self.0.push(Stream {
            writer,
            reader,
            written: 0,
            finished: false,
            delivered: 0,
            claimed: None,
        });
        NAME_BASE + self.0.len() as u64 - 1
    }

    /// Returns the stream with this id.
    pub fn get(&self, name: u64) -> Option<&Stream> {
        self.0
            .get(usize::try_from(name.checked_sub(NAME_BASE)?).ok()?)
    }

    /// Returns the stream with this id.
    pub fn get_mut(&mut self, name: u64) -> Option<&mut Stream> {
        self.0
            .get_mut(usize::try_from(name.checked_sub(NAME_BASE)?).ok()?)
    }

    /// Returns true when a stream between these ends was finished after `bytes` bytes.
    pub fn any_finished_at(
        &self,
        writer: (MacAddr, Port),
        reader: (MacAddr, Port),
        bytes: u64,
    ) -> bool {
        self.0
            .iter()
            .any(|s| s.writer == writer && s.reader == reader && s.finished && s.written == bytes)
    }
}

/// The sending half.
#[derive(Clone, Debug)]
pub struct Tx {
    /// Id of the stream.
    pub stream: u64,
    /// Bytes reported to the endpoint.
    pub written: u64,
    /// Bytes whose storage is free again.
    pub acked: u64,
    /// `shutdown` was called.
    pub shut: bool,
}

/// The receiving half.
#[derive(Clone, Debug, Default)]
pub struct Rx {
    /// Size of the buffer in bytes; 0 before `attach`.
    pub capacity: u32,
    /// Bytes delivered.
    pub delivered: u64,
    /// Bytes consumed.
    pub consumed: u64,
    /// Of these, the bytes that the endpoint knows.
    pub reported: u64,
    name: [u8; NAME_LEN as usize],
    /// Id of the stream, once known.
    pub stream: Option<u64>,
    /// The peer's FIN arrived.
    pub finished: bool,
}

/// A program's end of a connection.
#[derive(Clone, Debug)]
pub struct Conn {
    /// Id of the connection.
    pub id: ConnId,
    /// Own end.
    pub own: (MacAddr, Port),
    /// The peer's end.
    pub peer: (MacAddr, Port),
    /// The plan that the program executes, if any.
    pub role: Option<(usize, Side)>,
    /// Behaviour of this side.
    pub plan: SidePlan,
    /// Time of establishment.
    pub open_since: Option<Instant>,
    /// Sending half.
    pub tx: Tx,
    /// Receiving half.
    pub rx: Rx,
    /// Time until which reading is paused.
    pub paused_until: Option<Instant>,
    paused_once: bool,
    next_chunk: Instant,
    /// Time of the program's next action.
    pub wake_at: Option<Instant>,
    /// Time of the last progress.
    pub moved: Instant,
}

/// Call of a program to its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `written`.
    Written(u64),
    /// `consumed`.
    Consumed(u64),
    /// `shutdown`.
    Shutdown,
    /// `abort`.
    Abort(ResetReason),
    /// Requests to be run at this time.
    WakeAt(Instant),
}

impl Conn {
    /// Creates a connection that starts now.
    pub fn new(
        id: ConnId,
        own: (MacAddr, Port),
        peer: (MacAddr, Port),
        plan: SidePlan,
        streams: &mut Streams,
        now: Instant,
    ) -> Self {
        Conn {
            id,
            own,
            peer,
            role: None,
            plan,
            open_since: None,
            tx: Tx {
                stream: streams.open(own, peer),
                written: 0,
                acked: 0,
                shut: false,
            },
            rx: Rx::default(),
            paused_until: None,
            paused_once: false,
            next_chunk: now,
            wake_at: None,
            moved: now,
        }
    }

    /// Returns true while this program, not the protocol, delays the connection.
    pub fn holds_up(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now <= until) || (self.rx.capacity == 0)
    }

    /// Returns true while the program has something to send or to wait for.
    pub fn pending(&self) -> bool {
        self.tx.acked < self.tx.written || self.tx.shut || self.open_since.is_none()
    }

    /// Returns the program's calls at this time.
    pub fn act(&mut self, now: Instant) -> Vec<Call> {
        let mut calls = Vec::new();
        let Some(since) = self.open_since else {
            return calls;
        };
        self.read(now, &mut calls);
        if self.rx.capacity > 0 {
            self.write(now, &mut calls);
        }
        match self.plan.end {
            End::Abort(after, reason) if now >= since + after => calls.push(Call::Abort(reason)),
            End::Abort(after, _) => calls.push(Call::WakeAt(since + after)),
            End::Shutdown | End::AfterPeer
                if !self.tx.shut
                    && self.tx.written == self.plan.write.total()
                    && (self.plan.end == End::Shutdown || self.rx.finished) =>
            {
                self.tx.shut = true;
                calls.push(Call::Shutdown);
            }
            _ => {}
        }
        calls
    }

    /// Reports the bytes that were read to the endpoint.
    pub(crate) fn report(&mut self) -> Call {
        self.rx.reported = self.rx.consumed;
        Call::Consumed(self.rx.consumed)
    }

    fn read(&mut self, now: Instant, calls: &mut Vec<Call>) {
        if let Some(pause) = self
            .plan
            .pause
            .filter(|p| !self.paused_once && self.rx.delivered >= p.after)
        {
            self.paused_once = true;
            self.paused_until = Some(now + pause.lasts);
        }
        if let Some(until) = self.paused_until.filter(|until| now < *until) {
            return calls.push(Call::WakeAt(until));
        }
        if self.rx.consumed == self.rx.delivered {
            return;
        }
        self.rx.consumed = self.rx.delivered;
        let unknown = self.rx.consumed - self.rx.reported;
        if !self.plan.reports_late || unknown >= u64::from(self.rx.capacity / 4) {
            calls.push(self.report());
        }
    }

    fn write(&mut self, now: Instant, calls: &mut Vec<Call>) {
        if self.tx.shut {
            return;
        }
        let wanted = match self.plan.write {
            Write::Bulk(bytes) => bytes,
            Write::Trickle {
                bytes,
                chunk,
                every,
            } => {
                let mut wanted = self.tx.written;
                if now >= self.next_chunk {
                    wanted = (wanted + u64::from(chunk)).min(bytes);
                    self.next_chunk = now + every;
                }
                // Without room, the next progress wakes the program.
                if wanted < bytes && wanted < self.tx.acked + u64::from(self.plan.tx_buffer) {
                    calls.push(Call::WakeAt(self.next_chunk));
                }
                wanted
            }
            Write::Ask { size, rounds } => {
                let answered = self.rx.consumed / u64::from(size.max(1));
                (answered + 1).min(u64::from(rounds)) * u64::from(size)
            }
            Write::Answer { size, rounds } => {
                let asked = self.rx.consumed / u64::from(size.max(1));
                asked.min(u64::from(rounds)) * u64::from(size)
            }
        };
        let total = wanted.min(self.tx.acked + u64::from(self.plan.tx_buffer));
        if total > self.tx.written {
            self.tx.written = total;
            calls.push(Call::Written(total));
        }
    }

    /// Checks delivered bytes.
    fn take(
        &mut self,
        offset: u64,
        bytes: &[u8],
        streams: &mut Streams,
        now: Instant,
    ) -> Result<(), String> {
        self.moved = now;
        if offset != self.rx.delivered {
            return Err(format!(
                "W-36: offset {offset} delivered, {} expected",
                self.rx.delivered
            ));
        }
        let end = offset + bytes.len() as u64;
        if end - self.rx.consumed > u64::from(self.rx.capacity) {
            return Err(format!(
                "W-38: {end} bytes delivered, {} consumed, buffer {}",
                self.rx.consumed, self.rx.capacity
            ));
        }
        if self.rx.finished {
            return Err("bytes after the peer's FIN".into());
        }
        self.rx.delivered = end;
        for (place, byte) in self.rx.name.iter_mut().skip(offset as usize).zip(bytes) {
            *place = *byte;
        }
        if self.rx.stream.is_none() && end >= NAME_LEN {
            self.claim(streams)?;
        }
        let Some(name) = self.rx.stream else {
            return Ok(());
        };
        if let Some(at) = pattern::first_difference(name, offset, bytes) {
            return Err(format!(
                "W-36: wrong byte at offset {} of stream {name:x}",
                offset + at as u64
            ));
        }
        let stream = streams.get_mut(name).ok_or("no such stream")?;
        if end > stream.written {
            return Err(format!(
                "{end} bytes delivered of {} written",
                stream.written
            ));
        }
        stream.delivered = end;
        Ok(())
    }

    fn claim(&mut self, streams: &mut Streams) -> Result<(), String> {
        let name = u64::from_le_bytes(self.rx.name);
        let stream = streams
            .get_mut(name)
            .ok_or_else(|| format!("stream {name:x} was never written"))?;
        if (stream.writer, stream.reader) != (self.peer, self.own) {
            return Err(format!(
                "stream {name:x} of {:?} to {:?} arrived at {:?}",
                stream.writer, stream.reader, self.own
            ));
        }
        if let Some(other) = stream.claimed.replace(self.id) {
            return Err(format!(
                "stream {name:x} arrives at two connections, {other:?} before"
            ));
        }
        self.rx.stream = Some(name);
        Ok(())
    }

    /// Checks that everything was delivered when the peer's FIN is in order.
    pub fn peer_finished(&mut self, streams: &Streams) -> Result<(), String> {
        if std::mem::replace(&mut self.rx.finished, true) {
            return Err("a second end of the peer's stream".into());
        }
        let sound = match self.rx.stream.and_then(|name| streams.get(name)) {
            Some(stream) => stream.finished && stream.written == self.rx.delivered,
            None => streams.any_finished_at(self.peer, self.own, self.rx.delivered),
        };
        if sound {
            Ok(())
        } else {
            Err(format!(
                "the peer finished after {} bytes, but did not write so",
                self.rx.delivered
            ))
        }
    }
}

/// A received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender.
    pub src: MacAddr,
    /// Sender's port.
    pub src_port: Port,
    /// Own port.
    pub dst_port: Port,
    /// Number.
    pub sequence: u16,
    /// Kind of the datagram.
    pub kind: EdpKind,
    /// Payload.
    pub bytes: Vec<u8>,
}

/// Sink of an endpoint.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The node's connections by slot.
    pub conns: &'a mut BTreeMap<u32, Conn>,
    /// All streams.
    pub streams: &'a mut Streams,
    /// Datagrams of the node.
    pub datagrams: &'a mut Vec<Received>,
    /// Carrier of the world.
    pub carrier: Carrier,
    /// Connections that received something.
    pub touched: &'a mut Vec<ConnId>,
    /// The time.
    pub now: Instant,
    /// False where frames are altered on the way: contents cannot be checked then.
    pub check: bool,
    /// The first violation.
    pub problem: Option<String>,
}

impl Sink for Delivery<'_> {
    fn deliver(&mut self, conn: ConnId, offset: u64, bytes: &[u8]) {
        let Some(entry) = self
            .conns
            .get_mut(&conn.slot)
            .filter(|entry| entry.id == conn)
        else {
            self.problem
                .get_or_insert(format!("bytes for {conn:?}, which the host does not have"));
            return;
        };
        self.touched.push(conn);
        let verdict = entry.take(offset, bytes, self.streams, self.now);
        if !self.check {
            entry.rx.delivered = offset + bytes.len() as u64;
        } else if let Err(problem) = verdict {
            self.problem.get_or_insert(problem);
        }
    }

    fn datagram(&mut self, d: Datagram<'_>) {
        let Datagram {
            src,
            src_port,
            dst_port,
            sequence,
            kind,
            bytes,
        } = d;
        self.datagrams.push(Received {
            src: self.carrier.mac(src).unwrap_or_default(),
            src_port,
            dst_port,
            sequence,
            kind,
            bytes: bytes.to_vec(),
        });
    }
}
