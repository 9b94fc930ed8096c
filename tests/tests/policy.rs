//! Permissions and limits: users, ports, keys.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use esp_client::control::{ErrorKind, Reply, Request, Rings};
use esp_client::{EdpSocket, EspAddr, EspError, EspListener, EspStream, MacAddr};
use esp_tests::process::{configured_lab, daemon_pid, signal};
use esp_tests::program::Program;
use esp_tests::raw::RawProgram;
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, send_pattern, wait_until,
};
use lab::{Lab, LabOptions, Node};
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
/// An unused user id.
const USER: &str = "uid:61234";
const OTHER: &str = "uid:61235";

/// Starts a program of another user on node 0.
fn of_user(lab: &Lab, steps: &[&str]) -> Program {
    let socket = lab.socket(0);
    // Independent of the umask.
    let folder = socket.parent().expect("a folder");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
        .expect("open the node's folder");
    Program::start(PROGRAM, &socket, steps)
}

/// Returns the refusal inside an error of the library.
#[track_caller]
fn denied<T>(result: Result<T, impl Into<std::io::Error>>) -> ErrorKind {
    let Err(error) = result else {
        panic!("it was allowed")
    };
    let error = error.into();
    match EspError::of(&error) {
        Some(EspError::Denied { kind, .. }) => *kind,
        _ => panic!("not denied by the daemon: {error}"),
    }
}

#[test]
fn ports_below_1024_are_for_root() {
    let Some(lab) = lab_or_skip("ports_below_1024", &LabOptions::new(1)) else {
        return;
    };
    let me = client(&lab, 0);
    let _root = EspListener::builder().bind_at(&me, 80).unwrap();
    let _datagrams = EdpSocket::builder().bind_at(&me, 81).unwrap();
    let steps = [
        USER,
        "listen:1",
        "listen:1023",
        "edp:1",
        "edp:1023",
        "listen:1024",
        "edp:1024",
        "connect:0:80",
    ];
    let program = of_user(&lab, &steps);
    program.says("ok uid");
    for step in &steps[1..5] {
        program.says(&format!("error {step}: Denied {{ kind: Permission"));
    }
    // Ports above are allowed, and connects from above to any port.
    for step in &steps[5..] {
        program.says(&format!("ok {step}"));
    }
    assert_eq!(counter(&me, "refused_permission"), 4);
}

#[test]
fn a_port_belongs_to_its_user() {
    let Some(lab) = lab_or_skip("a_port_belongs_to_its_user", &LabOptions::new(1)) else {
        return;
    };
    let mut first = of_user(&lab, &[USER, "listen:7000", "edp:7000", "hold"]);
    for _ in 0..3 {
        first.says("ok");
    }
    let steps = ["listen:7000", "edp:7000", "connect:0:7000"];
    for user in [USER, OTHER] {
        let program = of_user(&lab, &[user, steps[0], steps[1], steps[2]]);
        program.says("ok uid");
        program.says("error listen:7000: Denied { kind: InUse");
        program.says("error edp:7000: Denied { kind: InUse");
        program.says("ok connect");
    }
    first.finish();
    let me = client(&lab, 0);
    wait_until("the ports are free", || {
        me.status().unwrap().listeners.is_empty()
    });
    EspListener::builder().bind_at(&me, 7000).unwrap();
    EdpSocket::builder().bind_at(&me, 7000).unwrap();
}

#[test]
fn what_others_may_see() {
    let Some(lab) = lab_or_skip("what_others_may_see", &LabOptions::new(1)) else {
        return;
    };
    let me = client(&lab, 0);
    let _listener = EspListener::builder().bind_at(&me, 7000).unwrap();
    let user = of_user(&lab, &[USER, "listen:7001", "hold"]);
    user.says("ok uid");
    user.says("ok listen");
    let listeners = me.status().unwrap().listeners;
    let of = |port| {
        listeners
            .iter()
            .find(|l| l.port == port)
            .expect("a listener")
    };
    assert_eq!(
        (of(7001).owner.uid, of(7001).owner.pid),
        (Some(61234), u32::try_from(user.pid()).ok())
    );
    assert_eq!(of(7001).owner.program.as_deref(), Some("esp-test-program"));
    // espstat, run as another user, prints what that user sees.
    let other = of_user(&lab, &[OTHER, "status"]);
    other.says("ok uid");
    other.says("listener 7000 uid Some(0) pid None program None");
    other.says("listener 7001 uid Some(61234) pid None program None");
    other.says("ok status");
}

