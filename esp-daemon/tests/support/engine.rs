//! An engine without a wire: answers commands, keeps track of its state, emits events for a test.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

use esp_daemon::engines::SendCommand;
use esp_engine::shm::{ClientPage, EnginePage, Region};
use esp_engine::{
    Arrival, ClientId, Command, ConnHandle, EngineEvent, EngineGone, LinkId, LinkSnapshot,
    ListenerId, Slot, Snapshot,
};
use esp_proto::ResumeError;
use esp_proto::{
    CloseReason, ConnId, ConnInfo, ConnectError, Duration, ListenError, MacAddr, Port, ResetReason,
    State,
};
use tokio::sync::mpsc::UnboundedSender;

/// Peer port of a connect that the engine refuses because of its connection limit.
pub const TOO_MANY: Port = 11;
/// Peer port of a connect that the engine refuses as a duplicate.
pub const EXISTS: Port = 12;
/// Port on which the engine cannot listen.
pub const UNLISTENABLE: Port = 4444;

/// State of the engine.
#[derive(Default)]
pub struct Books {
    pub clients: BTreeMap<ClientId, (Arc<ClientPage>, OwnedFd, OwnedFd)>,
    pub listeners: BTreeMap<ListenerId, (ClientId, Option<LinkId>, Port)>,
    pub streams: BTreeMap<(ClientId, Slot), (ConnHandle, Port, Arc<Region>)>,
    pub sockets: BTreeMap<(ClientId, Slot), (LinkId, Port, Arc<Region>)>,
    /// Incoming connections that wait.
    pub waiting: BTreeSet<u32>,
    pub refused: Vec<u32>,
    /// Requests to resume a connection, all of them refused.
    pub resumed: u32,
    /// Connections without an owner, shown on `net1`.
    pub unowned_connections: u32,
    /// Closed events are held back until [`FakeEngine::settle`].
    pub slow: bool,
    held: Vec<(ClientId, Slot, Option<CloseReason>)>,
    next_conn: u32,
}

impl Books {
    /// Returns true if the engine holds nothing for any program.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
            && self.listeners.is_empty()
            && self.streams.is_empty()
            && self.sockets.is_empty()
    }
}

pub struct FakeEngine {
    commands: Sender<Command>,
    pub books: Arc<Mutex<Books>>,
    events: UnboundedSender<(u8, EngineEvent)>,
    page: OwnedFd,
}

impl FakeEngine {
    pub fn start(events: UnboundedSender<(u8, EngineEvent)>) -> FakeEngine {
        let (commands, inbox) = channel::<Command>();
        let books: Arc<Mutex<Books>> = Arc::default();
        let (page, page_fd) = EnginePage::create().unwrap();
        let thread = Worker {
            books: Arc::clone(&books),
            events: events.clone(),
            _page: page,
        };
        std::thread::spawn(move || {
            while let Ok(command) = inbox.recv() {
                if !thread.execute(command) {
                    return;
                }
            }
        });
        FakeEngine {
            commands,
            books,
            events,
            page: page_fd,
        }
    }

