//! Counts the instructions of a message. One thread runs both ends, so neither waits for the other.
//! In the guest's counting mode (`ESP_VM_COUNT=1`: one processor whose clock advances by one
//! nanosecond per instruction) the times are numbers of instructions of program, library and kernel
//! together, which are equal in every run, whatever else the host does.
//!
//! *bare*: verbs alone, as perftest uses them: a write, after which the receiver polls its memory
//! (`ib_write_lat`) or takes a completion (`ib_send_lat`). *ours*: messages, `put`s, and figure 6
//! with the transport.
//!
//! ```sh
//! ESP_VM_COUNT=1 ESP_VM_PRE=wire tests/vm/run target/release/examples/ibcount rxa rxb
//! ```

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::time::{Duration, Instant};

use btl::{Btl, Events, NoticedPuts, PeerError, Rank, Region, SendError, Started, Tx};
use ib_btl::nic::{Completion, Nic, PostMode, Queue, Remote, Sge, Verb};
use ib_btl::{IbBtl, IbConfig};

type Outcome<T> = Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the median of many times, in nanoseconds.
fn middle(mut times: Vec<u128>) -> u128 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// Measures `rounds` executions, after a few that warm up.
fn count(rounds: usize, mut round: impl FnMut() -> Outcome<()>) -> Outcome<u128> {
    let mut times = Vec::new();
    for number in 0..rounds + 20 {
        let begin = Instant::now();
        round()?;
        if number >= 20 {
            times.push(begin.elapsed().as_nanos());
        }
    }
    Ok(middle(times))
}

/// One end of a connection with bare verbs.
struct Bare {
    nic: Box<dyn Nic>,
    queue: Queue,
    qpn: u32,
    memory: Box<[u8]>,
    keys: (u32, u32),
    seen: Vec<Completion>,
    posted: usize,
}

const ROOM: usize = 4 << 20;

impl Bare {
    fn new(device: &str) -> Outcome<Bare> {
        let mut nic = ib_btl::nic::open(device, 1, 1024).map_err(text)?;
        let (queue, qpn) = nic.open(0, 128).map_err(text)?;
        let memory = vec![0; ROOM].into_boxed_slice();
        // SAFETY: dropped after the interface, and accessed by volatile reads only.
        let keys = unsafe { nic.register(memory.as_ptr().expose_provenance(), ROOM, true) }
            .map_err(text)?;
        Ok(Bare {
            nic,
            queue,
            qpn,
            memory,
            keys: (keys.lkey, keys.rkey),
            seen: Vec::new(),
            posted: 0,
        })
    }

    fn connect(&mut self, other: &Bare) -> Outcome<()> {
        let (place, mtu) = (other.nic.about().place, other.nic.about().mtu);
        let remote = Remote {
            place,
            mtu,
            qpn: other.qpn,
            psn: [7, 7],
            timeout: 14,
            retries: 6,
        };
        self.nic.connect(self.queue, &remote).map_err(text)
    }

