//! Unmodified programs under esprun: sockets of AF_ENET from C, and TCP over ESP.

mod addresses;
mod brokers;
mod descriptors;
mod edges;
mod starting;
mod strangers;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use esp_tests::process::{Finished, Killed, TempFile, bare_lab, output, programs};
use esp_tests::{lab_or_skip, wait_until};
use lab::{Ip, Lab, LabOptions, Node};

/// Returns the folder of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the repository")
}

/// Compiles a program of `tests/sockets`, once.
fn compiled(name: &str) -> PathBuf {
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let program = programs().join(format!("{name}-{}", std::process::id()));
    let mut built = BUILT.lock().expect("no test has failed here");
    if built.contains(&program) {
        return program;
    }
    let compiled = output(
        Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
            .arg(root().join("bindings/preload/include"))
            .arg(root().join(format!("tests/sockets/{name}.c")))
            .arg("-o")
            .arg(&program),
    );
    assert_eq!(compiled.code, Some(0), "{}", compiled.err);
    built.push(program.clone());
    program
}

/// Returns the program of the authors' interface.
fn enet() -> PathBuf {
    compiled("enet")
}

/// Returns a command under esprun in a node.
fn esprun(lab: &Lab, node: usize, args: &[&str], program: &Path) -> Command {
    let mut command = lab
        .command(node, programs().join("esprun"))
        .expect("a command");
    command.args(args).arg(program).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the process id of the broker of a program that esprun has started.
fn broker_of(program: u32) -> u32 {
    let arguments = format!("\0--broker-of\0{program}\0");
    let is_it = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(&arguments) && line.ends_with("\0--serve\0")
    };
    let names = fs::read_dir("/proc").expect("the processes").flatten();
    let mut processes = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.find(is_it).expect("the broker")
}

/// Waits until a server prints this line.
fn prints(server: &mut Child, line: &str) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(server.stdout.take().expect("a pipe"));
    let mut first = String::new();
    out.read_line(&mut first).expect("read");
    assert_eq!(first.trim_end(), line);
    out
}

#[test]
fn a_program_for_the_authors_interface_runs_on_two_nodes() {
    let Some(lab) = lab_or_skip("a_program_for_the_authors", &LabOptions::new(2)) else {
        return;
    };
    let mut server = esprun(&lab, 1, &[], &enet());
    server.args(["server", "2805"]);
    let mut server = Killed(server.spawn().expect("start the server"));
    let mut rest = prints(&mut server.0, "ready");
    let mut client = esprun(&lab, 0, &["-v"], &enet());
    client.args(["client", "2805", &Node(1).mac_text()]);
    let client = output(&mut client);
    assert_eq!(
        (client.code, client.out.as_str()),
        (Some(0), "PASS\n"),
        "{client:?}"
    );
    let mut text = String::new();
    rest.read_to_string(&mut text).expect("read");
    assert_eq!(text, "PASS\n");
    assert!(server.0.wait().expect("wait").success());
}

#[test]
fn without_a_daemon_the_family_is_not_supported() {
    let Some(lab) = bare_lab("without_a_daemon_the_family", 1) else {
        return;
    };
    let mut command = esprun(&lab, 0, &[], &enet());
    let ended = output(command.args(["server", "2805"]));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.out.contains("Address family not supported"),
        "{ended:?}"
    );
    assert!(ended.err.contains("start esp-daemon"), "{ended:?}");
}

#[test]
fn esprun_ends_as_its_program_does() {
    let Some(lab) = bare_lab("esprun_ends_as_its_program", 1) else {
        return;
    };
    let run = |script: &str| {
        let mut command = esprun(&lab, 0, &["--tcp"], Path::new("sh"));
        output(command.args(["-c", script]))
    };
    assert_eq!(run("exit 7").code, Some(7));
    assert_eq!(run("kill -9 $$").code, None);
    // The broker is not a child of the program, and does not hold its output open.
    assert_eq!(run("wait; echo $0").out, "sh\n");
    let missing = output(&mut esprun(
        &lab,
        0,
        &["--tcp"],
        Path::new("/no/such/program"),
    ));
    assert_eq!(missing.code, Some(127), "{missing:?}");
    let rules = TempFile::new("[tcp]\nports = [\"x\"]\n");
    let file = rules.path().display().to_string();
    let wrong = output(&mut esprun(
        &lab,
        0,
        &["--tcp", "--rules", &file],
        Path::new("true"),
    ));
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.complaint().contains("invalid port `x`"), "{wrong:?}");
}

