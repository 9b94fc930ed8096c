//! An engine ends at each of its stores to the rings of a stream, and the next one resumes the
//! connection: both programs get every byte once and in order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use esp_proto::{CloseReason, Instant, ResetReason};
use netns::{Node, TwoNodes};

use super::super::Engine;
use crate::clock::Clock;
use crate::shm::crash::StoreBudget;
use crate::shm::{
    ClientPage, Doorbell, EngineView, Region, RingSizes, RxConsumer, Status, StreamState,
    TxProducer,
};
use crate::{
    Arrival, ClientId, Command, EngineConfig, EngineEvent, EngineHandle, LinkConfig, LinkId,
    ListenerId,
};

pub(in crate::engine) const CLIENT: ClientId = ClientId(1);
const PORT: u16 = 7000;
/// The smallest ring that sends, and one that receives four frames.
pub(in crate::engine) const SIZES: RingSizes = RingSizes { tx: 4096, rx: 8192 };
/// Number of bytes in each direction: more than a ring holds.
const LEN: u64 = 10_000;
/// Time of one round.
const STEP: esp_proto::Duration = esp_proto::Duration::from_micros(200);
/// Number of rounds after which a transfer has failed.
const ROUNDS: u32 = 200_000;
/// State of a stream whose connection the peer's node does not have.
const FORGOTTEN: StreamState = StreamState::Closed(CloseReason::Reset(ResetReason::Unknown));
/// Maximum number of engines that end before the stream is established on both sides: two for each
/// word of the image, for the one that activates it, and for two changes of the state.
const SET_UP: u64 = 2 * 24;
/// A budget that is never used up.
const UNLIMITED: StoreBudget = StoreBudget {
    stores: u64::MAX,
    sharp: false,
};

