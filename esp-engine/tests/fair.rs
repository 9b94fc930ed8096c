//! Programs with many sockets, records or connections do not take whole turns of the engine.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;

use common::{EMBEDDED, Host, SPIN, embedded, namespace_or_skip};
use esp_engine::Command;
use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{MIN_RING, Region, RingSizes, Wake};
use esp_proto::NodeAddr;
use netns::TwoNodes;

/// Records that each of the sockets writes before it rings.
const RECORDS: u16 = 64;

/// Waits until a socket has received `count` datagrams.
fn receive(socket: &mut common::Program, count: usize) {
    let deadline = std::time::Instant::now() + common::PATIENCE;
    for received in 0..count {
        let rx = &socket.rx;
        let there = || rx.available() > 0;
        let ok = (socket.status).wait(Wake::Readable, SPIN, there, Some(deadline));
        assert!(ok, "{received} of {count} datagrams arrived");
        assert!(socket.rx.take_record(&mut [0; 8]).is_some());
    }
}

/// Datagrams to this node wait in their rings when there are many, instead of being dropped
/// together with those of others.
#[test]
fn a_flood_of_datagrams_to_this_node_drops_none() {
    let Some(nodes) = TwoNodes::new_or_skip("a_flood_of_datagrams_to_this_node_drops_none") else {
        return;
    };
    let mut flood = Host::start(&nodes.a, |_| {});
    let mut other = flood.other_user();
    let mut sink = flood.datagrams(5000);
    let mut sockets: Vec<_> = (1..=40).map(|n| flood.datagrams(5000 + n)).collect();
    let mut reader = other.datagrams(6000);
    let mut writer = other.datagrams(6001);
    let header = |port| DgramHeader {
        kind: EdpKind::Data,
        addr: flood.mac.into(),
        port,
        sequence: 0,
        timestamp_ns: 0,
    };
    for socket in &mut sockets {
        for _ in 0..RECORDS {
            assert!(socket.tx.put_record(&header(5000), b"flood"));
        }
    }
    assert!(writer.tx.put_record(&header(6000), b"one"));
    sockets.iter().for_each(common::Program::ring);
    writer.ring();
    receive(&mut reader, 1);
    receive(&mut sink, sockets.len() * usize::from(RECORDS));
}

/// All records that a program wrote before it closed its socket are sent, though closing takes
/// several turns, and the port is free afterwards.
#[test]
fn a_closed_socket_sends_its_records_first() {
    let Some(nodes) = TwoNodes::new_or_skip("a_closed_socket_sends_its_records_first") else {
        return;
    };
    let mut host = Host::start(&nodes.a, |_| {});
    let mut sink = host.datagrams(5000);
    let mut socket = host.datagrams(5001);
    let header = DgramHeader {
        kind: EdpKind::Data,
        addr: host.mac.into(),
        port: 5000,
        sequence: 0,
        timestamp_ns: 0,
    };
    for _ in 0..500 {
        assert!(socket.tx.put_record(&header, b"last"));
    }
    host.close(&socket);
    receive(&mut sink, 500);
    let closed = host.events.recv_timeout(common::PATIENCE);
    assert!(
        matches!(closed, Ok(esp_engine::EngineEvent::Closed { slot, .. }) if slot == socket.slot),
        "{closed:?}"
    );
    drop(socket);
    host.datagrams(5001);
}

#[test]
fn a_snapshot_of_many_connections_takes_several_turns() -> Result<(), Box<dyn std::error::Error>> {
    const CONNECTIONS: u16 = 300;
    let Some(namespace) = namespace_or_skip("a_snapshot_of_many_connections_takes_several_turns")?
    else {
        return Ok(());
    };
    let (mut engine, handle, link, _page) = embedded(&namespace)?;
    let peer = NodeAddr::Udp("127.0.0.9:9".parse()?);
    for slot in 0..CONNECTIONS {
        let (region, _fd) = Region::create(RingSizes {
            tx: MIN_RING,
            rx: MIN_RING,
        })?;
        let (reply, connected) = channel();
        handle.send(Command::Connect {
            client: EMBEDDED,
            slot,
            link,
            local_port: 40_000 + slot,
            peer,
            peer_port: 9,
            key: Vec::new(),
            region: Arc::clone(&region),
            reply: Box::new(move |value| {
                let _ = reply.send(value);
            }),
        })?;
        engine.poll();
        connected.try_recv()??;
    }
    let (reply, answered) = channel();
    handle.send(Command::Snapshot {
        reply: Box::new(move |value| drop(reply.send(value))),
    })?;
    let mut turns = 0;
    let snapshot = loop {
        engine.poll();
        turns += 1;
        if let Ok(snapshot) = answered.try_recv() {
            break snapshot;
        }
        assert!(turns < 100, "no snapshot");
    };
    assert!(turns >= 3, "all connections were copied in {turns} turns");
    let found = &snapshot.links[0].connections;
    assert_eq!(found.len(), usize::from(CONNECTIONS));
    for (index, (_, owner, info)) in found.iter().enumerate() {
        let slot = u16::try_from(index)?;
        assert_eq!(
            (*owner, info.local_port),
            (Some((EMBEDDED, slot)), 40_000 + slot)
        );
    }
    Ok(())
}
