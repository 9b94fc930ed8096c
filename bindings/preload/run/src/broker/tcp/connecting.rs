//! The streams that the programs of this node connect, first as attempts, then as connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspStream, Interest, NodeAddr};
use nix::errno::Errno;
use rustix::event::{EventfdFlags, eventfd};

use super::super::Node;
use super::super::table::lock;
use super::conn::Conn;
use super::copier::Copier;
use super::{
    ACCEPTED, ASK, BOUND_ELSEWHERE, Ends, KEY, OTHER_HALF, Outcome, POLL_INTERVAL, ip, next_ticket,
};

/// Token of the eventfd that announces requests.
const REQUESTS: u64 = 1;
/// First token of the listeners to which the programs connect.
const VIA: u64 = 2;

/// Pause after an error of `accept`.
const PAUSE: Duration = Duration::from_millis(10);

/// A stream that the peer's listener has accepted.
pub(super) struct Connected {
    pub(super) ticket: u64,
    pub(super) ends: Ends,
}

/// Request to connect to `peer`, from the address `from` if the program's socket is bound.
struct Ask {
    peer: SocketAddr,
    from: Option<IpAddr>,
    answer: Sender<Outcome>,
}

/// Handle of the thread that connects.
pub(super) struct Connecting {
    asks: Sender<Ask>,
    wake: Arc<OwnedFd>,
}

/// Begins to connect. The receiver gets the outcome, or is disconnected when the attempt takes too
/// long.
pub(super) fn begin(
    node: &Arc<Node>,
    peer: SocketAddr,
    from: Option<IpAddr>,
) -> io::Result<Receiver<Outcome>> {
    let mut connecting = lock(&node.tcp.connecting);
    let thread = match &mut *connecting {
        Some(thread) => thread,
        none => none.insert(start(node)?),
    };
    let (answer, result) = channel();
    let asked = thread.asks.send(Ask { peer, from, answer });
    asked.map_err(|_| io::Error::from(Errno::ENETDOWN))?;
    // Fails only if the counter is full, and then the thread wakes, too.
    let _ = rustix::io::write(&thread.wake, &1u64.to_ne_bytes());
    Ok(result)
}

/// Starts the thread.
fn start(node: &Arc<Node>) -> io::Result<Connecting> {
    let (client, poller) = Client::polled_udp_at(0, |_| true)?;
    let copier = Copier::new(poller)?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let wake = Arc::new(wake);
    copier.watch(&wake, REQUESTS)?;
    for (token, via) in (VIA..).zip(&node.tcp.via) {
        if let Some(via) = via {
            via.set_nonblocking(true)?;
            copier.watch(via, token)?;
        }
    }
    let (asks, asked) = channel();
    let mut thread = Thread {
        node: Arc::clone(node),
        client,
        copier,
        asked,
        wake: Arc::clone(&wake),
        attempts: HashMap::new(),
        slots: HashMap::new(),
    };
    let builder = std::thread::Builder::new().name("connecting".into());
    builder.spawn(move || {
        loop {
            thread.turn();
        }
    })?;
    Ok(Connecting { asks, wake })
}

/// A stream that is being connected or waits for its program.
struct Attempt {
    stream: EspStream,
    peer: SocketAddr,
    since: Instant,
    /// `None` if it has been answered.
    answer: Option<Sender<Outcome>>,
}

/// State of the thread.
struct Thread {
    node: Arc<Node>,
    client: Client,
    copier: Copier,
    asked: Receiver<Ask>,
    wake: Arc<OwnedFd>,
    /// Attempts by ticket.
    attempts: HashMap<u64, Attempt>,
    /// Tickets by slot.
    slots: HashMap<u16, u64>,
}

impl Thread {
    fn turn(&mut self) {
        let undecided = self.attempts.values().any(|it| it.answer.is_some());
        let news = self
            .copier
            .turn(if undecided { ASK } else { POLL_INTERVAL });
        for slot in news.slots {
            if let Some(ticket) = self.slots.get(&slot) {
                self.proceed(*ticket);
            }
        }
        for token in news.tokens {
            if token == REQUESTS {
                let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                while let Ok(ask) = self.asked.try_recv() {
                    self.begin(&ask);
                }
            } else {
                self.accept(token);
            }
        }
        self.sweep();
    }

