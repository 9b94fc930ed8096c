//! A peer that sends anything, to a layer with sends and receives of every kind under way. It may
//! be closed out; memory stays bounded and messages of others go on.
#![no_main]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use btl::{
    Btl, Capabilities, Events, HeldSends, MAX_HEADER, NoticedPuts, PeerError, PeerInfo,
    PendingPeers, Rank, SendError, Tx, Unreachable,
};
use esp_fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use p2p::wire::{Header, Sequenced};
use p2p::{Config, OwnedRequest, P2p, Setup, Source, Tag, TransportAddress};

const LIMIT: usize = 4 << 20;
const ROOM: usize = 3000;

/// Messages to and from the layer under test.
#[derive(Debug, Default)]
struct Mail {
    incoming: VecDeque<(Vec<u8>, Vec<u8>)>,
    outgoing: VecDeque<Vec<u8>>,
    dead: bool,
}

#[derive(Debug)]
struct Mock(Rc<RefCell<Mail>>);

// SAFETY: the target has one thread.
unsafe impl Send for Mock {}

impl Tx for Mock {
    fn send(&mut self, _: Rank, header: &[u8], body: &[IoSlice<'_>]) -> Result<(), SendError> {
        assert!(header.len() <= MAX_HEADER && header.len() + body.len() <= 2048);
        assert!(Header::decode(header).is_ok());
        let mut mail = self.0.borrow_mut();
        mail.outgoing.push_back(header.to_vec());
        if mail.outgoing.len() > 16 {
            mail.outgoing.pop_front();
        }
        Ok(())
    }
}

impl HeldSends for Mock {}

impl NoticedPuts for Mock {}

impl PendingPeers for Mock {}

impl Btl for Mock {
    fn name(&self) -> &'static str {
        "mock"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn address(&self) -> Vec<u8> {
        vec![1]
    }
    fn add_peer(&mut self, _: Rank, _: &[u8]) -> Result<PeerInfo, Unreachable> {
        Ok(PeerInfo {
            latency_ns: 1,
            bandwidth: 1,
            exclusivity: 1,
            eager: 500,
            eager_skewed: 1000,
            max_send: 2048,
            one_sided: false,
            one_sided_from: usize::MAX,
            reason: String::new(),
        })
    }
    fn progress(&mut self, events: &mut dyn Events) -> usize {
        let message = self.0.borrow_mut().incoming.pop_front();
        if let Some((header, body)) = message {
            events.message(self, 1, &header, &body);
            return 1;
        }
        if std::mem::take(&mut self.0.borrow_mut().dead) {
            events.failed(self, 1, PeerError::Died);
            return 1;
        }
        0
    }
    fn flush(&mut self) -> bool {
        true
    }
    fn close(&mut self) {}
}

fuzz_target!(|data: &[u8]| {
    let mail = Rc::new(RefCell::new(Mail::default()));
    let config = Config {
        unexpected_bytes: 64 << 10,
        ..Config::default()
    };
    let setup = Setup {
        rank: 0,
        size: 2,
        transports: vec![Box::new(Mock(Rc::clone(&mail)))],
        config,
    };
    let card = TransportAddress {
        transport: "mock".into(),
        address: vec![1],
    };
    let layer = P2p::start(setup, |_| Ok(vec![card.clone()])).expect("it starts");
    let comm = layer.world();
    let mut choices = Choices::new(data);
    let mut requests: Vec<OwnedRequest> = Vec::new();
    let mut sequence = 0u16;
    for _ in 0..400 {
        if choices.is_empty() {
            break;
        }
        let what = choices.byte();
        // Numbers that the layer has given out make the better lies.
        let known =
            mail.borrow()
                .outgoing
                .iter()
                .rev()
                .find_map(|header| match Header::decode(header) {
                    Ok(Header::Rts(_, _, request) | Header::Eager(_, Some(request))) => {
                        Some(request)
                    }
                    Ok(Header::Cts { target, .. }) => Some(target),
                    _ => None,
                });
        let request = if what & 0x80 != 0 {
            u64::from(choices.word())
        } else {
            known.unwrap_or(1 << 32)
        };
        let flags = choices.byte() & 3;
        let tag = choices.byte() & 3;
        let envelope = Sequenced {
            flags,
            sequence,
            context: u32::from(what >> 6),
            tag: tag.into(),
            data: None,
        };
        let length = usize::from(choices.word());
        let header = match what & 15 {
            0 => {
                let length = usize::from(choices.byte());
                mail.borrow_mut()
                    .incoming
                    .push_back((choices.bytes(length).to_vec(), vec![0; length]));
                continue;
            }
            1..=3 => {
                sequence = sequence.wrapping_add(1);
                Header::Eager(envelope, (flags == 3).then_some(request))
            }
            4 => {
                sequence = sequence.wrapping_add(1);
                Header::Rts(envelope, length as u64, request)
            }
            5 => Header::Cts {
                request,
                target: request,
                length: length as u64 + 1,
                put: what & 32 != 0,
            },
            6 => Header::Fragment {
                target: request,
                offset: u64::from(choices.word()),
            },
            7 => Header::Fin {
                request,
                written: flags & 1 != 0,
            },
            8 => Header::Credit {
                amount: length as u32 * 16,
                rts_only: flags & 1 != 0,
            },
            9 => Header::Skew {
                late: flags & 1 != 0,
            },
            10 | 11 => {
                let source = if flags & 1 == 0 {
                    Source::Any
                } else {
                    Source::Rank(1)
                };
                let tag = if flags & 2 == 0 {
                    Tag::Any
                } else {
                    Tag::Is(tag.into())
                };
                requests.extend(comm.irecv_owned(vec![0; length.min(ROOM)], source, tag));
                continue;
            }
            12 => {
                requests.extend(comm.isend_owned(vec![0; length.min(ROOM)], 1, tag.into()));
                continue;
            }
            13 => {
                if let Ok(Some(message)) = comm.improbe(Source::Any, Tag::Any) {
                    requests.extend(message.irecv_owned(vec![0; 100]));
                }
                continue;
            }
            14 => {
                if !requests.is_empty() {
                    let at = length % requests.len();
                    if flags & 1 == 0 {
                        drop(requests.swap_remove(at));
                    } else {
                        let _ = requests[at].cancel();
                    }
                }
                continue;
            }
            _ => {
                mail.borrow_mut().dead = what == 0xff;
                layer.progress();
                continue;
            }
        };
        let body = match header {
            Header::Eager(..) | Header::Fragment { .. } => vec![1; length % 2000],
            Header::Rts(..) => Vec::new(),
            Header::Cts { put: true, .. } => vec![1; 8],
            _ => Vec::new(),
        };
        mail.borrow_mut()
            .incoming
            .push_back((header.encode().bytes().to_vec(), body));
        layer.progress();
    }
    for _ in 0..500 {
        layer.progress();
    }
    assert!(layer.stats().unexpected_peak <= LIMIT);
    // An any-source receive would match the next message.
    for request in &requests {
        let _ = request.cancel();
    }
    let mut byte = [0];
    comm.sendrecv(&[7], 0, 77, &mut byte, 0, 77)
        .expect("to itself it can always send");
    assert_eq!(byte, [7]);
    // A peer that is dead by now ends everything that waits for it.
    mail.borrow_mut().dead = true;
    for _ in 0..1000 {
        layer.progress();
    }
    for request in requests {
        let _ = request.cancel();
        assert_eq!(request.is_complete(), Ok(true));
    }
});
