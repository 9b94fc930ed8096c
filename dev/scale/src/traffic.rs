//! Connections between programs and the messages on them, in flat tables.

use hashbrown::HashMap;

/// Number of a message's successor that does not exist.
const NONE: u32 = u32::MAX;

/// A message that has arrived completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Channel of the message.
    pub channel: u32,
    /// Sending node.
    pub from: u32,
    /// Receiving node.
    pub to: u32,
    /// Label that its program gave to it.
    pub tag: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of sending.
    pub sent: u64,
}

/// One direction of a channel.
#[derive(Clone, Copy, Debug)]
struct Flow {
    written: u64,
    delivered: u64,
    /// First and last message that has not arrived.
    first: u32,
    last: u32,
}

/// A connection between two nodes.
#[derive(Clone, Copy, Debug)]
struct Channel {
    /// The node that opens it, and the other.
    nodes: [u32; 2],
    /// Slots of their transports, once known.
    slots: [Option<u32>; 2],
    flows: [Flow; 2],
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// Offset after its last byte.
    end: u64,
    bytes: u64,
    sent: u64,
    tag: u32,
    next: u32,
}

/// All channels and messages.
#[derive(Debug, Default)]
pub struct Traffic {
    channels: Vec<Channel>,
    by_nodes: HashMap<(u32, u32), u32, foldhash::fast::FixedState>,
    /// Channel × 2 + side of each slot of each node; [`NONE`] for slots of no channel.
    by_slot: Vec<Vec<u32>>,
    messages: Vec<Message>,
    free: Vec<u32>,
    under_way: u64,
}

impl Traffic {
    /// Creates the tables of `nodes` nodes.
    pub fn new(nodes: u32) -> Traffic {
        Traffic {
            by_slot: vec![Vec::new(); nodes as usize],
            ..Traffic::default()
        }
    }

    /// Adds a channel that `from` opens; returns its number, or that of the one that exists.
    pub fn add(&mut self, from: u32, to: u32) -> (u32, bool) {
        if let Some(channel) = self.find(from, to) {
            return (channel, false);
        }
        let flow = Flow {
            written: 0,
            delivered: 0,
            first: NONE,
            last: NONE,
        };
        let channel = self.channels.len() as u32;
        self.channels.push(Channel {
            nodes: [from, to],
            slots: [None; 2],
            flows: [flow; 2],
        });
        self.by_nodes.insert((from, to), channel);
        (channel, true)
    }

    /// Returns the channel between two nodes, whichever of them opened it.
    pub fn find(&self, a: u32, b: u32) -> Option<u32> {
        let channel = self.by_nodes.get(&(a, b));
        channel.or_else(|| self.by_nodes.get(&(b, a))).copied()
    }

    /// Returns the node that opens a channel, and its peer.
    pub fn nodes(&self, channel: u32) -> [u32; 2] {
        self.channels[channel as usize].nodes
    }

    /// Notes the slot of one side. Returns the bytes that were written to it before.
    pub fn bind(&mut self, channel: u32, node: u32, slot: u32) -> u64 {
        let side = self.side(channel, node);
        let table = &mut self.by_slot[node as usize];
        if table.len() <= slot as usize {
            table.resize(slot as usize + 1, NONE);
        }
        table[slot as usize] = channel * 2 + side as u32;
        let channel = &mut self.channels[channel as usize];
        channel.slots[side] = Some(slot);
        channel.flows[side].written
    }

    /// Adds a message. Returns the slot of its sender, if known, with the new length of the stream.
    pub fn send(
        &mut self,
        channel: u32,
        from: u32,
        bytes: u64,
        tag: u32,
        now: u64,
    ) -> Option<(u32, u64)> {
        let side = self.side(channel, from);
        let channel = &mut self.channels[channel as usize];
        let flow = &mut channel.flows[side];
        flow.written += bytes;
        let message = Message {
            end: flow.written,
            bytes,
            sent: now,
            tag,
            next: NONE,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.messages[number as usize] = message;
                number
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        };
        match flow.last {
            NONE => flow.first = number,
            last => self.messages[last as usize].next = number,
        }
        flow.last = number;
        self.under_way += 1;
        channel.slots[side].map(|slot| (slot, flow.written))
    }

    /// Notes that a node has received all bytes below `total` from a slot, and adds the messages
    /// that are complete by this to `arrivals`.
    ///
    /// # Panics
    /// More bytes arrived than were written, or fewer than before.
    pub fn deliver(&mut self, node: u32, slot: u32, total: u64, arrivals: &mut Vec<Arrival>) {
        let entry = self.by_slot[node as usize][slot as usize];
        assert_ne!(entry, NONE, "bytes for a connection without a channel");
        let (number, side) = (entry / 2, entry as usize % 2);
        let channel = &mut self.channels[number as usize];
        let flow = &mut channel.flows[1 - side];
        assert!(
            flow.delivered <= total && total <= flow.written,
            "{total} bytes arrived, {} before, {} written",
            flow.delivered,
            flow.written
        );
        flow.delivered = total;
        while flow.first != NONE && self.messages[flow.first as usize].end <= total {
            let message = self.messages[flow.first as usize];
            arrivals.push(Arrival {
                channel: number,
                from: channel.nodes[1 - side],
                to: node,
                tag: message.tag,
                bytes: message.bytes,
                sent: message.sent,
            });
            self.free.push(flow.first);
            self.under_way -= 1;
            flow.first = message.next;
        }
        if flow.first == NONE {
            flow.last = NONE;
        }
    }

    /// Returns the number of messages that have not arrived.
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Returns the number of channels.
    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// Returns true without any channel.
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Returns the bytes written and the bytes delivered on all channels.
    pub fn totals(&self) -> (u64, u64) {
        let flows = self.channels.iter().flat_map(|channel| &channel.flows);
        flows.fold((0, 0), |(w, d), flow| {
            (w + flow.written, d + flow.delivered)
        })
    }

    fn side(&self, channel: u32, node: u32) -> usize {
        usize::from(self.channels[channel as usize].nodes[0] != node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_when_their_last_byte_does() {
        let mut traffic = Traffic::new(2);
        let (channel, new) = traffic.add(0, 1);
        assert!(new && traffic.add(1, 0) == (channel, false));
        assert_eq!(traffic.bind(channel, 0, 0), 0);
        assert_eq!(traffic.send(channel, 0, 10, 7, 100), Some((0, 10)));
        assert_eq!(traffic.send(channel, 0, 5, 8, 101), Some((0, 15)));
        // The other side does not know its slot yet.
        assert_eq!(traffic.send(channel, 1, 3, 9, 102), None);
        assert_eq!(traffic.bind(channel, 1, 4), 3);
        let mut arrivals = Vec::new();
        traffic.deliver(1, 4, 9, &mut arrivals);
        assert!(arrivals.is_empty());
        traffic.deliver(1, 4, 15, &mut arrivals);
        let tags: Vec<_> = arrivals.iter().map(|a| (a.from, a.tag, a.sent)).collect();
        assert_eq!(tags, [(0, 7, 100), (0, 8, 101)]);
        assert_eq!((traffic.under_way(), traffic.totals()), (1, (18, 15)));
    }

    #[test]
    #[should_panic(expected = "16 bytes arrived")]
    fn a_byte_too_many_is_found() {
        let mut traffic = Traffic::new(2);
        let (channel, _) = traffic.add(0, 1);
        traffic.bind(channel, 1, 0);
        traffic.send(channel, 0, 15, 0, 0);
        traffic.deliver(1, 0, 16, &mut Vec::new());
    }
}
