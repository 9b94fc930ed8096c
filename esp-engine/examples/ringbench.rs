//! Measures the shared-memory operations in nanoseconds, and the memory of idle connections. Both
//! sides run on one thread, so the times exclude transfers of cache lines between cores.
//!
//! `cargo run --release -p esp-engine --example ringbench`

use std::hint::black_box;
use std::os::fd::AsFd;
use std::time::Instant;

use esp_engine::shm::record::{DgramHeader, EdpKind};
use esp_engine::shm::{
    ClientPage, Doorbell, EnginePage, EngineView, Region, RingSizes, RxConsumer, RxProducer,
    SlotSet, TxConsumer, TxProducer, Wake,
};

const ROUNDS: u32 = 2_000_000;

/// Prints the best of five runs, which is the least disturbed one.
fn time(what: &str, rounds: u32, mut op: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        for _ in 0..rounds {
            op();
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    println!("{best:9.1} ns  {what}");
}

fn main() {
    let sizes = RingSizes {
        tx: 1 << 18,
        rx: 1 << 18,
    };
    let (region, fd) = Region::create(sizes).expect("memory");
    let theirs = Region::open(fd.as_fd(), sizes).expect("own file");
    let mut tx = TxProducer::new(theirs.clone());
    let mut engine_tx = TxConsumer::new(region.clone());
    let mut rx = RxConsumer::new(theirs);
    let mut engine_rx = RxProducer::new(region.clone());
    let status = region;
    let (page, fd) = ClientPage::create().expect("memory");
    let program_page = ClientPage::open(fd.as_fd()).expect("own file");
    let (engine, fd) = EnginePage::create().expect("memory");
    let doorbell = Doorbell::new(
        program_page,
        EngineView::open(fd.as_fd()).expect("own file"),
    );
    let bank = page;

    println!("program's side");
    time(
        "write 1 byte, ring a doorbell that is set already",
        ROUNDS,
        || {
            if tx.write(black_box(b"x")) == 0 {
                engine_tx.poll_written().expect("honest");
                engine_tx.release(u64::MAX);
            }
            black_box(doorbell.ring(7));
        },
    );
    time(
        "write 1 byte, ring, engine drains the doorbell and takes the byte",
        ROUNDS,
        || {
            tx.write(black_box(b"x"));
            black_box(doorbell.ring(7));
            bank.drain_doorbell(&SlotSet::ALL, |_| {
                let total = engine_tx.poll_written().expect("honest").total;
                engine_tx.release(total);
            });
        },
    );
    time("write 1 byte, no doorbell", ROUNDS, || {
        if tx.write(black_box(b"x")) == 0 {
            engine_tx.poll_written().expect("honest");
            engine_tx.release(u64::MAX);
        }
    });
    let block = vec![7u8; 9000];
    time("write 9000 bytes, taken at once", ROUNDS / 10, || {
        tx.write(black_box(&block));
        engine_tx.poll_written().expect("honest");
        engine_tx.release(u64::MAX);
    });

    println!("engine's side");
    time("drain a doorbell that did not ring", ROUNDS, || {
        bank.drain_doorbell(&SlotSet::ALL, |slot| _ = black_box(slot));
    });
    time("poll_written without a change", ROUNDS, || {
        _ = black_box(engine_tx.poll_written());
    });
    time("poll_consumed without a change", ROUNDS, || {
        _ = black_box(engine_rx.poll_consumed());
    });
    time("wake without a waiter", ROUNDS, || {
        _ = black_box(status.wake(Wake::Readable));
    });
    time(
        "going to sleep and awake again, without the system call",
        ROUNDS,
        || {
            engine.going_to_sleep();
            black_box(bank.any_doorbell());
            engine.awake();
        },
    );
    let mut buffer = vec![0u8; 1500];
    time("put, publish, wake; read 1500 bytes", ROUNDS / 4, || {
        engine_rx
            .put(engine_rx.put_total(), black_box(&block[..1500]))
            .expect("room");
        engine_rx.publish();
        _ = status.wake(Wake::Readable);
        black_box(rx.read(&mut buffer));
        engine_rx.poll_consumed().expect("honest");
    });
    let header = DgramHeader {
        kind: EdpKind::Data,
        addr: esp_proto::MacAddr([2; 6]).into(),
        port: 9,
        sequence: 0,
        timestamp_ns: 0,
    };
    time("record of 64 bytes: put, publish, take", ROUNDS / 4, || {
        engine_rx
            .put_record(&header, black_box(&block[..64]))
            .expect("honest");
        engine_rx.publish();
        black_box(rx.take_record(&mut buffer));
    });
    idle_memory();
}

/// Returns the kilobytes of a field of /proc/self/status.
fn kilobytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field));
    line.and_then(|l| l.split_whitespace().nth(1))
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

fn idle_memory() {
    const COUNT: u64 = 1000;
    println!("memory of an idle connection (rings of 256 KiB, {COUNT} made)");
    let before = [
        kilobytes("RssShmem"),
        kilobytes("VmPTE"),
        kilobytes("RssAnon"),
    ];
    let sizes = RingSizes {
        tx: 1 << 18,
        rx: 1 << 18,
    };
    let regions: Vec<_> = (0..COUNT)
        .map(|_| Region::create(sizes).expect("memory").0)
        .collect();
    let names = [
        "shared memory",
        "page tables of this side",
        "private memory",
    ];
    for ((name, field), before) in names
        .iter()
        .zip(["RssShmem", "VmPTE", "RssAnon"])
        .zip(before)
    {
        println!(
            "{:9} B   {name}",
            kilobytes(field).saturating_sub(before) * 1024 / COUNT
        );
    }
    drop(regions);
}