/// A server of TCP that answers each connection with its own and the peer's address, and then
/// echoes; and a client that checks both. The first argument is the role, the second the address,
/// the third the port, the fourth the number of connections.
const TCP_PROGRAM: &str = r#"
import hashlib, select, socket, sys, threading
role, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
block = hashlib.sha256(b"x").digest() * 8192
def serve(c, peer):
    c.sendall(("%s %s\n" % (peer[0], c.getpeername()[0])).encode())
    while True:
        data = c.recv(65536)
        if not data:
            break
        c.sendall(data)
    c.shutdown(socket.SHUT_WR)
    c.close()
if role == "server":
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, port))
    s.listen()
    print("ready", flush=True)
    threads = []
    for i in range(count):
        select.select([s], [], [], 60)
        c, peer = s.accept()
        threads.append(threading.Thread(target=serve, args=(c, peer)))
        threads[-1].start()
    for t in threads:
        t.join()
else:
    def one():
        c = socket.create_connection((host, port), 30)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        f = c.makefile("rb")
        line = "%s %s\n" % (f.readline().decode().strip(), c.getpeername()[0])
        sender = threading.Thread(target=lambda: (c.sendall(block * 4), c.shutdown(socket.SHUT_WR)))
        sender.start()
        got = f.read()
        sender.join()
        assert got == block * 4, len(got)
        c.close()
        # In one piece, for there are other threads.
        sys.stdout.write(line)
        sys.stdout.flush()
    failed = []
    threading.excepthook = lambda args: (failed.append(args), sys.__excepthook__(*args[:3]))
    all = [threading.Thread(target=one) for i in range(count)]
    for t in all:
        t.start()
    for t in all:
        t.join()
    sys.exit(len(failed))
"#;

/// Returns a counter of a node's IP layer.
fn counter(lab: &Lab, node: usize, protocol: &str, name: &str) -> u64 {
    let text = net(lab, node, "snmp");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let names = lines.next().expect("names").split(' ');
    let values = lines.next().expect("values").split(' ');
    let found = names.zip(values).find(|(one, _)| *one == name);
    let (_, count) = found.expect("the counter");
    count.parse().expect("a number")
}

/// Returns the number of packets that a node has received by UDP, of IPv4 and of IPv6.
fn datagrams(lab: &Lab, node: usize) -> u64 {
    let v6 = net(lab, node, "snmp6");
    let v6 = v6
        .lines()
        .find_map(|line| line.strip_prefix("Udp6InDatagrams"));
    let v6: u64 = v6.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    counter(lab, node, "Udp:", "InDatagrams") + v6
}

/// Returns the number of segments of TCP that a node has received, those of loopback included.
fn tcp_segments(lab: &Lab, node: usize) -> u64 {
    counter(lab, node, "Tcp:", "InSegs")
}

/// Starts the server with these options of esprun (`None`: without it).
fn tcp_server(
    lab: &Lab,
    options: Option<&[&str]>,
    bind: &str,
    port: u16,
    count: usize,
) -> (TempFile, Killed) {
    let script = TempFile::new(TCP_PROGRAM);
    let python = Path::new("python3");
    let mut command = match options {
        Some(options) => esprun(lab, 1, options, python),
        None => lab.command(1, python).expect("a command of the node"),
    };
    command.stdout(Stdio::piped()).arg(script.path());
    command.args(["server", bind, &port.to_string(), &count.to_string()]);
    let mut server = Killed(command.spawn().expect("start the server"));
    prints(&mut server.0, "ready");
    (script, server)
}

/// Runs the client under `esprun --tcp`; returns its output.
fn tcp_client(lab: &Lab, script: &TempFile, host: &str, port: u16, count: usize) -> Finished {
    let mut client = esprun(lab, 0, &["--tcp"], Path::new("python3"));
    let client = client.arg(script.path()).args(["client", host]);
    let client = output(client.args([port.to_string(), count.to_string()]));
    assert_eq!(client.code, Some(0), "{client:?}");
    client
}

/// Runs the server with these options of esprun (`None`: without it) and the client under
/// `esprun --tcp`; returns the client's output.
fn tcp(lab: &Lab, options: Option<&[&str]>, bind: &str, port: u16, count: usize) -> Finished {
    tcp_to(lab, options, (bind, &Node(1).ip().to_string()), port, count)
}