    /// Begins to connect a stream, or answers with the reason why it cannot.
    fn begin(&mut self, ask: &Ask) {
        let own = self.client.interfaces();
        if own.iter().any(|own| ip(own.addr) == ask.peer.ip()) {
            let _ = ask.answer.send(Err("the peer is on this node"));
            return;
        }
        let mut addr = EspAddr::new(NodeAddr::Udp(ask.peer), ask.peer.port());
        if let Some(from) = ask.from {
            let Some(interface) = own.into_iter().find(|own| ip(own.addr) == from) else {
                let _ = ask.answer.send(Err(BOUND_ELSEWHERE));
                return;
            };
            addr = addr.via(interface.name);
        }
        match self.open(addr) {
            Ok(stream) => self.watch(stream, ask),
            Err(_) => drop(ask.answer.send(Err("no route for ESP"))),
        }
    }

    fn open(&self, addr: EspAddr) -> io::Result<EspStream> {
        let mut begun = EspStream::builder().key(KEY).begin_at(&self.client, addr)?;
        begun.poll().ok_or(Errno::ENETDOWN)?
    }

    /// Adds a stream that is being connected.
    fn watch(&mut self, stream: EspStream, ask: &Ask) {
        let ticket = next_ticket();
        self.slots.insert(stream.slot(), ticket);
        let attempt = Attempt {
            stream,
            peer: ask.peer,
            since: Instant::now(),
            answer: Some(ask.answer.clone()),
        };
        self.attempts.insert(ticket, attempt);
        self.proceed(ticket);
    }

    /// Answers an attempt that is connected, and drops one that has failed.
    fn proceed(&mut self, ticket: u64) {
        let Some(attempt) = self.attempts.get_mut(&ticket) else {
            return;
        };
        let is_kept = match attempt.decide() {
            None => true,
            Some(is_accepted) => attempt.answer(ticket, is_accepted),
        };
        if !is_kept {
            self.remove(ticket);
        }
    }

    fn remove(&mut self, ticket: u64) -> Option<Attempt> {
        let attempt = self.attempts.remove(&ticket)?;
        self.slots.remove(&attempt.stream.slot());
        Some(attempt)
    }

    /// Accepts the connections of programs.
    fn accept(&mut self, token: u64) {
        let node = Arc::clone(&self.node);
        let via = usize::try_from(token - VIA).ok();
        let Some(Some(via)) = via.and_then(|index| node.tcp.via.get(index)) else {
            return;
        };
        loop {
            let (socket, program) = match via.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Out of descriptors: others may be closed in the meantime.
                    std::thread::sleep(PAUSE);
                    return;
                }
            };
            // Other programs of this node may connect, too, and are refused.
            let Some(claim) = lock(&node.tcp.claimed).remove(&program) else {
                continue;
            };
            // Otherwise, the stream was dropped by now, and the program's socket ends.
            if let Some(attempt) = self.remove(claim.ticket) {
                let conn = Conn::new(attempt.stream, socket, claim.name);
                let _ = conn.and_then(|conn| self.copier.add(conn));
            }
        }
    }

    /// Drops the attempts that have taken too long or were abandoned.
    fn sweep(&mut self) {
        let is_late = |attempt: &Attempt| {
            let limit: Duration = match attempt.answer {
                Some(_) => 2 * ASK,
                None => OTHER_HALF,
            };
            attempt.since.elapsed() >= limit
        };
        let late = self.attempts.iter().filter(|(_, attempt)| is_late(attempt));
        let mut late: Vec<u64> = late.map(|(ticket, _)| *ticket).collect();
        late.append(&mut lock(&self.node.tcp.abandoned));
        for ticket in late {
            self.remove(ticket);
        }
    }
}

impl Attempt {
    /// Returns whether the peer's program has the connection; `None` if that is not known before a
    /// later event.
    fn decide(&self) -> Option<bool> {
        self.answer.as_ref()?;
        let attempt = || match self.stream.is_connected() {
            Ok(false) => None,
            Err(_) => Some(false),
            Ok(true) => {
                let mut byte = [0];
                match self.stream.try_read(&mut byte) {
                    Ok(count) => Some(count == 1 && byte == [ACCEPTED]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                    Err(_) => Some(false),
                }
            }
        };
        attempt().or_else(|| {
            self.stream.arm(Interest::Readable);
            self.stream.arm(Interest::State);
            attempt()
        })
    }

    /// Reports the outcome. Returns false if the stream is no longer wanted.
    fn answer(&mut self, ticket: u64, is_accepted: bool) -> bool {
        let local = self.stream.local_addr();
        let local = SocketAddr::new(ip(local.addr), local.port);
        let ends = (local, self.peer);
        let outcome = match is_accepted {
            true => Ok(Connected { ticket, ends }),
            false => Err("the peer's listener did not accept the connection over ESP"),
        };
        let answer = self.answer.take();
        answer.is_some_and(|answer| answer.send(outcome).is_ok()) && is_accepted
    }
}
