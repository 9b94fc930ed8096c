//! Arbitrary sequences of calls of two programs over a wire that loses and duplicates frames as the
//! fuzzer decides. The rig of the protocol's own tests asserts that every byte arrives once, in
//! order and within the receive room.
#![no_main]

#[path = "../../../esp-proto/tests/common/mod.rs"]
mod common;

use common::{App, MAC_B, Node, Pair, Wire};
use esp_fuzz::Choices;
use esp_proto::{Buffers, ConnId, ConnOptions, Duration, EndpointConfig, Instant, ResetReason};
use libfuzzer_sys::fuzz_target;

/// Performs one call of the program on one of its connections.
fn operate(node: &mut Node, now: Instant, choices: &mut Choices<'_>) {
    let open: Vec<ConnId> = node
        .apps
        .iter()
        .filter(|(_, app)| app.closed.is_none())
        .map(|(id, _)| *id)
        .collect();
    let Some(conn) = open
        .get(usize::from(choices.byte()) % open.len().max(1))
        .copied()
    else {
        return;
    };
    let Some(app) = node.apps.get_mut(&conn) else {
        return;
    };
    match choices.byte() % 8 {
        0..=2 if !app.finishing => node.write(now, conn, u64::from(choices.word()) + 1),
        3 => {
            app.finishing = true;
            node.ep.shutdown(now, conn);
        }
        4 => node.ep.abort(now, conn, ResetReason::Aborted),
        5 => node.consume = !node.consume,
        6 => node.ep.handle_timeout(now),
        _ => {
            app.consumed = app.received;
            let total = app.received;
            node.ep.consumed(now, conn, total);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let mtu = 100 + choices.below(9000);
    let config = EndpointConfig {
        peer_timeout: Duration::from_secs(2),
        ..EndpointConfig::default()
    };
    let mut pair = Pair::with(mtu, config);
    pair.keep_log = false;
    pair.listen(1000, 3);
    pair.listen(1001, 2);
    // The fate of the next frames, repeated.
    let fate: Vec<u8> = choices.bytes(16).to_vec();
    let mut next = fate.into_iter().cycle();
    pair.filter = Box::new(move |_| match next.next().unwrap_or(0) {
        0..=40 => Wire::Drop,
        41..=60 => Wire::Twice,
        _ => Wire::Pass,
    });
    for _ in 0..60 {
        if choices.is_empty() {
            break;
        }
        if choices.byte() % 4 == 0 {
            let options = ConnOptions {
                buffers: Buffers {
                    rx: 64 + u32::from(choices.word()),
                    tx: choices.word().into(),
                },
                key: Vec::new(),
            };
            let room = options.buffers.rx;
            let ports = (
                5000 + u16::from(choices.byte() % 4),
                1000 + u16::from(choices.byte() % 3),
            );
            if let Ok(id) = pair
                .a
                .ep
                .connect(pair.now, ports.0, MAC_B.into(), ports.1, options)
            {
                pair.a.apps.insert(
                    id,
                    App {
                        room,
                        ..App::default()
                    },
                );
            }
        }
        operate(&mut pair.a, pair.now, &mut choices);
        operate(&mut pair.b, pair.now, &mut choices);
        pair.run(Duration::from_micros(choices.below(5000).into()));
    }
    // The programs end and the wire is repaired: no connection may be left.
    pair.filter = Box::new(|_| Wire::Pass);
    pair.a.ep.shutdown_all(pair.now);
    pair.b.ep.shutdown_all(pair.now);
    pair.run(Duration::from_secs(1));
    assert_eq!(
        pair.a.ep.connections().count() + pair.b.ep.connections().count(),
        0,
        "nothing is left"
    );
});
