//! A process that is stopped but alive.

mod common;

use std::io::IoSlice;
use std::thread;
use std::time::Duration;

use btl::{Btl, Tx};
use common::{PATIENCE, Seen, job, join, role, until};

/// A stopped process delays only the calls that wait for it.
#[test]
fn a_stopped_process_blocks_no_call() {
    const NAME: &str = "a_stopped_process_blocks_no_call";
    if let Some((rank, size, job, _)) = role() {
        let _btl = join(rank, size, &job);
        println!("\nstopping");
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::STOP).expect("our own process");
        // This thread may continue for a moment.
        thread::sleep(PATIENCE);
        return;
    }
    let (mut ranks, mut processes) = job(NAME, 2, &["-"]);
    processes[0].wait_for("stopping");
    thread::sleep(Duration::from_millis(10));
    let mut seen = [Seen::default(), Seen::default()];
    let mut busy = false;
    for i in 0..2000u32 {
        busy |= ranks[0]
            .send(2, &[1; 16], &[IoSlice::new(&[0; 3000])])
            .is_err();
        until("room", || {
            ranks[1].progress(&mut seen[1]);
            ranks[0]
                .send(
                    1,
                    &i.to_le_bytes(),
                    &[IoSlice::new(&vec![9; i as usize * 10])],
                )
                .is_ok()
        });
        ranks[0].progress(&mut seen[0]);
    }
    until("everything", || {
        ranks[1].progress(&mut seen[1]);
        seen[1].messages.len() == 2000
    });
    assert!(busy, "the queue of the stopped rank is full");
    assert!(seen.iter().all(|seen| seen.failed.is_empty()));
    let order: Vec<u32> = seen[1]
        .messages
        .iter()
        .map(|(_, header, _)| u32::from_le_bytes(header.as_slice().try_into().expect("four bytes")))
        .collect();
    assert!(order.into_iter().eq(0..2000));
}
