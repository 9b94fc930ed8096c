//! Measures the bare AF_PACKET loop between two network namespaces of this machine, receiving with
//! `recvmmsg` and with a ring, in short alternating rounds. Prints the best and the median of the
//! rounds: on a busy machine, the best is closest to its capability. Needs root and `ip`.
//!
//! ```text
//! cargo run --release -p rawloop --example rawloop -- [rounds] [MiB for each stream]
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netns::TwoNodes;
use rawloop::{Options, Receive, Wait, payload_len, ping_pong, serve, stream};
use rustix::thread::{CpuSet, sched_setaffinity};

const WAYS: [(Wait, Receive); 6] = [
    (Wait::Block, Receive::Scatter),
    (Wait::Block, Receive::Copy),
    (Wait::Block, Receive::Ring),
    (Wait::Poll, Receive::Scatter),
    (Wait::Poll, Receive::Copy),
    (Wait::Poll, Receive::Ring),
];
const MTUS: [u32; 3] = [1500, 9000, 65535];

type Anything<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Pins the calling thread to a core, if that core exists.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core % std::thread::available_parallelism().map_or(1, usize::from));
    let _ = sched_setaffinity(None, &set);
}

/// Runs `client` against a server, each on its own core.
fn run<T: Send>(
    nodes: &TwoNodes,
    options: Options,
    client: impl FnOnce() -> Anything<T> + Send,
) -> Anything<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let (interface, stop_signal) = (nodes.b.interface(), stop.clone());
    let server = nodes.b.namespace().spawn(move || {
        pin(1);
        let mut buffer = vec![0; buffer_len(payload_len(&interface))];
        serve(&interface, &options, &mut buffer, &stop_signal)
    });
    let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
    let result = nodes.a.run(|| {
        pin(0);
        // Wait until the server has its socket.
        while ping_pong(&interface, peer, &options, 0, 1, 0)?.lost > 0 {}
        client()
    });
    stop.store(true, Ordering::Relaxed);
    server.join().map_err(|_| "the server panicked")??;
    result
}

/// Returns the size of the smallest sufficient buffer, at least 1 MiB.
fn buffer_len(payload: usize) -> usize {
    (64 * payload).max(1 << 20)
}

/// Returns the throughput of one stream in Gbit/s.
fn one_stream(nodes: &TwoNodes, options: Options, bytes: u64) -> Anything<f64> {
    let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
    let from = vec![0x5a; buffer_len(payload_len(&interface))];
    run(nodes, options, || {
        Ok(stream(&interface, peer, &options, &from, bytes)?.gbit_per_s())
    })
}

/// Returns the median half round trip of 1 byte in µs.
fn one_ping_pong(nodes: &TwoNodes, options: Options) -> Anything<f64> {
    let (interface, peer) = (nodes.a.interface(), nodes.b.interface().mac);
    run(nodes, options, || {
        let mut result = ping_pong(&interface, peer, &options, 1, 10_000, 500)?;
        result.samples_ns.sort_unstable();
        Ok(result
            .samples_ns
            .get(5_000)
            .map_or(f64::NAN, |&ns| ns as f64 / 2e3))
    })
}

fn report(what: &str, unit: &str, results: &mut [Vec<f64>], best: impl Fn(&[f64]) -> f64) {
    for ((wait, receive), values) in WAYS.iter().zip(results) {
        values.sort_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
        println!(
            "{what}\t{wait:?}\t{receive:?}\tbest {:.2} median {median:.2} {unit}",
            best(values)
        );
    }
}

fn main() -> ExitCode {
    match try_main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rawloop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_main() -> Anything<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let rounds = arguments.next().transpose()?.unwrap_or(10);
    let bytes = arguments.next().transpose()?.unwrap_or(128) << 20;
    let nodes = TwoNodes::new()?;
    for mtu in MTUS {
        nodes.set_mtu(mtu);
        let mut results = vec![Vec::new(); WAYS.len()];
        for _ in 0..rounds {
            for ((wait, receive), values) in WAYS.into_iter().zip(&mut results) {
                values.push(one_stream(
                    &nodes,
                    Options {
                        wait,
                        receive,
                        ..Options::default()
                    },
                    bytes,
                )?);
            }
        }
        let most = |values: &[f64]| values.iter().copied().fold(f64::NAN, f64::max);
        report(&format!("stream, MTU {mtu}"), "Gbit/s", &mut results, most);
    }
    nodes.set_mtu(1500);
    let mut results = vec![Vec::new(); WAYS.len()];
    for _ in 0..rounds {
        for ((wait, receive), values) in WAYS.into_iter().zip(&mut results) {
            values.push(one_ping_pong(
                &nodes,
                Options {
                    wait,
                    receive,
                    ..Options::default()
                },
            )?);
        }
    }
    let least = |values: &[f64]| values.iter().copied().fold(f64::NAN, f64::min);
    report("half round trip, 1 B", "µs", &mut results, least);
    Ok(())
}
