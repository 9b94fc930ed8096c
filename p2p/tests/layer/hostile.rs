//! Peers that send invalid messages: they are closed, and others continue.

use std::io::IoSlice;
use std::sync::Mutex;

use super::failures::{failed, until};
use crate::common::config;
use btl::{Btl, Events, PeerError, Tx};
use btl_conformance::loopback::{self, Limits};
use p2p::wire::{Header, Sequenced};
use p2p::{Error, P2p, Rank, Setup, TransportAddress};

/// Header and body.
type Message = (Vec<u8>, Vec<u8>);

/// Messages that a bare transport receives.
#[derive(Default)]
struct Heard(Mutex<Vec<Message>>);

impl Events for Heard {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.0
            .lock()
            .unwrap()
            .push((header.to_vec(), body.to_vec()));
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, _: PeerError) {}
}

/// Ranks 0 and 1 are regular layers, rank 2 is a bare transport that sends arbitrary messages.
struct Hostile {
    layers: Vec<P2p>,
    bare: Box<dyn Btl>,
    heard: Heard,
}

impl Hostile {
    fn new() -> Hostile {
        let mut job = loopback::job(3, Limits::default());
        let mut bare: Box<dyn Btl> = Box::new(job.pop().unwrap());
        let cards: Vec<TransportAddress> = job
            .iter()
            .map(|btl| TransportAddress {
                transport: "loopback".into(),
                address: btl.address(),
            })
            .chain([TransportAddress {
                transport: "loopback".into(),
                address: bare.address(),
            }])
            .collect();
        let layers = job
            .into_iter()
            .zip(0..)
            .map(|(btl, rank)| {
                let setup = Setup {
                    rank,
                    size: 3,
                    transports: vec![Box::new(btl)],
                    config: config(3),
                };
                P2p::start(setup, |peer| Ok(vec![cards[peer as usize].clone()])).unwrap()
            })
            .collect();
        for rank in 0..2 {
            bare.add_peer(rank, &cards[rank as usize].address).unwrap();
        }
        Hostile {
            layers,
            bare,
            heard: Heard::default(),
        }
    }

    fn send(&mut self, header: &[u8], body: &[u8]) {
        for _ in 0..1000 {
            if self.bare.send(0, header, &[IoSlice::new(body)]).is_ok() {
                return;
            }
            self.layers[0].progress();
        }
        panic!("no room for a hostile message");
    }

    /// Checks that rank 0 closes rank 2 with a reason and continues with rank 1.
    fn expect_closed(mut self, what: &str) {
        let receive = self.layers[0].world().irecv_owned(vec![0; 9], 2, 12345);
        let layer = &self.layers[0];
        until(&[layer], what, || layer.stats().failed_peers == 1);
        if let Ok(receive) = receive {
            let result = receive.wait().0;
            assert!(
                matches!(
                    &result,
                    Err(Error::PeerFailed {
                        peer: 2,
                        error: PeerError::Violation(_)
                    })
                ),
                "{what}: {result:?}"
            );
        }
        for _ in 0..100 {
            self.bare.progress(&mut self.heard);
        }
        let heard = self.heard.0.lock().unwrap();
        let (header, reason) = heard.last().unwrap();
        assert_eq!(Header::decode(header), Ok(Header::Bye), "{what}");
        assert!(!reason.is_empty() && reason.len() <= 256, "{what}");
        let (a, b) = (self.layers[0].world(), self.layers[1].world());
        a.send(&[5], 1, 1).unwrap();
        assert_eq!(b.recv(&mut [0], 0, 1).unwrap().length, 1);
        b.send(&[5], 0, 1).unwrap();
        assert_eq!(a.recv(&mut [0], 1, 1).unwrap().length, 1);
    }
}

fn envelope(sequence: u16) -> Sequenced {
    Sequenced {
        flags: 0,
        sequence,
        context: 0,
        tag: 1,
        data: None,
    }
}

