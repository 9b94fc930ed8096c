//! Measures the cost of a frame on its sender's core when the receiving interface has many sockets,
//! each with a port filter: separately, and in a fan-out group. Two namespaces, joined by veth; the
//! receiving side runs on the sending core.
//!
//! `cargo run -p rawloop --example fanout`

use std::time::Instant;

use netif::{FanoutGroup, Filter, PacketSocket, Routes, SendBatch, SocketOptions};
use netns::TwoNodes;
use rustix::thread::{CpuSet, sched_setaffinity};

const TYPE: u16 = 0x88b5;
const FIRST_PORT: u16 = 40_000;
const BATCH: usize = 32;
const ROUNDS: usize = 400;
const REPEATS: usize = 3;

/// Sockets of an interface: the node's own, and one for each leased port, separately or in a group.
struct Sockets {
    node: PacketSocket,
    leased: Vec<PacketSocket>,
    _group: Option<FanoutGroup>,
}

fn open(nodes: &TwoNodes, count: u16, grouped: bool) -> Sockets {
    let ports = FIRST_PORT..=FIRST_PORT + count - 1;
    let with = |filter| SocketOptions {
        filter: Some(filter),
        ..SocketOptions::default()
    };
    let except = Filter::except_ports(TYPE, [ports.clone()]).expect("a filter");
    let node = nodes.b.socket(TYPE, &with(except));
    let group = grouped.then(|| {
        nodes
            .b
            .run(|| FanoutGroup::open(&nodes.b.interface(), TYPE))
            .expect("a fan-out group")
    });
    let one = |port| {
        nodes.b.socket(
            TYPE,
            &with(Filter::for_ports(TYPE, [port..=port]).expect("a filter")),
        )
    };
    let leased: Vec<_> = ports.clone().map(one).collect();
    if let Some(group) = &group {
        group
            .route(&Routes::new(ports.map(|port| port..=port).zip(1..)).expect("routes"))
            .expect("routes");
        leased
            .iter()
            .for_each(|socket| group.join(socket).expect("a member"));
    }
    Sockets {
        node,
        leased,
        _group: group,
    }
}

/// Returns the median time of a frame in nanoseconds.
fn measure(nodes: &TwoNodes, from: &PacketSocket, to: &PacketSocket, port: u16) -> u64 {
    let (a, b) = (
        nodes.a.interface().mac.octets(),
        nodes.b.interface().mac.octets(),
    );
    let mut batch = SendBatch::new(BATCH);
    let mut times: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            for _ in 0..BATCH {
                let head = batch.head().expect("room");
                head.fill(0);
                head[..6].copy_from_slice(&b);
                head[6..12].copy_from_slice(&a);
                head[12..14].copy_from_slice(&TYPE.to_be_bytes());
                head[14..16].copy_from_slice(&port.to_be_bytes());
                batch.push_inline(60);
            }
            let start = Instant::now();
            while !batch.is_empty() {
                from.send_batch(&mut batch).expect("send");
            }
            let time = start.elapsed().as_nanos() / BATCH as u128;
            to.discard(2 * BATCH);
            u64::try_from(time).unwrap_or(u64::MAX)
        })
        .collect();
    times.sort_unstable();
    let received = to.statistics().expect("statistics").received;
    assert_eq!(received, (ROUNDS * BATCH) as u64, "frames went astray");
    times[ROUNDS / 2]
}

fn main() {
    // On veth the receiving side runs on the sending core, so one core does all the work.
    let mut core = CpuSet::new();
    core.set(0);
    let _ = sched_setaffinity(None, &core);
    let nodes = TwoNodes::new().expect("two namespaces (needs root)");
    let from = nodes.a.socket(TYPE, &SocketOptions::default());
    println!(
        "{:>8}  {:<8}  {:>16}  {:>16}",
        "sockets", "", "to the node, ns", "to a lease, ns"
    );
    for _ in 0..REPEATS {
        for grouped in [false, true] {
            for count in [1, 8, 64] {
                let sockets = open(&nodes, count, grouped);
                let node = measure(&nodes, &from, &sockets.node, 7);
                let last = usize::from(count) - 1;
                let lease = measure(&nodes, &from, &sockets.leased[last], FIRST_PORT + count - 1);
                let how = if grouped { "grouped" } else { "alone" };
                println!("{count:>8}  {how:<8}  {node:>16}  {lease:>16}");
            }
        }
    }
}
