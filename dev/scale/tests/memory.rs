//! Memory of an idle peer in the protocol core, counted.

use scale::esp::{Config, Esp};
use scale::packet::Packet;
use scale::stack::Stack;

/// Connections of the measurement.
const PEERS: u32 = 500;
/// Bytes of an end of a connection with its share of all tables, the simulator's included.
const LIMIT: i64 = 1032;

/// Carries packets between all nodes for a second.
fn settle(now: &mut u64, nodes: &mut [Esp]) {
    let mut room = vec![0; 4096];
    let end = *now + 1_000_000_000;
    while *now < end {
        *now += 500_000;
        let mut packets: Vec<Packet<_>> = Vec::new();
        for esp in nodes.iter_mut() {
            if esp.next_timeout().is_some_and(|at| at <= *now) {
                esp.timeout(*now);
            }
            esp.settle(*now);
            while esp.notice().is_some() {}
            packets.extend(std::iter::from_fn(|| esp.transmit(*now)));
        }
        for packet in packets {
            nodes[packet.head.dst as usize].receive(*now, &packet, &mut room);
        }
    }
}

/// Returns the bytes that `act` leaves allocated.
fn allocated(act: impl FnOnce()) -> i64 {
    allocation_counter::measure(act).bytes_current
}

#[test]
fn an_idle_peer_takes_little_memory() {
    let config = Config::new(true, true, 1500);
    let mut now = 1_000_000;
    let mut nodes: Vec<_> = (0..PEERS + 2).map(|n| Esp::new(&config, n, 1)).collect();
    let mut connect_all = |to: u32| {
        for node in &mut nodes[2..] {
            node.connect(now, to);
        }
        settle(&mut now, &mut nodes);
    };
    // The first connection pays for tables that all share.
    connect_all(0);
    let both = allocated(|| connect_all(1));
    let each = both / i64::from(PEERS) / 2;
    println!("{each} bytes");
    assert!(each > 0 && each < LIMIT, "{each} bytes");
}
