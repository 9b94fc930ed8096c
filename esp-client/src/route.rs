//! Which interface leads to a peer: measured, never guessed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use esp_proto::{EdpKind, MacAddr};

use crate::client::Client;
use crate::edp::{EdpSocket, monotonic_nanos};
use crate::error::EspError;
use crate::session::lock;

/// A measured route is taken again without asking for this long.
const KEEP: Duration = Duration::from_secs(30);
/// Routes kept at most.
const KEPT: usize = 1024;
/// Requests on each interface.
const ROUNDS: u16 = 3;
/// How long one round waits for the first answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long it then waits for the slower ones.
const GRACE: Duration = Duration::from_millis(20);
/// Between looks at several sockets; the engine's time stamps measure the round trip.
const LOOK: Duration = Duration::from_micros(100);

/// The interface towards a peer, and why that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name.
    pub interface: String,
    /// Why it was taken.
    pub reason: RouteReason,
}

/// Why an interface was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteReason {
    /// The caller named it.
    Named,
    /// The daemon serves no other.
    Only,
    /// No other is up.
    OnlyUp,
    /// The peer's address is the interface's own.
    Local,
    /// It answered an EDP echo first.
    Fastest {
        /// Its round trip.
        round_trip: Duration,
        /// The others: name and round trip, `None` if no answer came.
        others: Vec<(String, Option<Duration>)>,
    },
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.interface)?;
        match &self.reason {
            RouteReason::Named => f.write_str("named by the caller"),
            RouteReason::Only => f.write_str("the only interface of the daemon"),
            RouteReason::OnlyUp => f.write_str("the only interface that is up"),
            RouteReason::Local => f.write_str("the peer's address is its own"),
            RouteReason::Fastest { round_trip, others } => {
                write!(f, "answered fastest ({} µs", round_trip.as_micros())?;
                for (name, time) in others {
                    match time {
                        Some(time) => write!(f, ", {name} {} µs", time.as_micros())?,
                        None => write!(f, ", {name} no answer")?,
                    }
                }
                f.write_str(")")
            }
        }
    }
}

/// Routes measured lately.
#[derive(Default)]
pub(crate) struct Routes(Mutex<HashMap<MacAddr, (Route, Instant)>>);

impl Routes {
    fn get(&self, peer: MacAddr) -> Option<Route> {
        let routes = lock(&self.0);
        let (route, since) = routes.get(&peer)?;
        (since.elapsed() < KEEP).then(|| route.clone())
    }

    fn put(&self, peer: MacAddr, route: &Route) {
        let mut routes = lock(&self.0);
        if routes.len() >= KEPT {
            routes.clear();
        }
        routes.insert(peer, (route.clone(), Instant::now()));
    }

    /// The peer did not answer on it: measure anew next time.
    pub(crate) fn forget(&self, peer: MacAddr) {
        lock(&self.0).remove(&peer);
    }
}

/// True when [`find`] needs no measurement, so that it answers at once.
#[cfg(feature = "tokio")]
pub(crate) fn is_immediate(client: &Client, peer: MacAddr) -> bool {
    client.interfaces().len() == 1 || client.routes().get(peer).is_some()
}

/// See [`Client::route`].
pub(crate) fn find(client: &Client, peer: MacAddr) -> Result<Route, EspError> {
    let route = |interface: &str, reason| {
        Ok(Route {
            interface: interface.to_owned(),
            reason,
        })
    };
    if let [only] = client.interfaces() {
        return route(&only.name, RouteReason::Only);
    }
    if let Some(known) = client.routes().get(peer) {
        return Ok(known);
    }
    let interfaces = client.status()?.interfaces;
    if let Some(own) = interfaces
        .iter()
        .find(|interface| MacAddr(interface.mac) == peer)
    {
        return route(&own.name, RouteReason::Local);
    }
    let up: Vec<_> = interfaces.iter().filter(|interface| interface.up).collect();
    match up.as_slice() {
        [] => Err(EspError::NoPath {
            peer,
            tried: "none of the daemon's interfaces is up".into(),
        }),
        [only] => route(&only.name, RouteReason::OnlyUp),
        several => {
            let names: Vec<_> = several
                .iter()
                .map(|interface| interface.name.as_str())
                .collect();
            let found = fastest(client, peer, &names)?;
            client.routes().put(peer, &found);
            Ok(found)
        }
    }
}

struct Probe {
    socket: EdpSocket,
    sent: u64,
    best: Option<u64>,
}

/// Asks the peer on each of these interfaces.
fn fastest(client: &Client, peer: MacAddr, names: &[&str]) -> Result<Route, EspError> {
    let mut probes = Vec::with_capacity(names.len());
    for name in names {
        let socket = EdpSocket::builder()
            .interface(*name)
            .rings(16 << 10, 64 << 10)
            .bind_at(client, 0)?;
        probes.push(Probe {
            socket,
            sent: 0,
            best: None,
        });
    }
    for round in 0..ROUNDS {
        ask_all(&mut probes, peer, round);
    }
    let mut results: Vec<_> = names
        .iter()
        .zip(&probes)
        .map(|(name, probe)| ((*name).to_owned(), probe.best.map(Duration::from_nanos)))
        .collect();
    results.sort_by_key(|(_, time)| time.unwrap_or(Duration::MAX));
    let mut results = results.into_iter();
    match results.next() {
        Some((interface, Some(round_trip))) => {
            let reason = RouteReason::Fastest {
                round_trip,
                others: results.collect(),
            };
            Ok(Route { interface, reason })
        }
        _ => {
            let tried = format!("no answer to an EDP echo on {}", names.join(", "));
            Err(EspError::NoPath { peer, tried })
        }
    }
}

/// One request on each interface, and the answers to it.
fn ask_all(probes: &mut [Probe], peer: MacAddr, round: u16) {
    let mut missing = probes.len();
    for probe in probes.iter_mut() {
        probe.sent = monotonic_nanos();
        // What cannot be sent is not answered, which is what this is to find out.
        let _ = probe.socket.send_echo(peer, round, b"route");
    }
    let mut deadline = Instant::now() + PATIENCE;
    let mut answered = false;
    while missing > 0 && Instant::now() < deadline {
        for probe in probes.iter_mut() {
            let mut body = [0; 64];
            let Ok((_, info)) = probe.socket.try_recv_from(&mut body) else {
                continue;
            };
            if info.kind != EdpKind::EchoReply || info.src != peer || info.sequence != round {
                continue;
            }
            let time = info.received_nanos.saturating_sub(probe.sent);
            probe.best = Some(probe.best.map_or(time, |best| best.min(time)));
            missing -= 1;
            if !std::mem::replace(&mut answered, true) {
                deadline = deadline.min(Instant::now() + GRACE);
            }
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_readable() {
        let others = vec![
            ("eth1".to_owned(), Some(Duration::from_micros(90))),
            ("eth2".to_owned(), None),
        ];
        let reason = RouteReason::Fastest {
            round_trip: Duration::from_micros(17),
            others,
        };
        let route = Route {
            interface: "eth0".into(),
            reason,
        };
        assert_eq!(
            route.to_string(),
            "eth0: answered fastest (17 µs, eth1 90 µs, eth2 no answer)"
        );
    }
}
