//! The datagrams of a test (`-u`): a thread for each socket sends at a rate, or receives and counts
//! losses.
//!
//! A datagram begins with its number and its sending time in nanoseconds, of 64 bits each.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use esp_client::{
    Client, DatagramInfo, EdpKind, EdpSocket, EspAddr, EspStream, NodeAddr, monotonic_nanos,
};

use super::control::{AT_ONCE, End, receive as receive_message};
use super::flags::Plan;
use super::measure::{Counts, Shared, Task, Work};
use crate::out::{Context, Failure};

/// Length of the number and the time, in bytes.
pub(super) const HEADER: usize = 16;
/// Interval between checks for the end, while waiting for a datagram or for room to send one.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which datagrams are received after the sender's end, because some may still be in
/// queues.
const DRAIN: Duration = Duration::from_millis(200);
/// Minimum pause that is slept: shorter sleeps would end late by more than their length.
const MIN_SLEEP: Duration = Duration::from_micros(100);

/// Sockets of a side, and the ports of the other side.
pub(super) struct Flows {
    sockets: Vec<Arc<EdpSocket>>,
    peer: NodeAddr,
    peer_ports: Vec<u16>,
}

impl Flows {
    /// Binds a socket for each stream of a test, on this interface.
    pub(super) fn bind(
        client: &Client,
        interface: &str,
        streams: u16,
        peer: NodeAddr,
    ) -> Result<Flows, Failure> {
        let bind = |_| {
            let socket = EdpSocket::builder().interface(interface);
            let socket = socket.bind_at(client, 0).map_err(Failure::new)?;
            Ok::<_, Failure>(Arc::new(socket))
        };
        Ok(Flows {
            sockets: (0..streams).map(bind).collect::<Result<_, _>>()?,
            peer,
            peer_ports: Vec::new(),
        })
    }

    /// Returns the ports.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.sockets.iter().map(|socket| socket.port()).collect()
    }

    /// Returns the maximum length of a datagram.
    pub(super) fn max_payload(&self) -> usize {
        let lengths = self.sockets.iter().map(|socket| socket.max_payload());
        lengths.min().unwrap_or(0)
    }

    /// Sets the other side's ports.
    pub(super) fn connect(&mut self, ports: Vec<u16>) -> Result<(), Failure> {
        if ports.len() != self.sockets.len() {
            return Err(Failure::Broken(
                "the peer sent a different number of ports than streams: does it run the same \
                 version of esperf?"
                    .into(),
            ));
        }
        self.peer_ports = ports;
        Ok(())
    }

    /// Returns the local and the peer's address of each flow.
    pub(super) fn addresses(&self) -> Vec<(EspAddr, EspAddr)> {
        let pairs = self.sockets.iter().zip(&self.peer_ports);
        let pair = |(socket, port): (&Arc<EdpSocket>, &u16)| {
            let interface = socket.interface().to_owned();
            let own = EspAddr::new(socket.addr(), socket.port()).via(interface.clone());
            (own, EspAddr::new(self.peer, *port).via(interface))
        };
        pairs.map(pair).collect()
    }

    /// Returns the work of a side. A receiver ends when the sender sends [`End`] on the control
    /// stream.
    pub(super) fn work(
        &self,
        plan: &Plan,
        sends: bool,
        control: &Arc<EspStream>,
    ) -> Result<Work<'static>, Failure> {
        let shared = Shared::new(plan);
        let length = usize::try_from(plan.length).unwrap_or(HEADER);
        let rate = plan.datagrams.unwrap_or(0);
        let pairs = self.sockets.iter().zip(&self.peer_ports).enumerate();
        let task = |(index, (socket, port)): (usize, (&Arc<EdpSocket>, &u16))| -> Task {
            let (socket, shared) = (Arc::clone(socket), Arc::clone(&shared));
            let peer = (self.peer, *port);
            Box::new(move || {
                let Some(counts) = shared.datagrams(index) else {
                    return Ok(());
                };
                match sends {
                    true => send(&socket, peer, (length, rate), &shared, (index, counts)),
                    false => receive(&socket, peer, &shared, (index, counts)),
                }
            })
        };
        let tasks = pairs.map(task).collect();
        if !sends {
            let (control, shared) = (Arc::clone(control), Arc::clone(&shared));
            let patience = patience(plan);
            let named = thread::Builder::new().name("end".into());
            let wait = move || {
                // If this fails, the next message fails, too.
                let _ = receive_message::<End>(&control, patience);
                shared.end();
                thread::sleep(DRAIN);
                shared.stop();
            };
            named.spawn(wait).doing("starting a thread")?;
        }
        Ok(Work {
            shared,
            tasks,
            links: Box::new(Vec::new),
        })
    }
}

/// Returns the maximum wait for the sender's end. The time for a number of bytes is unknown: such a
/// wait ends with the control stream, whose keep-alive detects a dead peer.
fn patience(plan: &Plan) -> Option<Duration> {
    let is_timed = plan.bytes.is_none();
    is_timed.then(|| plan.time.saturating_add(AT_ONCE))
}

