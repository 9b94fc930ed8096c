//! Output of espstat: tables or JSON lines.

use std::collections::HashMap;
use std::io;
use std::time::SystemTime;

use esp_client::control::{ConnectionStatus, CounterStatus, EdpStatus, ListenerStatus, Status};
use serde::Serialize;

use super::sockets::Sockets;
use crate::filter::Socket;
use crate::names::Names;
use crate::{out, table};

/// Selected part of the status.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Selection {
    /// Connections, listeners, datagram ports.
    Sockets(Sockets),
    /// Counters.
    Counters {
        /// True to include those that are zero.
        all: bool,
    },
}

/// One line of `--json`. `time` is set if the output is repeated.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(flatten)]
    item: Item<'a>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Daemon {
        version: &'a str,
        uptime_s: f64,
    },
    Interface {
        name: &'a str,
        mac: String,
        mtu: u32,
        up: bool,
    },
    Connection(&'a ConnectionStatus),
    Listener(&'a ListenerStatus),
    Edp(&'a EdpStatus),
    Counter(&'a CounterStatus),
}

/// Writes the status once or repeatedly.
pub(super) struct Report {
    json: bool,
    selection: Selection,
    names: Names,
    /// Counters of the previous output.
    before: HashMap<(String, String), u64>,
}

impl Report {
    pub(super) fn new(json: bool, selection: Selection, names: Names) -> Report {
        Report {
            json,
            selection,
            names,
            before: HashMap::new(),
        }
    }

    /// Writes the status. `time`, the seconds since 1970, is set if the output is repeated.
    pub(super) fn show(&mut self, status: &Status, time: Option<f64>) -> io::Result<()> {
        if self.json {
            let items = items(status, &self.selection);
            return items
                .into_iter()
                .try_for_each(|item| out::json(&Line { time, item }));
        }
        let text = match &self.selection {
            Selection::Counters { all } => self.counters(status, *all, time.is_some()),
            Selection::Sockets(sockets) => sockets.show(status, &self.names),
        };
        match time {
            Some(_) => out::line(format_args!(
                "{}\n{text}\n",
                humantime::format_rfc3339_seconds(SystemTime::now())
            )),
            None => out::line(text),
        }
    }

    fn counters(&mut self, status: &Status, all: bool, repeated: bool) -> String {
        let mut rows = Vec::new();
        for counter in &status.counters {
            let key = (counter.interface.clone(), counter.name.clone());
            let before = self.before.insert(key, counter.value);
            if counter.value == 0 && !all {
                continue;
            }
            let interface = Some(counter.interface.as_str()).filter(|name| !name.is_empty());
            let mut row = vec![
                interface.unwrap_or("-").to_owned(),
                counter.name.clone(),
                counter.value.to_string(),
            ];
            if repeated {
                row.push(before.map_or_else(String::new, |before| {
                    format!("+{}", counter.value.saturating_sub(before))
                }));
            }
            row.push(counter.help.clone());
            rows.push(row);
        }
        let mut headings = vec!["Interface", "Counter", ">Value", "Meaning"];
        if repeated {
            headings.insert(3, ">Change");
        }
        titled(&headings, rows, "all counters are zero")
    }
}

/// Formats a table; returns `empty` if it has no rows.
fn titled(headings: &[&str], rows: Vec<Vec<String>>, empty: &str) -> String {
    if rows.is_empty() {
        return empty.to_owned();
    }
    table::text(headings, rows).trim_end().to_owned()
}

fn items<'a>(status: &'a Status, selection: &Selection) -> Vec<Item<'a>> {
    let sockets = match selection {
        Selection::Counters { all } => {
            let counters = status.counters.iter().filter(|c| *all || c.value != 0);
            return counters.map(Item::Counter).collect();
        }
        Selection::Sockets(sockets) => sockets,
    };
    let mut items = vec![Item::Daemon {
        version: &status.daemon,
        uptime_s: status.uptime_s,
    }];
    items.extend(status.interfaces.iter().map(|i| Item::Interface {
        name: &i.name,
        mac: i.addr.to_string(),
        mtu: i.mtu,
        up: i.up,
    }));
    let connections = status.connections.iter();
    let connections = connections.filter(|c| sockets.has(&Socket::connection(status, c)));
    items.extend(connections.map(Item::Connection));
    let listeners = status.listeners.iter();
    let listeners = listeners.filter(|l| sockets.has(&Socket::listener(status, l)));
    items.extend(listeners.map(Item::Listener));
    let edp = status
        .edp
        .iter()
        .filter(|e| sockets.has(&Socket::edp(status, e)));
    items.extend(edp.map(Item::Edp));
    items
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use esp_client::control::{InterfaceInfo, Owner};

    pub(in crate::espstat) fn status() -> Status {
        let connection = serde_json::json!({
            "interface": "eth0", "state": "established", "local_port": 40000, "peer": "02:e5:00:00:00:02", "peer_port": 7000,
            "path": "daemon", "uid": 0, "pid": 42, "program": "a\u{1b}b", "srtt_us": 23.45, "rttvar_us": 1.0, "min_rtt_us": 20.0,
            "rto_us": 2000.0, "cwnd": 10, "in_flight": 1, "credit": 700, "rx_credit": 700, "payload": 1489, "payload_agreed": 1489,
            "send_queue": 17, "recv_queue": 0, "packets_sent": 100, "packets_received": 5, "bytes_acked": 1, "bytes_received": 2,
            "retransmits": 3, "timeouts": 0, "tail_probes": 0, "duplicates": 0, "out_of_order": 0,
            "send_ring": 65536, "recv_ring": 131072
        });
        let counter = |name: &str, value| CounterStatus {
            interface: "eth0".into(),
            name: name.into(),
            help: "the meaning".into(),
            value,
        };
        Status {
            daemon: "0.1.0".into(),
            uptime_s: 1.5,
            interfaces: vec![InterfaceInfo {
                name: "eth0".into(),
                addr: esp_client::MacAddr([2, 0xe5, 0, 0, 0, 1]).into(),
                mtu: 1500,
                up: true,
            }],
            connections: vec![serde_json::from_value(connection).expect("all fields are there")],
            listeners: vec![ListenerStatus {
                interface: "eth0".into(),
                port: 7000,
                waiting: 1,
                backlog: 128,
                owner: Owner::default(),
            }],
            edp: Vec::new(),
            counters: vec![counter("rx_frames", 10), counter("rx_drop_runt", 0)],
        }
    }

    #[test]
    fn counters_have_their_change() {
        let mut report = Report::new(false, Selection::Counters { all: false }, Names::default());
        let first = report.counters(&status(), false, true);
        assert!(
            first.contains("rx_frames") && !first.contains("rx_drop_runt"),
            "{first}"
        );
        let mut later = status();
        later.counters[0].value = 25;
        let text = report.counters(&later, false, true);
        let cells: Vec<_> = text
            .lines()
            .nth(1)
            .unwrap_or_default()
            .split_whitespace()
            .take(4)
            .collect();
        assert_eq!(cells, ["eth0", "rx_frames", "25", "+15"]);
        assert!(report.counters(&later, true, true).contains("rx_drop_runt"));
    }

    #[test]
    fn json_has_one_object_per_item() -> Result<(), serde_json::Error> {
        let status = status();
        let lines: Vec<serde_json::Value> = items(&status, &Selection::Sockets(Sockets::default()))
            .into_iter()
            .map(|item| serde_json::to_value(Line { time: None, item }))
            .collect::<Result<_, _>>()?;
        let types: Vec<_> = lines.iter().filter_map(|l| l["type"].as_str()).collect();
        assert_eq!(types, ["daemon", "interface", "connection", "listener"]);
        assert_eq!(
            (&lines[2]["peer_port"], &lines[1]["mac"]),
            (&7000.into(), &"02:e5:00:00:00:01".into())
        );
        Ok(())
    }

    #[test]
    fn json_has_the_sockets_that_the_filter_accepts() {
        let status = status();
        let filter = crate::filter::Filter::parse("state listening").expect("a filter");
        let sockets = Sockets {
            filter,
            ..Sockets::default()
        };
        let all = items(&status, &Selection::Sockets(sockets));
        assert!(all.iter().any(|item| matches!(item, Item::Listener(_))));
        assert!(!all.iter().any(|item| matches!(item, Item::Connection(_))));
    }
}
