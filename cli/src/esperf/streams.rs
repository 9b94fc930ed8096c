//! The streams of a test: a thread for each stream sends or receives.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use esp_client::{Client, EspStream};

use super::flags::Plan;
use super::measure::{Link, Shared, Task, Work};

/// Interval at which a write without progress checks whether the test has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the work of a side.
pub(super) fn work<'a>(
    plan: &Plan,
    sends: bool,
    client: &'a Client,
    streams: &'a [Arc<EspStream>],
) -> Work<'a> {
    let shared = Shared::new(plan);
    let length = usize::try_from(plan.length).unwrap_or(usize::MAX);
    let task = |(index, stream): (usize, &Arc<EspStream>)| -> Task {
        let (stream, shared) = (Arc::clone(stream), Arc::clone(&shared));
        Box::new(move || match sends {
            true => send(&stream, length, &shared, index),
            false => receive(&stream, length, &shared, index),
        })
    };
    Work {
        tasks: streams.iter().enumerate().map(task).collect(),
        links: Box::new(|| links(client, streams)),
        shared,
    }
}

/// Writes until the time has passed or the bytes are sent, and ends the direction.
fn send(mut stream: &EspStream, length: usize, shared: &Shared, index: usize) -> io::Result<()> {
    let block = vec![0x5a; length];
    stream.set_write_timeout(Some(POLL_INTERVAL))?;
    loop {
        let share = shared.take(length as u64);
        if share == 0 {
            break;
        }
        let mut rest = block
            .get(..usize::try_from(share).unwrap_or(length))
            .unwrap_or_default();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => {
                    shared.add(index, count);
                    rest = rest.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if shared.is_over() {
                        return stream.shutdown(Shutdown::Write);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads until the end of the stream.
fn receive(mut stream: &EspStream, length: usize, shared: &Shared, index: usize) -> io::Result<()> {
    let mut block = vec![0; length];
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(()),
            count => shared.add(index, count),
        }
    }
}

/// Asks the daemon for the state of the connections.
fn links(client: &Client, streams: &[Arc<EspStream>]) -> Vec<Link> {
    let connections = client.status().map(|status| status.connections);
    let connections = connections.unwrap_or_default();
    let link = |stream: &Arc<EspStream>| {
        let (local, peer) = (stream.local_addr(), stream.peer_addr());
        let addr = peer.addr.to_string();
        let is_it = |other: &&esp_client::control::ConnectionStatus| {
            (other.local_port, other.peer_port) == (local.port, peer.port) && other.peer == addr
        };
        let found = connections.iter().find(is_it);
        found.map_or_else(Link::default, |found| Link {
            retransmits: found.retransmits,
            cwnd: found
                .cwnd
                .zip(found.payload)
                .map(|(packets, payload)| u64::from(packets) * u64::from(payload)),
            rtt: found.srtt_us.map(|time| time as u64),
        })
    };
    streams.iter().map(link).collect()
}
