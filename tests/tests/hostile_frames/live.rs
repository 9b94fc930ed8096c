//! A connection that frames must not disturb.

use std::io::{Read, Write};
use std::time::Duration;

use esp_client::EspStream;
use esp_tests::frames::{Frame, Tap};
use esp_tests::{check_pattern, pair, send_pattern, wait_until};
use lab::Lab;

/// A connection of node 0 (the victim) with node 1, and a tap on what node 1 sends.
pub(super) struct Live {
    pub(super) left: EspStream,
    pub(super) right: EspStream,
    pub(super) ear: Tap,
}

impl Live {
    pub(super) fn new(lab: &Lab, port: u16) -> Live {
        let ear = Tap::of_cable(lab, 1);
        let (left, right) = pair(lab, 0, 1, port);
        Live { left, right, ear }
    }

    /// Exchanges a byte each way, the victim's last: writing shows its engine that the other byte
    /// was read.
    pub(super) fn exchange(&self) {
        for (mut from, mut to) in [(&self.right, &self.left), (&self.left, &self.right)] {
            from.write_all(&[9]).expect("write");
            let mut byte = [0];
            to.read_exact(&mut byte).expect("read");
            assert_eq!(byte, [9]);
        }
        wait_until("everything is acknowledged", || {
            self.left.unacknowledged() + self.right.unacknowledged() == 0
        });
    }

    /// Returns the frame that node 1 would send next on this idle connection.
    pub(super) fn next_of_peer(&mut self, flags: u8) -> Frame {
        while self.ear.hear(Duration::ZERO).is_some() {}
        self.exchange();
        let (from, to) = (self.left.peer_addr().port, self.left.local_addr().port);
        let mut last = None;
        while let Some(frame) = self.ear.hear(Duration::ZERO) {
            if (frame.src_port, frame.dst_port) == (from, to) {
                last = Some(frame);
            }
        }
        let last = last.expect("the peer acknowledged the exchange");
        Frame::new(1, 0, flags)
            .ports(from, to)
            .numbers(last.next_seq(), last.ack)
    }

    /// Asserts that both directions still carry all data to the end.
    pub(super) fn is_intact(&self) {
        for (from, to, salt) in [(&self.left, &self.right, 11), (&self.right, &self.left, 12)] {
            std::thread::scope(|scope| {
                scope.spawn(|| send_pattern(from, 3 << 20, salt));
                check_pattern(to, 3 << 20, salt);
            });
        }
    }
}
