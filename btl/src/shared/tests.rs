use std::sync::Mutex;
use std::thread;

use super::*;
use crate::{HeldSends, NoticedPuts};

/// Records sent messages, and is busy at times.
#[derive(Debug, Default)]
struct Recorder {
    sent: Vec<(Rank, Vec<u8>)>,
    calls: u64,
    busy_every: u64,
}

impl Tx for Recorder {
    fn send(&mut self, peer: Rank, header: &[u8], _: &[IoSlice<'_>]) -> Result<(), SendError> {
        self.calls += 1;
        if self.busy_every != 0 && self.calls.is_multiple_of(self.busy_every) {
            return Err(SendError::Busy);
        }
        self.sent.push((peer, header.to_vec()));
        Ok(())
    }
}

impl HeldSends for Recorder {}

impl NoticedPuts for Recorder {}

struct Item(Vec<u8>);

impl QueuedSend for Item {
    fn cost(&self) -> usize {
        self.0.len()
    }

    fn send<T: Tx>(
        self,
        _: &SharedTransport<T, Self>,
        tx: &mut dyn Tx,
        peer: Rank,
    ) -> Result<(), Item> {
        tx.send(peer, &self.0, &[]).map_err(|_| self)
    }
}

type Shared = SharedTransport<Recorder, Item>;

fn shared(busy_every: u64) -> Shared {
    let shared = Shared::new();
    let recorder = Recorder {
        busy_every,
        ..Recorder::default()
    };
    shared.enter(|place| *place = Some(recorder)).unwrap();
    shared
}

fn sent(shared: &Shared) -> Vec<(Rank, Vec<u8>)> {
    let take = |place: &mut Option<Recorder>| std::mem::take(&mut place.as_mut().unwrap().sent);
    shared.enter(take).unwrap()
}

#[test]
fn messages_of_a_thread_arrive_in_order_and_once() {
    const THREADS: u8 = 4;
    const COUNT: u32 = 20_000;
    let shared = shared(7);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let shared = &shared;
            scope.spawn(move || {
                for message in 0..COUNT {
                    let mut bytes = vec![number];
                    bytes.extend(message.to_le_bytes());
                    if shared.send(5, &bytes, &[]) == Err(SendError::Busy) {
                        shared.queue(5, Item(bytes));
                    }
                }
            });
        }
        scope.spawn(|| {
            while all.lock().unwrap().len() < usize::from(THREADS) * COUNT as usize {
                let step = |place: &mut Option<Recorder>| {
                    let transport = place.as_mut().unwrap();
                    shared.drain(transport);
                    all.lock().unwrap().append(&mut transport.sent);
                };
                let _ = shared.enter(step);
                thread::yield_now();
            }
        });
    });
    assert!(shared.is_queue_empty() && shared.queued_bytes() == 0);
    let all = all.into_inner().unwrap();
    for number in 0..THREADS {
        let of_thread: Vec<u32> = all
            .iter()
            .filter(|(_, bytes)| bytes[0] == number)
            .map(|(_, bytes)| u32::from_le_bytes(bytes[1..].try_into().unwrap()))
            .collect();
        assert!(of_thread.into_iter().eq(0..COUNT), "thread {number}");
    }
}

#[test]
fn code_called_by_the_owner_sends_by_the_lent_sender_only() {
    let shared = shared(0);
    let step = |place: &mut Option<Recorder>| {
        let transport = place.as_mut().unwrap();
        assert_eq!(shared.send(1, b"not lent", &[]), Err(SendError::Busy));
        shared.lend(transport, || {
            assert!(shared.is_mine());
            assert_eq!(shared.send(1, b"lent", &[]), Ok(()));
            assert_eq!(shared.enter(|_| ()), None);
            let nested = shared.with_tx(|tx| {
                assert_eq!(shared.with_tx(|_| Ok(())), Err(SendError::Busy));
                shared.lend(tx, || shared.send(2, b"lent twice", &[]))
            });
            assert_eq!(nested, Ok(()));
            assert_eq!(shared.send(1, b"still lent", &[]), Ok(()));
        });
        assert_eq!(shared.send(1, b"not any more", &[]), Err(SendError::Busy));
    };
    shared.enter(step).unwrap();
    assert!(!shared.is_mine());
    let words: Vec<_> = sent(&shared).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(words, [&b"lent"[..], b"lent twice", b"still lent"]);
}

#[test]
fn items_queued_by_the_owners_callbacks_are_sent_when_it_gives_the_transport_back() {
    let shared = shared(0);
    shared.enter(|_| shared.queue(3, Item(vec![9]))).unwrap();
    assert_eq!(sent(&shared), [(3, vec![9])]);
    assert!(shared.is_queue_empty());
}

#[test]
fn items_that_find_no_room_wait_and_can_be_removed() {
    let shared = shared(1);
    for number in 0..3 {
        shared.queue(number % 2, Item(vec![number as u8; 10]));
    }
    assert!(shared.has_queued(0) && shared.has_queued(1) && !shared.has_queued(2));
    assert_eq!(shared.queued_bytes(), 30);
    let removed: Vec<_> = shared
        .clear_queue(0)
        .into_iter()
        .map(|item| item.0[0])
        .collect();
    assert_eq!((removed, shared.queued_bytes()), (vec![0, 2], 10));
    let step = |place: &mut Option<Recorder>| {
        let transport = place.as_mut().unwrap();
        transport.busy_every = 0;
        shared.drain(transport)
    };
    assert_eq!(shared.enter(step), Some(1));
    assert!(shared.is_queue_empty());
}

#[test]
fn a_panic_in_called_code_leaves_the_transport_free_and_not_lent() {
    let shared = shared(0);
    let step = |place: &mut Option<Recorder>| {
        let transport = place.as_mut().unwrap();
        shared.lend(transport, || panic!("called code panics"))
    };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.enter(step)));
    assert!(caught.is_err());
    let not_lent = shared.enter(|_| shared.with_tx(|_| Ok(())));
    assert_eq!(not_lent, Some(Err(SendError::Busy)));
    assert_eq!(shared.send(1, b"free", &[]), Ok(()));
}

#[test]
fn a_thread_that_does_not_own_the_transport_lends_nothing() {
    let (shared, mut other) = (shared(0), Recorder::default());
    let result = shared.lend(&mut other, || shared.send(1, b"own", &[]));
    assert_eq!((result, other.sent.len()), (Ok(()), 0));
}

#[test]
fn without_a_transport_sends_are_refused() {
    let shared = Shared::default();
    assert_eq!(shared.send(1, b"", &[]), Err(SendError::Closed));
    assert_eq!(shared.with_tx(|_| Ok(())), Err(SendError::Closed));
}