/// Like [`tcp`], with a client that connects to another address than that of IPv4.
fn tcp_to(
    lab: &Lab,
    options: Option<&[&str]>,
    (bind, to): (&str, &str),
    port: u16,
    count: usize,
) -> Finished {
    let (script, mut server) = tcp_server(lab, options, bind, port, count);
    let client = tcp_client(lab, &script, to, port, count);
    let mut status = None;
    wait_until("the server ends", || {
        status = server.0.try_wait().expect("its status");
        status.is_some()
    });
    assert!(status.expect("just seen").success());
    client
}

/// Returns the line that a connection prints: the peer as `accept` and `getpeername` of the server
/// give it, and as `getpeername` of the client does.
fn line() -> String {
    let (from, to) = (Node(0).ip(), Node(1).ip());
    format!("{from} {from} {to}")
}

#[test]
fn tcp_goes_over_esp_where_both_sides_run_under_esprun() {
    let Some(lab) = bare_lab("tcp_goes_over_esp", 2) else {
        return;
    };
    for (bind, port) in [("0.0.0.0", 7000), (&Node(1).ip().to_string(), 7001)] {
        let before = datagrams(&lab, 1);
        let client = tcp(&lab, Some(&["--tcp"]), bind, port, 8);
        let lines: Vec<_> = client.out.lines().collect();
        assert_eq!(lines, vec![line(); 8], "{client:?}");
        // 8 MiB each way in packets of at most 64 KiB.
        let packets = datagrams(&lab, 1) - before;
        assert!(packets > 50, "{packets} packets of UDP: TCP was used");
    }
}

#[test]
fn a_server_that_is_started_again_loses_no_connection_and_is_reached_by_esp() {
    let Some(lab) = bare_lab("a_server_that_is_started_again", 2) else {
        return;
    };
    // The first server's broker holds the UDP port until it finds that its program has ended, and
    // cannot reach the second server, which listens on one address only.
    tcp(&lab, Some(&["--tcp"]), "0.0.0.0", 7000, 1);
    let node = Node(1).ip().to_string();
    let (script, _server) = tcp_server(&lab, Some(&["--tcp"]), &node, 7000, 1000);
    wait_until("connections go by ESP again", || {
        let before = datagrams(&lab, 1);
        let client = tcp_client(&lab, &script, &node, 7000, 8);
        assert_eq!(client.out.lines().count(), 8, "{client:?}");
        datagrams(&lab, 1) - before > 50
    });
}

#[test]
fn tcp_is_left_alone_where_the_other_side_or_a_rule_has_no_esp() {
    let Some(lab) = bare_lab("tcp_is_left_alone", 2) else {
        return;
    };
    let rules = TempFile::new("[tcp]\nports = [\"6379\"]\n");
    let file = rules.path().display().to_string();
    let other_ports = ["--tcp", "--rules", &file];
    for server in [None, Some(&other_ports[..]), Some(&[][..])] {
        let (udp, tcp_before) = (datagrams(&lab, 1), tcp_segments(&lab, 1));
        let client = tcp(&lab, server, "0.0.0.0", 7000, 2);
        assert_eq!(client.out, format!("{0}\n{0}\n", line()), "{client:?}");
        assert!(datagrams(&lab, 1) - udp < 50, "UDP was used");
        assert!(tcp_segments(&lab, 1) - tcp_before > 20, "TCP was not used");
    }
}

#[test]
fn a_node_that_does_not_answer_delays_tcp_for_a_bounded_time() {
    let Some(lab) = bare_lab("a_node_that_does_not_answer", 2) else {
        return;
    };
    // No node has the address: the error of TCP, as without esprun.
    let script = "import socket\ntry:\n socket.create_connection(('%s', 7001), 20)\nexcept \
                  ConnectionRefusedError:\n print('refused')\n";
    let script = TempFile::new(&script.replace("%s", &Node(1).ip().to_string()));
    let mut client = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let client = output(client.arg(script.path()));
    assert_eq!(client.out, "refused\n", "{client:?}");
}

