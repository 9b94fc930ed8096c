//! Programs that violate the control protocol. Each is disconnected or refused, counted, and
//! affects no other.

mod support;

use std::time::Duration;

use esp_client::control::codec::encode;
use esp_client::control::{Envelope, ErrorKind, MAX_REQUEST, Reply, Request};
use esp_engine::{ClientId, EngineEvent};
use support::program::{accept, blocking_descriptor, connect, listen};
use support::{Rig, eventually};

/// Asserts that a correct program is served.
#[track_caller]
fn serves(rig: &Rig) {
    let mut honest = rig.program();
    honest.listen(0);
    honest.open(0);
}

#[test]
fn garbage_before_hello_ends_the_connection() {
    let rig = Rig::new("");
    for text in [
        "",
        "{",
        "[1,2]",
        "{\"id\":1,\"body\":{\"type\":\"dance\"}}",
        "\u{0}\u{1}",
    ] {
        let mut program = rig.connect();
        program.text(text).unwrap();
        assert_eq!(program.cut_off(), ErrorKind::BadRequest, "{text:?}");
    }
    assert_eq!(rig.count("control_malformed"), 5);
    serves(&rig);
}

#[test]
fn first_request_has_to_be_hello() {
    let rig = Rig::new("");
    for request in [Request::Status, listen(0), connect(0)] {
        let mut program = rig.connect();
        program.post(request);
        assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    }
    assert_eq!(rig.count("control_no_hello"), 3);
}

#[test]
fn silent_connection_is_disconnected() {
    let rig = Rig::with_patience("", Duration::from_millis(30));
    let mut program = rig.connect();
    assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    assert_eq!(rig.count("control_no_hello"), 1);
    eventually("nothing is held", || rig.node.is_empty());
}

#[test]
fn repeated_malformed_requests_disconnect_the_program() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let bad = [
        "{\"id\":70,\"body\":{\"type\":\"close\",\"slot\":1,\"x\":1}}",
        "{\"id\":71,\"body\":{\"type\":\"close\",\"slot\":65536}}",
        "{\"id\":72,\"body\":{\"type\":\"close\",\"slot\":-1}}",
        "{\"id\":73,\"body\":{\"type\":\"connect\",\"interface\":null}}",
        "{\"id\":74,\"body\":[[[[[[[[[[[]]]]]]]]]]]}",
        "{\"id\":75,\"body\":{\"type\":\"close\",\"slot\":1e3}}",
    ];
    for (text, id) in bad.into_iter().zip(70..) {
        program.text(text).unwrap();
        let (reply, _) = program.reply_to(id);
        assert!(
            matches!(reply, Reply::Error(e) if e.kind == ErrorKind::BadRequest),
            "{text}"
        );
    }
    program.open(0); // still served
    program.text("no JSON at all").unwrap();
    assert!(matches!(program.reply_to(0).0, Reply::Error(e) if e.kind == ErrorKind::BadRequest));
    for _ in 0..20 {
        if program.text("{").is_err() {
            break; // cut off already
        }
    }
    assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    assert_eq!(rig.count("control_malformed"), 16);
    assert_eq!(rig.count("control_misbehaved"), 1);
    serves(&rig);
}

#[test]
fn deeply_nested_text_is_only_malformed() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let text = format!("{{\"id\":5,\"body\":{}", "[".repeat(MAX_REQUEST - 20));
    program.text(&text).unwrap();
    assert!(
        matches!(program.next(), Some((_, Reply::Error(e), _)) if e.kind == ErrorKind::BadRequest)
    );
    program.open(0);
}

#[test]
fn announced_length_is_bounded() {
    let rig = Rig::new("");
    for len in [MAX_REQUEST as u32 + 1, 1 << 24, u32::MAX] {
        let mut program = rig.program();
        program.raw(&len.to_le_bytes()).unwrap();
        assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    }
    assert_eq!(rig.count("control_oversized"), 3);
    serves(&rig);
}

