//! The addresses of peers that programs see: of a remote one never that of this node.

use std::io::{BufReader, Write};
use std::process::ChildStdout;

use super::*;

/// A server of port 7000 and its output.
struct Server {
    _script: TempFile,
    process: Killed,
    out: BufReader<ChildStdout>,
}

impl Server {
    /// Starts this script, which prints `ready`, on node 1.
    fn start(lab: &Lab, script: &str) -> Server {
        let script = TempFile::new(script);
        let mut command = esprun(lab, 1, &["--tcp"], Path::new("python3"));
        command.arg(script.path()).stdin(Stdio::piped());
        let mut process = Killed(command.spawn().expect("start the server"));
        let out = prints(&mut process.0, "ready");
        Server {
            _script: script,
            process,
            out,
        }
    }

    /// Sends a line and returns the next one that the server prints.
    fn ask(&mut self) -> String {
        let input = self.process.0.stdin.as_mut().expect("a pipe");
        input.write_all(b"\n").expect("write");
        let mut line = String::new();
        self.out.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }
}

/// Accepts two connections, the first one with only one free descriptor. The second one's addresses
/// are asked for without a free descriptor, and then with one.
const SHORT_OF_DESCRIPTORS: &str = r#"
import errno, os, resource, select, socket, sys
def limited(room, call):
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
    try:
        return call()[0]
    except OSError as e:
        return errno.errorcode[e.errno]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
s = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
sys.stdin.readline()
select.select([s], [], [], 60)
seen = [limited(1, lambda: s.accept()[1])]
c, peer = s.accept()
seen += [limited(0, c.getpeername), limited(0, c.getsockname)]
print(*seen, peer[0], c.getpeername()[0], c.getsockname()[0], flush=True)
"#;

#[test]
fn a_peer_whose_address_is_not_known_is_not_shown_as_local() {
    let Some(lab) = bare_lab("a_peer_whose_address_is_not_known", 2) else {
        return;
    };
    let mut server = Server::start(&lab, SHORT_OF_DESCRIPTORS);
    let client = "import socket, sys\n\
                  all = [socket.create_connection((sys.argv[1], 7000)) for i in range(2)]\n\
                  print('ready', flush=True)\nsys.stdin.read()\n";
    let client = TempFile::new(client);
    let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    command.arg(client.path()).arg(Node(1).ip().to_string());
    let mut client = Killed(command.stdin(Stdio::piped()).spawn().expect("start it"));
    prints(&mut client.0, "ready");
    let (from, to) = (Node(0).ip(), Node(1).ip());
    let expected = format!("EMFILE EMFILE EMFILE {from} {from} {to}");
    assert_eq!(server.ask(), expected);
}

/// Accepts a connection for each line, the second time one of its own node.
const LATE: &str = r#"
import errno, socket, sys
s = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
own = []
for line in sys.stdin:
    try:
        print(s.accept()[1][0], flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
    own.append(socket.create_connection(("127.0.0.1", 7000)))
"#;

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_is_aborted() {
    let Some(lab) = bare_lab("a_connection_that_is_reset", 2) else {
        return;
    };
    let mut server = Server::start(&lab, LATE);
    let client = "import socket, struct, sys\nc = socket.create_connection((sys.argv[1], 7000))\n\
                  c.sendall(b'x')\n\
                  c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n";
    let client = TempFile::new(client);
    let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let ended = output(command.arg(client.path()).arg(Node(1).ip().to_string()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    wait_until("the broker ends the connection", || {
        let mut espstat = lab.command(1, programs().join("espstat")).expect("one");
        !output(espstat.arg("--programs")).out.contains("ESP")
    });
    assert_eq!(server.ask(), "ECONNABORTED");
    assert_eq!(server.ask(), "127.0.0.1", "one of the node");
}

/// Accepts a connection, ends its listener, and listens again after a time in which the broker
/// finds the end.
const AGAIN: &str = r#"
import socket, sys, time
s = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
first = s.accept()
s.close()
time.sleep(2.5)
s = socket.create_server(("0.0.0.0", 7000))
print("again", flush=True)
second = s.accept()
sys.stdin.read()
"#;

#[test]
fn a_listener_that_is_made_again_is_reached_by_esp_beside_old_connections() {
    let Some(lab) = bare_lab("a_listener_that_is_made_again", 2) else {
        return;
    };
    let mut server = Server::start(&lab, AGAIN);
    let client = "import socket, sys\nc = socket.create_connection((sys.argv[1], 7000))\n\
                  print('ready', flush=True)\nsys.stdin.read()\n";
    let client = TempFile::new(client);
    let connect = || {
        let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
        command.arg(client.path()).arg(Node(1).ip().to_string());
        let mut client = Killed(command.stdin(Stdio::piped()).spawn().expect("start it"));
        prints(&mut client.0, "ready");
        client
    };
    let _first = connect();
    assert_eq!(server.ask(), "again");
    let _second = connect();
    let mut espstat = lab.command(1, programs().join("espstat")).expect("one");
    let shown = output(espstat.arg("--programs"));
    assert_eq!(shown.out.matches("ESP, copied").count(), 2, "{shown:?}");
}

/// Connects from sockets that are bound: to the node's address, to a port that the kernel chooses,
/// to both, and to a port of the program's choice; and again by a socket that was refused. The
/// server says what it sees.
const BOUND: &str = r#"
import errno, socket, sys
host, own = sys.argv[1], sys.argv[2]
all = []
for source in [(own, 0), ("", 0), (own, 1000)]:
    c = socket.socket()
    c.bind(source)
    port = c.getsockname()[1]
    assert source[1] in (0, port)
    c.connect((host, 7000))
    assert c.getsockname() == (own, port)
    assert c.makefile().readline().split() == [own, own]
    assert c.connect_ex((host, 7000)) == errno.EISCONN
    all.append(c)
c = socket.socket()
c.bind((own, 0))
assert c.connect_ex((host, 7001)) == errno.ECONNREFUSED
assert c.connect_ex((host, 7000)) == 0 and c.getsockname()[0] == own
all.append(c)
c = socket.socket()
assert c.connect_ex((host, 7001)) == errno.ECONNREFUSED
assert c.connect_ex((host, 7000)) == 0 and c.getsockname()[0] == own
all.append(c)
print("ready", flush=True)
sys.stdin.read()
"#;

#[test]
fn sockets_that_are_bound_to_no_port_of_their_own_use_esp() {
    let Some(lab) = bare_lab("sockets_that_are_bound", 2) else {
        return;
    };
    let (_server_script, _server) = tcp_server(&lab, Some(&["--tcp"]), "0.0.0.0", 7000, 1000);
    let script = TempFile::new(BOUND);
    let mut client = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    client.arg(script.path()).arg(Node(1).ip().to_string());
    client.arg(Node(0).ip().to_string()).stdin(Stdio::piped());
    let mut client = Killed(client.spawn().expect("start the client"));
    prints(&mut client.0, "ready");
    let mut espstat = lab.command(0, programs().join("espstat")).expect("one");
    let shown = output(espstat.arg("--programs"));
    // All but that of the program's port.
    assert_eq!(shown.out.matches("ESP, copied").count(), 4, "{shown:?}");
}
