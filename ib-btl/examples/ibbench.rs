//! Latency, bandwidth, and the steps of a long message. Two transports on two threads, over the
//! ports named by the arguments. (Figure 6 of the VAPI paper is measured with the layer above:
//! `job/examples/ib-figure6.rs`.)
//!
//! `IB_RETRIES`: number of retransmissions of an interface (at most 6).
//!
//! ```sh
//! ibbench latency|bandwidth|steps [PORT [PORT]]
//! ESP_VM_PRE='wire; ordered' ESP_VM_FILES="$(echo target/release/examples/{ibbench,ib-figure6})" tests/vm/run tests/vm/figures.sh
//! ```

#![allow(unsafe_code)]

mod bind;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use btl::{Btl, Events, NoticedPuts, PeerError, Rank, SendError, Started, Tx};
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
        if let Some(retries) = std::env::var("IB_RETRIES")
            .ok()
            .and_then(|text| text.parse().ok())
        {
            config.retries = retries;
        }
        let mut btl = IbBtl::new(config).map_err(|e| e.to_string())?;
        tell.send(btl.address()).map_err(|e| e.to_string())?;
        let address = hear.recv().map_err(|e| e.to_string())?;
        let path = btl
            .add_peer(1 - rank, &address)
            .map_err(|e| e.to_string())?;
        Ok(End {
            btl,
            peer: 1 - rank,
            inbox: Inbox::default(),
            most: path.max_send,
        })
    }

    fn progress(&mut self) -> Outcome<()> {
        self.btl.progress(&mut self.inbox);
        self.inbox
            .failed
            .as_ref()
            .map_or(Ok(()), |error| Err(error.to_string()))
    }

    fn send(&mut self, header: &[u8], body: &[u8]) -> Outcome<()> {
        loop {
            match self.btl.send(self.peer, header, &[IoSlice::new(body)]) {
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

    /// Receives like `receive`, but sleeps: this leaves the processor to an emulated interface, as
    /// the passive end of perftest does.
    fn receive_asleep(&mut self) -> Outcome<Vec<u8>> {
        while self.inbox.messages.is_empty() {
            self.progress()?;
            if self.inbox.messages.is_empty() && self.btl.arm() {
                let Some(fd) = self.btl.wait_fd() else {
                    return Err("no descriptor".into());
                };
                let tick = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 50_000_000,
                };
                let mut fds = [rustix::event::PollFd::new(
                    &fd,
                    rustix::event::PollFlags::IN,
                )];
                rustix::event::poll(&mut fds, Some(&tick)).map_err(|e| e.to_string())?;
            }
        }
        self.receive()
    }

    /// Starts a write of the whole buffer; with `notify`, its last bytes notify the peer.
    fn put(&mut self, buffer: &[u8], key: &[u8], notify: bool) -> Outcome<()> {
        let (from, length) = (buffer.as_ptr(), buffer.len());
        loop {
            // SAFETY: every caller waits for the completion before it touches or drops the buffer.
            let result = unsafe {
                match notify {
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

    /// Sends a long message as the layer above does: announcement, answer with the key, write with
    /// notice.
    fn send_long(&mut self, buffer: &[u8]) -> Outcome<()> {
        stamp(Step::Begin);
        self.send(b"announce", &[])?;
        let key = self.receive()?;
        stamp(Step::Answered);
        let before = self.inbox.completed;
        self.put(buffer, &key, true)?;
        while self.inbox.completed == before {
            self.progress()?;
        }
        stamp(Step::Complete);
        Ok(())
    }

    fn receive_long(&mut self, buffer: &mut [u8]) -> Outcome<()> {
        self.receive()?;
        stamp(Step::Announced);
        let (start, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: deregistered before the buffer is touched again.
        let region = unsafe {
            self.btl
                .register_noticed(start, length, self.peer, b"written")
        }
        .map_err(|e| e.to_string())?;
        stamp(Step::Registered);
        self.send(b"key", &region.key)?;
        self.receive()?;
        stamp(Step::Written);
        self.btl.deregister(region.handle);
        Ok(())
    }

    /// Sends in messages of the maximum length, copied at both ends.
    fn send_pieces(&mut self, buffer: &[u8]) -> Outcome<()> {
        stamp(Step::Begin);
        buffer
            .chunks(self.most)
            .try_for_each(|piece| self.send(&[], piece))?;
        stamp(Step::Complete);
        Ok(())
    }

    fn receive_pieces(&mut self, length: usize) -> Outcome<()> {
        while self.inbox.bytes < length {
            self.progress()?;
        }
        stamp(Step::Written);
        self.inbox.bytes -= length;
        Ok(())
    }
}

/// Steps of a long message.
#[derive(Clone, Copy)]
enum Step {
    Begin,
    Announced,
    Registered,
    Answered,
    Written,
    Complete,
}

const STEPS: [Step; 5] = [
    Step::Announced,
    Step::Registered,
    Step::Answered,
    Step::Written,
    Step::Complete,
];

/// Time at which either thread last reached each step.
static STAMPS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

fn stamp(step: Step) {
    STAMPS[step as usize].store(cycles(), Ordering::SeqCst);
}

/// Runs both ends; returns the result of rank 0.
fn both<T: Send + 'static>(
    ports: &[String],
    cache: bool,
    run: fn(&mut End) -> Outcome<T>,
) -> Outcome<T> {
    let ((tell_a, hear_b), (tell_b, hear_a)) = (channel(), channel());
    let port = |at: usize| ports.get(at).or(ports.first()).cloned();
    let (one, two) = (port(0), port(1));
    let other = std::thread::spawn(move || -> Outcome<()> {
        bind::bind(1);
        let mut end = End::new(1, two, cache, &(tell_b, hear_b))?;
        run(&mut end)?;
        end.btl.close();
        Ok(())
    });
    bind::bind(0);
    let mut end = End::new(0, one, cache, &(tell_a, hear_a))?;
    let result = run(&mut end)?;
    // The other side may still wait for the last message.
    let begin = Instant::now();
    while (!end.btl.flush() || !other.is_finished()) && begin.elapsed() < Duration::from_secs(10) {
        end.btl.progress(&mut end.inbox);
    }
    end.btl.close();
    other.join().map_err(|_| "the other end panicked")??;
    Ok(result)
}

/// Reads a cheap clock, as perftest does: an emulated machine may not offer a fast one through
/// [`Instant`].
fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return Instant::now().duration_since(*BEGIN).as_nanos() as u64;
}

#[cfg(not(target_arch = "x86_64"))]
static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

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
        let region =
            unsafe { end.btl.register(buffer.as_mut_ptr(), LENGTH) }.map_err(|e| e.to_string())?;
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

/// Times at which the steps of a one-way message are reached, in µs from its start: by announcement
/// and RDMA, and in messages that are copied at both ends and sent without announcement.
fn steps(end: &mut End) -> Outcome<Vec<String>> {
    const ROUNDS: usize = 60;
    let (first, since) = (cycles(), Instant::now());
    let mut lines = Vec::new();
    for (length, rdma) in [
        (32 << 10, true),
        (32 << 10, false),
        (64 << 10, true),
        (64 << 10, false),
    ] {
        let (mine, mut theirs) = (vec![1u8; length], vec![0u8; length]);
        let mut times = [const { Vec::new() }; STEPS.len()];
        for _ in 0..ROUNDS {
            match (end.peer == 1, rdma) {
                (true, true) => end.send_long(&mine)?,
                (true, false) => end.send_pieces(&mine)?,
                (false, true) => end.receive_long(&mut theirs)?,
                (false, false) => end.receive_pieces(length)?,
            }
            // Both ends know that it is complete before either continues.
            if end.peer == 0 {
                end.send(b"there", &[])?;
                end.receive()?;
                continue;
            }
            end.receive()?;
            let at = |step: Step| STAMPS[step as usize].load(Ordering::SeqCst);
            for (times, step) in times.iter_mut().zip(STEPS) {
                times.push(at(step).saturating_sub(at(Step::Begin)));
            }
            end.send(b"next", &[])?;
        }
        let rate = (cycles() - first) as f64 / (since.elapsed().as_secs_f64() * 1e6);
        let middle = times.map(|mut times| {
            times.sort_unstable();
            times
                .get(ROUNDS / 2)
                .map_or(0.0, |time| *time as f64 / rate)
        });
        let [announced, registered, answered, written, complete] = middle;
        lines.push(match rdma {
            true => format!(
                "{length} bytes by RDMA: announced {announced:.0}, registered {registered:.0}, answered {answered:.0}, \
                 written {written:.0}, complete {complete:.0} us"
            ),
            false => {
                format!("{length} bytes in messages: last sent {complete:.0}, last received {written:.0} us")
            }
        });
    }
    Ok(lines)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let ports: Vec<String> = arguments.collect();
    let result = match what.as_str() {
        "latency" => both(&ports, true, latency).map(|us| println!("latency {us:.2} us")),
        "bandwidth" => {
            both(&ports, true, bandwidth).map(|speed| println!("bandwidth {speed:.2} MB/s"))
        }
        "steps" => both(&ports, true, steps).map(|lines| println!("{}", lines.join("\n"))),
        _ => Err("usage: ibbench latency|bandwidth|steps [PORT [PORT]]".into()),
    };
    if let Err(why) = result {
        eprintln!("ibbench: {why}");
        std::process::exit(1);
    }
}
