//! One Ethernet segment: a switch with a port for each node.
//!
//! A frame goes up the sender's link to the switch and down the receiver's link from it. The up
//! link belongs to the host's adapter: its queue pushes back (the host checks [`Net::may_send`]
//! before it builds a frame). The down link is the switch's output port, which drops the tail, so
//! several senders to one receiver form an incast.

use crate::link::{Fate, Frame, Link, LinkConfig, LinkStats};
use crate::rng::Rng;
use esp_proto::{Duration, Instant, MacAddr};

/// Both directions of a node's cable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortConfig {
    /// From the node to the switch.
    pub up: LinkConfig,
    /// From the switch to the node.
    pub down: LinkConfig,
}

impl PortConfig {
    /// Uses one configuration for both directions.
    pub fn symmetric(link: LinkConfig) -> Self {
        PortConfig {
            up: link.clone(),
            down: link,
        }
    }
}

/// A direction as seen from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the node.
    Up,
    /// To the node.
    Down,
}

#[derive(Debug)]
struct Port {
    up: Link,
    down: Link,
}

/// Returns the address of a node: 02:00:00:00 and its number plus one.
pub fn mac_of(node: usize) -> MacAddr {
    let [high, low] = (node as u16 + 1).to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

/// Returns the node with an address of the form of [`mac_of`].
pub fn node_of(mac: MacAddr) -> Option<usize> {
    match mac.0 {
        [2, 0, 0, 0, high, low] => usize::from(u16::from_be_bytes([high, low])).checked_sub(1),
        _ => None,
    }
}

/// The switch and its links.
#[derive(Debug, Default)]
pub struct Net {
    ports: Vec<Port>,
}

impl Net {
    /// Adds a port and returns its number.
    pub fn add(&mut self, config: PortConfig, rng: &mut Rng) -> usize {
        let node = self.ports.len() as u64;
        let up = Link::new(config.up, rng.fork(2 * node));
        let down = Link::new(config.down, rng.fork(2 * node + 1));
        self.ports.push(Port { up, down });
        self.ports.len() - 1
    }

    /// Returns the number of ports.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns true without ports.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    fn link(&mut self, node: usize, direction: Direction) -> &mut Link {
        let port = &mut self.ports[node];
        match direction {
            Direction::Up => &mut port.up,
            Direction::Down => &mut port.down,
        }
    }

    /// Returns the counts of one direction of a port.
    pub fn stats(&self, node: usize, direction: Direction) -> LinkStats {
        let port = &self.ports[node];
        match direction {
            Direction::Up => port.up.stats(),
            Direction::Down => port.down.stats(),
        }
    }

    /// Replaces the configuration of both directions.
    pub fn configure(&mut self, node: usize, config: PortConfig) {
        self.ports[node].up.configure(config.up);
        self.ports[node].down.configure(config.down);
    }

    /// Partitions one direction of a port for a time.
    pub fn cut(&mut self, node: usize, direction: Direction, from: Instant, until: Instant) {
        self.link(node, direction).cut(from, until);
    }

    /// Returns true when the node's adapter accepts one more frame now.
    pub fn may_send(&mut self, node: usize, now: Instant) -> bool {
        self.ports[node].up.has_room(now)
    }

    /// Returns the time at which an adapter without room will have some again.
    pub fn room_at(&mut self, node: usize, now: Instant) -> Instant {
        self.ports[node]
            .up
            .half_empty_at(now)
            .max(now + Duration::from_nanos(1))
    }

    /// Sends a frame from the node; arrivals at the switch are appended to `out`.
    pub fn up(
        &mut self,
        node: usize,
        now: Instant,
        frame: Frame,
        out: &mut Vec<(Instant, Frame)>,
    ) -> Fate {
        self.ports[node].up.send(now, frame, out)
    }

    /// Returns the output ports for a frame from port `from`: its destination's, or all others.
    pub fn outputs(&self, from: usize, frame: &Frame) -> std::ops::Range<usize> {
        let destination = frame
            .bytes
            .first_chunk::<6>()
            .map(|octets| MacAddr(*octets));
        match destination
            .and_then(node_of)
            .filter(|node| *node < self.ports.len())
        {
            Some(node) if node == from => 0..0,
            Some(node) => node..node + 1,
            None => 0..self.ports.len(),
        }
    }

    /// Sends a frame from the switch to a node; arrivals there are appended to `out`.
    pub fn down(
        &mut self,
        node: usize,
        now: Instant,
        frame: Frame,
        out: &mut Vec<(Instant, Frame)>,
    ) -> Fate {
        self.ports[node].down.send(now, frame, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_nodes_match() {
        for node in [0, 1, 255, 256, 1000] {
            assert_eq!(node_of(mac_of(node)), Some(node));
        }
        assert_eq!(node_of(MacAddr::BROADCAST), None);
        assert_eq!(node_of(MacAddr([2, 0, 0, 0, 0, 0])), None);
    }

    #[test]
    fn the_switch_sends_to_the_destination_or_floods() {
        let mut net = Net::default();
        let mut rng = Rng::new(1);
        for _ in 0..3 {
            net.add(PortConfig::default(), &mut rng);
        }
        let to = |mac: MacAddr| Frame {
            bytes: mac.0.to_vec(),
            ..Frame::default()
        };
        assert_eq!(net.outputs(0, &to(mac_of(2))), 2..3);
        assert_eq!(
            net.outputs(2, &to(mac_of(2))),
            0..0,
            "a switch does not send a frame back"
        );
        assert_eq!(net.outputs(0, &to(MacAddr::BROADCAST)), 0..3);
        assert_eq!(net.outputs(0, &to(mac_of(7))), 0..3);
        assert_eq!(
            net.outputs(
                0,
                &Frame {
                    bytes: vec![1],
                    ..Frame::default()
                }
            ),
            0..3
        );
    }
}
