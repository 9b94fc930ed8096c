//! The reply to `espstat`.
//!
//! As with ss(8), every user sees every connection and its owner (the uid); only the same user and
//! the superuser see the program and process.

use esp_client::control::codec::encode;
use esp_client::control::{
    ConnectionStatus, CounterStatus, EdpStatus, Envelope, ListenerStatus, Reply, Status,
};
use esp_engine::{ClientId, LinkSnapshot, Snapshot};
use esp_proto::{ConnInfo, Duration, State};

use crate::node::Node;
use crate::peer::Credentials;
use crate::refusal::Refusal;

/// Number of entries that always fit into one message (at most 1 KiB each).
const CERTAIN_TO_FIT: usize = 2048;
/// Maximum number of connections listed; about what fits into one message.
const MOST_CONNECTIONS: usize = 8192;
/// Maximum number of listeners listed, and of datagram ports.
const MOST_PORTS: usize = 4096;

/// Owner as visible to the viewer.
#[derive(Default)]
struct Owner {
    uid: Option<u32>,
    pid: Option<u32>,
    program: Option<String>,
}

/// Returns the node's state as visible to `viewer`.
pub(crate) async fn of(node: &Node, viewer: Credentials) -> Result<Status, Refusal> {
    let snapshot = node.snapshot().await?;
    let mut status = Status {
        daemon: env!("CARGO_PKG_VERSION").into(),
        uptime_s: node.started.elapsed().as_secs_f64(),
        interfaces: node.links.iter().map(|link| link.info()).collect(),
        counters: counters(node, &snapshot),
        ..Status::default()
    };
    for link in &snapshot.links {
        add_link(node, viewer, link, &mut status);
    }
    add_leases(node, viewer, &mut status);
    fit(node, viewer, &mut status);
    Ok(status)
}

/// Returns all counters: of the control plane, the engine, and each link.
pub(crate) fn counters(node: &Node, snapshot: &Snapshot) -> Vec<CounterStatus> {
    let make = |interface: &str, (name, help, value): (&str, &str, u64)| CounterStatus {
        interface: interface.into(),
        name: name.into(),
        help: help.into(),
        value,
    };
    let whole = node
        .stats
        .list()
        .into_iter()
        .chain(snapshot.engine.iter().copied())
        .map(|c| make("", c));
    let links = snapshot.links.iter().flat_map(|link| {
        link.counters
            .iter()
            .map(|counter| make(&link.interface, *counter))
    });
    whole.chain(links).collect()
}

fn add_link(node: &Node, viewer: Credentials, link: &LinkSnapshot, status: &mut Status) {
    let interface = || link.interface.clone();
    status
        .connections
        .extend(link.connections.iter().map(|(_, owner, info)| {
            let owner = owner
                .map(|(client, _)| owner_of(node, viewer, client))
                .unwrap_or_default();
            connection(interface(), owner, info)
        }));
    status.listeners.extend(
        link.listeners
            .iter()
            .map(|&(port, listener, waiting, backlog)| {
                let owner = listener.and_then(|id| node.listener_owner(id));
                let Owner { uid, pid, program } = owner
                    .map(|client| owner_of(node, viewer, client.id))
                    .unwrap_or_default();
                // A backlog is at most 1024.
                let [waiting, backlog] =
                    [waiting, backlog].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
                ListenerStatus {
                    interface: interface(),
                    port,
                    waiting,
                    backlog,
                    uid,
                    pid,
                    program,
                }
            }),
    );
    status
        .edp
        .extend(link.edp_ports.iter().map(|&(port, client, _)| {
            let Owner { uid, pid, program } = owner_of(node, viewer, client);
            EdpStatus {
                interface: interface(),
                port,
                uid,
                pid,
                program,
            }
        }));
}

