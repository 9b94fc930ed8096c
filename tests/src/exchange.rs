//! Transfers that continue while a test does something else.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use esp_client::EspStream;
use lab::Lab;

use crate::{byte, check_pattern, pair, send_pattern, wait_until};

/// Bytes that flow both ways.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Bytes read by both readers.
    read: AtomicU64,
    /// Nothing more is to be sent.
    enough: AtomicBool,
    /// A reader has ended or failed.
    over: AtomicBool,
}

/// Sets the flag on drop, and so after a panic, too.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Exchange {
    /// Sends and reads at both ends until `trouble` returns or panics. Then all sent bytes arrive,
    /// and both streams end successfully.
    ///
    /// # Panics
    /// When a byte is wrong, missing or surplus, or a stream fails.
    pub fn during<T>(
        left: &EspStream,
        right: &EspStream,
        trouble: impl FnOnce(&Exchange) -> T,
    ) -> T {
        let exchange = &Exchange::default();
        thread::scope(|scope| {
            let writers = [(left, 1), (right, 2)]
                .map(|(end, salt)| scope.spawn(move || exchange.write(end, salt)));
            let readers = [(right, 1), (left, 2)]
                .map(|(end, salt)| scope.spawn(move || exchange.read(end, salt)));
            let result = {
                let _enough = SetAtEnd(&exchange.enough);
                trouble(exchange)
            };
            let sent = writers.map(|writer| writer.join().expect("a writer"));
            let read = readers.map(|reader| reader.join().expect("a reader"));
            assert_eq!(sent, read, "bytes sent and read");
            result
        })
    }

    /// Waits until `bytes` more bytes have been read, in both directions together.
    ///
    /// # Panics
    /// After a timeout, or when a reader has ended.
    pub fn flows(&self, bytes: u64) {
        let goal = self.read.load(Ordering::Relaxed) + bytes;
        wait_until("bytes flow", || {
            assert!(!self.over.load(Ordering::Relaxed), "a reader has ended");
            self.read.load(Ordering::Relaxed) >= goal
        });
    }

    fn write(&self, mut stream: &EspStream, salt: u64) -> u64 {
        let (mut block, mut at) = (vec![0; 1 << 16], 0);
        // At least one block, even if `trouble` returns at once.
        while at == 0 || !self.enough.load(Ordering::Relaxed) {
            for (i, slot) in (at..).zip(&mut block) {
                *slot = byte(i, salt);
            }
            stream.write_all(&block).expect("write");
            at += block.len() as u64;
        }
        stream.shutdown(Shutdown::Write).expect("finish");
        at
    }

    fn read(&self, mut stream: &EspStream, salt: u64) -> u64 {
        let _over = SetAtEnd(&self.over);
        let (mut block, mut at) = (vec![0; 1 << 16], 0);
        loop {
            let n = stream.read(&mut block).expect("read");
            if n == 0 {
                return at;
            }
            for (i, found) in (at..).zip(&block[..n]) {
                assert!(*found == byte(i, salt), "byte {i} is {found:#x}");
            }
            at += n as u64;
            self.read.fetch_add(n as u64, Ordering::Relaxed);
        }
    }
}

/// Two nodes with streams between them, for transfers during a test elsewhere.
pub struct Bystander([EspStream; 2]);

impl Bystander {
    /// Connects nodes 0 and 1.
    ///
    /// # Panics
    /// When they cannot be connected.
    pub fn new(lab: &Lab) -> Bystander {
        Bystander(pair(lab, 0, 1, 6000).into())
    }

    /// Runs a transfer during `work`; see [`Exchange::during`].
    ///
    /// # Panics
    /// Like [`Exchange::during`].
    pub fn during<T>(self, work: impl FnOnce() -> T) -> T {
        let [left, right] = &self.0;
        Exchange::during(left, right, |_| work())
    }
}

/// Sends patterns of `len` bytes in both directions at the same time.
///
/// # Panics
/// When bytes do not arrive, or others do.
pub fn both_ways(left: &EspStream, right: &EspStream, len: u64) {
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, len, 1));
        scope.spawn(|| send_pattern(right, len, 2));
        scope.spawn(|| check_pattern(left, len, 2));
        check_pattern(right, len, 1);
    });
}
