//! The data of a node that a client returns after the next daemon has come.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use esp_client::control::codec::Decoder;
use esp_client::control::{InterfaceInfo, Reply, Request, Rings, VERSION};
use esp_client::{Client, EdpSocket, MacAddr, Path};
use esp_engine::shm::{Region, RingSizes, StreamState};

use crate::faults::{descriptors, read_requests, reply};
use crate::support::scripted;

/// Returns the welcome of the first, second, ... daemon: each has another address and MTU.
fn hello(number: u8) -> Reply {
    Reply::Hello {
        version: VERSION,
        daemon: "test".into(),
        client: 1,
        incarnation: number.into(),
        engine: 0,
        interfaces: vec![InterfaceInfo {
            name: "eth0".into(),
            addr: MacAddr([2, 0, 0, 0, 0, number]).into(),
            mtu: 1500 * u32::from(number),
            up: true,
        }],
        leases: number > 1,
    }
}

#[test]
fn the_next_daemon_says_what_the_node_is_now() {
    const RINGS: Rings = Rings {
        tx: 16384,
        rx: 16384,
    };
    let (end, is_ended) = std::sync::mpsc::channel::<()>();
    let number = Mutex::new(0);
    let path = scripted(move |socket| {
        let number = {
            let mut number = number.lock().unwrap();
            *number += 1;
            *number
        };
        let mut decoder = Decoder::new();
        while let Some((id, request)) = read_requests(&socket, &mut decoder) {
            match request {
                Request::Hello { .. } => reply(&socket, id, hello(number), &descriptors()),
                Request::BindEdp { .. } => {
                    let (tx, rx) = (RINGS.tx, RINGS.rx);
                    let (region, file) = Region::create(RingSizes { tx, rx }).unwrap();
                    region.set_state(StreamState::Open);
                    let edp = Reply::Edp {
                        slot: 0,
                        rings: RINGS,
                        interface: "eth0".into(),
                        port: 9000,
                    };
                    reply(&socket, id, edp, &[file]);
                    is_ended.recv().unwrap();
                    return;
                }
                _ => reply(&socket, id, Reply::Done, &[]),
            }
        }
    });
    let client = Client::connect(&path).unwrap();
    let socket = EdpSocket::builder().bind_at(&client, 9000).unwrap();
    assert_eq!((client.incarnation(), socket.max_payload()), (1, 1489));
    assert!(!client.may_lease(Path::Auto));
    let peer = MacAddr([2, 0, 0, 0, 0, 99]);
    socket.send_to(&[0; 2000], peer, 9).unwrap_err();
    end.send(()).unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    while client.incarnation() == 1 {
        assert!(Instant::now() < limit, "that of the first daemon");
        std::thread::sleep(Duration::from_millis(1));
    }
    let own = MacAddr([2, 0, 0, 0, 0, 2]).into();
    assert_eq!(client.interfaces()[0].addr, own);
    assert_eq!((socket.addr(), socket.max_payload()), (own, 2989));
    assert!(client.may_lease(Path::Auto));
    socket.send_to(&[0; 2000], peer, 9).unwrap();
}
