//! Rates from the counters of two snapshots, and the history of each connection.

use std::collections::{HashMap, VecDeque};

use esp_client::control::{ConnectionStatus, Status};

/// Maximum number of samples that are kept for each connection.
pub(super) const HISTORY: usize = 240;

/// Identity of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    peer: String,
    peer_port: u16,
    interface: String,
    local_port: u16,
}

impl Key {
    pub(super) fn of(connection: &ConnectionStatus) -> Key {
        Key {
            peer: connection.peer.clone(),
            peer_port: connection.peer_port,
            interface: connection.interface.clone(),
            local_port: connection.local_port,
        }
    }
}

/// Values of a connection between two snapshots; `None` if the daemon does not know a value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Bits acknowledged, per second.
    pub(super) tx: Option<f64>,
    /// Bits received in order, per second.
    pub(super) rx: Option<f64>,
    /// Packets retransmitted, per second.
    pub(super) retransmits: Option<f64>,
    /// Smoothed round-trip time in microseconds.
    pub(super) rtt: Option<f64>,
}

impl Sample {
    /// Returns the bits in both directions, per second.
    pub(super) fn both(&self) -> Option<f64> {
        match (self.tx, self.rx) {
            (None, None) => None,
            (tx, rx) => Some(tx.unwrap_or(0.0) + rx.unwrap_or(0.0)),
        }
    }
}

/// The last samples of a connection, the newest at the end.
#[derive(Clone, Debug)]
pub(super) struct History {
    at: f64,
    before: ConnectionStatus,
    samples: VecDeque<Sample>,
}

impl History {
    fn new(at: f64, connection: &ConnectionStatus) -> History {
        History {
            at,
            before: connection.clone(),
            samples: VecDeque::new(),
        }
    }

    fn add(&mut self, at: f64, now: &ConnectionStatus) {
        let time = at - self.at;
        let before = &self.before;
        let bits = |before, after| rate(before, after, time).map(|bytes| 8.0 * bytes);
        let sample = Sample {
            tx: bits(before.bytes_acked, now.bytes_acked),
            rx: bits(before.bytes_received, now.bytes_received),
            retransmits: rate(before.retransmits, now.retransmits, time),
            rtt: now.srtt_us,
        };
        if self.samples.len() == HISTORY {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.at = at;
        self.before = now.clone();
    }

    /// Returns the last sample; `None` before the second snapshot.
    pub(super) fn latest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Returns the samples, the newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().rev()
    }

    /// Returns the connection as of the last snapshot that contained it.
    pub(super) fn connection(&self) -> &ConnectionStatus {
        &self.before
    }
}

/// Returns the growth of a counter per second; `None` if it is unknown or has decreased.
fn rate(before: Option<u64>, after: Option<u64>, seconds: f64) -> Option<f64> {
    let growth = after?.checked_sub(before?)?;
    (seconds > 0.0).then(|| growth as f64 / seconds)
}

/// Rates of an interface, per second. `None` before the second snapshot, or for counters that the
/// daemon does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct InterfaceRates {
    pub(super) tx_bits: Option<f64>,
    pub(super) rx_bits: Option<f64>,
    pub(super) tx_frames: Option<f64>,
    pub(super) rx_frames: Option<f64>,
    pub(super) retransmits: Option<f64>,
    pub(super) drops: Option<f64>,
}

/// Counters by interface and name.
type Counters = HashMap<(String, String), u64>;

/// Histories of all connections, and rates of the interfaces.
#[derive(Debug, Default)]
pub(super) struct Rates {
    histories: HashMap<Key, History>,
    /// Time and counters of the previous snapshot.
    before: Option<(f64, Counters)>,
    interfaces: HashMap<String, InterfaceRates>,
    uptime: f64,
}

impl Rates {
    /// Adds a snapshot taken at this time, in seconds. Connections that it lacks are forgotten,
    /// except `keep`.
    pub(super) fn feed(&mut self, at: f64, status: &Status, keep: Option<&Key>) {
        if status.uptime_s < self.uptime {
            // The daemon was restarted, and its counters start at zero.
            *self = Rates::default();
        }
        self.uptime = status.uptime_s;
        let mut histories = HashMap::new();
        for connection in &status.connections {
            let key = Key::of(connection);
            let history = match self.histories.remove(&key) {
                Some(mut history) => {
                    history.add(at, connection);
                    history
                }
                None => History::new(at, connection),
            };
            histories.insert(key, history);
        }
        if let Some((key, history)) = keep.and_then(|key| self.histories.remove_entry(key)) {
            histories.insert(key, history);
        }
        self.histories = histories;
        self.feed_interfaces(at, status);
    }