#[test]
fn the_mode_of_the_socket_decides_access() {
    let config = "[socket]\nmode = \"0600\"\n";
    let Some(lab) = configured_lab("the_mode_of_the_socket_decides_access", 1, config) else {
        return;
    };
    let program = of_user(&lab, &[USER, "listen:7000"]);
    program.says("ok uid");
    program.says("error listen:7000: Unreachable { socket: \"esp.sock\", kind: PermissionDenied");
    client(&lab, 0).status().unwrap();
}

#[test]
fn limits_hold_for_each_user_and_come_back() {
    let config =
        "[limits]\nstreams = 2\nlisteners = 2\nedp_sockets = 1\n[limits.uid.61235]\nprograms = 1\n";
    let Some(lab) = configured_lab("limits_hold_for_each_user", 2, config) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    use ErrorKind::Limit;

    let listen = |port| EspListener::builder().bind_at(&here, port);
    let (_first, second) = (listen(7000).unwrap(), listen(7001).unwrap());
    assert_eq!(denied(listen(7002)), Limit);
    drop(second);
    let _again = listen(7002).unwrap();

    let bind = || EdpSocket::builder().bind_at(&here, 0);
    let socket = bind().unwrap();
    assert_eq!(denied(bind()), Limit);
    drop(socket);
    wait_until("the datagram socket is free", || bind().is_ok());
    let refused = counter(&here, "refused_limit");

    let listener = EspListener::builder().bind_at(&there, 7100).unwrap();
    let connect = || EspStream::builder().connect_at(&here, address(1, 7100));
    let (_one, two) = (connect().unwrap(), connect().unwrap());
    let (left, _) = listener.accept_timeout(PATIENCE).unwrap();
    let right = listener.accept_timeout(PATIENCE).unwrap().0;
    assert_eq!(denied(connect()), Limit);
    // So are users without any resources.
    let mut user = of_user(
        &lab,
        &[
            USER,
            "listen:7500",
            "edp:7500",
            "connect:1:7100",
            "connect:1:7100",
            "connect:1:7100",
            "hold",
        ],
    );
    for step in ["uid", "listen", "edp", "connect", "connect"] {
        user.says(&format!("ok {step}"));
    }
    user.says("error connect:1:7100: Denied { kind: Limit");
    assert_eq!(counter(&here, "refused_limit"), refused + 2);

    // At the other end, accepted connections reach the limit: the peer gets an error.
    let answer = listener.accept_timeout(PATIENCE);
    assert_eq!(denied(answer), Limit);
    assert!(counter(&there, "refused_incoming") > 0);
    user.finish();
    drop((two, left, right));
    wait_until("a stream is free again", || connect().is_ok());

    // One program of that user at a time.
    let mut only = of_user(&lab, &[OTHER, "listen:7600", "hold"]);
    only.says("ok uid");
    only.says("ok listen");
    let next = of_user(&lab, &[OTHER, "listen:7601"]);
    next.says("ok uid");
    next.says("error listen:7601: Denied { kind: Limit");
    only.finish();
    wait_until("the next one is let in", || {
        let next = of_user(&lab, &[OTHER, "listen:7601"]);
        next.says("ok uid");
        next.says("").starts_with("ok")
    });
}

#[test]
fn a_peer_of_a_program_at_its_limit_gets_an_error() {
    let config = "[limits]\nstreams = 0\n[limits.uid.61234]\nstreams = 5\n";
    let Some(lab) = configured_lab("a_peer_whose_program_is_at_a_limit", 1, config) else {
        return;
    };
    let me = client(&lab, 0);
    let listener = EspListener::builder().bind_at(&me, 7000).unwrap();
    let user = of_user(&lab, &[USER, "connect:0:7000", "read:1"]);
    user.says("ok uid");
    user.says("ok connect");
    assert_eq!(denied(listener.accept_timeout(PATIENCE)), ErrorKind::Limit);
    user.says("error read:1: PeerLimit");
}

