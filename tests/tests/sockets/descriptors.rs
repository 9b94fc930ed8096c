//! Uses of descriptors and signals by programs of TCP, from C: equal results over ESP and TCP.

use super::*;

/// Port of the server without esprun, and of that with it.
const PORTS: [&str; 2] = ["7001", "7000"];

/// A lab with the servers of `tcp.c` on node 1.
struct Servers {
    lab: Lab,
    _servers: [Killed; 2],
}

impl Servers {
    /// Starts the servers; `None` where the lab cannot be made.
    fn new(test: &str) -> Option<Servers> {
        let lab = bare_lab(test, 2)?;
        let servers = PORTS.map(|port| {
            let mut server = command(&lab, 1, port, &compiled("tcp"));
            server.args(["serve", port]);
            let mut server = Killed(server.spawn().expect("start the server"));
            prints(&mut server.0, "ready");
            server
        });
        Some(Servers {
            lab,
            _servers: servers,
        })
    }

    /// Runs this program on node 0 over TCP and over ESP; returns what it prints both times.
    fn same(&self, program: &Path, case: Option<&str>) -> String {
        let [kernel, esp] = PORTS.map(|port| {
            let mut client = command(&self.lab, 0, port, program);
            let host = Node(1).ip().to_string();
            let before = datagrams(&self.lab, 1);
            let ended = output(client.args(case).args([host.as_str(), port]));
            assert_eq!(ended.code, Some(0), "{case:?} at {port}: {ended:?}");
            (ended.out, datagrams(&self.lab, 1) - before)
        });
        assert_eq!(esp.0, kernel.0, "{case:?}");
        assert!(kernel.1 < 10, "{case:?}: {} datagrams of UDP", kernel.1);
        if esp.0.contains("PASS") {
            assert!(esp.1 > 5, "{case:?}: {} datagrams: TCP was used", esp.1);
        }
        esp.0
    }

    fn passes(&self, case: &str) {
        let printed = self.same(&compiled("tcp"), Some(case));
        assert!(printed.ends_with("PASS\n"), "{case}: {printed}");
    }
}

/// Returns a command that uses ESP if the port is that of the server with ESP.
fn command(lab: &Lab, node: usize, port: &str, program: &Path) -> Command {
    if port == PORTS[1] {
        return esprun(lab, node, &["--tcp"], program);
    }
    let mut command = lab.command(node, program).expect("a command");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn signals_interrupt_calls_or_have_them_restarted() {
    if let Some(servers) = Servers::new("signals_interrupt_calls") {
        for case in ["receiving", "sending", "accepting", "connecting"] {
            servers.passes(case);
        }
    }
}

#[test]
fn descriptors_are_used_by_other_threads_processes_and_programs() {
    if let Some(servers) = Servers::new("descriptors_are_used_by_other") {
        for case in ["descriptors", "passing", "executing"] {
            servers.passes(case);
        }
    }
}

#[test]
fn c_streams_work_on_connections() {
    if let Some(servers) = Servers::new("c_streams_work") {
        servers.passes("streams");
    }
}

#[test]
fn io_uring_works_on_connections() {
    if let Some(servers) = Servers::new("io_uring_works") {
        let printed = servers.same(&compiled("uring"), None);
        if printed.starts_with("no io_uring") {
            eprintln!("skipped: {printed}");
        } else {
            assert!(printed.ends_with("PASS\n"), "{printed}");
        }
    }
}
