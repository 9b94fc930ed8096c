//! Stream and ping-pong through two engines over a veth pair, without daemon and client library, to
//! profile the loop: `cargo run --release -p esp-engine --example wirebench -- [MTU] [SECONDS]
//! [CORES]`. CORES are those of the sender's engine, the receiver's engine, the writer and the
//! reader, such as `0,1,1,1`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::Host;
use esp_engine::shm::{Spin, Wake};
use netns::TwoNodes;

fn main() {
    let mut args = std::env::args().skip(1);
    let mtu: u32 = args.next().map_or(1500, |a| a.parse().expect("MTU"));
    let seconds: u64 = args.next().map_or(3, |a| a.parse().expect("seconds"));
    let cores: Vec<usize> = args.next().map_or(Vec::new(), |a| {
        a.split(',').map(|c| c.parse().expect("core")).collect()
    });
    let core = |i: usize| cores.get(i).copied();
    let nodes = TwoNodes::new().expect("namespaces");
    nodes.set_mtu(mtu);
    let mut a = Host::start(&nodes.a, |config| config.idle.core = core(0));
    let mut b = Host::start(&nodes.b, |config| config.idle.core = core(1));
    b.listen(7000);
    pin(core(2));
    stream(&mut a, &mut b, mtu, seconds, core(3));
    ping_pong(&mut a, &mut b);
    a.stop();
    b.stop();
}

fn pin(core: Option<usize>) {
    let Some(core) = core else { return };
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(core);
    rustix::thread::sched_setaffinity(None, &cpus).expect("that core");
}

fn stream(a: &mut Host, b: &mut Host, mtu: u32, seconds: u64, reader_core: Option<usize>) {
    let mut left = a.connect(b.mac, 7000);
    let mut right = b.accept();
    left.wait_open();
    let reader = std::thread::spawn(move || {
        pin(reader_core);
        let mut buffer = vec![0; 1 << 16];
        let mut total = 0u64;
        loop {
            let n = right.rx.read(&mut buffer);
            total += n as u64;
            if n > 0 {
                if right.rx.consumed_notice_due() {
                    right.ring();
                }
            } else if right.rx.at_end() {
                return (total, right);
            } else {
                let rx = &right.rx;
                right.status.wait(
                    Wake::Readable,
                    SPIN,
                    || rx.available() > 0 || rx.at_end(),
                    None,
                );
            }
        }
    });
    let block = vec![7; 1 << 16];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        left.send_all(&block);
    }
    left.finish();
    let (total, _right) = reader.join().expect("reader");
    let gbit = total as f64 * 8.0 / start.elapsed().as_nanos() as f64;
    println!("stream mtu {mtu}: {gbit:.2} Gbit/s");
    for host in [&*a, &*b] {
        let snapshot = host.snapshot();
        let all = snapshot.links[0].counters.iter().chain(&snapshot.engine);
        let text: Vec<_> = all
            .filter(|(_, _, v)| *v > 0)
            .map(|(n, _, v)| format!("{n}={v}"))
            .collect();
        println!("  {}", text.join(" "));
    }
}

fn ping_pong(a: &mut Host, b: &mut Host) {
    let mut left = a.connect(b.mac, 7000);
    let mut right = b.accept();
    left.wait_open();
    let echo = std::thread::spawn(move || {
        let mut byte = [0; 1];
        loop {
            let rx = &right.rx;
            right.status.wait(
                Wake::Readable,
                SPIN,
                || rx.available() > 0 || rx.at_end(),
                None,
            );
            if right.rx.read(&mut byte) == 0 {
                return;
            }
            right.send_all(&byte);
        }
    });
    let mut samples = Vec::new();
    for _ in 0..20_000 {
        let start = Instant::now();
        left.send_all(&[1]);
        let rx = &left.rx;
        left.status
            .wait(Wake::Readable, SPIN, || rx.available() > 0, None);
        left.rx.read(&mut [0; 1]);
        samples.push(start.elapsed().as_nanos() as u64 / 2);
    }
    left.finish();
    echo.join().expect("echo");
    samples.sort_unstable();
    println!(
        "half round trip 1 B, blocking: p50 {} ns, p99 {} ns",
        samples[10_000], samples[19_800]
    );
}

const SPIN: Spin = Spin {
    spins: 0,
    yields: 0,
};