#[test]
fn longest_message_is_read_in_any_pieces() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let mut bytes = encode(&Envelope {
        id: 3,
        body: Request::Status,
    })
    .unwrap();
    bytes.resize(4 + MAX_REQUEST, b' ');
    bytes[..4].copy_from_slice(&(MAX_REQUEST as u32).to_le_bytes());
    for piece in bytes.chunks(997) {
        program.raw(piece).unwrap();
    }
    assert!(matches!(program.reply_to(3).0, Reply::Status(_)));
    for byte in encode(&Envelope {
        id: 4,
        body: Request::Status,
    })
    .unwrap()
    {
        program.raw(&[byte]).unwrap();
    }
    assert!(matches!(program.reply_to(4).0, Reply::Status(_)));
}

#[test]
fn half_written_message_ends_with_the_connection() {
    let rig = Rig::new("");
    let whole = encode(&Envelope {
        id: 1,
        body: listen(0),
    })
    .unwrap();
    for len in [1, 3, 4, 5, whole.len() - 1] {
        let mut program = rig.program();
        program.raw(&whole[..len]).unwrap();
    }
    eventually("all are gone", || rig.node.is_empty());
    assert_eq!(rig.count("control_half_written"), 5);
    serves(&rig);
}

#[test]
fn half_written_message_has_a_deadline() {
    let rig = Rig::with_patience("", Duration::from_millis(300));
    let mut program = rig.program();
    program.raw(&[200, 0, 0, 0, b'{']).unwrap();
    assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    assert_eq!(rig.count("control_half_written"), 1);
    // Between messages there is no deadline.
    serves(&rig);
}

#[test]
fn a_program_that_reads_nothing_is_disconnected_and_delays_no_other() {
    let rig = Rig::with_patience("", Duration::from_millis(300));
    let mut deaf = rig.program();
    let mut honest = rig.program();
    let request = encode(&Envelope {
        id: 1,
        body: Request::Status,
    })
    .unwrap();
    deaf.stream.set_nonblocking(true).unwrap();
    let mut posted = 0;
    eventually("it is cut off", || {
        for _ in 0..100 {
            match deaf.raw(&request) {
                Ok(()) => posted += 1,
                // its own send buffer is full: the daemon has stopped taking requests
                Err(_) => break,
            }
        }
        honest.open(0);
        rig.count("control_slow_readers") == 1
    });
    assert!(posted > 100, "the test never reached its limit");
    // Bounded: a socket buffer, the outbox, and the requests of one read.
    assert!(
        rig.count("control_requests") < 2000,
        "{}",
        rig.count("control_requests")
    );
    deaf.stream.set_nonblocking(false).unwrap();
    deaf.drain();
    serves(&rig);
}

#[test]
fn descriptors_end_the_connection() {
    let rig = Rig::new("");
    let status = encode(&Envelope {
        id: 1,
        body: Request::Status,
    })
    .unwrap();
    for count in [1, 5, 253] {
        let mut program = rig.program();
        program.with_descriptors(&status, count);
        assert_eq!(program.cut_off(), ErrorKind::BadRequest);
    }
    assert_eq!(rig.count("control_unexpected_descriptors"), 3);
    serves(&rig);
}

/// Closing the last such descriptor blocks for as long as its owner wants. The daemon has two
/// threads.
#[test]
fn descriptors_whose_close_blocks_delay_no_other_program() {
    let rig = Rig::new("[limits]\nrequests_per_second = 20\n");
    let mut peers = Vec::new();
    // More bytes than the daemon reads before it ends the connection leave the descriptor unread.
    for (user, garbage) in [(1, 0), (2, 40_000), (3, 0), (4, 40_000)] {
        let mut program = rig.program_of(user);
        for _ in 0..60 {
            program.post(Request::CancelAccept { accept: 0 });
        }
        eventually("it waits", || {
            rig.count("control_throttled") >= u64::from(user)
        });
        program.raw(&vec![0xff; garbage]).unwrap();
        let (descriptor, peer) = blocking_descriptor();
        peers.push(peer);
        program.pass(&[0xff; 4], &[descriptor]).unwrap();
        program.cut_off();
    }
    rig.program_of(5).listen(0);
}

