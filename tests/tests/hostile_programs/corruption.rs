//! Corruption of shared memory: ring indices, whole pages, doorbells, records.

use std::io::{Read, Write};
use std::thread;

use esp_client::control::{ErrorKind, Reply, Request};
use esp_client::{Client, EspError, EspListener, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::frames::Dice;
use esp_tests::process::{Balance, configured_lab, daemon_pid};
use esp_tests::raw::{RawProgram, RawSocket, Welcome};
use esp_tests::{PATIENCE, client, counter, wait_until};
use lab::{Lab, Node};
use rustix::io::write;

use super::{HEADER_PAGE, RX_TAIL, TX_HEAD, datagram_socket, overwrite, ring, serves};

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
            page[TX_HEAD as usize + 6] |= 1; // so that it is never valid by chance
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