    /// Returns the function that queues its commands, and its page.
    pub fn connect(&self) -> (SendCommand, OwnedFd) {
        let commands = self.commands.clone();
        let send = move |command| commands.send(command).map_err(|_| EngineGone);
        (Box::new(send), self.page.try_clone().unwrap())
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    pub fn emit(&self, event: EngineEvent) {
        self.events.send((0, event)).unwrap();
    }

    /// Adds a connection for a listener of this port on `net0`; returns the connection's number.
    pub fn incoming(&self, port: Port, peer_port: Port) -> u32 {
        let mut books = self.books();
        let (&listener, _) = books
            .listeners
            .iter()
            .find(|(_, at)| at.2 == port)
            .expect("a listener there");
        books.next_conn += 1;
        let conn = books.next_conn;
        books.waiting.insert(conn);
        drop(books);
        let arrival = Arrival {
            handle: handle(0, conn),
            port,
            peer: PEER.into(),
            peer_port,
        };
        self.emit(EngineEvent::Incoming { listener, arrival });
        conn
    }

    /// Ends a waiting connection.
    pub fn gone(&self, port: Port, conn: u32) {
        let mut books = self.books();
        let (&listener, _) = books
            .listeners
            .iter()
            .find(|(_, at)| at.2 == port)
            .expect("a listener there");
        books.waiting.remove(&conn);
        drop(books);
        self.emit(EngineEvent::IncomingGone {
            listener,
            handle: handle(0, conn),
        });
    }

    /// Resets a stream by its peer.
    pub fn close(&self, client: u64, slot: Slot) {
        self.books()
            .streams
            .remove(&(ClientId(client), slot))
            .expect("a stream there");
        let reason = Some(CloseReason::Reset(ResetReason::Aborted));
        self.emit(EngineEvent::Closed {
            client: ClientId(client),
            slot,
            reason,
        });
    }

    /// Emits the events held back, and stops holding events back.
    pub fn settle(&self) {
        let mut books = self.books();
        books.slow = false;
        let held = std::mem::take(&mut books.held);
        drop(books);
        for (client, slot, reason) in held {
            self.emit(EngineEvent::Closed {
                client,
                slot,
                reason,
            });
        }
    }

    /// Ends the thread, as a failed engine does.
    pub fn die(&self) {
        let (done, is_done) = channel();
        let _ = self.commands.send(Command::Shutdown {
            keep: false,
            reply: Box::new(move |()| done.send(()).unwrap()),
        });
        is_done.recv().unwrap();
    }
}

pub const PEER: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);

fn handle(link: u16, conn: u32) -> ConnHandle {
    ConnHandle {
        link: LinkId(link),
        conn: ConnId {
            slot: conn,
            generation: 1,
        },
    }
}

struct Worker {
    books: Arc<Mutex<Books>>,
    events: UnboundedSender<(u8, EngineEvent)>,
    _page: EnginePage,
}

impl Worker {
    /// Processes a command; returns false for the last one.
    fn execute(&self, command: Command) -> bool {
        let mut books = self.books.lock().unwrap();
        match command {
            Command::AddClient {
                client,
                page,
                doorbell,
                notify,
                ..
            } => {
                books.clients.insert(client, (page, doorbell, notify));
            }
            Command::RemoveClient { client } => {
                books.clients.remove(&client);
                books.listeners.retain(|_, (owner, _, _)| *owner != client);
                let slots: Vec<Slot> = books
                    .streams
                    .keys()
                    .chain(books.sockets.keys())
                    .filter(|at| at.0 == client)
                    .map(|at| at.1)
                    .collect();
                for slot in slots {
                    self.close(&mut books, client, slot);
                }
            }
            Command::Listen {
                client,
                listener,
                link,
                port,
                reply,
                ..
            } => {
                let taken = books.listeners.values().any(|(_, at, there)| {
                    *there == port && (at.is_none() || link.is_none() || *at == link)
                });
                if taken || port == UNLISTENABLE {
                    reply(Err(ListenError::InUse));
                } else {
                    books.listeners.insert(listener, (client, link, port));
                    reply(Ok(()));
                }
            }
            Command::CloseListener { listener } => {
                books.listeners.remove(&listener);
            }
            Command::Attach {
                handle,
                client,
                slot,
                region,
                reply,
            } => {
                let there = books.waiting.remove(&handle.conn.slot);
                if there {
                    books.take(client, slot, (handle, 0, region));
                }
                reply(there);
            }
            Command::Connect {
                client,
                slot,
                link,
                local_port,
                peer_port,
                region,
                reply,
                ..
            } => {
                books.next_conn += 1;
                let handle = handle(link.0, books.next_conn);
                reply(match peer_port {
                    TOO_MANY => Err(ConnectError::TooMany),
                    EXISTS => Err(ConnectError::InUse),
                    _ => {
                        books.take(client, slot, (handle, local_port, region));
                        Ok(handle)
                    }
                });
            }
            Command::Close { client, slot } | Command::Abort { client, slot } => {
                self.close(&mut books, client, slot);
            }
            Command::Refuse { handle } => {
                books.waiting.remove(&handle.conn.slot);
                books.refused.push(handle.conn.slot);
            }
            Command::BindEdp {
                client,
                slot,
                link,
                port,
                region,
                reply,
                ..
            } => {
                let before = books.sockets.insert((client, slot), (link, port, region));
                assert!(before.is_none(), "slot {slot} given out twice");
                reply(Ok(()));
            }
            Command::Resume { reply, .. } => {
                books.resumed += 1;
                reply(Err(ResumeError::BadImage));
            }
            Command::Hold { reply, .. } => reply(Ok(())),
            Command::Unhold { .. } | Command::SetKeys(_) => {}
            Command::Snapshot { reply } => reply(books.snapshot()),
            Command::Shutdown { reply, .. } => {
                drop(books);
                reply(());
                return false;
            }
        }
        true
    }

