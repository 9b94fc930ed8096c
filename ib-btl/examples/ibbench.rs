//! Latency, bandwidth, and figure 6 of "An MPICH2 Channel Device Implementation over VAPI": long messages without RDMA, with
//! RDMA, and with RDMA and the registration cache. Two transports on two threads, over the ports that the arguments name.
//!
//! ```sh
//! ibbench latency|bandwidth|figure6 [PORT [PORT]]
//! ESP_VM_PRE=wire ESP_VM_FILES=target/release/examples/ibbench tests/vm/run tests/vm/figures.sh
//! ```

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use btl::{Btl, Events, PeerError, Rank, SendError, Started, Tx};
use ib_btl::{IbBtl, IbConfig};

#[derive(Default)]
struct Inbox {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    completed: usize,
    failed: Option<PeerError>,
}

impl Events for Inbox {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.bytes += body.len();
        if !header.is_empty() {
            self.messages.push_back(body.to_vec());
        }
    }
    fn completed(&mut self, _: &mut dyn Tx, _: u64, result: Result<(), PeerError>) {
        self.completed += 1;
        self.failed = result.err().or(self.failed.take());
    }
    fn failed(&mut self, _: &mut dyn Tx, _: Rank, error: PeerError) {
        self.failed = Some(error);
    }
}

type Outcome<T> = Result<T, String>;

struct End {
    btl: IbBtl,
    peer: Rank,
    inbox: Inbox,
    most: usize,
}

impl End {
    fn new(
        rank: Rank,
        port: Option<String>,
        cache: bool,
        (tell, hear): &(Sender<Vec<u8>>, Receiver<Vec<u8>>),
    ) -> Outcome<End> {
        let key = format!("ibbench-{}", std::process::id());
        let mut config = IbConfig::new(rank, 2, key.as_bytes());
        config.device = port;
        if !cache {
            config.cache_bytes = 0;
        }
        let mut btl = IbBtl::new(config).map_err(|e| e.to_string())?;
        tell.send(btl.address()).map_err(|e| e.to_string())?;
        let card = hear.recv().map_err(|e| e.to_string())?;
        let path = btl.add_peer(1 - rank, &card).map_err(|e| e.to_string())?;
        Ok(End { btl, peer: 1 - rank, inbox: Inbox::default(), most: path.max_send })
    }

    fn progress(&mut self) -> Outcome<()> {
        self.btl.progress(&mut self.inbox);
        self.inbox.failed.as_ref().map_or(Ok(()), |error| Err(error.to_string()))
    }