#[test]
fn memory_for_rings_is_limited() {
    let config =
        "[limits]\nring_bytes = \"1536KiB\"\n[rings]\nmax = \"256KiB\"\ndefault = \"256KiB\"\n";
    let Some(lab) = configured_lab("memory_for_rings_is_limited", 2, config) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let _listener = EspListener::builder().bind_at(&there, 7000).unwrap();
    let connect = |rings| {
        EspStream::builder()
            .rings(rings, rings)
            .connect_at(&here, address(1, 7000))
    };
    // Sizes above the maximum are reduced, not refused; then the sum counts.
    let first = connect(1 << 18).unwrap();
    let _second = connect(1 << 18).unwrap();
    assert_eq!(denied(connect(1 << 12)), ErrorKind::Limit);
    drop(first);
    for bad in [0x1001, 1 << 11, 3 << 12, u32::MAX] {
        assert_eq!(denied(connect(bad)), ErrorKind::BadArgument, "{bad}");
    }
}

#[test]
fn job_keys_keep_jobs_apart() {
    let Some(lab) = lab_or_skip("job_keys_keep_jobs_apart", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let longest = [7; 32];
    let locked = EspListener::builder()
        .key(longest)
        .bind_at(&there, 7000)
        .unwrap();
    let open = EspListener::builder().bind_at(&there, 7001).unwrap();
    let connect = |port, key: &[u8]| {
        EspStream::builder()
            .key(key)
            .connect_at(&here, address(1, port))
    };
    let mut almost = longest;
    almost[31] = 8;
    let wrong: [(u16, &[u8]); 5] = [
        (7000, b""),
        (7000, b"other"),
        (7000, &almost),
        (7000, &longest[..31]),
        (7001, b"some"),
    ];
    for (port, key) in wrong {
        let error = connect(port, key).expect_err("another job");
        assert!(
            matches!(EspError::of(&error), Some(EspError::BadKey { .. })),
            "{error}"
        );
    }
    assert_eq!(counter(&there, "rx_drop_key"), 5);
    let error = connect(7000, &[7; 33]).expect_err("too long");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    for (listener, port, key) in [(&locked, 7000, &longest[..]), (&open, 7001, b"")] {
        let left = connect(port, key).unwrap();
        let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
        send_pattern(&left, 10_000, 1);
        check_pattern(&right, 10_000, 1);
    }
}

#[test]
fn invalid_arguments_are_refused_with_a_reason() {
    let Some(lab) = lab_or_skip("invalid_arguments_are_refused", &LabOptions::new(2)) else {
        return;
    };
    let me = client(&lab, 0);
    use ErrorKind::{BadArgument, InUse, NotFound};
    let stream = EspStream::builder;
    // Interfaces.
    assert_eq!(
        denied(stream().interface("eth9").connect_at(&me, address(1, 7000))),
        NotFound
    );
    assert_eq!(
        denied(EspListener::builder().interface("eth9").bind_at(&me, 7000)),
        NotFound
    );
    assert_eq!(
        denied(EdpSocket::builder().interface("eth9").bind_at(&me, 7000)),
        NotFound
    );
    // Ports.
    let listener = EspListener::builder().bind_at(&me, 7000).unwrap();
    assert_eq!(denied(EspListener::builder().bind_at(&me, 7000)), InUse);
    let _datagrams = EdpSocket::builder().bind_at(&me, 7000).unwrap();
    assert_eq!(denied(EdpSocket::builder().bind_at(&me, 7000)), InUse);
    let _first = stream()
        .local_port(8000)
        .connect_at(&me, address(0, 7000))
        .unwrap();
    assert_eq!(
        denied(stream().local_port(8000).connect_at(&me, address(0, 7000))),
        InUse
    );
    // A port cannot be connected with itself, but with another port of its own node.
    assert_eq!(
        denied(stream().local_port(7000).connect_at(&me, address(0, 7000))),
        BadArgument
    );
    listener.accept_timeout(PATIENCE).unwrap();
    // No listener: here, and on the other node.
    for node in [0, 1] {
        let error = stream()
            .connect_at(&me, address(node, 7999))
            .expect_err("no listener");
        assert!(
            matches!(EspError::of(&error), Some(EspError::Refused { .. })),
            "{error}"
        );
    }
    assert_eq!(
        denied(EspListener::builder().backlog(0).bind_at(&me, 7001)),
        BadArgument
    );
    assert_eq!(
        denied(EspListener::builder().backlog(1025).bind_at(&me, 7001)),
        BadArgument
    );
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let error = stream()
            .connect_at(&me, EspAddr::new(MacAddr(mac), 7000))
            .expect_err("a group");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert_eq!(
        denied(stream().connect_at(&me, EspAddr::new(MacAddr([0; 6]), 7000))),
        BadArgument
    );
}

#[test]
fn the_daemon_checks_what_the_library_would_not_ask() {
    let Some(lab) = lab_or_skip("the_daemon_checks", &LabOptions::new(1)) else {
        return;
    };
    let (mut program, _welcome) = RawProgram::welcomed(&lab.socket(0));
    let rings = Rings {
        tx: 1 << 16,
        rx: 1 << 16,
    };
    let connect = |peer: [u8; 6], peer_port, key: &[u8]| Request::Connect {
        interface: None,
        local_port: 0,
        peer: esp_client::MacAddr(peer).into(),
        peer_port,
        key: key.to_vec(),
        rings,
    };
    use ErrorKind::{BadArgument, BadRequest, NotFound};
    let requests = [
        (connect([0xff; 6], 7000, b""), BadArgument),
        (connect([0; 6], 7000, b""), BadArgument),
        (connect(Node(0).mac(), 0, b""), BadArgument),
        (connect(Node(0).mac(), 7000, &[1; 33]), BadArgument),
        (
            Request::Listen {
                interface: None,
                port: 7000,
                backlog: 1,
                key: vec![1; 33],
            },
            BadArgument,
        ),
        (
            Request::Hello {
                version: esp_client::control::VERSION,
                program: "again".into(),
                engine: None,
            },
            BadRequest,
        ),
        (Request::CloseListener { listener: 1 }, NotFound),
        (Request::Accept { listener: 1, rings }, NotFound),
        (Request::Close { slot: 0 }, NotFound),
        (Request::Abort { slot: 4095 }, NotFound),
        (Request::CloseEdp { slot: u16::MAX }, NotFound),
    ];
    for (request, kind) in requests {
        let text = format!("{request:?}");
        match program.ask(request).0 {
            Reply::Error(error) => assert_eq!(error.kind, kind, "{text}: {}", error.message),
            other => panic!("{text}: {other:?}"),
        }
    }
    // Another program's listener cannot be used by its number.
    let listener = program.listen(7000, 4);
    let (mut thief, _welcome) = RawProgram::welcomed(&lab.socket(0));
    for request in [
        Request::Accept { listener, rings },
        Request::CloseListener { listener },
    ] {
        assert!(matches!(thief.ask(request).0, Reply::Error(error) if error.kind == NotFound));
    }
}

#[test]
fn limits_are_read_again_on_sighup() {
    let Some(lab) = configured_lab("limits_are_read_again_on_sighup", 1, "") else {
        return;
    };
    let me = client(&lab, 0);
    let listen = |port| EspListener::builder().bind_at(&me, port);
    let _held = [listen(7000).unwrap(), listen(7001).unwrap()];
    let file = lab.socket(0).with_file_name("esp-daemon.toml");
    let reload = |text: &str| {
        std::fs::write(&file, text).unwrap();
        signal(daemon_pid(&lab, 0), Signal::HUP);
    };
    reload("[limits]\nlisteners = 2\n");
    wait_until("the limit is there", || listen(7002).is_err());
    assert_eq!(denied(listen(7002)), ErrorKind::Limit);
    // An invalid file changes nothing and does not end the daemon.
    reload("[limits]\nlisteners = \"many\"\n");
    let log = lab.socket(0).with_file_name("daemon.log");
    wait_until("the mistake is named", || {
        std::fs::read_to_string(&log)
            .unwrap()
            .contains("limits.listeners")
    });
    assert_eq!(denied(listen(7002)), ErrorKind::Limit);
    reload("[limits]\nlisteners = 3\n");
    wait_until("the limit is higher", || listen(7002).is_ok());
}

#[test]
fn programs_of_different_users_can_connect() {
    let Some(lab) = lab_or_skip("between_users", &LabOptions::new(1)) else {
        return;
    };
    let me = client(&lab, 0);
    let user = of_user(
        &lab,
        &[USER, "listen:7000", "accept", "read:100000", "write:5"],
    );
    user.says("ok uid");
    user.says("ok listen");
    let mut stream = EspStream::builder()
        .connect_at(&me, address(0, 7000))
        .unwrap();
    stream.write_all(&[1; 100_000]).unwrap();
    for step in ["accept", "read", "write"] {
        user.says(&format!("ok {step}"));
    }
}