#[test]
fn every_malformed_header_closes_its_sender_only() {
    let bad: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("empty", vec![], vec![]),
        ("kind 0", vec![0; 12], vec![]),
        ("kind 11", vec![11, 0, 0, 0], vec![]),
        (
            "short",
            Header::Eager(envelope(0), None).encode().bytes()[..11].to_vec(),
            vec![],
        ),
        ("flags", vec![1, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),
        ("tag", vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80], vec![]),
        (
            "sequence",
            Header::Eager(envelope(1), None).encode().bytes().to_vec(),
            vec![],
        ),
        (
            "context",
            Header::Eager(
                Sequenced {
                    context: 77,
                    ..envelope(0)
                },
                None,
            )
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "length",
            Header::Rts(envelope(0), u64::MAX, 1)
                .encode()
                .bytes()
                .to_vec(),
            vec![],
        ),
        (
            "long key",
            Header::Rts(envelope(0), 10, 1).encode().bytes().to_vec(),
            vec![1; 41],
        ),
        (
            "done",
            Header::Fin {
                request: 0x1_0000_0000,
                written: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "written",
            Header::Fin {
                request: 0x1_0000_0000,
                written: true,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "FIN with a body",
            Header::Fin {
                request: 1,
                written: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![1],
        ),
        (
            "accept",
            Header::Cts {
                request: 1,
                target: 1,
                length: 1,
                put: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "CTS without key",
            Header::Cts {
                request: 1,
                target: 1,
                length: 1,
                put: true,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "fragment",
            Header::Fragment {
                target: 1,
                offset: 0,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![1],
        ),
        (
            "empty fragment",
            Header::Fragment {
                target: 1,
                offset: 0,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
        (
            "credit",
            Header::Credit {
                amount: 1,
                rts_only: false,
            }
            .encode()
            .bytes()
            .to_vec(),
            vec![],
        ),
    ];
    for (what, header, body) in bad {
        let mut hostile = Hostile::new();
        hostile.send(&header, &body);
        hostile.expect_closed(what);
    }
}

#[test]
fn a_peer_that_answers_an_rts_wrongly_is_closed() {
    type Answer = fn(u64) -> Header;
    let wrong: [(&str, Answer, usize); 5] = [
        (
            "more than the message",
            |request| Header::Cts {
                request,
                target: 1,
                length: 100_001,
                put: false,
            },
            0,
        ),
        (
            "another request",
            |request| Header::Cts {
                request: request + 1,
                target: 1,
                length: 1,
                put: false,
            },
            0,
        ),
        (
            "an older request",
            |request| Header::Fin {
                request: request ^ 1 << 40,
                written: false,
            },
            0,
        ),
        (
            "FIN of the wrong side",
            |request| Header::Fin {
                request,
                written: true,
            },
            0,
        ),
        (
            "a fragment to a send",
            |request| Header::Fragment {
                target: request,
                offset: 0,
            },
            5,
        ),
    ];
    for (what, header, body) in wrong {
        let mut hostile = Hostile::new();
        let send = hostile.layers[0]
            .world()
            .isend_owned(vec![1; 100_000], 2, 1)
            .unwrap();
        until(&[&hostile.layers[0]], what, || {
            hostile.bare.progress(&mut hostile.heard);
            !hostile.heard.0.lock().unwrap().is_empty()
        });
        let announced = hostile.heard.0.lock().unwrap()[0].0.clone();
        let Ok(Header::Rts(_, 100_000, request)) = Header::decode(&announced) else {
            panic!("{announced:?}")
        };
        hostile.send(header(request).encode().bytes(), &vec![0; body]);
        let layer = hostile.layers[0].clone();
        until(&[&layer], what, || send.is_complete().unwrap());
        assert!(failed(&send.wait().0, 2), "{what}");
        hostile.expect_closed(what);
    }
}

#[test]
fn fragments_that_do_not_fit_close_their_sender_and_write_nothing() {
    let wrong: [(&str, u64, usize); 4] = [
        ("beyond the end", 90, 11),
        ("far beyond", u64::MAX >> 1, 1),
        ("too long", 0, 101),
        ("twice", 0, 60),
    ];
    for (what, offset, length) in wrong {
        let mut hostile = Hostile::new();
        let receive = hostile.layers[0]
            .world()
            .irecv_owned(vec![0xee; 120], 2, 1)
            .unwrap();
        hostile.send(Header::Rts(envelope(0), 100, 77).encode().bytes(), &[]);
        until(&[&hostile.layers[0]], what, || {
            hostile.bare.progress(&mut hostile.heard);
            !hostile.heard.0.lock().unwrap().is_empty()
        });
        let accept = hostile.heard.0.lock().unwrap()[0].0.clone();
        let Ok(Header::Cts {
            request: 77,
            target,
            length: 100,
            put: false,
        }) = Header::decode(&accept)
        else {
            panic!("{accept:?}")
        };
        let fragment = Header::Fragment { target, offset };
        hostile.send(fragment.encode().bytes(), &vec![1; length]);
        if what == "twice" {
            hostile.send(fragment.encode().bytes(), &vec![1; length]);
        }
        let layer = hostile.layers[0].clone();
        until(&[&layer], what, || receive.is_complete().unwrap());
        let (result, buffer) = receive.wait();
        assert!(failed(&result, 2), "{what}");
        assert_eq!(buffer[100..], [0xee; 20], "{what}");
        hostile.expect_closed(what);
    }
}

#[test]
fn a_peer_that_sends_without_credit_is_closed_before_memory_is_full() {
    let mut hostile = Hostile::new();
    let mut sequence = 0u16;
    let mut bytes = 0;
    while hostile.layers[0].stats().failed_peers == 0 {
        hostile.send(
            Header::Eager(envelope(sequence), None).encode().bytes(),
            &[7; 3000],
        );
        sequence = sequence.wrapping_add(1);
        bytes += 3000;
        hostile.layers[0].progress();
        assert!(bytes < 4 << 20, "no limit");
    }
    assert!(
        hostile.layers[0].stats().unexpected_peak <= 2 << 20,
        "two windows"
    );
    hostile.expect_closed("without credit");
}

#[test]
fn the_reason_of_a_bye_is_reported() {
    let mut hostile = Hostile::new();
    hostile.send(Header::Bye.encode().bytes(), "you \u{7} lie".as_bytes());
    until(&[&hostile.layers[0]], "bye", || {
        hostile.layers[0].stats().failed_peers == 1
    });
    let error = hostile.layers[0].world().send(&[], 2, 1).unwrap_err();
    assert!(error.to_string().contains("you   lie"), "{error}");
}