#[test]
fn programs_of_ipv6_use_esp() {
    let mut options = LabOptions::new(2);
    options.daemon = false;
    options.wire.ip = Ip::Both;
    let Some(lab) = lab_or_skip("programs_of_ipv6", &options) else {
        return;
    };
    let (from, to) = (Node(0).ip().to_string(), Node(1).ip().to_string());
    let (from6, to6) = (Node(0).ip6().to_string(), Node(1).ip6().to_string());
    let inside = |ip: &str| format!("::ffff:{ip}");
    for (number, (bind, host, peer)) in [
        ("::", &to6, &from6),
        (&to6, &to6, &from6),
        ("::", &to, &inside(&from)),
        ("0.0.0.0", &inside(&to), &from),
    ]
    .into_iter()
    .enumerate()
    {
        let before = datagrams(&lab, 1);
        let port = 7000 + u16::try_from(number).expect("small");
        let client = tcp_to(&lab, Some(&["--tcp"]), (bind, host), port, 4);
        let expected = format!("{peer} {peer} {host}\n").repeat(4);
        assert_eq!(client.out, expected, "{bind} {host}: {client:?}");
        let packets = datagrams(&lab, 1) - before;
        assert!(
            packets > 20,
            "{bind} {host}: {packets} packets of UDP: TCP was used"
        );
    }
}

/// Returns the text of a file of a node's network namespace.
fn net(lab: &Lab, node: usize, file: &str) -> String {
    // Of the thread: that of the process is the namespace of the main thread.
    let read = || fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    lab.run_in(node, read)
        .expect("enter the node")
        .expect("read")
}

#[test]
fn a_port_that_is_open_for_tcp_is_open_for_esp() {
    let Some(lab) = bare_lab("a_port_that_is_open_for_tcp", 2) else {
        return;
    };
    let script = TempFile::new(TCP_PROGRAM);
    let mut server = esprun(&lab, 1, &["--tcp"], Path::new("python3"));
    server.arg(script.path());
    server.args(["server", "0.0.0.0", "7000", "1000"]);
    let _server = Killed(server.spawn().expect("start the server"));
    let port = format!(":{:04X} ", 7000);
    wait_until("the program listens", || {
        // In this order: a process that sees the TCP port open finds the UDP port open, too.
        let is_open = net(&lab, 1, "tcp").contains(&port);
        assert!(!is_open || net(&lab, 1, "udp").contains(&port));
        is_open
    });
}

#[test]
fn espstat_shows_the_way_of_each_connection() {
    let Some(lab) = bare_lab("espstat_shows_the_way", 2) else {
        return;
    };
    let (script, _server) = tcp_server(&lab, Some(&["--tcp"]), "0.0.0.0", 7000, 1000);
    let node = Node(1).ip().to_string();
    let program = "import socket, sys\na = socket.create_connection((sys.argv[1], 7000))\n\
                   a.makefile().readline()\n\
                   try: socket.create_connection((sys.argv[1], 7001))\n\
                   except OSError: print('ready', flush=True)\nsys.stdin.read()\n";
    let program = TempFile::new(program);
    let mut client = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    client.arg(program.path()).arg(&node).stdin(Stdio::piped());
    let mut client = Killed(client.spawn().expect("start the client"));
    prints(&mut client.0, "ready");
    let espstat = |on: usize| {
        let mut command = lab
            .command(on, programs().join("espstat"))
            .expect("a command");
        output(command.arg("--programs"))
    };
    let (here, there) = (espstat(0), espstat(1));
    let line = |shown: &Finished, part: &str| {
        let found = shown.out.lines().find(|line| line.contains(part));
        found
            .unwrap_or_else(|| panic!("{part}: {shown:?}"))
            .to_owned()
    };
    assert!(line(&here, &format!("{node}:7000")).ends_with("ESP, copied"));
    assert!(line(&here, &format!("{node}:7001")).contains("TCP: its UDP port is closed"));
    let line = line(&there, &format!("{node}:7000"));
    assert!(line.contains(&Node(0).ip().to_string()), "{line}");
    assert!(line.starts_with("python3["), "{line}");
    drop(script);
}

/// Connects twice to the server of [`TCP_PROGRAM`]: does not read from the first connection until
/// nothing more can be written, then uses the second one, and then checks the first one.
const SLOW_READER: &str = r#"
import select, socket, sys
block = bytes(range(256)) * 1024
def connect():
    c = socket.create_connection((sys.argv[1], 7000), 30)
    while c.recv(1) != b"\n":
        pass
    return c
slow, sent = connect(), 0
slow.setblocking(False)
while select.select([], [slow], [], 1)[1]:
    sent += slow.send(block[sent % len(block):])
quick = connect()
for i in range(100):
    quick.sendall(block[:1000])
    assert quick.recv(1000, socket.MSG_WAITALL) == block[:1000]
