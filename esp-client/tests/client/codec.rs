//! The control codec against whole, cut, oversized and random input.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use esp_client::control::codec::{
    DecodeError, Decoder, EncodeError, MAX_DESCRIPTORS, encode, receive, send,
};
use esp_client::control::{Envelope, ErrorKind, ErrorReply, MAX_REQUEST, Reply, Request, Rings};
use proptest::collection::vec;
use proptest::prelude::*;

fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn stream_reply(id: u64) -> Envelope<Reply> {
    let rings = Rings { tx: 4096, rx: 8192 };
    let body = Reply::Stream {
        slot: 3,
        rings,
        interface: "eth0".into(),
        local_port: 40000,
        peer: esp_client::MacAddr([2, 0, 0, 0, 0, 1]).into(),
        peer_port: 5000,
    };
    Envelope { id, body }
}

fn framed(text: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes
}

#[test]
fn every_message_round_trips_with_its_descriptors() {
    let (here, there) = UnixStream::pair().unwrap();
    let done = encode(&Envelope {
        id: 1,
        body: Reply::Done,
    })
    .unwrap();
    let stream = encode(&stream_reply(2)).unwrap();
    let fd = descriptor();
    assert_eq!(send(&here, &done, &[]).unwrap(), done.len());
    assert_eq!(send(&here, &stream, &[fd.as_fd()]).unwrap(), stream.len());
    assert_eq!(send(&here, &done, &[]).unwrap(), done.len());
    let mut decoder = Decoder::<Reply>::new();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        receive(&there, &mut decoder).unwrap();
        while let Some((envelope, fds)) = decoder.next().unwrap() {
            seen.push((envelope.body, fds.len()));
        }
    }
    assert_eq!(seen[0], (Reply::Done, 0));
    assert_eq!(seen[1], (stream_reply(2).body, 1));
    assert_eq!(seen[2], (Reply::Done, 0));
    drop(here);
    assert_eq!(receive(&there, &mut decoder).unwrap(), 0);
    decoder.finish().unwrap();
}

#[test]
fn oversized_length_is_refused_before_storing() {
    let mut decoder = Decoder::<Request>::new();
    decoder.push(&u32::MAX.to_le_bytes(), []);
    let error = decoder.next().unwrap_err();
    assert_eq!(
        error,
        DecodeError::Oversized {
            len: u32::MAX as usize,
            max: MAX_REQUEST
        }
    );
    assert!(error.is_fatal());
    decoder.push(
        &encode(&Envelope {
            id: 1,
            body: Request::Status,
        })
        .unwrap(),
        [],
    );
    assert_eq!(
        decoder.next().unwrap_err(),
        error,
        "a broken framing must not be read on"
    );
    assert!(decoder.finish().is_ok(), "nothing is held");
}

#[test]
fn end_inside_a_message_is_an_error() {
    let bytes = encode(&Envelope {
        id: 1,
        body: Request::Status,
    })
    .unwrap();
    for cut in 1..bytes.len() {
        let mut decoder = Decoder::<Request>::new();
        decoder.push(&bytes[..cut], []);
        assert!(decoder.next().unwrap().is_none());
        assert_eq!(
            decoder.finish(),
            Err(DecodeError::HalfWritten { have: cut })
        );
    }
}

