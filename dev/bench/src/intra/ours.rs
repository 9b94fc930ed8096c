//! A rank over the point-to-point layer: the work of `dev/bench/peers/mpi.c`, line for line.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use p2p::{Comm, Error};

use super::collectives;
use super::work::{Step, Work};
use cli::out::{Context, Failure};

const DATA: i32 = 1;
const ACK: i32 = 2;
const READY: i32 = 3;
const GO: i32 = 4;
/// First tag of unexpected messages.
const FIRST: i32 = 100;

const PAGE: usize = 4096;

/// Time in which messages arrive at a rank that does not poll.
const UNDER_WAY: Duration = Duration::from_micros(100);

/// Samples, by name.
pub(super) type Said = Vec<(&'static str, Vec<u64>)>;

/// Reads work from the benchmark until the end, and passes it to `run`.
pub fn serve(
    rank: u32,
    socket: &Path,
    mut run: impl FnMut(&Work) -> Result<Said, String>,
) -> Result<(), Failure> {
    let mut answers = UnixStream::connect(socket).doing(socket.display())?;
    let work = BufReader::new(answers.try_clone().doing("the benchmark's socket")?);
    write_line(&mut answers, &format!("rank {rank}\n")).doing("joining")?;
    for line in work.lines() {
        let line = line.doing("the benchmark")?;
        let mut text = String::new();
        match line.parse::<Work>().and_then(|work| run(&work)) {
            Ok(said) => {
                for (name, values) in said {
                    text.push_str(name);
                    values.iter().for_each(|v| text.push_str(&format!(" {v}")));
                    text.push('\n');
                }
                text.push_str("done\n");
            }
            Err(e) => text = format!("error {}\n", e.replace('\n', " ")),
        }
        write_line(&mut answers, &text).doing("answering")?;
    }
    Ok(())
}

fn write_line(to: &mut UnixStream, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())
}

/// Does this rank's part of the work. Returns an answer if this rank measured.
pub fn run(comm: &Comm, work: &Work) -> Result<Said, Error> {
    match *work {
        Work::PingPong { size, count, batch } => {
            let mut buffer = vec![1; size];
            meet(comm)?;
            timed_pings(comm, &mut buffer, count, batch)
        }
        Work::Window {
            size,
            window,
            row,
            count,
            slots,
            at_once,
            rewrite,
        } => windows(comm, (size, window, at_once), row, count, slots, rewrite),
        Work::Skew {
            size,
            produce,
            consume,
            window,
            count,
        } => skew(
            comm,
            size,
            Duration::from_nanos(produce),
            Duration::from_nanos(consume),
            window,
            count,
        ),
        Work::Unexpected {
            backlog,
            count,
            depth,
        } => unexpected(comm, backlog, count, depth),
        Work::Posted {
            backlog,
            count,
            batch,
        } => posted(comm, backlog, count, batch),
        Work::Step {
            step,
            size,
            count,
            batch,
        } => steps(comm, step, size, count, batch.max(1)),
        Work::Collective { call, size, count } => collectives::run(comm, call, size, count),
        Work::Keys { keys, count } => collectives::sort(comm, keys, count),
        Work::Line { .. } | Work::Memcpy { .. } | Work::CrossCopy { .. } | Work::Trap { .. } => {
            Ok(Said::new())
        }
    }
}

/// Waits until all ranks are here.
fn meet(comm: &Comm) -> Result<(), Error> {
    if comm.rank() == 0 {
        (1..comm.size()).try_for_each(|peer| comm.recv(&mut [], peer, READY).map(|_| ()))?;
        (1..comm.size()).try_for_each(|peer| comm.send(&[], peer, GO))
    } else {
        comm.send(&[], 0, READY)?;
        comm.recv(&mut [], 0, GO).map(|_| ())
    }
}

/// Returns the buffer from the start of a page, as the peers' buffers are: copying depends on it.
fn whole_pages(memory: &mut [u8]) -> &mut [u8] {
    let (skip, length) = (
        memory.as_ptr().align_offset(PAGE),
        memory.len().saturating_sub(PAGE),
    );
    memory
        .get_mut(skip..skip.saturating_add(length))
        .unwrap_or_default()
}