#[test]
fn requests_beyond_the_rate_wait_and_are_answered() {
    let rig = Rig::new("[limits]\nrequests_per_second = 200\n");
    let mut eager = rig.program();
    let ids: Vec<u64> = (0..150)
        .map(|_| eager.post(Request::CancelAccept { accept: 0 }))
        .collect();
    for id in ids {
        assert_eq!(eager.reply_to(id).0, Reply::Done);
    }
    assert!(rig.count("control_throttled") > 0);
}

#[test]
fn same_accept_twice_is_refused() {
    let rig = Rig::new("");
    let mut program = rig.program();
    let (listener, _) = program.listen(0);
    let twice = encode(&Envelope {
        id: 900,
        body: accept(listener),
    })
    .unwrap();
    program.raw(&twice).unwrap();
    program.raw(&twice).unwrap();
    assert!(matches!(program.reply_to(900).0, Reply::Error(e) if e.kind == ErrorKind::BadRequest));
    program.done(Request::CancelAccept { accept: 1 });
}

#[test]
fn a_program_that_corrupts_memory_is_disconnected() {
    let rig = Rig::new("");
    let mut program = rig.program();
    program.open(0);
    rig.engine.emit(EngineEvent::Corrupted {
        client: ClientId(program.client),
        slot: 0,
        what: "a test",
    });
    let Some(Reply::Error(error)) = program.last_words() else {
        panic!("no reply")
    };
    assert!(error.message.contains("a test"), "{}", error.message);
    assert_eq!(rig.count("programs_corrupted_memory"), 1);
    eventually("everything came back", || rig.node.is_empty());
    // Events about unknown programs and links have no effect.
    rig.engine.emit(EngineEvent::Corrupted {
        client: ClientId(999),
        slot: 0,
        what: "a test",
    });
    rig.engine.emit(EngineEvent::Closed {
        client: ClientId(999),
        slot: 4000,
        reason: None,
    });
    rig.engine.emit(EngineEvent::Link {
        link: esp_engine::LinkId(99),
        condition: esp_engine::LinkCondition {
            up: true,
            mtu: 1,
            gone: true,
            addr: esp_proto::MacAddr([2; 6]).into(),
            index: 1,
        },
    });
    serves(&rig);
}

/// Random sequences of valid, invalid and truncated messages: the daemon keeps running and
/// everything is returned.
#[test]
fn random_input_leaves_nothing() {
    let rig = Rig::new("");
    let good: Vec<Vec<u8>> = [
        Request::Hello {
            version: esp_client::control::VERSION,
            program: "x".into(),
            engine: None,
        },
        Request::Status,
        listen(0),
        connect(0),
        Request::Close { slot: 0 },
        Request::Abort { slot: 1 },
        accept(1),
        Request::CancelAccept { accept: 3 },
        Request::CloseListener { listener: 2 },
    ]
    .into_iter()
    .map(|body| encode(&Envelope { id: 3, body }).unwrap())
    .collect();
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut program = rig.connect();
        let mut bytes = if random(4) > 0 {
            good[0].clone()
        } else {
            Vec::new()
        };
        for _ in 0..random(12) {
            let mut message = good[random(good.len() as u64) as usize].clone();
            match random(6) {
                0 => message[random(4) as usize] = random(256) as u8,
                1 => {
                    let at = random(message.len() as u64) as usize;
                    message[at] = random(256) as u8;
                }
                2 => message.truncate(random(message.len() as u64) as usize),
                _ => {}
            }
            bytes.extend(message);
        }
        let _ = program.raw(&bytes); // may be cut off in the middle
        if random(2) == 0 {
            let _ = program.stream.shutdown(std::net::Shutdown::Write);
            program.drain();
        }
    }
    eventually("everything came back", || {
        rig.node.is_empty() && rig.engine.books().is_empty()
    });
    serves(&rig);
}
