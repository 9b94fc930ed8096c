//! The bare loop over UDP.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rawloop::{Wait, udp};

#[test]
fn a_server_outlives_peers_that_do_not_wait_for_the_answer() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = UdpSocket::bind(any).unwrap().local_addr().unwrap();
    for wait in [Wait::Block, Wait::Poll] {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving = scope.spawn(|| udp::serve(server, wait, &stop));
            // It is ready once it has answered.
            let first = UdpSocket::bind(any).unwrap();
            first
                .set_read_timeout(Some(Duration::from_millis(10)))
                .unwrap();
            let answered = (0..1000).any(|_| {
                first.send_to(&[0; 9], server).unwrap();
                first.recv(&mut [0; 64]).is_ok()
            });
            assert!(answered);
            for _ in 0..200 {
                // A ping. Its answer finds no socket: the kernel reports a closed port.
                let peer = UdpSocket::bind(any).unwrap();
                peer.send_to(&[0; 9], server).unwrap();
            }
            let times = udp::ping_pong(any, server, wait, 64, (100, 1));
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap().unwrap();
            assert_eq!(times.unwrap().len(), 100);
        });
    }
}