    fn feed_interfaces(&mut self, at: f64, status: &Status) {
        let key = |interface: &str, name: &str| (interface.to_owned(), name.to_owned());
        let counters = status.counters.iter();
        let now: Counters = counters
            .map(|c| (key(&c.interface, &c.name), c.value))
            .collect();
        self.interfaces.clear();
        if let Some((before_at, before)) = &self.before {
            let time = at - before_at;
            for interface in &status.interfaces {
                let one = |name: &str| {
                    let key = key(&interface.name, name);
                    rate(before.get(&key).copied(), now.get(&key).copied(), time)
                };
                let is_drop =
                    |name: &str| name.starts_with("rx_drop") || name == "socket_rx_dropped";
                let names = now.keys().filter(|(of, _)| *of == interface.name);
                let drops = names.filter(|(_, name)| is_drop(name));
                let drops = drops.map(|(_, name)| one(name));
                let rates = InterfaceRates {
                    tx_bits: one("tx_data_bytes").map(|bytes| 8.0 * bytes),
                    rx_bits: one("rx_data_bytes").map(|bytes| 8.0 * bytes),
                    tx_frames: one("tx_frames"),
                    rx_frames: one("rx_frames"),
                    retransmits: one("tx_retransmits"),
                    drops: drops.reduce(|sum, next| Some(sum? + next?)).flatten(),
                };
                self.interfaces.insert(interface.name.clone(), rates);
            }
        }
        self.before = Some((at, now));
    }

    /// Returns the history of a connection.
    pub(super) fn history(&self, key: &Key) -> Option<&History> {
        self.histories.get(key)
    }

    /// Returns the rates of an interface.
    pub(super) fn interface(&self, name: &str) -> InterfaceRates {
        self.interfaces.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(acked: u64) -> ConnectionStatus {
        ConnectionStatus {
            peer: "02:e5:00:00:00:02".into(),
            bytes_acked: Some(acked),
            srtt_us: Some(20.0),
            ..ConnectionStatus::default()
        }
    }

    fn status(uptime_s: f64, connections: Vec<ConnectionStatus>) -> Status {
        Status {
            uptime_s,
            connections,
            ..Status::default()
        }
    }

    #[test]
    fn rates_are_growth_per_second() {
        let mut rates = Rates::default();
        let key = Key::of(&connection(0));
        rates.feed(10.0, &status(1.0, vec![connection(1000)]), None);
        let latest = |rates: &Rates| rates.history(&key).and_then(|h| h.latest().copied());
        assert_eq!(latest(&rates), None);
        rates.feed(12.0, &status(3.0, vec![connection(2000)]), None);
        let wanted = Sample {
            tx: Some(4000.0),
            rtt: Some(20.0),
            ..Sample::default()
        };
        assert_eq!(latest(&rates), Some(wanted));
        // The counter has decreased, and no time has passed.
        rates.feed(13.0, &status(4.0, vec![connection(0)]), None);
        assert_eq!(latest(&rates).and_then(|sample| sample.tx), None);
        rates.feed(13.0, &status(4.0, vec![connection(5)]), None);
        assert_eq!(latest(&rates).and_then(|sample| sample.tx), None);
    }

    #[test]
    fn histories_end_with_their_connection_unless_kept() {
        let mut rates = Rates::default();
        let key = Key::of(&connection(0));
        rates.feed(1.0, &status(1.0, vec![connection(1)]), None);
        rates.feed(2.0, &status(2.0, vec![]), Some(&key));
        assert_eq!(
            rates.history(&key).map(|h| h.connection().bytes_acked),
            Some(Some(1))
        );
        rates.feed(3.0, &status(3.0, vec![]), None);
        assert!(rates.history(&key).is_none());
    }

    #[test]
    fn a_new_daemon_begins_anew_and_memory_is_bounded() {
        let mut rates = Rates::default();
        let key = Key::of(&connection(0));
        for second in 0..1000u32 {
            let at = f64::from(second);
            rates.feed(at, &status(at, vec![connection(second.into())]), None);
        }
        let samples = |rates: &Rates| rates.history(&key).map(|h| h.newest_first().count());
        assert_eq!(samples(&rates), Some(HISTORY));
        rates.feed(1000.0, &status(0.5, vec![connection(0)]), None);
        assert_eq!(samples(&rates), Some(0));
    }
}
