//! Choice of the interface towards a peer, measured with EDP echoes.

use std::time::{Duration, Instant};

use esp_proto::EdpKind;
use esp_proto::NodeAddr;

use crate::client::Client;
use crate::control::InterfaceInfo;
use crate::edp::{EdpSocket, monotonic_nanos};
use crate::error::EspError;

/// Maximum number of echo requests on each interface, until one is answered.
const ROUNDS: u16 = 3;
/// Maximum wait for the first answer to each.
const FIRST_ANSWER: Duration = Duration::from_millis(250);
/// Maximum wait after it for the other interfaces.
const OTHER_ANSWERS: Duration = Duration::from_millis(20);
/// Period of polling the sockets. The engine's time stamps measure the round trip.
const POLL_PERIOD: Duration = Duration::from_micros(100);

impl Client {
    /// Returns the name of the interface to this peer. With several interfaces, an EDP echo request
    /// is sent over each that is up, and the fastest answer decides.
    ///
    /// # Errors
    /// [`EspError::NoPath`] if the peer answers over no interface.
    pub fn route(&self, peer: NodeAddr) -> Result<String, EspError> {
        let no_path = |tried: String| EspError::NoPath { peer, tried };
        let reaches = |own: &&InterfaceInfo| own.addr.is_kind_of(&peer);
        let known = self.interfaces();
        let mut fit = known.iter().filter(reaches);
        match (fit.next(), fit.next()) {
            (Some(only), None) => return Ok(only.name.clone()),
            (Some(_), Some(_)) => {}
            (None, _) => return Err(no_path("no interface has an address of this kind".into())),
        }
        let interfaces = if self.session().is_local() {
            known
        } else {
            self.status()?.interfaces
        };
        if let Some(own) = interfaces.iter().find(|own| own.addr == peer) {
            return Ok(own.name.clone());
        }
        let up = interfaces.iter().filter(reaches).filter(|own| own.up);
        let up: Vec<_> = up.map(|interface| interface.name.as_str()).collect();
        match up.as_slice() {
            [] => Err(no_path("none of the daemon's interfaces is up".into())),
            [only] => Ok((*only).to_owned()),
            names => fastest(self, peer, names)?.ok_or_else(|| {
                no_path(format!("no answer to an EDP echo on {}", names.join(", ")))
            }),
        }
    }
}

/// Returns the interface of these with the shortest round trip to the peer.
fn fastest(client: &Client, peer: NodeAddr, names: &[&str]) -> Result<Option<String>, EspError> {
    let bind = |name: &&str| {
        let builder = EdpSocket::builder().interface(*name);
        builder.rings(16 << 10, 64 << 10).bind_at(client, 0)
    };
    let sockets: Vec<EdpSocket> = names.iter().map(bind).collect::<Result<_, _>>()?;
    let send = |socket: &EdpSocket, round| {
        let now = monotonic_nanos();
        // A request that cannot be sent counts as unanswered.
        let _ = socket.send_echo(peer, round, b"route");
        now
    };
    for round in 0..ROUNDS {
        let sent: Vec<u64> = sockets.iter().map(|socket| send(socket, round)).collect();
        let mut times = vec![None; sockets.len()];
        let mut deadline = Instant::now() + FIRST_ANSWER;
        while times.contains(&None) && Instant::now() < deadline {
            for (socket, (sent, time)) in sockets.iter().zip(sent.iter().zip(&mut times)) {
                let Ok((_, info)) = socket.try_recv_from(&mut [0; 64]) else {
                    continue;
                };
                let answers = info.kind == EdpKind::EchoReply && info.src == peer;
                if answers && info.sequence == round {
                    *time = Some(info.received_nanos.saturating_sub(*sent));
                    deadline = deadline.min(Instant::now() + OTHER_ANSWERS);
                }
            }
            std::thread::sleep(POLL_PERIOD);
        }
        let answered = times.iter().zip(names);
        let answered = answered.filter_map(|(time, name)| Some(((*time)?, *name)));
        if let Some((_, name)) = answered.min() {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}
