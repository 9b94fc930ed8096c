//! A UDP link of an embedded engine without connections: it is polled rarely, but a program's
//! datagrams are sent at once.

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{EMBEDDED, embedded, namespace_or_skip};
use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{Doorbell, EngineView, Region, RingSizes, TxProducer};
use esp_engine::{Command, LinkId};
use esp_proto::NodeAddr;

const SLOT: u16 = 0;

/// The program rings and the engine serves the doorbell. The datagram arrives without a further
/// poll.
#[test]
fn datagrams_leave_at_once() -> Result<(), Box<dyn std::error::Error>> {
    let Some(namespace) = namespace_or_skip("datagrams_leave_at_once")? else {
        return Ok(());
    };
    let peer = namespace.run(|| UdpSocket::bind("127.0.0.1:0"))?;
    peer.set_read_timeout(Some(Duration::from_secs(5)))?;

    let (mut engine, handle, link, page) = embedded(&namespace)?;
    assert_eq!(link, LinkId(0));
    let (region, _fd) = Region::create(RingSizes {
        tx: 1 << 16,
        rx: 1 << 16,
    })?;
    let (reply, bound) = channel();
    handle.send(Command::BindEdp {
        client: EMBEDDED,
        slot: SLOT,
        link,
        port: 40_000,
        region: Arc::clone(&region),
        resume: false,
        reply: Box::new(move |value| {
            let _ = reply.send(value);
        }),
    })?;
    engine.poll();
    assert_eq!(bound.try_recv()?, Ok(()));

    let header = DgramHeader {
        kind: EdpKind::Data,
        addr: NodeAddr::Udp(peer.local_addr()?),
        port: 40_001,
        sequence: 0,
        timestamp_ns: 0,
    };
    assert!(TxProducer::new(region).put_record(&header, b"at once"));
    let doorbell = Doorbell::new(page, EngineView::open(handle.page_fd())?);
    assert!(!doorbell.ring(SLOT), "the engine is awake");
    engine.poll_doorbells();
    let mut packet = [0; 100];
    let length = peer.recv(&mut packet)?;
    assert!(packet[..length].windows(7).any(|bytes| bytes == b"at once"));
    Ok(())
}
