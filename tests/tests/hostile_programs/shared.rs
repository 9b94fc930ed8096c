//! Limits of a program on the memory and the descriptors that it shares with the engine.

use std::os::fd::{AsFd, BorrowedFd};

use esp_client::control::{Reply, Request};
use esp_client::{EdpSocket, MacAddr};
use esp_tests::client;
use esp_tests::exchange::Bystander;
use esp_tests::process::configured_lab;
use esp_tests::raw::{RawProgram, can_be_resized};
use lab::Node;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{pwrite, read, write};

use super::{datagram_socket, overwrite, ring, serves};

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