/// Returns byte `index` of the stream from this side.
fn byte(index: u64, side: usize) -> u8 {
    ((index ^ (side as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// An engine, and the daemon's part of it.
pub(in crate::engine) struct Host<'a> {
    node: &'a Node,
    /// `None` after it has ended.
    pub(in crate::engine) engine: Option<Engine>,
    handle: EngineHandle,
    events: Receiver<EngineEvent>,
    page: Arc<ClientPage>,
    listens: bool,
    budget: StoreBudget,
}

impl<'a> Host<'a> {
    fn start(node: &'a Node, listens: bool) -> Host<'a> {
        let config = EngineConfig {
            links: vec![LinkConfig::Ethernet(node.interface())],
            ..Default::default()
        };
        let (sender, events) = channel();
        let sink = Box::new(move |event| {
            let _ = sender.send(event);
        });
        let (engine, handle) = node.run(move || Engine::new(config, sink)).expect("engine");
        let (page, _) = ClientPage::create().expect("memory");
        let (doorbell, notify) = std::os::unix::net::UnixStream::pair().expect("descriptors");
        let host = Host {
            node,
            engine: Some(engine),
            handle,
            events,
            page,
            listens,
            budget: UNLIMITED,
        };
        host.send(Command::AddClient {
            client: CLIENT,
            user: 0,
            page: Arc::clone(&host.page),
            doorbell: doorbell.into(),
            notify: notify.into(),
        });
        if listens {
            host.send(Command::Listen {
                client: CLIENT,
                listener: ListenerId(1),
                link: None,
                port: PORT,
                backlog: 16,
                key: Vec::new(),
                reply: Box::new(|done| done.expect("listen")),
            });
        }
        host
    }

    pub(in crate::engine) fn send(&self, command: Command) {
        self.handle.send(command).expect("a queue with room");
    }

    /// Replaces the engine, which has ended.
    fn replace(&mut self) {
        // Its sockets are closed, and its ends of the rings are free, before the next one starts.
        self.engine = None;
        *self = Host::start(self.node, self.listens);
    }

    /// Runs one round; false if the engine has ended.
    pub(in crate::engine) fn poll(&mut self, now: Instant) -> bool {
        let Host { engine, budget, .. } = self;
        let engine = engine.as_mut().expect("it has not ended");
        budget.run(|| engine.poll_at(now, None)).is_some()
    }
}

/// One end of a stream, with its program.
pub(in crate::engine) struct End {
    side: usize,
    slot: u16,
    file: OwnedFd,
    pub(in crate::engine) tx: TxProducer,
    pub(in crate::engine) rx: RxConsumer,
    pub(in crate::engine) status: Status,
    received: u64,
    /// The daemon has passed the stream to the program.
    granted: Option<Receiver<bool>>,
    open: bool,
}

impl End {
    /// Returns an end, and its memory for the engine.
    fn new(side: usize, slot: u16) -> (End, Arc<Region>) {
        let (region, file) = Region::create(SIZES).expect("memory");
        let program = Region::open(file.as_fd(), SIZES).expect("the engine's own file");
        let end = End {
            side,
            slot,
            file,
            tx: TxProducer::new(Arc::clone(&program)),
            rx: RxConsumer::new(Arc::clone(&program)),
            status: Status::new(program),
            received: 0,
            granted: None,
            open: false,
        };
        (end, region)
    }

    /// Returns true if the program could bring the stream to the next engine.
    pub(in crate::engine) fn is_established(&mut self) -> bool {
        if let Some(granted) = &self.granted {
            self.open |= granted.try_recv().unwrap_or(false);
        } else {
            self.open = self.status.state() != StreamState::Connecting;
        }
        self.open
    }

    /// Writes and reads as much as the rings allow.
    fn work(&mut self, host: &Host<'_>) {
        if !self.is_established() {
            return;
        }
        let from = self.tx.written();
        let bytes: Vec<u8> = (from..LEN.min(from + 1000))
            .map(|index| byte(index, self.side))
            .collect();
        self.tx.write(&bytes);
        if self.tx.written() == LEN && !self.tx.is_finished() {
            self.tx.finish();
        }
        let mut bytes = [0; 700];
        let n = self.rx.read(&mut bytes);
        for found in &bytes[..n] {
            assert_eq!(
                *found,
                byte(self.received, 1 - self.side),
                "{}",
                self.received
            );
            self.received += 1;
        }
        self.ring(host);
    }

    pub(in crate::engine) fn ring(&self, host: &Host<'_>) {
        let view = EngineView::open(host.handle.page_fd()).expect("the engine's page");
        let _ = Doorbell::new(Arc::clone(&host.page), view).ring(self.slot);
    }

    fn has_read_all(&self) -> bool {
        self.rx.at_end() && self.received == LEN
    }

    /// Returns true if nothing more will happen.
    fn is_done(&self) -> bool {
        self.rx.available() == 0 && matches!(self.status.state(), StreamState::Closed(_))
    }
}

/// Outcome of a transfer during which engines ended.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// An engine ended before its program could have brought the stream to the next one: an error
    /// at both ends.
    NotEstablished,
    Complete,
}

pub(in crate::engine) struct Rig<'a> {
    pub(in crate::engine) hosts: [Host<'a>; 2],
    pub(in crate::engine) now: Instant,
    transfers: u16,
}

impl<'a> Rig<'a> {
    pub(in crate::engine) fn new(nodes: &'a TwoNodes) -> Rig<'a> {
        Rig {
            hosts: [Host::start(&nodes.a, false), Host::start(&nodes.b, true)],
            now: Clock.now(),
            transfers: 0,
        }
    }

    /// Transfers bytes in both directions, while the engines of one side end when their `budgets`
    /// are used up. Returns the outcome, and the number of stores that the last engine executed.
    fn transfer(&mut self, side: usize, budgets: &[StoreBudget]) -> (Outcome, u64) {
        self.transfers += 1;
        let slot = self.transfers;
        let given = budgets;
        let mut budgets = budgets.iter().copied().chain([UNLIMITED]);
        self.hosts[side].budget = budgets.next().unwrap_or(UNLIMITED);
        let mut ends = [Some(self.connect(slot)), None];
        for _ in 0..ROUNDS {
            self.now = self.now + STEP;
            for (at, end) in ends.iter_mut().enumerate() {
                if !self.hosts[at].poll(self.now) {
                    let established = end.as_mut().is_some_and(End::is_established);
                    self.hosts[at].replace();
                    let (true, Some(end)) = (established, &*end) else {
                        self.abandon(slot);
                        return (Outcome::NotEstablished, 0);
                    };
                    self.hosts[at].resume(end);
                    self.hosts[at].budget = budgets.next().unwrap_or(UNLIMITED);
                }
            }
            if let Some(arrival) = self.arrival(slot) {
                ends[1] = Some(self.accept(slot, arrival));
            }
            for (end, host) in ends.iter_mut().zip(&self.hosts) {
                if let Some(end) = end {
                    end.work(host);
                }
            }
            if ends.iter().flatten().filter(|end| end.is_done()).count() == 2 {
                break;
            }
        }
        for end in ends.iter().flatten() {
            let state = end.status.state();
            let got = end.received;
            assert!(
                end.has_read_all(),
                "{}: {got} bytes, {state:?}, {side} {given:?}",
                end.side
            );
            let finished = state == StreamState::Closed(CloseReason::Finished);
            // The peer may have gone after the last acknowledgement, which was lost.
            assert!(
                finished || end.side == side && state == FORGOTTEN,
                "{state:?}"
            );
        }
        assert!(ends.iter().all(Option::is_some), "nothing was accepted");
        self.close(slot);
        let budget = std::mem::replace(&mut self.hosts[side].budget, UNLIMITED);
        (Outcome::Complete, UNLIMITED.stores - budget.stores)
    }

    pub(in crate::engine) fn connect(&self, slot: u16) -> End {
        let (end, region) = End::new(0, slot);
        let peer = esp_proto::MacAddr(self.hosts[1].node.interface().mac.octets());
        self.hosts[0].send(Command::Connect {
            client: CLIENT,
            slot,
            link: LinkId(0),
            local_port: 40_000 + slot,
            peer: peer.into(),
            peer_port: PORT,
            key: Vec::new(),
            region,
            reply: Box::new(|done| {
                let _ = done.expect("connect");
            }),
        });
        end
    }

    /// Returns the connection of this transfer, once.
    pub(in crate::engine) fn arrival(&self, slot: u16) -> Option<Arrival> {
        self.hosts[1]
            .events
            .try_iter()
            .find_map(|event| match event {
                EngineEvent::Incoming { arrival, .. } if arrival.peer_port == 40_000 + slot => {
                    Some(arrival)
                }
                _ => None,
            })
    }

    pub(in crate::engine) fn accept(&self, slot: u16, arrival: Arrival) -> End {
        let (mut end, region) = End::new(1, slot);
        let (sender, granted) = channel();
        end.granted = Some(granted);
        self.hosts[1].send(Command::Attach {
            handle: arrival.handle,
            client: CLIENT,
            slot,
            region,
            reply: Box::new(move |attached| {
                let _ = sender.send(attached);
            }),
        });
        end
    }

    fn close(&self, slot: u16) {
        for host in &self.hosts {
            host.send(Command::Close {
                client: CLIENT,
                slot,
            });
        }
    }

    /// Aborts a transfer at both ends.
    fn abandon(&mut self, slot: u16) {
        for host in &mut self.hosts {
            host.budget = UNLIMITED;
            host.send(Command::Abort {
                client: CLIENT,
                slot,
            });
        }
        self.close(slot);
    }
}

impl Host<'_> {
    /// Brings a stream of the earlier engine.
    fn resume(&self, end: &End) {
        let region = Region::adopt(end.file.as_fd(), SIZES).expect("the memory");
        let (image, _) = region.image().expect("an established stream has an image");
        self.send(Command::Resume {
            client: CLIENT,
            slot: end.slot,
            link: LinkId(0),
            image: Box::new(image),
            region,
            reply: Box::new(|done| {
                let _ = done.expect("the connection is resumed");
            }),
        });
    }
}

/// W-135: bytes that were acknowledged before they were stored would be lost.
#[test]
fn bytes_survive_an_engine_that_ends_at_each_of_its_stores() {
    let Some(nodes) = TwoNodes::new_or_skip("an_engine_that_ends_at_each_store") else {
        return;
    };
    let mut rig = Rig::new(&nodes);
    for side in 0..2 {
        let (outcome, all) = rig.transfer(side, &[]);
        assert_eq!(outcome, Outcome::Complete);
        assert!(all > 30, "the image alone has more words: {all}");
        let mut complete = 0u64;
        for stores in 0..=all {
            for sharp in [false, true] {
                let budget = StoreBudget { stores, sharp };
                let (outcome, _) = rig.transfer(side, &[budget]);
                complete += u64::from(outcome == Outcome::Complete);
            }
        }
        eprintln!("side {side}: {all} stores, {complete} transfers completed");
        // The others ended during the set-up: in the image, or at a change of the state.
        assert!(complete + SET_UP >= 2 * all, "{complete} of 2 * {all}");
    }
}

/// W-132: the epoch is stored before the first GO.
#[test]
fn bytes_survive_a_next_engine_that_ends_while_it_resumes() {
    let Some(nodes) = TwoNodes::new_or_skip("a_next_engine_that_ends_while_it_resumes") else {
        return;
    };
    let mut rig = Rig::new(&nodes);
    for side in 0..2 {
        let (_, all) = rig.transfer(side, &[]);
        let first = StoreBudget {
            stores: all / 2 + 10,
            sharp: true,
        };
        for stores in 0..60 {
            let next = StoreBudget {
                stores,
                sharp: stores % 2 == 0,
            };
            let (outcome, _) = rig.transfer(side, &[first, next]);
            assert_eq!(outcome, Outcome::Complete, "{side} {stores}");
        }
    }
}
