//! Sockets of programs under `esprun`, as its brokers report them.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use preload_wire::{DataPath, SocketStatus, Sockets};
use serde::Serialize;

use crate::{out, table};

/// Columns.
pub(super) const PROGRAM: [&str; 6] = ["Program", "Local", "Peer", ">Sent", ">Received", "Way"];

/// Maximum wait for the answer of a broker.
const PATIENCE: Duration = Duration::from_secs(1);

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    r#type: &'static str,
    pid: u32,
    program: &'a str,
    #[serde(flatten)]
    socket: &'a SocketStatus,
}

/// Asks all brokers of this node concurrently, so that one without an answer does not delay the
/// others. Brokers of other users do not answer.
fn all() -> Vec<Sockets> {
    let brokers = preload_wire::brokers();
    thread::scope(|scope| {
        let start = |id| {
            let thread = thread::Builder::new();
            thread.spawn_scoped(scope, move || ask(id).ok())
        };
        let asked: Vec<_> = brokers.iter().map(String::as_str).map(start).collect();
        let answers = asked.into_iter().map(|thread| thread.ok()?.join().ok()?);
        answers.flatten().collect()
    })
}

/// Asks the broker with this ID.
fn ask(id: &str) -> io::Result<Sockets> {
    let deadline = Instant::now() + PATIENCE;
    let stream = connected(&preload_wire::control_of(id))?;
    preload_wire::list(&stream, deadline)
}

/// Connects to a socket in the abstract namespace without waiting: another user's socket with such
/// a name may never accept. A broker accepts at once.
fn connected(name: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
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
            DataPath::Copied => "ESP, copied".to_owned(),
            DataPath::Tcp(why) => format!("TCP: {}", out::printable(why)),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};

    /// Any user can create a socket with the name of a broker.
    #[test]
    fn a_socket_that_accepts_nothing_is_not_waited_for() {
        let name = format!("esp.test{}.control", std::process::id());
        let addr = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind(fd.as_raw_fd(), &addr).unwrap();
        listen(&fd, Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connected(&name) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(!waiting.is_empty(), "the socket was not found");
    }

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
            socket("10.0.0.1:80", DataPath::Copied),
            socket("10.0.0.2:80", DataPath::Tcp("no\u{1b}answer".into())),
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
