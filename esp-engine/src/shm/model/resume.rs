//! Models of a region whose engine ends at any write, and of the next engine.
//!
//! The next engine reads a region after the earlier one has ended, so its loads are ordered after
//! all stores that were executed. Here, a thread reads the image concurrently with the writer,
//! ordered only by the words themselves.

use std::sync::Arc;

use esp_proto::wire::MAX_RAILS;
use esp_proto::{ConnImage, MacAddr, NodeAddr};
use loom::thread;

use super::super::{Region, Spin, Status, TxConsumer, TxProducer, Wake};
use super::check;
use shmem::sync::Ordering;

/// Address of the endpoint.
const OWN: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 1]));

/// Returns an image that differs from that of another epoch in its first words and in its last.
fn image(epoch: u8) -> ConnImage {
    ConnImage {
        local_port: u16::from(epoch),
        peer: NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, epoch])),
        peer_port: 2,
        nonce: u64::from(epoch),
        peer_nonce: u64::from(epoch) << 8,
        epoch: u32::from(epoch),
        payload: 1400,
        max_ack_delay: 200,
        ecn: false,
        rails: [MacAddr([epoch; 6]); MAX_RAILS],
    }
}

#[test]
fn loom_an_image_that_is_being_written_is_the_old_or_the_new_one() {
    for old in [None, Some(1)] {
        check("image: read while it is replaced", Some(3), move || {
            let region = Region::model(1, 1);
            if let Some(epoch) = old {
                region.keep_image(&image(epoch), OWN);
            }
            let memory = region.clone();
            let reader = thread::spawn(move || {
                let found = memory.image();
                let expected = [old.map(|epoch| (image(epoch), OWN)), Some((image(2), OWN))];
                assert!(expected.contains(&found), "{found:?}");
            });
            region.keep_image(&image(2), OWN);
            reader.join().expect("the next engine");
        });
    }
}

/// Steps of an engine that frees one byte, after each of which it may end.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Step {
    Seen,
    Published,
    /// The bit of the sleeper is cleared, and the sleeper not woken yet.
    Noticed,
    Woken,
}

const STEPS: [Step; 4] = [Step::Seen, Step::Published, Step::Noticed, Step::Woken];

/// Clears the bits of the sleepers, as the first half of a wake does.
fn notice(region: &Region) {
    let _ = region.words().waiting.0.swap(0, Ordering::AcqRel);
}

/// Wakes the program as the next engine does, and then the client library.
fn resumed(region: &Arc<Region>) {
    let _ = region.wake(Wake::All);
    Status::new(region.clone()).poke();
}

#[test]
fn loom_a_writer_loses_no_byte_between_two_engines() {
    for last in STEPS {
        check("resume: writer", Some(2), move || {
            let region = Region::model(1, 1);
            let mut producer = TxProducer::new(region.clone());
            let status = Status::new(region.clone());
            let program = thread::spawn(move || {
                for byte in 1..=2 {
                    let there = || producer.free() > 0;
                    assert!(status.wait(Wake::Writable, Spin::default(), there, None));
                    assert_eq!(producer.write(&[byte]), 1);
                }
                producer.finish();
            });
            let mut first = TxConsumer::new(region.clone());
            // In place of the doorbell: the engine sees the written bytes eventually.
            while first.poll_written().expect("an honest program").total < 1 {
                thread::yield_now();
            }
            let mut acknowledged = 0;
            if last >= Step::Published {
                acknowledged = 1;
                first.free_below(acknowledged);
            }
            match last {
                Step::Noticed => notice(&region),
                Step::Woken => {
                    let _ = region.wake(Wake::Writable);
                }
                Step::Seen | Step::Published => {}
            }
            drop(first);
            let (mut next, mut view) = TxConsumer::resume(region.clone()).expect("honest");
            resumed(&region);
            assert_eq!(next.released(), acknowledged);
            let mut seen = acknowledged;
            loop {
                while seen < view.total {
                    let mut byte = [0];
                    assert!(next.copy_out(seen, &mut byte));
                    seen += 1;
                    assert_eq!(u64::from(byte[0]), seen);
                    next.free_below(seen);
                    let _ = region.wake(Wake::Writable);
                }
                if view.finished {
                    break;
                }
                thread::yield_now();
                view = next.poll_written().expect("an honest program");
            }
            assert_eq!(seen, 2);
            program.join().expect("the program");
        });
    }
}
