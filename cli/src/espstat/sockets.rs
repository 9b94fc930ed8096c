//! Tables of connections, listeners and datagram ports.

use std::fmt::Display;

use esp_client::control::{ConnectionStatus, EdpStatus, InterfaceInfo, Status};

use crate::filter::{Filter, Socket};
use crate::names::Names;
use crate::out::program;
use crate::table;

/// Columns of connections.
pub(super) const CONNECTION: [&str; 6] = ["State", ">Recv-Q", ">Send-Q", "Local", "Peer", "Path"];
/// Columns of listeners and datagram ports.
pub(super) const LISTENER: [&str; 4] = ["Listening", ">Waiting", ">Backlog", "Local"];
/// Column of programs.
const PROGRAM: &str = "Program";

/// Sockets to show, and the parts to show of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sockets {
    pub(super) filter: Filter,
    /// Only listeners and datagram ports.
    pub(super) listening: bool,
    /// With their programs.
    pub(super) processes: bool,
    /// With the internal state of connections.
    pub(super) info: bool,
    /// With user, bytes and packets of connections.
    pub(super) extended: bool,
    /// With the memory of connections and datagram ports.
    pub(super) memory: bool,
}

impl Sockets {
    /// Returns true for a socket to show.
    pub(super) fn has(&self, socket: &Socket<'_>) -> bool {
        !(self.listening && socket.connection.is_some()) && self.filter.accepts(socket)
    }

    /// Formats interfaces, connections, and listeners with datagram ports; with a filter, only the
    /// tables that are not empty.
    pub(super) fn show(&self, status: &Status, names: &Names) -> String {
        let filtered = !self.filter.is_empty();
        let mut parts = Vec::new();
        if !filtered {
            parts.extend(Some(interfaces(&status.interfaces)).filter(|text| !text.is_empty()));
        }
        let connections = self.connections(status, names);
        if !self.listening {
            parts.extend(connections.or((!filtered).then(|| "no connections".into())));
        }
        let empty = (!filtered).then(|| "no listeners or datagram ports".into());
        parts.extend(self.listeners(status).or(empty));
        if parts.is_empty() {
            parts.push("no connection, listener or datagram port matches the filter".into());
        }
        parts.join("\n\n")
    }

    /// Formats the table of connections; `None` if there is none to show.
    fn connections(&self, status: &Status, names: &Names) -> Option<String> {
        let shown = status.connections.iter();
        let shown: Vec<_> = shown
            .filter(|c| self.has(&Socket::connection(status, c)))
            .collect();
        let row = |c: &&ConnectionStatus| {
            let name = c.peer.parse().ok().and_then(|addr| names.of(addr));
            let mut row = vec![
                c.state.clone(),
                known(c.recv_queue),
                known(c.send_queue),
                format!("{}:{}", c.interface, c.local_port),
                format!("{}:{}", name.unwrap_or(&c.peer), c.peer_port),
                c.path.clone(),
            ];
            row.extend(self.processes.then(|| program(&c.owner)));
            row
        };
        let table = self.table(&CONNECTION, shown.iter().map(row).collect())?;
        let mut lines = table.lines();
        let mut text = vec![lines.next().unwrap_or_default().to_owned()];
        for (line, connection) in lines.zip(shown) {
            text.push(line.to_owned());
            text.extend(self.info.then(|| info(connection)));
            text.extend(self.extended.then(|| extended(connection)));
            text.extend(self.memory.then(|| memory(connection)));
        }
        Some(text.join("\n"))
    }

    /// Formats the table of listeners and datagram ports; `None` if there is none to show.
    fn listeners(&self, status: &Status) -> Option<String> {
        let listeners = status.listeners.iter().map(|l| {
            let counts = [l.waiting.to_string(), l.backlog.to_string()];
            ("ESP", counts, Socket::listener(status, l), None)
        });
        let edp = status.edp.iter().map(|e| {
            let counts = ["-".into(), "-".into()];
            ("EDP", counts, Socket::edp(status, e), Some(e))
        });
        let all = listeners.chain(edp);
        let shown: Vec<_> = all.filter(|(_, _, socket, _)| self.has(socket)).collect();
        let rows = shown.iter().map(|(protocol, counts, socket, _)| {
            let mut row = vec![(*protocol).to_owned()];
            row.extend(counts.clone());
            row.push(format!("{}:{}", socket.interface, socket.port));
            row.extend(self.processes.then(|| program(socket.owner)));
            row
        });
        let table = self.table(&LISTENER, rows.collect())?;
        let mut lines = table.lines();
        let mut text = vec![lines.next().unwrap_or_default().to_owned()];
        for (line, (.., edp)) in lines.zip(shown) {
            text.push(line.to_owned());
            text.extend(edp.filter(|_| self.memory).map(rings));
        }
        Some(text.join("\n"))
    }

