//! Determines how each peer would be reached, and why.

use serde::Serialize;

use super::facts::{Facts, Lease, Peer, Route};

/// The choice for a kind of traffic to a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Choice {
    pub(super) peer: String,
    /// Kind of traffic.
    pub(super) traffic: &'static str,
    /// Interface, and `lease`, `daemon` or `udp`.
    pub(super) interface: String,
    pub(super) path: &'static str,
    pub(super) rtt_us: Option<f64>,
    pub(super) payload: Option<usize>,
    /// Reason for the choice.
    pub(super) why: String,
}

/// Returns the choices for all peers that answer.
pub(super) fn choices(facts: &Facts) -> Vec<Choice> {
    let peers = facts.network.iter().flat_map(|network| &network.peers);
    peers.flat_map(|peer| of_peer(facts, peer)).collect()
}

/// Returns the choices of a stream, and of short and long messages of jobs and Open MPI.
fn of_peer(facts: &Facts, peer: &Peer) -> Vec<Choice> {
    let passes = peer.esp != Some(false);
    let raw = peer.fastest().filter(|_| passes);
    let udp = peer.udp().filter(|route| route.answers());
    let lease = facts.daemon.lease == Lease::Granted && facts.daemon.path != "daemon";
    let path = if lease { "lease" } else { "daemon" };
    let choice = |traffic, (route, path, why): (&Route, _, String)| Choice {
        peer: peer.name.clone(),
        traffic,
        interface: route.interface.clone(),
        path,
        rtt_us: route.rtt_us,
        payload: route.payload,
        why,
    };
    let fastest = |route| (route, path, reason(peer));
    let (stream, short, long) = match (raw, udp) {
        (None, None) => return Vec::new(),
        (Some(raw), None) => {
            let only = || {
                (
                    raw,
                    path,
                    "UDP does not reach it, or was not tried".to_owned(),
                )
            };
            (fastest(raw), only(), only())
        }
        (None, Some(udp)) => {
            let only = || (udp, "udp", "raw Ethernet does not reach it".to_owned());
            (only(), only(), only())
        }
        (Some(raw), Some(udp)) => {
            let short = if lease {
                (raw, path, "a lease has the lowest latency".to_owned())
            } else {
                (udp, "udp", "without a lease, UDP is faster".to_owned())
            };
            let long = (udp, "udp", "the kernel segments long messages".to_owned());
            (fastest(raw), short, long)
        }
    };
    vec![
        choice("streams", stream),
        choice("short messages", short),
        choice("long messages", long),
    ]
}

/// Returns the reason why streams take the fastest path.
fn reason(peer: &Peer) -> String {
    let answering: Vec<_> = peer
        .raw()
        .filter(|route| route.answers())
        .map(|route| route.interface.as_str())
        .collect();
    match answering.as_slice() {
        [_] | [] => "the only interface that reaches it".to_owned(),
        several => format!("the fastest answer of {}", several.join(", ")),
    }
}
