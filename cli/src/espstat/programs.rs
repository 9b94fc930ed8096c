//! Sockets of programs under `esprun`, as its brokers report them.

use std::io;

use preload_wire::{SocketStatus, Sockets, Way};
use serde::Serialize;

use crate::{out, table};

/// Columns.
pub(super) const PROGRAM: [&str; 6] = ["Program", "Local", "Peer", ">Sent", ">Received", "Way"];

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    r#type: &'static str,
    pid: u32,
    program: &'a str,
    #[serde(flatten)]
    socket: &'a SocketStatus,
}

/// Asks all brokers of this node. Those of other users do not answer.
fn all() -> Vec<Sockets> {
    let brokers = preload_wire::brokers();
    let answers = brokers.iter().filter_map(|id| preload_wire::list(id).ok());
    answers.collect()
}

/// Writes the sockets.
pub(super) fn show(json: bool) -> io::Result<()> {
    let all = all();
    if !json {
        return out::line(text(&all));
    }
    for one in &all {
        for socket in &one.sockets {
            out::json(&Line {
                r#type: "program",
                pid: one.pid,
                program: &one.program,
                socket,
            })?;
        }
    }
    Ok(())
}

/// Formats the table.
fn text(all: &[Sockets]) -> String {
    let rows = all.iter().flat_map(|one| {
        let program = out::printable(&format!("{}[{}]", one.program, one.pid));
        one.sockets.iter().map(move |socket| row(&program, socket))
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return "no sockets of programs under esprun".to_owned();
    }
    table::text(&PROGRAM, rows).trim_end().to_owned()
}

fn row(program: &str, socket: &SocketStatus) -> Vec<String> {
    let known = |text: &str| match text {
        "" => "-".to_owned(),
        text => out::printable(text),
    };
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
    vec![
        program.to_owned(),
        known(&socket.local),
        known(&socket.peer),
        count(socket.sent),
        count(socket.received),
        match &socket.way {
            Way::Copied => "ESP, copied".to_owned(),
            Way::Tcp(why) => format!("TCP: {}", out::printable(why)),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_each_socket_is_shown() {
        let socket = |peer: &str, way| SocketStatus {
            local: String::new(),
            peer: peer.into(),
            way,
            sent: Some(7),
            received: None,
        };
        let sockets = vec![
            socket("10.0.0.1:80", Way::Copied),
            socket("10.0.0.2:80", Way::Tcp("no\u{1b}answer".into())),
        ];
        let one = Sockets {
            pid: 42,
            program: "nc".into(),
            sockets,
        };
        let text = text(&[one]);
        let lines: Vec<_> = text.lines().map(str::split_whitespace).collect();
        let lines: Vec<Vec<_>> = lines.into_iter().map(Iterator::collect).collect();
        assert_eq!(
            lines[1],
            ["nc[42]", "-", "10.0.0.1:80", "7", "-", "ESP,", "copied"]
        );
        assert_eq!(lines[2][5], "TCP:");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert_eq!(super::text(&[]), "no sockets of programs under esprun");
    }
}
