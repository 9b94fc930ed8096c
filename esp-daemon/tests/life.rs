//! The real program: start, failure to start, service, and end.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use esp_client::control::{ErrorKind, Reply, Request, Status};
use netns::{Node, TwoNodes, skip};
use rustix::process::{Pid, Signal, kill_process};
use support::program::{Program, RINGS, accept, listen};
use support::{PATIENCE, TempDir, eventually};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/esp-daemon.toml.example");

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esp-daemon"));
    command
        .env_remove("ESP_SOCKET")
        .env_remove("ESP_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("JOURNAL_STREAM");
    command.stdin(Stdio::null());
    command
}

/// Asserts that it cannot start (exit code 2) and returns the one line of the reason.
#[track_caller]
fn why_not(output: &Output) -> String {
    reason(output, 2)
}

/// Asserts that it cannot start yet (exit code 1) and returns the one line of the reason.
#[track_caller]
fn why_not_yet(output: &Output) -> String {
    reason(output, 1)
}

#[track_caller]
fn reason(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("esp-daemon: "))
        .collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

/// A running daemon; ended on drop.
struct Daemon {
    child: Child,
    socket: PathBuf,
    notify: UnixDatagram,
    log: PathBuf,
}

impl Daemon {
    /// Starts one in a node and waits until it reports readiness.
    fn start(node: &Node, dir: &Path, name: &str, arguments: &[&str]) -> Daemon {
        let notify_path = dir.join(format!("{name}.notify"));
        let _ = std::fs::remove_file(&notify_path);
        let notify = UnixDatagram::bind(&notify_path).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, log) = (
            dir.join(format!("{name}.sock")),
            dir.join(format!("{name}.log")),
        );
        let mut command = program();
        command
            .args(["--interface", node.name(), "--socket"])
            .arg(&socket)
            .args(arguments);
        command
            .env("NOTIFY_SOCKET", &notify_path)
            .env("WATCHDOG_USEC", "100000");
        command.stderr(std::fs::File::create(&log).unwrap());
        let child = node.namespace().start(&mut command).unwrap();
        let daemon = Daemon {
            child,
            socket,
            notify,
            log,
        };
        daemon.hear("READY=1");
        daemon
    }

    /// Waits until the service manager receives this.
    #[track_caller]
    fn hear(&self, what: &str) {
        let mut buffer = [0; 1024];
        loop {
            let Ok(len) = self.notify.recv(&mut buffer) else {
                panic!("never heard {what}; the log:\n{}", self.said());
            };
            let text = String::from_utf8_lossy(&buffer[..len]);
            if text.lines().any(|line| line == what) {
                return;
            }
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < end,
                "it does not end; the log:\n{}",
                self.said()
            );
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn program(&self) -> Program {
        let mut program = Program::connect(&self.socket);
        program.hello("life");
        program
    }

    /// Returns the number of remaining files of the socket.
    fn leftovers(&self) -> usize {
        let lock = PathBuf::from(format!("{}.lock", self.socket.display()));
        [&self.socket, &lock]
            .into_iter()
            .filter(|path| path.exists())
            .count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn status(program: &mut Program) -> Status {
    match program.ask(Request::Status) {
        Reply::Status(status) => *status,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn shipped_config_is_good_and_a_bad_one_is_explained() {
    let good = program()
        .args(["--check-config", EXAMPLE])
        .output()
        .unwrap();
    assert!(good.status.success(), "{good:?}");
    let dir = TempDir::new();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "[timers]\nkeepalife = \"1s\"\n").unwrap();
    let bad = program().arg("--check-config").arg(&file).output().unwrap();
    let why = why_not(&bad);
    assert!(
        why.starts_with(&format!(
            "esp-daemon: {}:2: timers.keepalife: unknown key",
            file.display()
        )),
        "{why}"
    );
    assert!(why.contains("`keepalive`"), "{why}");
    // A start with this file gives the same error.
    let bad = program()
        .args(["--interface", "x", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(why_not(&bad).contains("timers.keepalife"));
}

#[test]
fn start_is_refused_with_a_reason() {
    let dir = TempDir::new();
    let socket = dir.path().join("esp.sock");
    let empty = dir.path().join("empty.toml");
    std::fs::write(&empty, "").unwrap();
    let start = |arguments: &[&str]| {
        let mut command = program();
        command
            .arg("--config")
            .arg(&empty)
            .arg("--socket")
            .arg(&socket)
            .args(arguments);
        why_not(&command.output().unwrap())
    };
    let why = start(&[]);
    assert!(
        why.contains("no interface configured") && why.contains("--interface"),
        "{why}"
    );
    let why = start(&["--interface", "no-such-if"]);
    assert!(
        why.contains("no interface named \"no-such-if\"; existing: lo"),
        "{why}"
    );
    assert!(start(&["--interface", "lo"]).contains("loopback"));
    assert!(start(&["--interface", "lo", "--log", "a=b=c"]).contains("--log"));
    assert!(!socket.exists());
    for arguments in [
        &["--no-such-flag"][..],
        &["--check-config", EXAMPLE, "--interface", "x"],
        &["extra"],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn missing_permission_is_explained() {
    let name = "missing_permission_is_explained";
    let Some(nodes) = TwoNodes::new_or_skip(name) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip(name, "becoming another user needs root");
    }
    let dir = TempDir::new();
    let socket = dir.path().join("esp.sock");
    let mut command = program();
    command
        .args(["--interface", nodes.a.name(), "--socket"])
        .arg(&socket)
        .uid(65534)
        .gid(65534);
    let output = match nodes.a.namespace().output(&mut command) {
        Ok(output) => output,
        // The build directory need not be accessible to every user.
        Err(error) => {
            return skip(
                name,
                &format!("the program cannot be run by another user: {error}"),
            );
        }
    };
    let why = why_not(&output);
    assert!(
        why.contains("CAP_NET_RAW") && why.contains("setcap"),
        "{why}"
    );
}

#[test]
fn daemon_serves_and_stops() {
    let Some(nodes) = TwoNodes::new_or_skip("daemon_serves_and_stops") else {
        return;
    };
    let dir = TempDir::new();
    let config = dir.path().join("esp.toml");
    std::fs::write(
        &config,
        "node_name = \"n\"\n[socket]\nmode = \"0640\"\ngroup = \"0\"\n",
    )
    .unwrap();
    let mut daemon = Daemon::start(
        &nodes.a,
        dir.path(),
        "a",
        &["--config", config.to_str().unwrap()],
    );
    daemon.hear("WATCHDOG=1");
    let mode = std::fs::metadata(&daemon.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    let mut program = daemon.program();
    let (listener, _) = program.listen(0);
    let waiting = program.post(accept(listener));
    // Answered, so the earlier requests have been processed.
    program.ask(Request::Status);
    daemon.signal(Signal::INT);
    daemon.hear("STOPPING=1");
    let (reply, _) = program.reply_to(waiting);
    assert!(matches!(reply, Reply::Error(e) if e.kind == ErrorKind::Unavailable));
    program.drain();
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.said());
    assert_eq!(daemon.leftovers(), 0);
}

#[test]
fn a_service_manager_that_does_not_read_delays_nothing() {
    let Some(nodes) = TwoNodes::new_or_skip("a_service_manager_that_does_not_read") else {
        return;
    };
    let dir = TempDir::new();
    let mut daemon = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    let manager = daemon.notify.local_addr().unwrap();
    while filler
        .send_to(b"X=1", manager.as_pathname().unwrap())
        .is_ok()
    {}
    let mut program = daemon.program();
    program.listen(0);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.said());
}

#[test]
fn killed_daemons_socket_is_taken_over() {
    let Some(nodes) = TwoNodes::new_or_skip("killed_daemons_socket_is_taken_over") else {
        return;
    };
    let dir = TempDir::new();
    let mut first = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    let mut program = first.program();
    program.open(0);
    first.signal(Signal::KILL);
    first.wait();
    assert_eq!(program.last_words(), None);
    assert_eq!(first.leftovers(), 2);
    let mut second = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    second.program().listen(0);
    second.signal(Signal::INT);
    assert_eq!(second.wait().code(), Some(0), "{}", second.said());
    assert_eq!(second.leftovers(), 0);
}

#[test]
fn second_daemon_is_refused_by_name_of_the_first() {
    let Some(nodes) = TwoNodes::new_or_skip("second_daemon_is_refused_by_name_of_the_first") else {
        return;
    };
    let dir = TempDir::new();
    let first = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    let pid = format!("process {}", first.child.id());
    // The same interface, another socket.
    let other = dir.path().join("other.sock");
    let mut command = program();
    command
        .args(["--interface", nodes.a.name(), "--socket"])
        .arg(&other);
    let why = why_not_yet(&nodes.a.namespace().output(&mut command).unwrap());
    assert!(why.contains(&pid) && why.contains("serves"), "{why}");
    assert!(!other.exists());
    // The same socket, another interface (even one of the same name in another network namespace).
    let mut command = program();
    command
        .args(["--interface", nodes.b.name(), "--socket"])
        .arg(&first.socket);
    let why = why_not_yet(&nodes.b.namespace().output(&mut command).unwrap());
    assert!(why.contains(&pid) && why.contains("serves"), "{why}");
    first.program().listen(0);
}

#[test]
fn sighup_reloads_the_limits() {
    let Some(nodes) = TwoNodes::new_or_skip("sighup_reloads_the_limits") else {
        return;
    };
    let dir = TempDir::new();
    let config = dir.path().join("esp.toml");
    std::fs::write(&config, "[limits]\nlisteners = 1\n").unwrap();
    let daemon = Daemon::start(
        &nodes.a,
        dir.path(),
        "a",
        &["--config", config.to_str().unwrap()],
    );
    let mut program = daemon.program();
    program.listen(0);
    assert_eq!(program.refused(listen(0)).0, ErrorKind::Limit);
    std::fs::write(&config, "[limits]\nlisteners = \"many\"\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the bad file is refused", || {
        daemon.said().contains("limits.listeners")
    });
    assert_eq!(program.refused(listen(0)).0, ErrorKind::Limit);
    let text = "[limits]\nlisteners = 2\n[auth]\nkey_files = [\"/nowhere/esp.key\"]\n";
    std::fs::write(&config, text).unwrap();
    daemon.signal(Signal::HUP);
    eventually("the missing key file is reported", || {
        daemon.said().contains("/nowhere/esp.key")
    });
    assert_eq!(program.refused(listen(0)).0, ErrorKind::Limit);
    std::fs::write(&config, "[limits]\nlisteners = 2\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new limit holds", || {
        matches!(program.ask(listen(0)), Reply::Listening { .. })
    });
    assert_eq!(program.refused(listen(0)).0, ErrorKind::Limit);
}

#[test]
fn metrics_are_served() {
    let Some(nodes) = TwoNodes::new_or_skip("metrics_are_served") else {
        return;
    };
    let dir = TempDir::new();
    let config = dir.path().join("esp.toml");
    std::fs::write(&config, "[metrics]\nlisten = \"127.0.0.1:9469\"\n").unwrap();
    let daemon = Daemon::start(
        &nodes.a,
        dir.path(),
        "a",
        &["--config", config.to_str().unwrap()],
    );
    let _program = daemon.program();
    let expected = [
        "\nesp_programs 1\n",
        "\nesp_control_connections_total 1\n",
        "\nesp_link_up{interface=\"wire0\"} 1\n",
    ];
    // The values were fetched at different times, up to an interval apart.
    eventually("the program is counted", || {
        let mut http = nodes
            .a
            .run(|| TcpStream::connect("127.0.0.1:9469").unwrap());
        http.set_read_timeout(Some(PATIENCE)).unwrap();
        http.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        http.read_to_string(&mut text).unwrap();
        expected.iter().all(|line| text.contains(line))
    });
    // The port is taken: the next one cannot start.
    let mut command = program();
    let socket = dir.path().join("b.sock");
    command
        .arg("--config")
        .arg(&config)
        .args(["--interface", "other0"])
        .env("ESP_SOCKET", &socket);
    nodes
        .a
        .namespace()
        .ip("link add name other0 type veth peer name other1")
        .unwrap();
    let why = why_not(&nodes.a.namespace().output(&mut command).unwrap());
    assert!(
        why.contains("cannot serve metrics on 127.0.0.1:9469"),
        "{why}"
    );
    assert!(!socket.exists());
}

#[test]
fn programs_of_two_nodes_connect_and_see_the_end() {
    let name = "programs_of_two_nodes_connect_and_see_the_end";
    let Some(nodes) = TwoNodes::new_or_skip(name) else {
        return;
    };
    let dir = TempDir::new();
    let mut a = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    let b = Daemon::start(&nodes.b, dir.path(), "b", &[]);
    let mut server = b.program();
    let (listener, port) = server.listen(0);
    let waiting = server.post(accept(listener));
    let mut client = a.program();
    let connect = Request::Connect {
        interface: None,
        local_port: 0,
        peer: esp_proto::MacAddr(nodes.b.interface().mac.octets()).into(),
        peer_port: port,
        key: vec![],
        rings: RINGS,
    };
    let (Reply::Stream { local_port, .. }, _client_region) = client.ask_all(connect) else {
        panic!()
    };
    let (reply, _server_region) = server.reply_to(waiting);
    let Reply::Stream {
        peer_port, peer, ..
    } = reply
    else {
        panic!("{reply:?}")
    };
    assert_eq!(
        (peer_port, peer),
        (
            local_port,
            esp_proto::MacAddr(nodes.a.interface().mac.octets()).into()
        )
    );
    for program in [&mut client, &mut server] {
        eventually("established", || {
            let seen = status(program);
            seen.connections.len() == 1 && seen.connections[0].state == "established"
        });
    }
    a.signal(Signal::INT);
    assert_eq!(a.wait().code(), Some(0), "{}", a.said());
    eventually("the peer is notified", || {
        status(&mut server).connections.is_empty()
    });
}

#[test]
fn programs_that_die_leave_nothing_in_the_real_daemon() {
    let Some(nodes) = TwoNodes::new_or_skip("programs_that_die_leave_nothing_in_the_real_daemon")
    else {
        return;
    };
    let dir = TempDir::new();
    let a = Daemon::start(&nodes.a, dir.path(), "a", &[]);
    let b = Daemon::start(&nodes.b, dir.path(), "b", &[]);
    let peer = esp_proto::MacAddr(nodes.b.interface().mac.octets()).into();
    let round = || {
        let (mut server, mut client) = (b.program(), a.program());
        let (listener, port) = server.listen(0);
        let waiting = server.post(accept(listener));
        for peer_port in [port, port, 1] {
            let request = Request::Connect {
                interface: None,
                local_port: 0,
                peer,
                peer_port,
                key: vec![],
                rings: RINGS,
            };
            assert!(matches!(client.ask(request), Reply::Stream { .. }));
        }
        client.bind(0);
        server.reply_to(waiting);
        // One connection is attached, one waits for an accept, one is refused; then both programs
        // die.
    };
    let files = |daemon: &Daemon| {
        // A watchdog notification has a socket until it is read or queued.
        daemon.notify.set_nonblocking(true).unwrap();
        while daemon.notify.recv(&mut [0; 64]).is_ok() {}
        let all = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap();
        let targets = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.collect::<Vec<_>>()
    };
    let settled = |daemon: &Daemon| {
        let mut program = daemon.program();
        eventually("everything came back", || {
            let seen = status(&mut program);
            seen.connections.is_empty() && seen.listeners.is_empty() && seen.edp.is_empty()
        });
    };
    round();
    settled(&a);
    settled(&b);
    let before = (files(&a), files(&b));
    for _ in 0..100 {
        round();
    }
    settled(&a);
    settled(&b);
    for (daemon, before) in [(&a, before.0), (&b, before.1)] {
        let is_more = || files(daemon).len() > before.len();
        let end = Instant::now() + PATIENCE;
        while is_more() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!is_more(), "{before:?}, then {:?}", files(daemon));
    }
}
