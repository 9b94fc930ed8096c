//! Programs that violate the control protocol and the protocol of shared memory: they are
//! disconnected and counted, and no other program is affected.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use esp_client::control::codec::{encode, send};
use esp_client::control::{ErrorKind, Reply, Request, Rings, Status};
use esp_client::{Client, EdpSocket, EspError, EspListener, EspStream, MacAddr};
use esp_tests::exchange::Bystander;
use esp_tests::frames::Dice;
use esp_tests::process::{Balance, configured_lab, daemon_pid};
use esp_tests::raw::{Heard, RawProgram, RawSocket, Welcome, can_be_resized};
use esp_tests::{
    PATIENCE, address, byte, check_pattern, client, counter, lab_or_skip, pair, send_pattern,
    wait_until,
};
use lab::{Lab, Node};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{pwrite, read, write};

/// Words of the shared memory, as `esp-engine/src/shm/layout.rs` draws it.
const TX_HEAD: u64 = 128;
const RX_TAIL: u64 = 192;
const HEADER_PAGE: u64 = 4096;
const DOORBELL_SUMMARY: u64 = 128;
const DOORBELL_WORDS: u64 = 256;

/// Asserts that the daemon serves a new client completely.
fn serves(lab: &Lab) {
    let (left, right) = pair(lab, 0, 1, 6001);
    send_pattern(&left, 100_000, 8);
    check_pattern(&right, 100_000, 8);
}

#[test]
fn garbage_and_silence_on_the_control_socket() {
    let test = "garbage_and_silence_on_the_control_socket";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let (socket, me) = (lab.socket(0), client(&lab, 0));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let bystander = Bystander::new(&lab);
    let mut dice = Dice::new();
    let kind = |program: &mut RawProgram| program.cut_off().map(|(kind, _)| kind);
    bystander.during(|| {
        // Nothing at all, not even Hello.
        let mut silent: Vec<_> = (0..20).map(|_| RawProgram::new(&socket)).collect();
        for program in &mut silent {
            assert_eq!(kind(program), Some(ErrorKind::BadRequest));
        }
        assert_eq!(counter(&me, "control_no_hello"), 20);
        let mut early = RawProgram::new(&socket);
        early.post(Request::Status);
        assert_eq!(kind(&mut early), Some(ErrorKind::BadRequest));
        assert_eq!(counter(&me, "control_no_hello"), 21);

        let mut long = RawProgram::new(&socket);
        long.bytes(&u32::MAX.to_le_bytes());
        assert_eq!(kind(&mut long), Some(ErrorKind::BadRequest));
        let (mut long, _welcome) = RawProgram::welcomed(&socket);
        long.bytes(&(16385u32).to_le_bytes());
        assert_eq!(kind(&mut long), Some(ErrorKind::BadRequest));
        assert_eq!(counter(&me, "control_oversized"), 2);

        let (mut half, _welcome) = RawProgram::welcomed(&socket);
        half.bytes(&[100, 0, 0, 0, b'{']);
        assert_eq!(kind(&mut half), Some(ErrorKind::BadRequest));
        let (mut half, _welcome) = RawProgram::welcomed(&socket);
        half.bytes(&[100, 0]);
        drop(half);
        wait_until("both halves are counted", || {
            counter(&me, "control_half_written") == 2
        });

        let (mut giver, welcome) = RawProgram::welcomed(&socket);
        let message = encode(&esp_client::control::Envelope {
            id: 1,
            body: Request::Status,
        })
        .unwrap();
        send(&giver.socket, &message, &[welcome.doorbell.as_fd()]).unwrap();
        let _ = giver.cut_off();
        assert_eq!(counter(&me, "control_unexpected_descriptors"), 1);

        let malformed = counter(&me, "control_malformed");
        for _ in 0..200 {
            let mut program = RawProgram::new(&socket);
            let (text, framed) = (dice.bytes(300), dice.below(2) == 0);
            let _ = if framed {
                program.text(&text)
            } else {
                program.bytes(&text)
            };
            let _ = program.socket.shutdown(std::net::Shutdown::Write);
            while !matches!(program.hear(), Heard::End) {}
        }
        assert!(counter(&me, "control_malformed") > malformed);
        let misbehaved = counter(&me, "control_misbehaved");
        let (mut stubborn, _welcome) = RawProgram::welcomed(&socket);
        for _ in 0..100 {
            if !stubborn.text(&dice.bytes(100)) {
                break;
            }
        }
        let _ = stubborn.cut_off();
        assert_eq!(counter(&me, "control_misbehaved"), misbehaved + 1);
    });
    balance.is_kept();
    serves(&lab);
}

