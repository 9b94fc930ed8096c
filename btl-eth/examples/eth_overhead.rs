//! Cost of the transport compared with plain streams, and of idle peers, as ratios of alternating
//! rounds.
//!
//! ```text
//! esplab up --name two --nodes 2
//! cargo run --release -p btl-eth --example eth_overhead -- SOCKET_OF_NODE_0 SOCKET_OF_NODE_1
//! ```
//!
//! Both ends are threads of this process that yield while they wait.

use std::io;
use std::io::IoSlice;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, Rank, SendError, Tx};
use btl_eth::{EthBtl, EthConfig};
use esp_client::{Client, EspAddr, EspListener, EspStream};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Round trips of one round. Many short rounds, so that some are not disturbed by other processes.
const TRIPS: u32 = 40;
/// Messages of one round of the bandwidth test.
const MESSAGES: usize = 40;
/// Length of each in bytes.
const LONG: usize = 64 << 10;
const ROUNDS: usize = 400;
/// Number of idle peers.
const SILENT: u32 = 63;

/// Counts received bytes.
#[derive(Default)]
struct Count {
    messages: usize,
    bytes: usize,
    failed: Option<(Rank, PeerError)>,
}

impl Events for Count {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.messages += 1;
        self.bytes += header.len() + body.len();
        // A copy, as the reader of the plain stream makes one.
        std::hint::black_box(body.to_vec());
    }

    fn completed(&mut self, _: &mut dyn Tx, _: u64, _: Result<(), PeerError>) {}

    fn failed(&mut self, _: &mut dyn Tx, peer: Rank, error: PeerError) {
        self.failed = Some((peer, error));
    }
}

/// One end of a transport.
struct Ours {
    btl: EthBtl,
    count: Count,
    peer: Rank,
}

impl Ours {
    fn step(&mut self) -> Outcome<()> {
        if self.btl.progress(&mut self.count) == 0 {
            std::thread::yield_now();
        }
        match self.count.failed.take() {
            Some((peer, error)) => Err(format!("rank {peer}: {error}").into()),
            None => Ok(()),
        }
    }

