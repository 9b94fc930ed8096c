//! Violations of the control protocol: garbage, silence, and answers that are not read.

use std::io::Write;
use std::os::fd::AsFd;
use std::thread;

use esp_client::control::codec::{encode, send};
use esp_client::control::{ErrorKind, Reply, Request};
use esp_tests::exchange::Bystander;
use esp_tests::frames::Dice;
use esp_tests::process::{Balance, configured_lab, daemon_pid};
use esp_tests::raw::{Heard, RawProgram};
use esp_tests::{PATIENCE, client, counter, wait_until};

use super::serves;

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
