//! Deadlines of the packets that a side of a connection has to send.
//!
//! The times of the rules do not include the host's. The host of a scenario may take up to [`HOST`]
//! longer because of timers, receptions and a full queue.

use super::flow::Side;
use super::frame::{PRB, View};
use esp_proto::{Duration, Instant};

/// Time that a host may be late.
const HOST: Duration = Duration::from_millis(100);
/// Maximum RTO (W-47).
const MAX_RTO: Duration = Duration::from_millis(200);

/// Times of the packets of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Last packet to the peer.
    sent: Instant,
    /// Last data, FIN or probe to the peer.
    asked: Instant,
    /// Last packet from the peer.
    heard: Instant,
    /// Arrival of the oldest packet that wants an acknowledgement and has none.
    owed: Option<Instant>,
}

impl Times {
    /// Returns the times of a side that begins now.
    pub(super) fn starting(now: Instant) -> Times {
        Times {
            sent: now,
            asked: now,
            heard: now,
            owed: None,
        }
    }

    /// Records a packet to the peer. `acks_all` states that it acknowledges all that has arrived.
    pub(super) fn sends(&mut self, now: Instant, view: &View<'_>, acks_all: bool) {
        self.sent = now;
        if view.is_data() || view.is_fin() || view.flags & PRB != 0 {
            self.asked = now;
        }
        if acks_all {
            self.owed = None;
        }
    }

    /// Records a packet from the peer.
    pub(super) fn receives(&mut self, now: Instant, view: &View<'_>) {
        self.heard = now;
        if view.is_data() || view.is_fin() || view.flags & PRB != 0 {
            self.owed.get_or_insert(now);
        }
    }
}

/// Times of the endpoint's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Silence after which a probe is sent (W-52).
    pub keepalive: Duration,
    /// Peer timeout (W-46).
    pub peer_timeout: Duration,
}

impl Side {
    /// Names the deadline that has passed without the packet it demands, if there is one. The
    /// connection is open, and free to send.
    pub(super) fn overdue(&self, now: Instant, limits: Limits) -> Option<String> {
        let Times {
            sent,
            asked,
            heard,
            owed,
        } = self.times;
        let late = |since: Instant, limit: Duration| now.since(since) > limit + HOST;
        if owed.is_some_and(|owed| late(owed, self.max_ack_delay())) {
            return Some(format!("W-34, W-51: no acknowledgement since {owed:?}"));
        }
        if self.has_outstanding() && late(asked, MAX_RTO) {
            return Some(format!("W-46: no retransmission since {asked:?}"));
        }
        if late(sent.max(heard), limits.keepalive) {
            return Some(format!("W-52: silence since {:?}", sent.max(heard)));
        }
        if late(heard, limits.keepalive + limits.peer_timeout) {
            return Some(format!(
                "W-46: open, though the peer is silent since {heard:?}"
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::frame::{ACK, Forge, Rules, SetUpView};
    use crate::net::mac_of;

    const LIMITS: Limits = Limits {
        keepalive: Duration::from_secs(2),
        peer_timeout: Duration::from_secs(10),
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Returns a side that has received a data frame after 10 ms.
    fn side() -> Side {
        let set_up = SetUpView {
            max_payload: 1489,
            nonce: 1,
            peer_nonce: 0,
            credit: 100,
            max_ack_delay: 200,
            features: 0,
            key: &[],
        };
        let mut side = Side::new(&set_up, 0, 1489);
        side.times = Times::starting(at(0));
        with_view(&[7; 40], |view| side.times.receives(at(10), view));
        side
    }

    fn with_view(payload: &[u8], take: impl FnOnce(&View<'_>)) {
        let rules = Rules {
            esp: 0x88b5,
            edp: 0x88b6,
            mtu: 1500,
            is_udp: false,
        };
        let frame = Forge {
            seq: 1,
            ack: 1,
            payload: payload.to_vec(),
            ..Forge::new(mac_of(0), 1000, mac_of(1), 2000, ACK)
        };
        take(&View::of(&frame.bytes(), &rules).expect("sound"));
    }

    #[test]
    fn each_missed_deadline_is_named() {
        let mut side = side();
        let named = |side: &Side, millis, rule: &str| {
            let problem = side.overdue(at(millis), LIMITS);
            assert!(
                problem.as_ref().is_some_and(|p| p.starts_with(rule)),
                "{problem:?}"
            );
        };
        assert_eq!(side.overdue(at(110), LIMITS), None);
        named(&side, 111, "W-34");
        with_view(&[], |view| side.times.sends(at(11), view, true));
        assert_eq!(side.overdue(at(2111), LIMITS), None);
        named(&side, 2112, "W-52");
        with_view(&[], |view| side.times.sends(at(12_000), view, true));
        assert_eq!(side.overdue(at(12_110), LIMITS), None);
        named(&side, 12_111, "W-46");
    }
}