slow.setblocking(True)
got = 0
while got < sent:
    data = slow.recv(65536)
    at = got % len(block)
    assert data and data == (block + block)[at:at + len(data)]
    got += len(data)
print("checked")
"#;

#[test]
fn a_program_that_does_not_read_holds_up_no_other_connection() {
    let Some(lab) = bare_lab("a_program_that_does_not_read", 2) else {
        return;
    };
    let (_script, _server) = tcp_server(&lab, Some(&["--tcp"]), "0.0.0.0", 7000, 1000);
    let before = datagrams(&lab, 1);
    let program = TempFile::new(SLOW_READER);
    let mut client = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let client = output(client.arg(program.path()).arg(Node(1).ip().to_string()));
    assert_eq!(client.out, "checked\n", "{client:?}");
    assert!(datagrams(&lab, 1) - before > 50, "TCP was used");
}

#[test]
fn the_peer_of_a_killed_program_gets_its_bytes_and_the_end() {
    let Some(lab) = bare_lab("the_peer_of_a_killed_program", 2) else {
        return;
    };
    let server = "import socket\ns = socket.create_server(('0.0.0.0', 7000))\n\
                  print('ready', flush=True)\nc, peer = s.accept()\ngot = b''\n\
                  while data := c.recv(65536):\n got += data\n\
                  print(len(got), flush=True)\n";
    let server = TempFile::new(server);
    let mut command = esprun(&lab, 1, &["--tcp"], Path::new("python3"));
    let mut running = Killed(command.arg(server.path()).spawn().expect("start it"));
    let mut out = prints(&mut running.0, "ready");
    let client = "import os, socket, sys\nc = socket.create_connection((sys.argv[1], 7000))\n\
                  c.sendall(bytes(500000))\nos.kill(os.getpid(), 9)\n";
    let client = TempFile::new(client);
    let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let ended = output(command.arg(client.path()).arg(Node(1).ip().to_string()));
    assert_eq!(ended.code, None, "{ended:?}");
    let mut line = String::new();
    out.read_line(&mut line).expect("read");
    assert_eq!(line, "500000\n");
}

#[test]
fn bytes_out_of_band_are_refused() {
    let Some(lab) = bare_lab("bytes_out_of_band_are_refused", 2) else {
        return;
    };
    let (_script, _server) = tcp_server(&lab, Some(&["--tcp"]), "0.0.0.0", 7000, 1000);
    let client = "import errno, socket, sys\nc = socket.create_connection((sys.argv[1], 7000))\n\
                  try: c.send(b'x', socket.MSG_OOB)\n\
                  except OSError as e: print(e.errno == errno.EOPNOTSUPP)\n";
    let client = TempFile::new(client);
    let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let ended = output(command.arg(client.path()).arg(Node(1).ip().to_string()));
    assert_eq!(ended.out, "True\n", "{ended:?}");
}

#[test]
fn a_program_that_only_writes_learns_of_a_reset() {
    let Some(lab) = bare_lab("a_program_that_only_writes", 2) else {
        return;
    };
    // Writes until nothing more can be written, and closes with a reset.
    let server = "import select, socket, struct\ns = socket.create_server(('0.0.0.0', 7000))\n\
                  print('ready', flush=True)\nc, peer = s.accept()\nc.setblocking(False)\n\
                  while select.select([], [c], [], 1)[1]: c.send(bytes(65536))\n\
                  c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n";
    let server = TempFile::new(server);
    let mut command = esprun(&lab, 1, &["--tcp"], Path::new("python3"));
    let mut running = Killed(command.arg(server.path()).spawn().expect("start it"));
    prints(&mut running.0, "ready");
    let client = "import socket, sys\nc = socket.create_connection((sys.argv[1], 7000))\n\
                  c.settimeout(60)\n\
                  try:\n while True: c.sendall(bytes(65536))\n\
                  except OSError as e: print(type(e).__name__)\n";
    let client = TempFile::new(client);
    let before = datagrams(&lab, 1);
    let mut command = esprun(&lab, 0, &["--tcp"], Path::new("python3"));
    let ended = output(command.arg(client.path()).arg(Node(1).ip().to_string()));
    let errors = ["ConnectionResetError\n", "BrokenPipeError\n"];
    assert!(errors.contains(&&*ended.out), "{ended:?}");
    assert!(datagrams(&lab, 1) - before > 20, "TCP was used");
}
