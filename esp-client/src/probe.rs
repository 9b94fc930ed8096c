//! Choice of the interface towards a peer, measured with EDP echoes.

use std::time::{Duration, Instant};

use esp_proto::{EdpKind, NodeAddr};

use crate::client::Client;
use crate::control::InterfaceInfo;
use crate::edp::{EdpSocket, monotonic_nanos};
use crate::error::EspError;
use crate::route::{Route, RouteReason};

/// Number of echo requests on each interface.
const ROUNDS: u16 = 3;
/// Maximum wait of a round for the first answer.
const FIRST_ANSWER: Duration = Duration::from_millis(250);
/// Maximum wait after it for the others.
const OTHER_ANSWERS: Duration = Duration::from_millis(20);
/// Period of polling the sockets. The engine's time stamps measure the round trip.
const POLL_PERIOD: Duration = Duration::from_micros(100);

/// Returns true if [`Client::route`] needs no measurement.
#[cfg(feature = "tokio")]
pub(crate) fn is_immediate(client: &Client, peer: NodeAddr) -> bool {
    client
        .interfaces()
        .iter()
        .filter(|own| own.addr.is_kind_of(&peer))
        .count()
        <= 1
        || client.routes().get(peer).is_some()
}

impl Client {
    /// Returns the interface to this peer and the reason for the choice. With several interfaces,
    /// an EDP echo is sent over each that is up, and the fastest answer decides. The result is
    /// cached.
    ///
    /// # Errors
    /// [`EspError::NoPath`] if the peer answers over no interface.
    pub fn route(&self, peer: NodeAddr) -> Result<Route, EspError> {
        let route = |interface: &str, reason| {
            Ok(Route {
                interface: interface.to_owned(),
                reason,
            })
        };
        let reaches = |own: &&InterfaceInfo| own.addr.is_kind_of(&peer);
        let mut fit = self.interfaces().iter().filter(reaches);
        match (fit.next(), fit.next()) {
            (Some(only), None) => return route(&only.name, RouteReason::Only),
            (Some(_), Some(_)) => {}
            (None, _) => {
                return Err(EspError::NoPath {
                    peer,
                    tried: "no interface has an address of this kind".into(),
                });
            }
        }
        if let Some(known) = self.routes().get(peer) {
            return Ok(known);
        }
        let interfaces = if self.session().is_local() {
            self.interfaces().to_vec()
        } else {
            self.status()?.interfaces
        };
        if let Some(own) = interfaces.iter().find(|own| own.addr == peer) {
            return route(&own.name, RouteReason::Local);
        }
        let up = interfaces.iter().filter(reaches).filter(|own| own.up);
        let up: Vec<_> = up.map(|interface| interface.name.as_str()).collect();
        match up.as_slice() {
            [] => Err(EspError::NoPath {
                peer,
                tried: "none of the daemon's interfaces is up".into(),
            }),
            [only] => route(only, RouteReason::OnlyUp),
            names => {
                let found = fastest(self, peer, names)?;
                self.routes().put(peer, &found);
                Ok(found)
            }
        }
    }
}

/// Measurement on one interface; times in ns.
struct Probe {
    socket: EdpSocket,
    sent: u64,
    best: Option<u64>,
}

/// Measures the round trip to the peer on each of these interfaces.
fn fastest(client: &Client, peer: NodeAddr, names: &[&str]) -> Result<Route, EspError> {
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

/// Sends one request on each interface and collects the answers.
fn ask_all(probes: &mut [Probe], peer: NodeAddr, round: u16) {
    let mut missing = probes.len();
    for probe in probes.iter_mut() {
        probe.sent = monotonic_nanos();
        // A request that cannot be sent counts as unanswered.
        let _ = probe.socket.send_echo(peer, round, b"route");
    }
    let mut deadline = Instant::now() + FIRST_ANSWER;
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
                deadline = deadline.min(Instant::now() + OTHER_ANSWERS);
            }
        }
        std::thread::sleep(POLL_PERIOD);
    }
}