    /// Formats a table; `None` if it has no rows.
    fn table(&self, headings: &[&'static str], rows: Vec<Vec<String>>) -> Option<String> {
        let mut headings = headings.to_vec();
        headings.extend(self.processes.then_some(PROGRAM));
        (!rows.is_empty()).then(|| table::text(&headings, rows).trim_end().to_owned())
    }
}

fn interfaces(interfaces: &[InterfaceInfo]) -> String {
    let line = |i: &InterfaceInfo| {
        let state = if i.up { "up" } else { "down" };
        format!("{} {} MTU {} {state}", i.name, i.addr, i.mtu)
    };
    interfaces.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a value that the daemon may not know.
fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn micros(value: Option<f64>) -> String {
    known(value.map(|us| format!("{us:.1}")))
}

/// Formats the internal state of a connection.
fn info(c: &ConnectionStatus) -> String {
    format!(
        "    rtt:{}/{} minrtt:{} rto:{} cwnd:{} inflight:{} credit:{}/{} payload:{}/{} retrans:{} \
         timeouts:{} probes:{} dup:{} ooo:{}",
        micros(c.srtt_us),
        micros(c.rttvar_us),
        micros(c.min_rtt_us),
        micros(c.rto_us),
        known(c.cwnd),
        known(c.in_flight),
        known(c.credit),
        known(c.rx_credit),
        known(c.payload),
        known(c.payload_agreed),
        known(c.retransmits),
        known(c.timeouts),
        known(c.tail_probes),
        known(c.duplicates),
        known(c.out_of_order),
    )
}

/// Formats user, bytes and packets of a connection.
fn extended(c: &ConnectionStatus) -> String {
    format!(
        "    uid:{} sent:{} acked:{} B received:{}, {} B moves:{}",
        known(c.owner.uid),
        known(c.packets_sent),
        known(c.bytes_acked),
        known(c.packets_received),
        known(c.bytes_received),
        known(c.moves),
    )
}

/// Formats the memory of a connection.
fn memory(c: &ConnectionStatus) -> String {
    format!(
        "    mem:(tx {}/{} rx {}/{})",
        known(c.send_queue),
        known(c.send_ring),
        known(c.recv_queue),
        known(c.recv_ring),
    )
}

/// Formats the memory of a datagram port. The daemon does not know how much of it is in use.
fn rings(e: &EdpStatus) -> String {
    format!(
        "    mem:(tx -/{} rx -/{})",
        known(e.send_ring),
        known(e.recv_ring)
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::status;
    use super::*;
    use esp_client::control::Owner;

    fn filtered(text: &str) -> Sockets {
        Sockets {
            filter: Filter::parse(text).unwrap_or_else(|e| panic!("{e}")),
            ..Sockets::default()
        }
    }

    #[test]
    fn sockets_as_text() {
        let text = Sockets::default().show(&status(), &Names::default());
        assert_eq!(
            text,
            "eth0 02:e5:00:00:00:01 MTU 1500 up

State        Recv-Q  Send-Q  Local       Peer                    Path
established       0      17  eth0:40000  02:e5:00:00:00:02:7000  daemon

Listening  Waiting  Backlog  Local
ESP              1      128  eth0:7000"
        );
    }

    #[test]
    fn options_add_programs_and_lines() {
        let sockets = Sockets {
            processes: true,
            info: true,
            extended: true,
            memory: true,
            ..filtered("state established")
        };
        let text = sockets.show(&status(), &Names::default());
        assert_eq!(
            text,
            "State        Recv-Q  Send-Q  Local       Peer                    Path    Program
established       0      17  eth0:40000  02:e5:00:00:00:02:7000  daemon  a?b[42]
    rtt:23.4/1.0 minrtt:20.0 rto:2000.0 cwnd:10 inflight:1 credit:700/700 payload:1489/1489 \
             retrans:3 timeouts:0 probes:0 dup:0 ooo:0
    uid:0 sent:100 acked:1 B received:5, 2 B moves:-
    mem:(tx 17/65536 rx 0/131072)"
        );
    }

    #[test]
    fn what_the_daemon_does_not_know_is_a_dash() {
        let mut status = status();
        status.connections = vec![ConnectionStatus {
            interface: "eth0".into(),
            state: "established".into(),
            peer: "02:e5:00:00:00:02".into(),
            path: "lease".into(),
            ..ConnectionStatus::default()
        }];
        let sockets = Sockets {
            info: true,
            extended: true,
            memory: true,
            processes: true,
            ..filtered("path lease")
        };
        let text = sockets.show(&status, &Names::default());
        let lines: Vec<_> = text.lines().skip(1).collect();
        let words: Vec<_> = lines[0].split_whitespace().collect();
        let wanted = [
            "established",
            "-",
            "-",
            "eth0:0",
            "02:e5:00:00:00:02:0",
            "lease",
            "-",
        ];
        assert_eq!(words, wanted);
        for word in lines[1..].join(" ").split_whitespace() {
            assert!(!word.contains(|c: char| c.is_ascii_digit()), "{word}");
        }
    }

    #[test]
    fn an_empty_list_is_named() {
        let mut status = status();
        status.listeners.clear();
        let listening = Sockets {
            listening: true,
            ..Sockets::default()
        };
        let text = listening.show(&status, &Names::default());
        assert!(
            text.ends_with("up\n\nno listeners or datagram ports"),
            "{text}"
        );
        let text = filtered("dport 1").show(&status, &Names::default());
        assert_eq!(
            text,
            "no connection, listener or datagram port matches the filter"
        );
    }

    #[test]
    fn datagram_ports_have_rings() {
        let mut status = status();
        let port = |number, ring| EdpStatus {
            interface: "eth0".into(),
            port: number,
            send_ring: ring,
            recv_ring: ring,
            owner: Owner::default(),
        };
        status.edp = vec![port(1, Some(4096)), port(2, None)];
        let sockets = Sockets {
            listening: true,
            memory: true,
            ..filtered("dev eth0")
        };
        let text = sockets.show(&status, &Names::default());
        assert_eq!(
            text,
            "Listening  Waiting  Backlog  Local
ESP              1      128  eth0:7000
EDP              -        -  eth0:1
    mem:(tx -/4096 rx -/4096)
EDP              -        -  eth0:2
    mem:(tx -/- rx -/-)"
        );
    }

    #[test]
    fn filters_select_listeners_too() {
        let text = filtered("sport 7000").show(&status(), &Names::default());
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("eth0:7000"), "{text}");
    }
}