    fn at(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Writes this number of bytes to the peer's memory, short ones inline.
    fn write(&mut self, to: &Bare, length: usize, immediate: Option<u32>) -> Outcome<()> {
        let sge = [Sge {
            address: self.at(),
            length: length as u32,
            lkey: self.keys.0,
        }];
        let to = (to.at() + ROOM as u64 / 2, to.keys.1);
        let verb = Verb::Write(immediate);
        self.posted += 1;
        // SAFETY: registered, and not accessed until the completion.
        let result = unsafe {
            if length <= 64 {
                self.nic.post(
                    self.queue,
                    1 << 28,
                    verb,
                    &sge,
                    to,
                    PostMode::Inline { signaled: true },
                )
            } else {
                self.nic
                    .post(self.queue, 1 << 28, verb, &sge, to, PostMode::Registered)
            }
        };
        result.map_err(text)
    }

    /// Takes completions; returns the number of arrivals.
    fn poll(&mut self) -> Outcome<usize> {
        self.nic.poll(16, &mut self.seen).map_err(text)?;
        let mut arrivals = 0;
        for completion in self.seen.drain(..) {
            match completion {
                Completion::Done { status: 0, .. } => self.posted -= 1,
                Completion::Arrived { status: 0, .. } => arrivals += 1,
                other => return Err(format!("{other:?}")),
            }
        }
        Ok(arrivals)
    }

    fn drain(&mut self) -> Outcome<()> {
        while self.posted > 0 {
            self.poll()?;
        }
        Ok(())
    }
}

fn bare(devices: [&str; 2]) -> Outcome<()> {
    let (mut one, mut two) = (Bare::new(devices[0])?, Bare::new(devices[1])?);
    one.connect(&two)?;
    two.connect(&one)?;
    one.nic.expect(one.queue, 64).map_err(text)?;
    two.nic.expect(two.queue, 64).map_err(text)?;
    let mut number = 0u8;
    let mut look = |from: &mut Bare, to: &mut Bare| -> Outcome<()> {
        number = number.wrapping_add(1);
        from.memory[7] = number;
        from.write(to, 8, None)?;
        // SAFETY: within the memory.
        let last = unsafe { to.memory.as_ptr().add(ROOM / 2 + 7) };
        // SAFETY: the device writes it concurrently, so the read is volatile.
        while unsafe { last.read_volatile() } != number {}
        from.drain()
    };
    let rounds = count(300, || {
        look(&mut one, &mut two).and_then(|()| look(&mut two, &mut one))
    })?;
    println!(
        "bare write, receiver polls memory:       half a round {:>8}",
        rounds / 2
    );
    let take = |from: &mut Bare, to: &mut Bare| -> Outcome<()> {
        from.write(to, 8, Some(1))?;
        while to.poll()? == 0 {}
        to.nic.expect(to.queue, 1).map_err(text)?;
        from.drain()
    };
    let rounds = count(300, || {
        take(&mut one, &mut two).and_then(|()| take(&mut two, &mut one))
    })?;
    println!(
        "bare write, receiver takes a completion: half a round {:>8}",
        rounds / 2
    );
    for length in [4096, 32 << 10, 1 << 20] {
        let each = count(10, || {
            for _ in 0..4 {
                one.write(&two, length, None)?;
            }
            one.drain()
        })?;
        println!(
            "bare write of {length:>7} bytes, four at once: each {:>10}",
            each / 4
        );
    }
    let idle = count(300, || one.poll().map(drop))?;
    println!("bare poll without completions: {idle}");
    Ok(())
}

#[derive(Default)]
struct Inbox {
    messages: usize,
    bytes: usize,
    last: Vec<u8>,
    completed: usize,
    failed: Option<PeerError>,
}

impl Events for Inbox {
    fn message(&mut self, _: &mut dyn Tx, _: Rank, header: &[u8], body: &[u8]) {
        self.bytes += body.len();
        if !header.is_empty() {
            self.messages += 1;
            self.last.clear();
            self.last.extend_from_slice(body);
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

struct End {
    btl: IbBtl,
    peer: Rank,
    inbox: Inbox,
    most: usize,
    buffer: Vec<u8>,
}

impl End {
    fn new(rank: Rank, device: &str, cache: bool) -> Outcome<End> {
        let mut config = IbConfig::new(rank, 2, format!("count-{}", std::process::id()).as_bytes());
        (config.device, config.add_wait) = (Some(device.into()), Duration::ZERO);
        if !cache {
            config.cache_bytes = 0;
        }
        let btl = IbBtl::new(config).map_err(text)?;
        Ok(End {
            btl,
            peer: 1 - rank,
            inbox: Inbox::default(),
            most: 0,
            buffer: vec![1; 1 << 20],
        })
    }

    fn progress(&mut self) -> Outcome<()> {
        self.btl.progress(&mut self.inbox);
        self.inbox
            .failed
            .as_ref()
            .map_or(Ok(()), |error| Err(error.to_string()))
    }

    fn receive(&mut self) -> Outcome<()> {
        let before = self.inbox.messages;
        while self.inbox.messages == before {
            self.progress()?;
        }
        Ok(())
    }

    fn register(&mut self, length: usize) -> Outcome<Region> {
        // SAFETY: the buffer lives as long as the transport, and is not read.
        unsafe {
            self.btl
                .register_noticed(self.buffer.as_mut_ptr(), length, self.peer, b"written")
        }
        .map_err(text)
    }
}

fn send(from: &mut End, to: &mut End, header: &[u8], length: usize) -> Outcome<()> {
    loop {
        let body = from.buffer.get(..length).unwrap_or_default();
        match from.btl.send(from.peer, header, &[IoSlice::new(body)]) {
            Ok(()) => return Ok(()),
            Err(SendError::Busy) => from.progress().and_then(|()| to.progress())?,
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn put(from: &mut End, to: &mut End, length: usize, key: &[u8], notify: bool) -> Outcome<()> {
    loop {
        let buffer = from.buffer.as_ptr();
        // SAFETY: the buffer is not accessed until the completion.
        let result = unsafe {
            match notify {
                true => from.btl.put_last(from.peer, buffer, length, key, 0, 0),
                false => from.btl.put(from.peer, buffer, length, key, 0, 0),
            }
        };
        match result {
            Ok(Started::Pending | Started::Done) => return Ok(()),
            Err(SendError::Busy) => from.progress().and_then(|()| to.progress())?,
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Transfers a long message as the layer above does: announcement, answer with the key, write with
/// notice.
fn long(from: &mut End, to: &mut End, length: usize) -> Outcome<()> {
    send(from, to, b"announce", 0)?;
    to.receive()?;
    let region = to.register(length)?;
    send_bytes(to, &region.key)?;
    from.receive()?;
    let (key, before) = (from.inbox.last.clone(), from.inbox.completed);
    put(from, to, length, &key, true)?;
    to.receive()?;
    while from.inbox.completed == before {
        from.progress()?;
    }
    to.btl.deregister(region.handle);
    Ok(())
}

fn send_bytes(from: &mut End, body: &[u8]) -> Outcome<()> {
    while let Err(error) = from.btl.send(from.peer, b"key", &[IoSlice::new(body)]) {
        if error != SendError::Busy {
            return Err(error.to_string());
        }
        from.progress()?;
    }
    Ok(())
}

/// Transfers in messages of the maximum length, copied at both ends.
fn pieces(from: &mut End, to: &mut End, length: usize) -> Outcome<()> {
    let (mut left, before) = (length, to.inbox.bytes);
    while left > 0 {
        let now = left.min(from.most);
        send(from, to, b"", now)?;
        left -= now;
    }
    while to.inbox.bytes < before + length {
        to.progress()?;
    }
    Ok(())
}

fn pair(devices: [&str; 2], cache: bool) -> Outcome<(End, End)> {
    let (mut one, mut two) = (
        End::new(0, devices[0], cache)?,
        End::new(1, devices[1], cache)?,
    );
    let addresses = [one.btl.address(), two.btl.address()];
    one.most = one.btl.add_peer(1, &addresses[1]).map_err(text)?.max_send;
    two.most = two.btl.add_peer(0, &addresses[0]).map_err(text)?.max_send;
    send(&mut one, &mut two, b"first", 0)?;
    two.receive()?;
    Ok((one, two))
}

fn ours(devices: [&str; 2]) -> Outcome<()> {
    let (mut one, mut two) = pair(devices, true)?;
    for length in [8, 1000] {
        let rounds = count(300, || {
            send(&mut one, &mut two, b"p", length)?;
            two.receive()?;
            send(&mut two, &mut one, b"p", length)?;
            one.receive()
        })?;
        println!(
            "ours, {length:>4} bytes:                         half a round {:>8}",
            rounds / 2
        );
    }
    let idle = count(300, || one.progress())?;
    println!("ours, progress without events: {idle}");
    for length in [4096, 16 << 10, 1 << 20] {
        let again = count(300, || {
            let region = two.register(length)?;
            two.btl.deregister(region.handle);
            Ok(())
        })?;
        let (from, mut to) = (vec![1u8; length], vec![0u8; length]);
        let copy = count(300, || {
            std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
            Ok(())
        })?;
        println!("ours, {length:>7} bytes found registered: {again:>8}, copied: {copy:>8}");
    }
    let region = two.register(1 << 20)?;
    for length in [4096, 32 << 10, 1 << 20] {
        let each = count(10, || {
            let before = one.inbox.completed;
            for _ in 0..4 {
                put(&mut one, &mut two, length, &region.key, false)?;
            }
            while one.inbox.completed < before + 4 {
                one.progress()?;
            }
            Ok(())
        })?;
        println!(
            "ours, put of {length:>7} bytes, four at once:  each {:>10}",
            each / 4
        );
    }
    two.btl.deregister(region.handle);
    let (mut bare_one, mut bare_two) = pair(devices, false)?;
    println!(
        "{:>8} {:>12} {:>12} {:>12}   a message of",
        "bytes", "copies", "RDMA", "RDMA + cache"
    );
    for length in [
        4 << 10,
        8 << 10,
        16 << 10,
        32 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
    ] {
        let copies = count(10, || pieces(&mut one, &mut two, length))?;
        let without = count(10, || long(&mut bare_one, &mut bare_two, length))?;
        let with = count(10, || long(&mut one, &mut two, length))?;
        println!("{length:>8} {copies:>12} {without:>12} {with:>12}");
    }
    Ok(())
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let result = match &names[..] {
        [one, two] => bare([one, two]).and_then(|()| ours([one, two])),
        _ => Err("usage: ibcount DEVICE DEVICE".into()),
    };
    if let Err(why) = result {
        eprintln!("ibcount: {why}");
        std::process::exit(1);
    }
}
