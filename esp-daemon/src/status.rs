//! The reply to `espstat`.
//!
//! As with ss(8), every user sees every connection and its owner (the uid); only the owner and the
//! superuser see the program and process.

use esp_client::control::codec::encode;
use esp_client::control::{
    ConnectionStatus, CounterStatus, EdpStatus, Envelope, ListenerStatus, Owner, Reply, Status,
};
use esp_engine::{ClientId, LinkSnapshot, Snapshot};
use esp_proto::{ConnInfo, Duration, State};

use crate::node::Node;
use crate::peer::Credentials;
use crate::refusal::Refusal;

/// Number of entries that always fit into one message (at most 1 KiB each).
const CERTAIN_TO_FIT: usize = 2048;

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
    let owner_of = |client: Option<ClientId>| owner_of(node, viewer, client);
    let rings_of = |client, slot| node.client(client)?.slots().rings(slot);
    for (_, owner, info) in &link.connections {
        let rings = owner.and_then(|(client, slot)| rings_of(client, slot));
        let owner = owner_of(owner.map(|(client, _)| client));
        status.connections.push(ConnectionStatus {
            send_ring: rings.map(|rings| rings.tx),
            recv_ring: rings.map(|rings| rings.rx),
            ..connection(&link.interface, owner, info)
        });
    }
    for &(port, listener, waiting, backlog) in &link.listeners {
        let owner = listener.and_then(|id| node.listener_owner(id));
        // A backlog is at most 1024.
        let [waiting, backlog] = [waiting, backlog].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
        status.listeners.push(ListenerStatus {
            interface: link.interface.clone(),
            port,
            waiting,
            backlog,
            owner: owner_of(owner.map(|client| client.id)),
        });
    }
    for &(port, client, slot) in &link.edp_ports {
        let rings = rings_of(client, slot);
        status.edp.push(EdpStatus {
            interface: link.interface.clone(),
            port,
            send_ring: rings.map(|rings| rings.tx),
            recv_ring: rings.map(|rings| rings.rx),
            owner: owner_of(Some(client)),
        });
    }
}

/// Adds the connections over leases registered by their holders, whose counters the daemon does not
/// see.
fn add_leases(node: &Node, viewer: Credentials, status: &mut Status) {
    for lease in node.leases.all() {
        for (local_port, peer, peer_port) in lease.registered() {
            status.connections.push(ConnectionStatus {
                interface: lease.entry.interface.clone(),
                state: "established".into(),
                local_port,
                peer: peer.to_string(),
                peer_port,
                path: "lease".into(),
                owner: owner_of(node, viewer, Some(lease.client)),
                ..ConnectionStatus::default()
            });
        }
    }
}

/// Returns the owner as visible to the viewer.
fn owner_of(node: &Node, viewer: Credentials, client: Option<ClientId>) -> Owner {
    let Some(client) = client.and_then(|id| node.client(id)) else {
        return Owner::default();
    };
    let visible = viewer.is_root() || viewer.uid == client.credentials.uid;
    Owner {
        uid: Some(client.credentials.uid),
        pid: client.credentials.pid.filter(|_| visible),
        program: visible.then(|| client.program.clone()),
    }
}

fn connection(interface: &str, owner: Owner, info: &ConnInfo) -> ConnectionStatus {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    ConnectionStatus {
        interface: interface.into(),
        state: state_name(info.state).into(),
        local_port: info.local_port,
        peer: info.peer.to_string(),
        peer_port: info.peer_port,
        path: "daemon".into(),
        owner,
        srtt_us: info.srtt.map(us),
        rttvar_us: Some(us(info.rttvar)),
        min_rtt_us: info.min_rtt.map(us),
        rto_us: Some(us(info.rto)),
        cwnd: Some(info.cwnd),
        in_flight: Some(info.in_flight),
        credit: Some(info.credit),
        rx_credit: Some(info.rx_credit),
        payload: Some(info.payload),
        payload_agreed: Some(info.payload_agreed),
        send_queue: Some(info.send_queue),
        recv_queue: Some(info.recv_queue),
        packets_sent: Some(info.packets_sent),
        packets_received: Some(info.packets_received),
        bytes_acked: Some(info.bytes_acked),
        bytes_received: Some(info.bytes_received),
        retransmits: Some(info.retransmits),
        timeouts: Some(info.timeouts),
        tail_probes: Some(info.tail_probes),
        duplicates: Some(info.duplicates),
        out_of_order: Some(info.out_of_order),
        moves: Some(info.moves),
        ..ConnectionStatus::default()
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
    let entries =
        |status: &Status| status.connections.len() + status.listeners.len() + status.edp.len();
    let before = entries(status);
    if before > CERTAIN_TO_FIT {
        let is_other = |found: &ConnectionStatus| found.owner.uid != Some(viewer.uid);
        status.connections.sort_by_key(is_other);
    }
    while entries(status) > CERTAIN_TO_FIT && !fits(status) {
        status.connections.truncate(status.connections.len() / 2);
        status.listeners.truncate(status.listeners.len() / 2);
        status.edp.truncate(status.edp.len() / 2);
    }
    node.stats.status_omitted.add_many(before - entries(status));
}

/// Returns true if the status fits into one message.
fn fits(status: &mut Status) -> bool {
    let reply = Envelope {
        id: u64::MAX,
        body: Reply::Status(Box::new(std::mem::take(status))),
    };
    let fits = encode(&reply).is_ok();
    if let Reply::Status(whole) = reply.body {
        *status = *whole;
    }
    fits
}
