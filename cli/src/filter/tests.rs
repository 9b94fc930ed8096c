use esp_client::{MacAddr, NodeAddr};

use super::parse::{Lookup, parse};
use super::*;

/// Names of an imaginary system.
struct Names;

impl Lookup for Names {
    fn node(&self, name: &str) -> Result<NodeAddr, String> {
        match name {
            "node1" => Ok(mac(2)),
            _ => Err(format!("unknown node `{name}`")),
        }
    }

    fn user(&self, name: &str) -> Option<u32> {
        (name == "alice").then_some(1000)
    }
}

fn mac(last: u8) -> NodeAddr {
    MacAddr([2, 0xe5, 0, 0, 0, last]).into()
}

fn filter(text: &str) -> Filter {
    Filter(parse(text, &Names).unwrap_or_else(|e| panic!("{text}: {e}")))
}

fn status() -> Status {
    let owner = Owner {
        uid: Some(1000),
        pid: Some(42),
        program: Some("solver".into()),
    };
    Status {
        interfaces: vec![InterfaceInfo {
            name: "eth0".into(),
            addr: mac(1),
            mtu: 1500,
            up: true,
        }],
        connections: vec![ConnectionStatus {
            interface: "eth0".into(),
            state: "established".into(),
            local_port: 40000,
            peer: mac(2).to_string(),
            peer_port: 5000,
            path: "daemon".into(),
            owner: owner.clone(),
            srtt_us: Some(120.0),
            cwnd: Some(10),
            send_queue: Some(2048),
            ..ConnectionStatus::default()
        }],
        listeners: vec![ListenerStatus {
            interface: "eth0".into(),
            port: 5000,
            waiting: 0,
            backlog: 128,
            owner: owner.clone(),
        }],
        edp: vec![EdpStatus {
            interface: "eth0".into(),
            port: 6000,
            send_ring: None,
            recv_ring: None,
            owner,
        }],
        ..Status::default()
    }
}

/// Returns whether the expression accepts the connection, the listener and the datagram port.
fn accepts(text: &str) -> [bool; 3] {
    let (filter, status) = (filter(text), status());
    [
        Socket::connection(&status, &status.connections[0]),
        Socket::listener(&status, &status.listeners[0]),
        Socket::edp(&status, &status.edp[0]),
    ]
    .map(|socket| filter.accepts(&socket))
}

#[test]
fn conditions_select_sockets() {
    for (text, wanted) in [
        ("", [true; 3]),
        ("state established", [true, false, false]),
        ("state connected", [true, false, false]),
        ("state listening", [false, true, false]),
        ("state != listening", [true, false, true]),
        ("state bound", [false, false, true]),
        ("sport 5000", [false, true, false]),
        ("sport = :5000", [false, true, false]),
        ("sport>=5000", [true, true, true]),
        ("dport = 5000", [true, false, false]),
        ("dport!=5001", [true, true, true]),
        ("dport lt 5001", [true, false, false]),
        ("src 02:e5:00:00:00:01", [true, true, true]),
        ("dst node1", [true, false, false]),
        ("dst node1:5000", [true, false, false]),
        ("dst node1:5001", [false, false, false]),
        ("dst = 02:e5:00:00:00:02:5000", [true, false, false]),
        ("dst 10.0.0.1", [false, false, false]),
        ("dev eth0", [true, true, true]),
        ("dev eth1", [false, false, false]),
        ("path daemon", [true, false, false]),
        ("path lease", [false, false, false]),
        ("user alice", [true, true, true]),
        ("user 0", [false, false, false]),
        ("pid 42", [true, true, true]),
        ("program != solver", [false, false, false]),
        ("rtt > 100us", [true, false, false]),
        ("rtt > 1ms", [false, false, false]),
        ("cwnd <= 10", [true, false, false]),
        ("sendq ge 2k", [true, false, false]),
        // The daemon does not know the value.
        ("retrans = 0", [false, false, false]),
        ("retrans > 0", [false, false, false]),
    ] {
        assert_eq!(accepts(text), wanted, "{text}");
    }
}

#[test]
fn conditions_are_joined_with_the_usual_precedence() {
    for (text, wanted) in [
        ("state established dport = 5000", [true, false, false]),
        ("state established and dport 5001", [false, false, false]),
        ("dport 1 or sport 5000", [false, true, false]),
        (
            "sport 6000 or dport 5000 and dev eth1",
            [false, false, true],
        ),
        (
            "(sport 6000 or dport 5000) and dev eth0",
            [true, false, true],
        ),
        (
            "( sport 6000 | dport 5000 ) && dev eth0",
            [true, false, true],
        ),
        ("not sport 5000", [true, false, true]),
        ("!sport 5000 and not(sport 6000)", [true, false, false]),
        ("not not state bound", [false, false, true]),
    ] {
        assert_eq!(accepts(text), wanted, "{text}");
    }
}

#[test]
fn errors_point_at_the_word() {
    for (text, marked, part) in [
        ("stat established", "stat", "did you mean `state`?"),
        (
            "colour red",
            "colour",
            "does not start a condition: write one of state",
        ),
        ("state establish", "establish", "unknown state"),
        (
            "state estblished",
            "estblished",
            "did you mean `established`?",
        ),
        ("dport = x", "x", "invalid port `x`: write a number"),
        ("dport = 70000", "70000", "invalid port"),
        ("dport", "", "`dport` needs a value"),
        ("dport )", ")", "`dport` needs a value"),
        ("(dport 1", "", "`)` is missing at the end"),
        ("dport 1)", ")", "unmatched `)`"),
        ("dport 1 and", "", "a condition is missing at the end"),
        ("or dport 1", "or", "does not start a condition"),
        ("not", "", "a condition is missing at the end"),
        ("dst nod1", "nod1", "unknown node `nod1`"),
        ("dst node1:x", "node1:x", "invalid port `x`"),
        ("dst > node1", ">", "`dst` supports only = and !="),
        ("user bob", "bob", "unknown user `bob`"),
        (
            "path wire",
            "wire",
            "unknown path `wire`: write daemon or lease",
        ),
        ("rtt > 5x", "5x", "invalid duration"),
        ("sendq > 1y", "1y", "invalid size"),
        ("pid -1", "-1", "invalid process id"),
        ("é dport", "é", "does not start a condition"),
        ("dport = ≠", "≠", "invalid port"),
    ] {
        let error = parse(text, &Names).expect_err(text).to_string();
        assert!(error.contains(part), "{text}: {error}");
        let lines: Vec<&str> = error.lines().collect();
        let [_, shown, marks] = lines[..] else {
            panic!("{text}: {error}")
        };
        let column = marks.chars().take_while(|c| *c == ' ').count();
        let carets = marks.trim_start().chars().count();
        let found: String = shown.chars().skip(column).take(carets).collect();
        assert_eq!(found, marked, "{error}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["(", "not "] {
        let text = format!("{}dport 1", open.repeat(100_000));
        let error = parse(&text, &Names).expect_err("too deep");
        assert!(error.why().contains("levels"), "{}", error.why());
    }
    let long = vec!["dport 1"; 10_000].join(" or ");
    assert!(parse(&long, &Names).is_ok());
}