/// Sends datagrams at this rate in bits per second; with 0, as fast as the ring accepts them.
fn send(
    socket: &EdpSocket,
    (node, port): (NodeAddr, u16),
    (length, rate): (usize, u64),
    shared: &Shared,
    (index, counts): (usize, &Counts),
) -> io::Result<()> {
    let mut datagram = vec![0x5a; length];
    let pause = pause(length, rate);
    let mut due = Instant::now();
    socket.set_write_timeout(Some(POLL_INTERVAL))?;
    while shared.take(length as u64) > 0 {
        wait_until(due, shared);
        due += pause;
        let number = counts.packets.load(Relaxed);
        let head = [number.to_be_bytes(), monotonic_nanos().to_be_bytes()];
        for (to, from) in datagram.iter_mut().zip(head.as_flattened()) {
            *to = *from;
        }
        match socket.send_to(&datagram, node, port) {
            Ok(_) => {
                counts.packets.fetch_add(1, Relaxed);
                shared.add(index, length);
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the time between two datagrams.
fn pause(length: usize, rate: u64) -> Duration {
    if rate == 0 {
        return Duration::ZERO;
    }
    Duration::from_secs_f64(length as f64 * 8.0 / rate as f64)
}

fn wait_until(due: Instant, shared: &Shared) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left < MIN_SLEEP || shared.is_over() {
            return;
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Receives the peer's datagrams until the end.
fn receive(
    socket: &EdpSocket,
    peer: (NodeAddr, u16),
    shared: &Shared,
    (index, counts): (usize, &Counts),
) -> io::Result<()> {
    let mut buffer = vec![0; socket.max_payload()];
    let mut arrivals = Arrivals::default();
    while !shared.is_over() {
        let (count, info) = match socket.recv_from_timeout(&mut buffer, POLL_INTERVAL) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..count).unwrap_or_default();
        if !is_from(&info, peer) || !arrivals.take(bytes, info.received_nanos, counts) {
            continue;
        }
        shared.add(index, count);
    }
    Ok(())
}

fn is_from(info: &DatagramInfo, peer: (NodeAddr, u16)) -> bool {
    info.kind == EdpKind::Data && (info.src, info.src_port) == peer
}

/// Counts, order and jitter of the datagrams of one sender.
#[derive(Default)]
struct Arrivals {
    /// Number of the next datagram in order.
    next: u64,
    /// Transit time of the last datagram: the difference of two nodes' clocks, of which only
    /// changes are meaningful.
    transit: Option<i64>,
    /// In nanoseconds.
    jitter: f64,
}

impl Arrivals {
    /// Counts a datagram that arrived at this time; returns false if it does not belong to a test.
    fn take(&mut self, bytes: &[u8], at: u64, counts: &Counts) -> bool {
        let Some((number, rest)) = bytes.split_first_chunk::<8>() else {
            return false;
        };
        let Some((sent, _)) = rest.split_first_chunk::<8>() else {
            return false;
        };
        let (number, sent) = (u64::from_be_bytes(*number), u64::from_be_bytes(*sent));
        counts.packets.fetch_add(1, Relaxed);
        match number.checked_sub(self.next) {
            Some(gap) => {
                counts.lost.fetch_add(gap, Relaxed);
                self.next = number.saturating_add(1);
            }
            None => {
                counts.out_of_order.fetch_add(1, Relaxed);
                // It was counted as lost when a later one arrived.
                let back = |lost: u64| Some(lost.saturating_sub(1));
                let _ = counts.lost.fetch_update(Relaxed, Relaxed, back);
            }
        }
        let transit = at.wrapping_sub(sent).cast_signed();
        if let Some(last) = self.transit.replace(transit) {
            let change = transit.wrapping_sub(last).unsigned_abs() as f64;
            self.jitter += (change - self.jitter) / 16.0;
        }
        counts.jitter_nanos.store(self.jitter as u64, Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(number: u64, sent: u64) -> Vec<u8> {
        [number.to_be_bytes(), sent.to_be_bytes()].concat()
    }

    #[test]
    fn gaps_are_losses_until_the_datagram_comes_late() {
        let (mut arrivals, counts) = (Arrivals::default(), Counts::default());
        let now = || (counts.packets.load(Relaxed), counts.lost.load(Relaxed));
        for number in [0, 1, 4] {
            assert!(arrivals.take(&datagram(number, 0), 0, &counts));
        }
        assert_eq!(now(), (3, 2));
        assert!(arrivals.take(&datagram(2, 0), 0, &counts));
        assert_eq!(now(), (4, 1));
        assert_eq!(counts.out_of_order.load(Relaxed), 1);
        assert!(!arrivals.take(&[0; HEADER - 1], 0, &counts));
        // An impossible number from a faulty peer.
        assert!(arrivals.take(&datagram(u64::MAX, 0), 0, &counts));
        assert!(arrivals.take(&datagram(0, 0), 0, &counts));
        assert_eq!(now().0, 6);
    }

    #[test]
    fn jitter_is_the_smoothed_change_of_the_transit_time() {
        let (mut arrivals, counts) = (Arrivals::default(), Counts::default());
        // The difference of the two nodes' clocks does not matter.
        let base = u64::MAX / 2;
        for (number, transit) in [(0, 100), (1, 100), (2, 1700), (3, 100)] {
            let sent = number * 10_000;
            arrivals.take(&datagram(number, base + sent), sent + transit, &counts);
        }
        let expected = 1600.0 / 16.0;
        let expected = expected + (1600.0 - expected) / 16.0;
        assert!(
            (arrivals.jitter - expected).abs() < 1e-9,
            "{}",
            arrivals.jitter
        );
    }

    #[test]
    fn a_number_of_bytes_may_take_as_long_as_it_takes() {
        let mut plan = Plan {
            streams: 1,
            length: 1000,
            reverse: false,
            time: Duration::from_secs(10),
            bytes: None,
            datagrams: Some(1_000_000),
        };
        assert_eq!(patience(&plan), Some(plan.time + AT_ONCE));
        // Such a plan keeps the default of `-t`.
        plan.bytes = Some(10_000_000);
        assert_eq!(patience(&plan), None);
    }

    #[test]
    fn the_rate_sets_the_pause() {
        assert_eq!(pause(1250, 10_000_000), Duration::from_millis(1));
        assert_eq!(pause(1250, 0), Duration::ZERO);
    }
}