    fn send(&mut self, body: &[u8]) -> Outcome<()> {
        loop {
            match self.btl.send(self.peer, &[], &[IoSlice::new(body)]) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.step()?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Operations of both kinds of ends.
trait End {
    fn send(&mut self, body: &[u8]) -> Outcome<()>;
    /// Waits for a number of bytes.
    fn receive(&mut self, bytes: usize) -> Outcome<()>;
}

impl End for Ours {
    fn send(&mut self, body: &[u8]) -> Outcome<()> {
        Ours::send(self, body)
    }

    fn receive(&mut self, bytes: usize) -> Outcome<()> {
        while self.count.bytes < bytes {
            self.step()?;
        }
        self.count.bytes -= bytes;
        Ok(())
    }
}

struct Plain {
    stream: EspStream,
    buffer: Vec<u8>,
}

impl End for Plain {
    fn send(&mut self, mut body: &[u8]) -> Outcome<()> {
        while !body.is_empty() {
            match self.stream.try_write(body) {
                Ok(n) => body = &body[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut bytes: usize) -> Outcome<()> {
        while bytes > 0 {
            let most = bytes.min(self.buffer.len());
            match self.stream.try_read(&mut self.buffer[..most]) {
                Ok(0) => return Err("the end".into()),
                Ok(n) => bytes -= n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Runs both ends. Returns the time of the first.
fn both<E: End + Send>(
    ends: &mut (E, E),
    first: impl Fn(&mut E) -> Outcome<()> + Sync,
    second: impl Fn(&mut E) -> Outcome<()> + Sync,
) -> Outcome<Duration> {
    let start = Barrier::new(2);
    let (left, right) = (&mut ends.0, &mut ends.1);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            start.wait();
            second(right)
        });
        start.wait();
        let begin = Instant::now();
        first(left)?;
        let time = begin.elapsed();
        other.join().map_err(|_| "the other end panicked")??;
        Ok(time)
    })
}

fn ping_pong<E: End + Send>(ends: &mut (E, E)) -> Outcome<f64> {
    let time = both(
        ends,
        |end| {
            for _ in 0..TRIPS {
                end.send(&[1; 8])?;
                end.receive(8)?;
            }
            Ok(())
        },
        |end| {
            for _ in 0..TRIPS {
                end.receive(8)?;
                end.send(&[1; 8])?;
            }
            Ok(())
        },
    )?;
    Ok(time.as_secs_f64() * 1e6 / f64::from(TRIPS) / 2.0)
}

fn flow<E: End + Send>(ends: &mut (E, E)) -> Outcome<f64> {
    let body = vec![7; LONG - 64];
    let time = both(
        ends,
        |end| {
            for _ in 0..MESSAGES {
                end.send(&body)?;
            }
            end.receive(1)
        },
        |end| {
            end.receive(MESSAGES * body.len())?;
            end.send(&[1])
        },
    )?;
    Ok((MESSAGES * body.len()) as f64 / time.as_secs_f64() / 1e6)
}

fn make(socket: &str, rank: Rank, size: u32) -> Outcome<EthBtl> {
    let mut config = EthConfig::new(rank, size, "eth_overhead");
    config.socket = socket.into();
    // 64 peers in one process on a small machine.
    config.rings = 256 << 10;
    config.max_send = 64 << 10;
    Ok(EthBtl::new(config)?)
}

/// Returns two connected ranks.
fn pair(sockets: &[String; 2], size: u32) -> Outcome<(Ours, Ours)> {
    let (mut left, mut right) = (make(&sockets[0], 0, size)?, make(&sockets[1], 1, size)?);
    let reason = left.add_peer(1, &right.address())?.reason;
    right.add_peer(0, &left.address())?;
    println!("path: {reason}");
    let ours = |btl, peer| Ours {
        btl,
        count: Count::default(),
        peer,
    };
    let mut ends = (ours(left, 1), ours(right, 0));
    both(
        &mut ends,
        |end| {
            End::send(end, b"x")?;
            end.receive(1)
        },
        |end| {
            end.receive(1)?;
            End::send(end, b"x")
        },
    )?;
    Ok(ends)
}

fn plain(sockets: &[String; 2]) -> Outcome<(Plain, Plain)> {
    let (near, far) = (Client::connect(&sockets[0])?, Client::connect(&sockets[1])?);
    let listener = EspListener::builder()
        .rings(256 << 10, 256 << 10)
        .bind_at(&far, 0)?;
    let mac = far.interface(None).ok_or("no interface")?.addr;
    let to = EspAddr::new(mac, listener.port());
    let left = EspStream::builder()
        .rings(256 << 10, 256 << 10)
        .connect_at(&near, to)?;
    let (right, _) = listener.accept()?;
    let end = |stream| Plain {
        stream,
        buffer: vec![0; LONG],
    };
    Ok((end(left), end(right)))
}

/// Connects `SILENT` more ranks of node 1 to the first end.
fn crowd(sockets: &[String; 2], left: &mut Ours) -> Outcome<Vec<Ours>> {
    let mut all = Vec::new();
    for rank in 2..2 + SILENT {
        let mut btl = make(&sockets[1], rank, 2 + SILENT)?;
        btl.add_peer(0, &left.btl.address())?;
        left.btl.add_peer(rank, &btl.address())?;
        let mut end = Ours {
            btl,
            count: Count::default(),
            peer: 0,
        };
        while end.btl.send(0, &[], &[IoSlice::new(b"x")]) == Err(SendError::Busy) {
            left.step()?;
            end.step()?;
        }
        left.receive(1)?;
        all.push(end);
    }
    Ok(all)
}

/// Returns the time of an empty `progress` in nanoseconds.
fn empty(end: &mut Ours) -> f64 {
    const CALLS: u32 = 20_000;
    let begin = Instant::now();
    for _ in 0..CALLS {
        end.btl.progress(&mut end.count);
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

/// Returns the 5th percentile and the median.
fn best_and_median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 20], values[values.len() / 2])
}

/// Prints how two alternating series compare. `inverse`: more is better.
fn compare(what: &str, unit: &str, ours: &[f64], theirs: &[f64], inverse: bool) {
    let times = |values: &[f64]| {
        values
            .iter()
            .map(|value| if inverse { 1.0 / value } else { *value })
            .collect()
    };
    let ((best, median), (their_best, their_median)) =
        (best_and_median(times(ours)), best_and_median(times(theirs)));
    let show = |value: f64| if inverse { 1.0 / value } else { value };
    println!(
        "{what}: {:.1} / {:.1} {unit}; time as a ratio {:.3} in the best twentieth, {:.3} in the median",
        show(best),
        show(their_best),
        best / their_best,
        median / their_median
    );
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("eth_overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let sockets: [String; 2] = args
        .try_into()
        .map_err(|_| "usage: eth_overhead SOCKET_0 SOCKET_1")?;
    let mut bare = plain(&sockets)?;
    let mut ours = pair(&sockets, 2 + SILENT)?;
    let mut alone = pair(&sockets, 2)?;
    let crowd = crowd(&sockets, &mut ours.0)?;
    let (mut pings, mut flows, mut idle) =
        ([vec![], vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    for _ in 0..ROUNDS {
        pings[0].push(ping_pong(&mut bare)?);
        pings[1].push(ping_pong(&mut alone)?);
        pings[2].push(ping_pong(&mut ours)?);
        flows[0].push(flow(&mut bare)?);
        flows[1].push(flow(&mut alone)?);
    }
    for _ in 0..9 {
        idle[0].push(empty(&mut alone.0));
        idle[1].push(empty(&mut ours.0));
    }
    let peers = crowd.len() + 1;
    println!("{ROUNDS} alternating rounds; the machine may have been busy, so compare the ratios:");
    compare(
        "8 B one way, transport / plain stream",
        "µs",
        &pings[1],
        &pings[0],
        false,
    );
    compare(
        &format!("8 B one way, {peers} peers / 1 peer"),
        "µs",
        &pings[2],
        &pings[1],
        false,
    );
    compare(
        "64 KiB messages, transport / plain stream",
        "MB/s",
        &flows[1],
        &flows[0],
        true,
    );
    compare(
        &format!("empty progress, {peers} peers / 1 peer"),
        "ns",
        &idle[1],
        &idle[0],
        false,
    );
    Ok(())
}
