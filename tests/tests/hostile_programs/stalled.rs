//! Programs that never read or never accept: only their own peers are delayed, and queues are
//! bounded.

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use esp_client::control::Status;
use esp_client::{EspError, EspListener, EspStream};
use esp_tests::exchange::Bystander;
use esp_tests::process::configured_lab;
use esp_tests::{
    PATIENCE, address, byte, check_pattern, client, counter, lab_or_skip, pair, wait_until,
};

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
