//! Programs that are killed: they leave nothing behind, and their peers learn of it.

use std::io::Read;
use std::thread;

use esp_client::{EdpSocket, EspError, EspListener, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::process::{Balance, daemon_pid};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, client, lab_or_skip, wait_until};
use lab::LabOptions;

use super::{nothing_is_open, read_to_error};

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");

#[test]
fn a_killed_program_leaves_nothing_and_its_peers_learn() {
    let Some(lab) = lab_or_skip("a_killed_program", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let balance = Balance::of(daemon_pid(&lab, 0));
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    // It has one of everything: connections of both kinds, a port of both kinds, a pending connect.
    let steps = [
        "listen:7000",
        "edp:9000",
        "start:99:1",
        "connect:1:7100",
        "accept",
        "connect:1:7100",
        "write:1000",
        "hold",
    ];
    let mut program = Program::start(PROGRAM, &lab.socket(0), &steps);
    let (first, _) = listener.accept_timeout(PATIENCE).unwrap();
    program.says("ok listen");
    let accepted = EspStream::builder()
        .connect_at(&there, address(0, 7000))
        .unwrap();
    let (second, _) = listener.accept_timeout(PATIENCE).unwrap();
    for step in &steps[1..7] {
        program.says(&format!("ok {step}"));
    }
    let waiting = EspStream::builder()
        .connect_at(&there, address(0, 7000))
        .unwrap();
    // A reader that sleeps.
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| read_to_error(&first));
        assert_eq!(here.status().unwrap().edp.len(), 1);
        program.kill();
        assert!(matches!(
            sleeper.join().unwrap(),
            (0, EspError::PeerDied { .. })
        ));
    });
    assert!(matches!(
        read_to_error(&accepted),
        (0, EspError::PeerDied { .. })
    ));
    // Written data is delivered first.
    assert!(matches!(
        read_to_error(&second),
        (1000, EspError::PeerDied { .. })
    ));
    // This one had not been accepted.
    assert!(matches!(
        read_to_error(&waiting),
        (0, EspError::Refused { .. })
    ));
    wait_until("nothing of it remains", || nothing_is_open(&here));
    balance.is_kept();
    // Its ports are free.
    EspListener::builder().bind_at(&here, 7000).unwrap();
    EdpSocket::builder().bind_at(&here, 9000).unwrap();
}

#[test]
fn a_program_killed_in_the_middle_of_a_stream() {
    let Some(lab) = lab_or_skip("killed_in_the_middle", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let bystander = Bystander::new(&lab);
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    bystander.during(|| {
        for reads in [true, false] {
            let mut program = Program::start(PROGRAM, &lab.socket(0), &["connect:1:7100", "flood"]);
            let (mut stream, _) = listener.accept_timeout(PATIENCE).unwrap();
            stream.read_exact(&mut [0; 100_000]).unwrap();
            if reads {
                // Read all the time.
                thread::scope(|scope| {
                    let reader = scope.spawn(|| read_to_error(&stream));
                    program.kill();
                    assert!(matches!(
                        reader.join().unwrap(),
                        (_, EspError::PeerDied { .. })
                    ));
                });
            } else {
                // Not read: data left in the dead program's ring is discarded.
                program.kill();
                wait_until("the connection is gone", || {
                    here.status()
                        .unwrap()
                        .connections
                        .iter()
                        .all(|c| c.peer_port != 7100)
                });
                assert!(matches!(
                    read_to_error(&stream),
                    (_, EspError::PeerDied { .. })
                ));
            }
        }
    });
}

#[test]
fn two_hundred_killed_programs_leave_nothing() {
    let Some(lab) = lab_or_skip("two_hundred_killed_programs", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let balances = [0, 1].map(|node| Balance::of(daemon_pid(&lab, node)));
    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    for round in 0..200 {
        let steps: &[&str] = match round % 3 {
            0 => &["connect:1:7100", "hold"],
            1 => &["listen:7000", "connect:1:7100", "write:70000", "hold"],
            _ => &["edp:9000", "connect:1:7100", "flood"],
        };
        let mut program = Program::start(PROGRAM, &lab.socket(0), steps);
        let (stream, _) = listener.accept_timeout(PATIENCE).unwrap();
        program.kill();
        assert!(
            matches!(read_to_error(&stream), (_, EspError::PeerDied { .. })),
            "round {round}"
        );
        // The next one can use the same ports.
        wait_until("nothing of it remains", || nothing_is_open(&here));
    }
    drop(listener);
    wait_until("nothing is left", || nothing_is_open(&there));
    balances.iter().for_each(Balance::is_kept);
}