fn warm_up(count: usize) -> usize {
    (count / 10).max(10)
}

pub(super) fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the other rank of the pair, and true if this rank begins.
fn pair(comm: &Comm) -> (u32, bool) {
    let pairs = comm.size() / 2;
    let begins = comm.rank() < pairs;
    (
        if begins {
            comm.rank() + pairs
        } else {
            comm.rank() - pairs
        },
        begins,
    )
}

fn pings(comm: &Comm, buffer: &mut [u8], rounds: usize) -> Result<(), Error> {
    let (peer, begins) = pair(comm);
    for _ in 0..rounds {
        if begins {
            comm.send(buffer, peer, DATA)?;
            comm.recv(buffer, peer, DATA)?;
        } else {
            comm.recv(buffer, peer, DATA)?;
            comm.send(buffer, peer, DATA)?;
        }
    }
    Ok(())
}

fn timed_pings(comm: &Comm, buffer: &mut [u8], count: usize, batch: usize) -> Result<Said, Error> {
    let batches = count / batch.max(1);
    pings(comm, buffer, warm_up(count))?;
    if comm.rank() > 0 {
        pings(comm, buffer, count + batches * batch)?;
        return Ok(Said::new());
    }
    let mut sample = |samples: usize, rounds: usize| {
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = Instant::now();
            pings(comm, buffer, rounds)?;
            times.push(nanos(start));
        }
        Ok::<_, Error>(times)
    };
    Ok(vec![
        ("times", sample(count, 1)?),
        ("batches", sample(batches, batch)?),
    ])
}

fn windows(
    comm: &Comm,
    (size, window, at_once): (usize, usize, usize),
    row: usize,
    count: usize,
    slots: usize,
    rewrite: bool,
) -> Result<Said, Error> {
    let (peer, sender) = pair(comm);
    let mut memory = vec![1u8; size * slots + PAGE];
    let buffer = whole_pages(&mut memory);
    let mut times = Vec::with_capacity(count);
    for i in 0..=count {
        if rewrite && sender {
            buffer.fill(i as u8);
        }
        meet(comm)?;
        let start = Instant::now();
        for turn in 0..row {
            // Windows follow each other through the buffers; the incomplete last one is unused.
            let at = ((i * row + turn) % (slots / window).max(1)) * window * size;
            let place = buffer
                .get_mut(at..at + window.min(slots) * size)
                .unwrap_or_default();
            one_window(comm, (peer, sender), place, (size, window, at_once))?;
        }
        if comm.size() > 2 {
            meet(comm)?;
        }
        if i > 0 {
            times.push(nanos(start));
        }
    }
    Ok(if comm.rank() == 0 {
        vec![("times", times)]
    } else {
        Said::new()
    })
}

/// Sends or receives a window, through all buffers of `size` in `place`.
fn one_window(
    comm: &Comm,
    (peer, sender): (u32, bool),
    place: &mut [u8],
    (size, window, at_once): (usize, usize, usize),
) -> Result<(), Error> {
    if place.len() < window * size {
        let one = place.get_mut(..size).unwrap_or_default();
        match (sender, at_once > 1) {
            // Two receives cannot share a buffer.
            (false, _) => (0..window).try_for_each(|_| comm.recv(one, peer, DATA).map(|_| ()))?,
            (true, false) => (0..window).try_for_each(|_| comm.send(one, peer, DATA))?,
            (true, true) => comm.scope(|s| {
                (0..window).try_for_each(|_| s.isend(one, peer, DATA).map(|_| ()))?;
                s.waitall()
            })?,
        }
    } else {
        comm.scope(|s| {
            if sender {
                place
                    .chunks_exact(size)
                    .try_for_each(|part| s.isend(part, peer, DATA).map(|_| ()))?;
            } else {
                place
                    .chunks_exact_mut(size)
                    .try_for_each(|part| s.irecv(part, peer, DATA).map(|_| ()))?;
            }
            s.waitall()
        })?;
    }
    if sender {
        comm.recv(&mut [], peer, ACK).map(|_| ())
    } else {
        comm.send(&[], peer, ACK)
    }
}

fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}

