//! Transfers that go on beside what a test does.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cli::lab::Lab;
use esp_client::EspStream;

use crate::{byte, pair};

/// Two nodes with a transfer between them that goes on as long as the value lives, and is checked at its end.
pub struct Bystander {
    left: EspStream,
    right: EspStream,
}

impl Bystander {
    /// Joins nodes 0 and 1.
    ///
    /// # Panics
    /// When they cannot be joined.
    pub fn new(lab: &Lab) -> Bystander {
        let (left, right) = pair(lab, 0, 1, 6000);
        Bystander { left, right }
    }

    /// Does `work` while bytes flow both ways; each is checked.
    ///
    /// # Panics
    /// When a byte is wrong or a stream fails, and when `work` panics.
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for (from, to) in [(&self.left, &self.right), (&self.right, &self.left)] {
                scope.spawn(|| flow(from, &stop));
                scope.spawn(|| check_flow(to));
            }
            // Also when it panics: the others would go on for ever.
            let _stopper = Stopper(&stop);
            work()
        })
    }
}

struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes the pattern until told to stop, then finishes.
fn flow(mut to: &EspStream, stop: &AtomicBool) {
    let mut at = 0;
    // At least one block, also beside something very short.
    loop {
        let block: Vec<u8> = (at..at + 4096).map(|i| byte(i, 3)).collect();
        to.write_all(&block).expect("write");
        at += 4096;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    to.shutdown(std::net::Shutdown::Write).expect("finish");
}

fn check_flow(mut from: &EspStream) {
    let (mut block, mut at) = (vec![0; 4096], 0);
    loop {
        let n = from.read(&mut block).expect("read");
        if n == 0 {
            break;
        }
        let expected: Vec<u8> = (at..at + n as u64).map(|i| byte(i, 3)).collect();
        assert!(block[..n] == expected, "wrong bytes at {at}");
        at += n as u64;
    }
    assert!(at > 0, "nothing flowed");
}