    fn send(&mut self, header: &[u8], body: &[u8]) -> Outcome<()> {
        loop {
            match self.btl.send(self.peer, header, body) {
                Ok(()) => return Ok(()),
                Err(SendError::Busy) => self.progress()?,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn receive(&mut self) -> Outcome<Vec<u8>> {
        loop {
            if let Some(message) = self.inbox.messages.pop_front() {
                return Ok(message);
            }
            self.progress()?;
        }
    }

    /// The same, asleep meanwhile: leaves the processor to an emulated interface, as the passive end of perftest does.
    fn receive_asleep(&mut self) -> Outcome<Vec<u8>> {
        while self.inbox.messages.is_empty() {
            self.progress()?;
            if self.inbox.messages.is_empty() && self.btl.arm() {
                let Some(fd) = self.btl.wait_fd() else { return Err("no descriptor".into()) };
                let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&tick)).map_err(|e| e.to_string())?;
            }
        }
        self.receive()
    }

    /// Starts a write of the whole buffer; the last of it tells the peer, if there is a notice.
    fn put(&mut self, buffer: &[u8], key: &[u8], tells: bool) -> Outcome<()> {
        let (from, length) = (buffer.as_ptr(), buffer.len());
        loop {
            // SAFETY: every caller waits for the completion before it touches or drops the buffer.
            let result = unsafe {
                match tells {
                    true => self.btl.put_last(self.peer, from, length, key, 0, 0),
                    false => self.btl.put(self.peer, from, length, key, 0, 0),
                }
            };
            match result {
                Ok(Started::Pending | Started::Done) => return Ok(()),
                Err(SendError::Busy) => self.progress()?,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// A long message, as the layer above does it: announce, answer with the key, write and tell.
    fn send_long(&mut self, buffer: &[u8]) -> Outcome<()> {
        self.send(b"announce", &[])?;
        let key = self.receive()?;
        let before = self.inbox.completed;
        self.put(buffer, &key, true)?;
        while self.inbox.completed == before {
            self.progress()?;
        }
        Ok(())
    }

    fn receive_long(&mut self, buffer: &mut [u8]) -> Outcome<()> {
        self.receive()?;
        let (start, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: given back before the buffer is touched again.
        let region = unsafe { self.btl.register_noticed(start, length, self.peer, b"written") }
            .map_err(|e| e.to_string())?;
        self.send(b"key", &region.key)?;
        self.receive()?;
        self.btl.deregister(region.handle);
        Ok(())
    }

    /// In messages as long as they may be, each copied at both ends.
    fn send_pieces(&mut self, buffer: &[u8]) -> Outcome<()> {
        buffer.chunks(self.most).try_for_each(|piece| self.send(&[], piece))
    }

    fn receive_pieces(&mut self, length: usize) -> Outcome<()> {
        while self.inbox.bytes < length {
            self.progress()?;
        }
        self.inbox.bytes -= length;
        Ok(())
    }
}

/// How a message of the figure travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Copies,
    Rdma { cache: bool },
}

/// Runs both ends; gives what rank 0 gives.
fn both<T: Send + 'static>(ports: &[String], cache: bool, run: fn(&mut End) -> Outcome<T>) -> Outcome<T> {
    let ((tell_a, hear_b), (tell_b, hear_a)) = (channel(), channel());
    let port = |at: usize| ports.get(at).or(ports.first()).cloned();
    let (one, two) = (port(0), port(1));
    let other = std::thread::spawn(move || -> Outcome<()> {
        let mut end = End::new(1, two, cache, &(tell_b, hear_b))?;
        run(&mut end)?;
        end.btl.close();
        Ok(())
    });
    let mut end = End::new(0, one, cache, &(tell_a, hear_a))?;
    let result = run(&mut end)?;
    // The other side may still wait for what was sent last.
    let begin = Instant::now();
    while (!end.btl.flush() || !other.is_finished()) && begin.elapsed() < Duration::from_secs(10) {
        end.btl.progress(&mut end.inbox);
    }
    end.btl.close();
    other.join().map_err(|_| "the other end panicked")??;
    Ok(result)
}

/// A clock that costs nothing to read, as perftest has it: an emulated machine may have no quick one behind [`Instant`].
fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has this instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return Instant::now().duration_since(*BEGIN).as_nanos() as u64;
}

#[cfg(not(target_arch = "x86_64"))]
static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

/// Rounds of at most so long.
const TIME: Duration = Duration::from_millis(1500);

fn latency(end: &mut End) -> Outcome<f64> {
    const ROUNDS: usize = 1000;
    let mut times = Vec::with_capacity(ROUNDS);
    let (first, since) = (cycles(), Instant::now());
    for round in 0..ROUNDS + 50 {
        let begin = cycles();
        if end.peer == 1 {
            end.send(b"p", &[1; 8])?;
            end.receive()?;
        } else {
            end.receive()?;
            end.send(b"p", &[1; 8])?;
        }
        if round >= 50 {
            times.push(cycles() - begin);
        }
    }
    let rate = (cycles() - first) as f64 / (since.elapsed().as_secs_f64() * 1e6);
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / rate / 2.0)
}

fn bandwidth(end: &mut End) -> Outcome<f64> {
    const LENGTH: usize = 1 << 20;
    const COUNT: usize = 40;
    let mut buffer = vec![1u8; LENGTH];
    if end.peer == 0 {
        // SAFETY: lives until the transport has closed.
        let region = unsafe { end.btl.register(buffer.as_mut_ptr(), LENGTH) }.map_err(|e| e.to_string())?;
        end.send(b"key", &region.key)?;
        end.receive_asleep()?;
        end.btl.deregister(region.handle);
        return Ok(0.0);
    }
    let key = end.receive()?;
    let begin = Instant::now();
    for started in 0..COUNT {
        while started - end.inbox.completed >= 16 {
            end.progress()?;
        }
        end.put(&buffer, &key, false)?;
    }
    while end.inbox.completed < COUNT {
        end.progress()?;
    }
    let time = begin.elapsed().as_secs_f64();
    end.send(b"over", &[])?;
    Ok((LENGTH * COUNT) as f64 / 1e6 / time)
}

/// MB/s of a ping-pong, as PMB counts it: bytes one way over half of the round.
fn ping_pong(end: &mut End, way: Way, length: usize) -> Outcome<f64> {
    let (mine, mut theirs) = (vec![1u8; length], vec![0u8; length]);
    let (begin, mut rounds, mut best) = (Instant::now(), 0, f64::MAX);
    loop {
        let round = Instant::now();
        let mut step = |end: &mut End, sends: bool| match (way, sends) {
            (Way::Copies, true) => end.send_pieces(&mine),
            (Way::Copies, false) => end.receive_pieces(length),
            (Way::Rdma { .. }, true) => end.send_long(&mine),
            (Way::Rdma { .. }, false) => end.receive_long(&mut theirs),
        };
        let first = end.peer == 1;
        step(end, first)?;
        step(end, !first)?;
        best = best.min(round.elapsed().as_secs_f64() / 2.0);
        rounds += 1;
        // Rank 0 says when it is enough.
        let over = rounds >= 30 || (rounds >= 5 && begin.elapsed() > TIME / 10);
        let over = if first {
            end.send(b"over", &[u8::from(over)])?;
            over
        } else {
            end.receive()? == [1]
        };
        if over {
            return Ok(length as f64 / 1e6 / best);
        }
    }
}

const SIZES: [usize; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

fn figure(end: &mut End, ways: &[Way]) -> Outcome<(Vec<f64>, ib_btl::Stats)> {
    let mut all = Vec::new();
    for way in ways {
        for length in SIZES {
            all.push(ping_pong(end, *way, length)?);
        }
    }
    Ok((all, end.btl.stats()))
}

fn figure6(ports: &[String]) -> Outcome<()> {
    // Rounds by turns, the best of each: the machine is not alone.
    let mut best = vec![0f64; SIZES.len() * 3];
    for _ in 0..5 {
        let (with, stats) = both(ports, true, |end| figure(end, &[Way::Copies, Way::Rdma { cache: true }]))?;
        let (without, _) = both(ports, false, |end| figure(end, &[Way::Rdma { cache: false }]))?;
        for (best, new) in best.iter_mut().zip(with.into_iter().chain(without)) {
            *best = best.max(new);
        }
        println!("cache: {:?}", stats.cache);
    }
    println!("{:>8} {:>12} {:>12} {:>12}   MB/s", "bytes", "copies", "RDMA", "RDMA + cache");
    let count = SIZES.len();
    for (at, length) in SIZES.iter().enumerate() {
        println!("{length:>8} {:>12.2} {:>12.2} {:>12.2}", best[at], best[2 * count + at], best[count + at]);
    }
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let ports: Vec<String> = arguments.collect();
    let result = match what.as_str() {
        "latency" => both(&ports, true, latency).map(|us| println!("latency {us:.2} us")),
        "bandwidth" => both(&ports, true, bandwidth).map(|speed| println!("bandwidth {speed:.2} MB/s")),
        "figure6" => figure6(&ports),
        _ => Err("usage: ibbench latency|bandwidth|figure6 [PORT [PORT]]".into()),
    };
    if let Err(why) = result {
        eprintln!("ibbench: {why}");
        std::process::exit(1);
    }
}