    fn close(&self, books: &mut Books, client: ClientId, slot: Slot) {
        let stream = books.streams.remove(&(client, slot)).is_some();
        let socket = books.sockets.remove(&(client, slot)).is_some();
        if !stream && !socket {
            return;
        }
        let reason = stream.then_some(CloseReason::Finished);
        if books.slow {
            books.held.push((client, slot, reason));
        } else {
            let closed = EngineEvent::Closed {
                client,
                slot,
                reason,
            };
            let _ = self.events.send((0, closed));
        }
    }
}

impl Books {
    fn take(&mut self, client: ClientId, slot: Slot, stream: (ConnHandle, Port, Arc<Region>)) {
        assert!(
            !self.sockets.contains_key(&(client, slot)),
            "slot {slot} given out twice"
        );
        assert!(
            self.streams.insert((client, slot), stream).is_none(),
            "slot {slot} given out twice"
        );
    }

    fn snapshot(&self) -> Snapshot {
        let link = |name: &str, number: u16| LinkSnapshot {
            interface: name.into(),
            addr: MacAddr([2, 0, 0, 0, 0, 1]).into(),
            mtu: 1500,
            up: true,
            counters: vec![("rx_frames", "frames received", 5 + u64::from(number))],
            connections: self
                .streams
                .iter()
                .filter(|(_, (handle, _, _))| handle.link.0 == number)
                .map(|(owner, (handle, port, _))| (handle.conn, Some(*owner), info(*port)))
                .collect(),
            listeners: self
                .listeners
                .iter()
                .filter(|(_, (_, on, _))| on.is_none_or(|on| on.0 == number))
                .map(|(id, (_, _, port))| (*port, Some(*id), 0, 8))
                .collect(),
            edp_ports: self
                .sockets
                .iter()
                .filter(|(_, (on, _, _))| on.0 == number)
                .map(|(owner, (_, port, _))| (*port, owner.0, owner.1))
                .collect(),
        };
        let mut links = vec![link("net0", 0), link("net1", 1)];
        let unowned = |n| {
            (
                ConnId {
                    slot: n,
                    generation: 0,
                },
                None,
                info(5),
            )
        };
        links[1]
            .connections
            .extend((0..self.unowned_connections).map(unowned));
        Snapshot {
            links,
            engine: vec![("turns", "turns", 3)],
        }
    }
}

fn info(local_port: Port) -> ConnInfo {
    ConnInfo {
        state: State::Established,
        local_port,
        peer: PEER.into(),
        peer_port: 9,
        srtt: Some(Duration::from_micros(30)),
        rttvar: Duration::from_micros(5),
        min_rtt: None,
        rto: Duration::from_millis(2),
        cwnd: 10,
        in_flight: 0,
        credit: 1,
        rx_credit: 1,
        payload: 1489,
        payload_agreed: 1489,
        send_queue: 0,
        recv_queue: 0,
        packets_sent: 0,
        packets_received: 0,
        bytes_acked: 0,
        bytes_received: 0,
        retransmits: 0,
        timeouts: 0,
        tail_probes: 0,
        duplicates: 0,
        out_of_order: 0,
        moves: 0,
    }
}
