//! Random sequences of operations over a random wire: the rig's invariants hold, nothing panics,
//! and no connection is left at the end.

use crate::common::*;
use esp_proto::*;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Performs one random call of a program on one of its node's connections.
fn operate(node: &mut Node, now: Instant, rng: &mut Rng) {
    let open: Vec<ConnId> = node
        .apps
        .iter()
        .filter(|(_, app)| app.closed.is_none())
        .map(|(id, _)| *id)
        .collect();
    if open.is_empty() {
        return;
    }
    let conn = open[rng.below(open.len() as u64) as usize];
    match rng.below(20) {
        0..=9 => {
            let finished = node.apps[&conn].finishing;
            if !finished {
                node.write(now, conn, rng.below(20_000) + 1);
            }
        }
        10..=12 => {
            node.apps.get_mut(&conn).unwrap().finishing = true;
            node.ep.shutdown(now, conn);
        }
        13 => node.ep.abort(now, conn, ResetReason::Aborted),
        14 => node.consume = !node.consume,
        _ => {
            let app = node.apps.get_mut(&conn).unwrap();
            app.consumed = app.received;
            node.ep.consumed(now, conn, app.received);
        }
    }
}

fn session(seed: u64, mtu: u32) {
    let mut rng = Rng(seed);
    let mut pair = Pair::with(
        mtu,
        EndpointConfig {
            peer_timeout: Duration::from_secs(2),
            ..EndpointConfig::default()
        },
    );
    pair.keep_log = false;
    pair.listen(1000, 3);
    pair.listen(1001, 3);
    let (drop, twice) = (rng.below(20), rng.below(5));
    let mut dice = Rng(seed ^ 0xdead_beef);
    pair.filter = Box::new(move |_| match dice.below(100) {
        n if n < drop => Wire::Drop,
        n if n < drop + twice => Wire::Twice,
        _ => Wire::Pass,
    });
    for _ in 0..120 {
        if rng.below(4) == 0 {
            let options = ConnOptions {
                buffers: Buffers {
                    rx: 64 + rng.below(100_000) as u32,
                    tx: rng.below(100_000) as u32,
                },
                key: vec![],
            };
            let room = options.buffers.rx;
            let ports = (5000 + rng.below(4) as u16, 1000 + rng.below(3) as u16);
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
        operate(&mut pair.a, pair.now, &mut rng);
        operate(&mut pair.b, pair.now, &mut rng);
        pair.run(Duration::from_micros(rng.below(3000)));
    }
    // The programs read everything, finish, and the wire is repaired.
    pair.filter = Box::new(|_| Wire::Pass);
    for _ in 0..20 {
        for node in [&mut pair.a, &mut pair.b] {
            node.consume = true;
            for (conn, app) in &mut node.apps {
                if app.closed.is_none() {
                    app.consumed = app.received;
                    node.ep.consumed(pair.now, *conn, app.received);
                    node.ep.shutdown(pair.now, *conn);
                }
            }
        }
        pair.run(Duration::from_secs(1));
    }
    for node in [&pair.a, &pair.b] {
        let left: Vec<_> = node.ep.connections().collect();
        assert_eq!(left, [], "seed {seed}");
        assert!(
            node.apps.values().all(|app| app.closed.is_some()),
            "seed {seed}"
        );
    }
    for (id, app) in &pair.a.apps {
        if app.closed == Some(CloseReason::Finished) {
            assert_eq!(
                app.acked, app.written,
                "seed {seed} {id:?}: all written bytes are acknowledged"
            );
        }
    }
    assert_eq!(
        pair.b
            .ep
            .listeners()
            .map(|l| l.1.half_open + l.1.waiting)
            .sum::<u32>(),
        0,
        "seed {seed}"
    );
}

#[test]
fn any_order_of_calls_on_any_wire_ends_clean() {
    for seed in 0..150 {
        session(seed, if seed % 3 == 0 { 9000 } else { 1500 });
    }
}