#[test]
fn thousands_of_requests_and_none_of_the_answers_read() {
    let test = "thousands_of_requests_and_none_of_the_answers_read";
    let config = "[limits]\nrequests_per_second = 1000\n";
    let Some(lab) = configured_lab(test, 2, config) else {
        return;
    };
    let (socket, me) = (lab.socket(0), client(&lab, 0));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let bystander = Bystander::new(&lab);
    bystander.during(|| {
        let (mut deaf, _welcome) = RawProgram::welcomed(&socket);
        deaf.socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let request = encode(&esp_client::control::Envelope {
            id: 1,
            body: Request::Status,
        })
        .unwrap()
        .repeat(100);
        // Until the daemon disconnects: it stops reading long before.
        while deaf.bytes(&request) {}
        assert_eq!(counter(&me, "control_slow_readers"), 1);

        // If it reads, every request is answered, however many.
        let (mut busy, _welcome) = RawProgram::welcomed(&socket);
        const MANY: u64 = 3000;
        let mut writer = busy.socket.try_clone().unwrap();
        let abort = |id| {
            let body = Request::Abort { slot: 7 };
            encode(&esp_client::control::Envelope { id, body }).unwrap()
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                for first in (0..MANY).step_by(100) {
                    let bytes: Vec<u8> = (first..first + 100).flat_map(abort).collect();
                    writer.write_all(&bytes).unwrap();
                }
            });
            for expected in 0..MANY {
                match busy.hear() {
                    Heard::Reply(id, Reply::Error(error), _) => {
                        assert_eq!((id, error.kind), (expected, ErrorKind::NotFound));
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(
            counter(&me, "control_throttled") > 0,
            "the user's rate of requests counts"
        );
    });
    balance.is_kept();
    serves(&lab);
}

/// Writes words into shared memory, as a program can at any time.
fn overwrite(memory: impl AsFd, at: u64, bytes: &[u8]) {
    assert_eq!(
        pwrite(memory, bytes, at).expect("write into the memory"),
        bytes.len()
    );
}

/// Rings the doorbell of a slot, whatever the engine does.
fn ring(welcome: &Welcome, slot: u16) {
    let (word, bit) = (u64::from(slot) / 64, 1u64 << (slot % 64));
    overwrite(
        &welcome.client_page,
        DOORBELL_WORDS + 8 * word,
        &bit.to_le_bytes(),
    );
    overwrite(
        &welcome.client_page,
        DOORBELL_SUMMARY,
        &(1u64 << word).to_le_bytes(),
    );
    let _ = write(&welcome.doorbell, &1u64.to_ne_bytes());
}

/// A hand-made program on node 0 with a stream to a conforming one on node 1.
struct CorruptingProgram {
    program: RawProgram,
    welcome: Welcome,
    stream: RawSocket,
    peer: EspStream,
}

impl CorruptingProgram {
    fn new(lab: &Lab, listener: &EspListener) -> CorruptingProgram {
        let (mut program, welcome) = RawProgram::welcomed(&lab.socket(0));
        let stream = program.connect(Node(1).mac(), listener.port());
        let (peer, _) = listener.accept_timeout(PATIENCE).expect("accept");
        CorruptingProgram {
            program,
            welcome,
            stream,
            peer,
        }
    }

    /// Asserts that it is disconnected, its peer reset, and the violation counted once.
    fn ends(mut self, me: &Client, counted: u64) {
        let (kind, text) = self.program.cut_off().expect("last words");
        assert_eq!(kind, ErrorKind::BadRequest);
        assert!(text.contains("corrupt"), "{text}");
        assert_eq!(counter(me, "programs_corrupted_memory"), counted);
        assert_eq!(counter(me, "engine_corruptions"), counted);
        self.peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = self
            .peer
            .read_to_end(&mut Vec::new())
            .expect_err("the peer's stream was reset");
        assert!(
            matches!(EspError::of(&error), Some(EspError::Aborted { .. })),
            "{error}"
        );
    }
}

#[test]
fn corrupting_ring_indices_disconnects_the_program() {
    let test = "corrupting_ring_indices_disconnects_the_program";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let (me, there) = (client(&lab, 0), client(&lab, 1));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let bystander = Bystander::new(&lab);
    let listener = EspListener::builder().bind_at(&there, 7000).unwrap();
    let mut dice = Dice::new();
    let mut counted = 0;
    bystander.during(|| {
        let far = (1u64 << 16) + 1;
        for (at, value) in [
            (TX_HEAD, far),
            (TX_HEAD, u64::MAX >> 1),
            (TX_HEAD, u64::MAX),
            (RX_TAIL, 1),
            (RX_TAIL, u64::MAX),
        ] {
            let bad = CorruptingProgram::new(&lab, &listener);
            overwrite(&bad.stream.memory, at, &value.to_le_bytes());
            ring(&bad.welcome, bad.stream.slot);
            counted += 1;
            bad.ends(&me, counted);
        }
        // Backwards, after bytes were sent.
        let mut bad = CorruptingProgram::new(&lab, &listener);
        overwrite(&bad.stream.memory, TX_HEAD, &100u64.to_le_bytes());
        ring(&bad.welcome, bad.stream.slot);
        bad.peer.read_exact(&mut [0; 100]).unwrap();
        overwrite(&bad.stream.memory, TX_HEAD, &99u64.to_le_bytes());
        ring(&bad.welcome, bad.stream.slot);
        counted += 1;
        bad.ends(&me, counted);
        // The whole page, including the engine's words.
        for _ in 0..20 {
            let bad = CorruptingProgram::new(&lab, &listener);
            let mut page = [0; HEADER_PAGE as usize];
            dice.fill(&mut page);
            page[TX_HEAD as usize + 6] |= 1; // lest a wild chance makes it possible
            overwrite(&bad.stream.memory, 0, &page);
            ring(&bad.welcome, bad.stream.slot);
            counted += 1;
            bad.ends(&me, counted);
        }
    });
    balance.is_kept();
    serves(&lab);
}

#[test]
fn corrupting_memory_while_the_engine_works() {
    let test = "corrupting_memory_while_the_engine_works";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let (me, there) = (client(&lab, 0), client(&lab, 1));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let bystander = Bystander::new(&lab);
    let listener = EspListener::builder().bind_at(&there, 7000).unwrap();
    let mut dice = Dice::new();
    bystander.during(|| {
        for round in 0..15 {
            let mut bad = CorruptingProgram::new(&lab, &listener);
            let peer = &bad.peer;
            thread::scope(|scope| {
                // Its peer sends as long as possible.
                scope.spawn(move || {
                    let mut peer = peer;
                    while peer.write_all(&[round; 5000]).is_ok() {}
                });
                // Valid steps first, so that frames are in flight; then words of every kind.
                let mut at = 0u64;
                for step in 0..200u64 {
                    at += 300;
                    let word = if step < 20 {
                        at.to_le_bytes()
                    } else {
                        dice.word().to_le_bytes()
                    };
                    let place = if step < 20 {
                        TX_HEAD
                    } else {
                        64 + 8 * dice.below(48) as u64
                    };
                    overwrite(&bad.stream.memory, place, &word);
                    // Into the rings, too: these are only the program's own bytes.
                    overwrite(&bad.stream.memory, HEADER_PAGE + at % 8192, &dice.bytes(64));
                    ring(&bad.welcome, bad.stream.slot);
                }
                overwrite(&bad.stream.memory, TX_HEAD, &(1u64 << 40).to_le_bytes());
                ring(&bad.welcome, bad.stream.slot);
                let (kind, _) = bad.program.cut_off().expect("last words");
                assert_eq!(kind, ErrorKind::BadRequest);
            });
            assert_eq!(
                counter(&me, "programs_corrupted_memory"),
                u64::from(round) + 1
            );
        }
    });
    balance.is_kept();
    serves(&lab);
}

#[test]
fn corrupting_doorbells_and_records() {
    let test = "corrupting_doorbells_and_records";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let me = client(&lab, 0);
    let balance = Balance::of(daemon_pid(&lab, 0));
    let bystander = Bystander::new(&lab);
    let mut dice = Dice::new();
    bystander.during(|| {
        // Doorbells of slots that it does not have, and the rest of its page: allowed.
        let (mut program, welcome) = RawProgram::welcomed(&lab.socket(0));
        for _ in 0..300 {
            let mut page = [0; 4096];
            dice.fill(&mut page);
            overwrite(&welcome.client_page, 0, &page);
            let _ = write(&welcome.doorbell, &1u64.to_ne_bytes());
        }
        assert!(
            matches!(program.ask(Request::Status).0, Reply::Status(_)),
            "no reason to cut it off"
        );
        drop((program, welcome));
        assert_eq!(counter(&me, "engine_corruptions"), 0);

        // Records that no datagram has.
        let mut counted = 0;
        let record = |len: u32, kind: u8, family: u8| {
            let mut bytes = [0; 40];
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            (bytes[4], bytes[5]) = (kind, family);
            bytes[16..22].copy_from_slice(&Node(1).mac());
            bytes
        };
        let records = [
            (record(65536, 0, 0), 40),
            (record(1, 9, 0), 48),
            (record(1, 0, 1), 48),
            (record(100, 0, 0), 56),
        ];
        let cut_in_its_header = (record(0, 0, 0), 39);
        for (bytes, written) in records.into_iter().chain([cut_in_its_header]) {
            let (mut program, welcome) = RawProgram::welcomed(&lab.socket(0));
            let socket = datagram_socket(&mut program);
            overwrite(&socket.memory, HEADER_PAGE, &bytes);
            overwrite(&socket.memory, TX_HEAD, &u64::to_le_bytes(written));
            ring(&welcome, socket.slot);
            let (kind, text) = program.cut_off().expect("last words");
            assert_eq!(kind, ErrorKind::BadRequest, "{text}");
            counted += 1;
            assert_eq!(counter(&me, "programs_corrupted_memory"), counted, "{text}");
            assert_eq!(counter(&me, "engine_corruptions"), counted);
            // The port is free for the next.
            wait_until("the port is free", || me.status().unwrap().edp.is_empty());
        }
    });
    balance.is_kept();
    serves(&lab);
}

/// Binds port 9000 for datagrams.
fn datagram_socket(program: &mut RawProgram) -> RawSocket {
    program.socket_of(Request::BindEdp {
        interface: None,
        port: 9000,
        rings: Rings {
            tx: 1 << 16,
            rx: 1 << 16,
        },
    })
}

#[test]
fn shared_memory_cannot_be_taken_away_or_written_where_it_may_not() {
    let test = "shared_memory_cannot_be_taken_away_or_written_where_it_may_not";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let bystander = Bystander::new(&lab);
    let (mut program, welcome) = RawProgram::welcomed(&lab.socket(0));
    let socket = datagram_socket(&mut program);
    for memory in [&welcome.client_page, &welcome.engine_page, &socket.memory] {
        assert!(!can_be_resized(memory));
    }
    assert!(
        pwrite(&welcome.engine_page, &[1], 128).is_err(),
        "the engine's own page"
    );
    bystander.during(|| serves(&lab));
}

#[test]
fn shared_descriptors_cannot_be_made_to_block_the_engine() {
    let test = "shared_descriptors_cannot_be_made_to_block_the_engine";
    let Some(lab) = configured_lab(test, 2, "") else {
        return;
    };
    let bystander = Bystander::new(&lab);
    let (mut program, welcome) = RawProgram::welcomed(&lab.socket(0));
    let socket = datagram_socket(&mut program);
    let sender = EdpSocket::builder()
        .bind_at(&client(&lab, 1), 9000)
        .unwrap();
    bystander.during(|| {
        // The mode belongs to the open file description, which the daemon shares.
        for fd in [&welcome.doorbell, &welcome.notify] {
            fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
        }
        let _ = write(&welcome.notify, &(u64::MAX - 1).to_ne_bytes());
        for _ in 0..200 {
            ring(&welcome, socket.slot);
            let nobody_waits = fd_has_input(welcome.doorbell.as_fd());
            if nobody_waits {
                // Resetting it is as quick: the engine finds the doorbell empty.
                fcntl_setfl(&welcome.doorbell, OFlags::NONBLOCK).unwrap();
                let _ = read(&welcome.doorbell, &mut [0u8; 8]);
                fcntl_setfl(&welcome.doorbell, OFlags::empty()).unwrap();
            }
            // It requested to be woken by its descriptor (all three bits), which is full.
            overwrite(&socket.memory, 64, &u32::MAX.to_le_bytes());
            sender
                .send_to(b"wake up", MacAddr(Node(0).mac()), 9000)
                .unwrap();
        }
        serves(&lab);
        assert!(matches!(program.ask(Request::Status).0, Reply::Status(_)));
    });
}

fn fd_has_input(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    poll(
        &mut [PollFd::new(&fd, PollFlags::IN)],
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    ) == Ok(1)
}

#[test]
fn a_program_that_never_reads_delays_only_its_own_peer() {
    let Some(lab) = lab_or_skip("who_never_reads", &lab::LabOptions::new(2)) else {
        return;
    };
    let bystander = Bystander::new(&lab);
    let (left, right) = pair(&lab, 0, 1, 8000);
    let me = client(&lab, 0);
    let stalled = |status: &Status| {
        status
            .connections
            .iter()
            .any(|c| c.peer_port == 8000 && c.credit == Some(0) && c.in_flight == Some(0))
    };
    let mut written = 0;
    bystander.during(|| {
        // As much as fits; then the credit is used up and the ring is full.
        wait_until("the credit is used up", || {
            let block: Vec<u8> = (written..written + 4096).map(|i| byte(i, 1)).collect();
            match left.try_write(&block) {
                Ok(n) => written += n as u64,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            left.try_write(&[]).is_ok()
                && left.unacknowledged() == 1 << 20
                && stalled(&me.status().unwrap())
        });
    });
    assert!(
        written <= 2 << 20,
        "{written} bytes fit into two rings of 1 MiB"
    );
    // It reads now.
    thread::scope(|scope| {
        scope.spawn(|| left.shutdown(std::net::Shutdown::Write));
        check_pattern(&right, written, 1);
    });
}

#[test]
fn a_program_that_never_accepts_holds_a_bounded_number() {
    const BACKLOG: usize = 4;
    let config = "[timers]\nconnect_timeout = \"400ms\"\n";
    let Some(lab) = configured_lab("who_never_accepts", 2, config) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let bystander = Bystander::new(&lab);
    let listener = EspListener::builder()
        .backlog(BACKLOG as u16)
        .bind_at(&there, 7000)
        .unwrap();
    let connect = || {
        EspStream::builder()
            .rings(1 << 16, 1 << 16)
            .connect_at(&here, address(1, 7000))
    };
    let waiting = bystander.during(|| {
        let waiting: Vec<EspStream> = (0..BACKLOG)
            .map(|_| connect().expect("there is room"))
            .collect();
        for _ in 0..3 {
            let error = connect().expect_err("there is no room");
            assert!(
                matches!(EspError::of(&error), Some(EspError::ConnectTimedOut { .. })),
                "{error}"
            );
        }
        let status = there.status().unwrap();
        assert_eq!(usize::from(status.listeners[0].waiting), BACKLOG);
        assert!(
            status
                .connections
                .iter()
                .filter(|c| c.local_port == 7000)
                .count()
                <= 2 * BACKLOG
        );
        assert!(counter(&there, "rx_drop_backlog") > 0);
        // No peer may send before the program has accepted the connection.
        let early = &waiting[0];
        assert_eq!(early.try_write(b"early").unwrap(), 5);
        waiting
    });
    let mut accepted: Vec<EspStream> = (0..BACKLOG)
        .map(|_| listener.accept_timeout(PATIENCE).expect("waiting").0)
        .collect();
    let first = waiting[0].local_addr().port;
    let early = accepted
        .iter_mut()
        .find(|s| s.peer_addr().port == first)
        .expect("the first one");
    let mut bytes = [0; 5];
    early.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"early");
    connect().expect("there is room again");
    assert!(listener.accept_timeout(Duration::from_secs(30)).is_ok());
}