#[test]
fn malformed_text_has_its_id_and_the_next_message_decodes() {
    let mut decoder = Decoder::<Request>::new();
    let mut bytes = framed(br#"{"id":7,"body":{"type":"fly"}}"#);
    bytes.extend(framed(b"\xff\xfe{"));
    bytes.extend(framed(b""));
    bytes.extend(framed(
        br#"{"id":8,"body":{"type":"connect","surprise":1}}"#,
    ));
    bytes.extend(
        encode(&Envelope {
            id: 9,
            body: Request::Status,
        })
        .unwrap(),
    );
    decoder.push(&bytes, []);
    for expected in [Some(7), None, None, Some(8)] {
        match decoder.next() {
            Err(DecodeError::Malformed { id, .. }) => assert_eq!(id, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(decoder.next().unwrap().unwrap().0.id, 9);
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    let mut decoder = Decoder::<Request>::new();
    decoder.push(&framed(&[b'['; MAX_REQUEST]), []);
    assert!(matches!(
        decoder.next(),
        Err(DecodeError::Malformed { id: None, .. })
    ));
}

#[test]
fn descriptors_are_counted() {
    let mut decoder = Decoder::<Reply>::new();
    decoder.push(&encode(&stream_reply(1)).unwrap(), []);
    assert_eq!(
        decoder.next().unwrap_err(),
        DecodeError::MissingDescriptors {
            expected: 1,
            got: 0
        }
    );

    let mut decoder = Decoder::<Reply>::new();
    decoder.push(
        &encode(&stream_reply(1)).unwrap(),
        [descriptor(), descriptor()],
    );
    assert_eq!(decoder.next().unwrap().unwrap().1.len(), 1);
    assert_eq!(
        decoder.next().unwrap_err(),
        DecodeError::UnexpectedDescriptors { got: 1 }
    );

    let mut decoder = Decoder::<Request>::new();
    decoder.push(
        &encode(&Envelope {
            id: 1,
            body: Request::Status,
        })
        .unwrap(),
        [descriptor()],
    );
    assert!(decoder.next().unwrap().is_some());
    assert_eq!(
        decoder.next().unwrap_err(),
        DecodeError::UnexpectedDescriptors { got: 1 }
    );

    let mut decoder = Decoder::<Reply>::new();
    decoder.push(&[1], std::iter::repeat_with(descriptor).take(5));
    assert_eq!(
        decoder.next().unwrap_err(),
        DecodeError::UnexpectedDescriptors { got: 5 }
    );

    // They are refused before the messages in front of them.
    let mut decoder = Decoder::<Request>::new();
    let many = std::iter::repeat_with(descriptor).take(2 * MAX_DESCRIPTORS + 1);
    let body = Request::Status;
    decoder.push(&encode(&Envelope { id: 1, body }).unwrap(), many);
    assert_eq!(
        decoder.next().unwrap_err(),
        DecodeError::UnexpectedDescriptors { got: 9 }
    );
}

#[test]
fn a_message_longer_than_the_limit_is_not_sent() {
    let key = vec![255; MAX_REQUEST];
    let body = Request::Listen {
        interface: None,
        port: 1,
        backlog: 1,
        key,
    };
    assert!(matches!(
        encode(&Envelope { id: 1, body }),
        Err(EncodeError::TooLong {
            max: MAX_REQUEST,
            ..
        })
    ));
}

fn requests() -> impl Strategy<Value = Request> {
    let rings = (any::<u32>(), any::<u32>()).prop_map(|(tx, rx)| Rings { tx, rx });
    let key = vec(any::<u8>(), 0..33);
    prop_oneof![
        (any::<u16>(), ".{0,40}", any::<Option<u8>>()).prop_map(|(version, program, engine)| {
            Request::Hello {
                version,
                program,
                engine,
            }
        }),
        (
            proptest::option::of(".{0,16}"),
            any::<u16>(),
            any::<u16>(),
            key.clone()
        )
            .prop_map(|(interface, port, backlog, key)| Request::Listen {
                interface,
                port,
                backlog,
                key
            }),
        any::<u64>().prop_map(|listener| Request::CloseListener { listener }),
        (any::<u64>(), rings.clone())
            .prop_map(|(listener, rings)| Request::Accept { listener, rings }),
        any::<u64>().prop_map(|accept| Request::CancelAccept { accept }),
        (any::<u16>(), any::<[u8; 6]>(), any::<u16>(), key, rings).prop_map(
            |(local_port, peer, peer_port, key, rings)| Request::Connect {
                interface: None,
                local_port,
                peer: esp_client::MacAddr(peer).into(),
                peer_port,
                key,
                rings
            }
        ),
        any::<u16>().prop_map(|slot| Request::Abort { slot }),
        Just(Request::Status),
    ]
}

proptest! {
    #[test]
    fn any_cutting_gives_the_same_messages(
        sent in vec((any::<u64>(), requests()), 0..8),
        cuts in vec(1usize..200, 1..64),
    ) {
        let mut bytes = Vec::new();
        for (id, body) in &sent {
            bytes.extend(encode(&Envelope { id: *id, body: body.clone() }).unwrap());
        }
        let mut decoder = Decoder::<Request>::new();
        let mut got = Vec::new();
        let mut rest = bytes.as_slice();
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (head, tail) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            decoder.push(head, []);
            rest = tail;
            while let Some((envelope, _)) = decoder.next().unwrap() {
                got.push((envelope.id, envelope.body));
            }
        }
        prop_assert_eq!(got, sent);
        prop_assert!(decoder.finish().is_ok());
    }

    #[test]
    fn random_bytes_never_panic_and_never_pile_up(
        pieces in vec((vec(any::<u8>(), 0..300), 0usize..3), 0..40),
    ) {
        let mut decoder = Decoder::<Reply>::new();
        for (bytes, fds) in pieces {
            decoder.push(&bytes, std::iter::repeat_with(descriptor).take(fds));
            // Bounded: each iteration consumes a message, waits, or ends in a permanent error.
            for _ in 0..bytes.len() + 2 {
                match decoder.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => if error.is_fatal() { break },
                }
            }
        }
        if let Err(DecodeError::HalfWritten { have }) = decoder.finish() {
            prop_assert!(have <= 40 * 300);
        }
    }

    #[test]
    fn a_damaged_message_is_an_error_or_another_message(
        request in requests(), position in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let mut bytes = encode(&Envelope { id: 5, body: request }).unwrap();
        let position = position.index(bytes.len());
        bytes[position] = value;
        let mut decoder = Decoder::<Request>::new();
        decoder.push(&bytes, []);
        let _ = decoder.next();
    }

    #[test]
    fn errors_pass_unchanged(message in ".{0,200}") {
        let body = Reply::Error(ErrorReply { kind: ErrorKind::InUse, message });
        let mut decoder = Decoder::<Reply>::new();
        decoder.push(&encode(&Envelope { id: 1, body: body.clone() }).unwrap(), []);
        prop_assert_eq!(decoder.next().unwrap().unwrap().0.body, body);
    }
}
