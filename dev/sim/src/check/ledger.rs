//! Packets sent and taken under protection: each is taken once for each time it was sent, from its
//! sender, at its destination, unchanged.

use super::flow::fingerprint;
use esp_proto::MacAddr;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    sent: u64,
    taken: u64,
    mark: u64,
}

/// Counts of all protected packets of a world, by sender, destination and content.
#[derive(Debug, Default)]
pub struct Ledger {
    packets: HashMap<(MacAddr, MacAddr, u64), Entry>,
    taken: u64,
}

impl Ledger {
    /// Records a packet that its sender's endpoint built, starting at the packet type, with the
    /// mark of its incarnation.
    pub fn sent(&mut self, src: MacAddr, dst: MacAddr, body: &[u8], mark: u64) {
        let entry = self.packets.entry((src, dst, fingerprint(body)));
        let entry = entry.or_default();
        (entry.sent, entry.mark) = (entry.sent + 1, mark);
    }

    /// Records a packet that a layer accepted as one of `src`. Returns its mark.
    ///
    /// # Errors
    /// It was not sent, or was taken already as often as it was sent. A broadcast is taken by
    /// several nodes, and again by one that has restarted (W-146).
    pub fn taken(&mut self, src: MacAddr, dst: MacAddr, body: &[u8]) -> Result<u64, String> {
        let Some(entry) = self.packets.get_mut(&(src, dst, fingerprint(body))) else {
            return Err(format!("W-144: a packet that {src} never sent to {dst}"));
        };
        entry.taken += 1;
        self.taken += 1;
        if entry.taken > entry.sent && !dst.is_group() {
            return Err(format!(
                "W-144: a packet of {src} to {dst} taken {} times, sent {} times",
                entry.taken, entry.sent
            ));
        }
        Ok(entry.mark)
    }

    /// Returns the number of packets taken.
    pub fn total(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::mac_of;

    #[test]
    fn a_packet_is_taken_as_often_as_it_was_sent_and_nowhere_else() {
        let (a, b, c) = (mac_of(0), mac_of(1), mac_of(2));
        let mut ledger = Ledger::default();
        ledger.sent(a, b, b"one", 5);
        ledger.sent(a, b, b"one", 6);
        assert_eq!(ledger.taken(a, b, b"one"), Ok(6));
        assert_eq!(ledger.taken(a, b, b"one"), Ok(6));
        assert!(ledger.taken(a, b, b"one").is_err(), "a third time");
        assert!(ledger.taken(a, b, b"two").is_err(), "never sent");
        assert!(ledger.taken(c, b, b"one").is_err(), "another source");
        assert!(ledger.taken(a, c, b"one").is_err(), "another destination");
        assert_eq!(ledger.total(), 3);
    }
}