/// Adds the connections over leases registered by their holders, whose counters the daemon does not
/// see.
fn add_leases(node: &Node, viewer: Credentials, status: &mut Status) {
    for lease in node.leases.all() {
        let Some(link) = node.links.get(usize::from(lease.link.0)) else {
            continue;
        };
        status
            .connections
            .extend(
                lease
                    .registered()
                    .into_iter()
                    .map(|(local_port, peer, peer_port)| ConnectionStatus {
                        interface: link.name().into(),
                        state: "established".into(),
                        local_port,
                        peer: peer.to_string(),
                        peer_port,
                        path: "lease".into(),
                        ..with_owner(owner_of(node, viewer, lease.client))
                    }),
            );
    }
}

fn with_owner(owner: Owner) -> ConnectionStatus {
    let Owner { uid, pid, program } = owner;
    ConnectionStatus {
        uid,
        pid,
        program,
        ..ConnectionStatus::default()
    }
}

fn owner_of(node: &Node, viewer: Credentials, client: ClientId) -> Owner {
    let Some(client) = node.client(client) else {
        return Owner::default();
    };
    let uid = Some(client.who.uid);
    if viewer.is_root() || viewer.uid == client.who.uid {
        Owner {
            uid,
            pid: client.who.pid,
            program: Some(client.program.clone()),
        }
    } else {
        Owner {
            uid,
            pid: None,
            program: None,
        }
    }
}

fn connection(interface: String, owner: Owner, info: &ConnInfo) -> ConnectionStatus {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    ConnectionStatus {
        interface,
        state: state_name(info.state).into(),
        local_port: info.local_port,
        peer: info.peer.to_string(),
        peer_port: info.peer_port,
        path: "daemon".into(),
        uid: owner.uid,
        pid: owner.pid,
        program: owner.program,
        srtt_us: info.srtt.map(us),
        rttvar_us: us(info.rttvar),
        min_rtt_us: info.min_rtt.map(us),
        rto_us: us(info.rto),
        cwnd: info.cwnd,
        in_flight: info.in_flight,
        credit: info.credit,
        rx_credit: info.rx_credit,
        payload: info.payload,
        payload_agreed: info.payload_agreed,
        send_queue: info.send_queue,
        recv_queue: info.recv_queue,
        packets_sent: info.packets_sent,
        packets_received: info.packets_received,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        retransmits: info.retransmits,
        timeouts: info.timeouts,
        tail_probes: info.tail_probes,
        duplicates: info.duplicates,
        out_of_order: info.out_of_order,
        moves: info.moves,
    }
}

/// Returns the name of a state as in the specification, in lower case.
fn state_name(state: State) -> &'static str {
    match state {
        State::SynSent => "syn-sent",
        State::SynReceived => "syn-received",
        State::Established => "established",
        State::FinWait1 => "fin-wait-1",
        State::FinWait2 => "fin-wait-2",
        State::CloseWait => "close-wait",
        State::Closing => "closing",
        State::LastAck => "last-ack",
        State::TimeWait => "time-wait",
        State::Closed => "closed",
    }
}

/// Truncates the lists until the reply fits; the viewer's own connections are kept longest.
fn fit(node: &Node, viewer: Credentials, status: &mut Status) {
    let entries = status.connections.len() + status.listeners.len() + status.edp.len();
    if entries <= CERTAIN_TO_FIT {
        return;
    }
    status.listeners.truncate(MOST_PORTS);
    status.edp.truncate(MOST_PORTS);
    status
        .connections
        .sort_by_key(|connection| connection.uid != Some(viewer.uid));
    status.connections.truncate(MOST_CONNECTIONS);
    loop {
        let reply = Envelope {
            id: u64::MAX,
            body: Reply::Status(Box::new(std::mem::take(status))),
        };
        let fits = encode(&reply).is_ok();
        if let Reply::Status(whole) = reply.body {
            *status = *whole;
        }
        if fits || status.connections.is_empty() {
            break;
        }
        status.connections.truncate(status.connections.len() / 2);
    }
    let left = status.connections.len() + status.listeners.len() + status.edp.len();
    node.stats
        .status_omitted
        .add_many(entries.saturating_sub(left));
}