fn skew(
    comm: &Comm,
    size: usize,
    produce: Duration,
    consume: Duration,
    window: usize,
    count: usize,
) -> Result<Said, Error> {
    let mut memory = vec![1u8; size * window + PAGE];
    let buffer = whole_pages(&mut memory);
    let mut times = Vec::with_capacity(count);
    meet(comm)?;
    if comm.rank() == 0 {
        for i in 0..=count {
            let start = Instant::now();
            comm.scope(|s| {
                for part in buffer.chunks_exact(size) {
                    compute(produce);
                    s.isend(part, 1, DATA)?;
                }
                s.waitall()
            })?;
            if i > 0 {
                times.push(nanos(start));
            }
            comm.recv(&mut [], 1, ACK)?;
        }
        return Ok(vec![("times", times)]);
    }
    for _ in 0..=count {
        for part in buffer.chunks_exact_mut(size) {
            comm.recv(part, 0, DATA)?;
            compute(consume);
        }
        comm.send(&[], 0, ACK)?;
    }
    Ok(Said::new())
}

/// Returns the tag of a message by its number.
fn tag(number: usize) -> i32 {
    FIRST.saturating_add(i32::try_from(number).unwrap_or(i32::MAX))
}

fn steps(comm: &Comm, step: Step, size: usize, count: usize, batch: usize) -> Result<Said, Error> {
    let mut buffer = vec![1u8; size];
    let mut times = Vec::with_capacity(count);
    let measures = comm.rank() == u32::from(step == Step::Receive);
    let peer = 1 - comm.rank().min(1);
    for _ in 0..count {
        meet(comm)?;
        let sends = step == Step::Send && measures || step == Step::Receive && !measures;
        if measures && step == Step::Receive {
            compute(UNDER_WAY);
        }
        let start = Instant::now();
        for _ in 0..batch {
            match step {
                Step::Poll if measures => comm.iprobe(peer, ACK).map(|_| ())?,
                Step::Poll => {}
                _ if sends => comm.send(&buffer, peer, DATA)?,
                _ => comm.recv(&mut buffer, peer, DATA).map(|_| ())?,
            }
        }
        if measures {
            times.push(nanos(start));
        }
    }
    Ok(if measures {
        vec![("times", times)]
    } else {
        Said::new()
    })
}

fn unexpected(comm: &Comm, backlog: usize, count: usize, depth: usize) -> Result<Said, Error> {
    const WARM_UP: usize = 10;
    let mut buffer = [0u8; 8];
    if comm.rank() == 0 {
        (0..backlog).try_for_each(|i| comm.send(&buffer, 1, tag(i)))?;
        for _ in 0..count + WARM_UP {
            (0..depth).try_for_each(|i| comm.send(&buffer, 1, tag(backlog + i)))?;
            comm.send(&buffer, 1, READY)?;
            comm.recv(&mut buffer, 1, GO)?;
        }
        return Ok(Said::new());
    }
    let mut times = Vec::with_capacity(count);
    for i in 0..count + WARM_UP {
        comm.recv(&mut buffer, 0, READY)?;
        let start = Instant::now();
        (0..depth)
            .rev()
            .try_for_each(|i| comm.recv(&mut buffer, 0, tag(backlog + i)).map(|_| ()))?;
        if i >= WARM_UP {
            times.push(nanos(start));
        }
        comm.send(&buffer, 0, GO)?;
    }
    (0..backlog).try_for_each(|i| comm.recv(&mut buffer, 0, tag(i)).map(|_| ()))?;
    Ok(vec![("times", times)])
}

fn posted(comm: &Comm, backlog: usize, count: usize, batch: usize) -> Result<Said, Error> {
    let mut buffer = [0u8; 8];
    if comm.rank() == 0 {
        meet(comm)?;
        let said = timed_pings(comm, &mut buffer, count, batch)?;
        (0..backlog).try_for_each(|i| comm.send(&buffer, 1, tag(i)))?;
        return Ok(said);
    }
    let mut held = vec![0u8; 8 * backlog];
    comm.scope(|s| {
        for (i, place) in held.chunks_exact_mut(8).enumerate() {
            s.irecv(place, 0, tag(i))?;
        }
        meet(comm)?;
        timed_pings(comm, &mut buffer, count, batch)?;
        s.waitall()
    })?;
    Ok(Said::new())
}
