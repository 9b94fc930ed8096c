//! The state of the node as shown to programs and in metrics.

use esp_client::control::{ErrorKind, Reply, Request, Status};
use esp_engine::{ClientId, EngineEvent};

use crate::support::program::{Program, RINGS, connect};
use crate::support::{Rig, eventually};

#[track_caller]
pub(super) fn status(program: &mut Program) -> Status {
    match program.ask(Request::Status) {
        Reply::Status(status) => *status,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn every_user_sees_connections_and_only_the_owner_sees_the_program() {
    let rig = Rig::new("");
    let mut owner = rig.program_of(1);
    owner.open(6001);
    owner.listen(6002);
    owner.bind(6003);
    let mut other = rig.program_of(2);
    let seen = status(&mut other);
    assert_eq!(seen.connections.len(), 1);
    assert_eq!(
        (
            seen.connections[0].local_port,
            seen.connections[0].owner.uid
        ),
        (6001, Some(1))
    );
    assert_eq!(
        (
            seen.connections[0].owner.pid,
            seen.connections[0].owner.program.as_deref()
        ),
        (None, None)
    );
    assert_eq!(seen.listeners.len(), 2, "one for each link");
    assert!(
        seen.listeners
            .iter()
            .all(|l| l.port == 6002 && l.owner.uid == Some(1) && l.owner.program.is_none())
    );
    assert_eq!((seen.edp[0].port, seen.edp[0].owner.pid), (6003, None));
    let mut root = rig.program_of(0);
    for seen in [status(&mut owner), status(&mut root)] {
        assert_eq!(seen.connections[0].owner.pid, Some(std::process::id()));
        assert_eq!(seen.connections[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.connections[0].state, "established");
        assert_eq!(seen.connections[0].srtt_us, Some(30.0));
        assert_eq!(seen.listeners[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.edp[0].owner.program.as_deref(), Some("test"));
        assert_eq!(seen.interfaces.len(), 2);
        let find = |i: &str, n: &str| {
            seen.counters
                .iter()
                .find(|c| c.interface == i && c.name == n)
                .unwrap()
        };
        assert_eq!(find("net1", "rx_frames").value, 6);
        assert_eq!(find("", "turns").value, 3);
        assert!(find("", "control_requests").value > 3);
    }
}

#[test]
fn a_long_status_is_truncated_and_counted() {
    let rig = Rig::new("");
    rig.engine.books().unowned_connections = 20_000;
    let mut program = rig.program();
    program.open(0);
    let seen = status(&mut program);
    assert!(
        (1000..20_000).contains(&seen.connections.len()),
        "{}",
        seen.connections.len()
    );
    assert_eq!(
        seen.connections[0].owner.uid,
        Some(1000),
        "the program's own one is not cut off"
    );
    assert_eq!(
        rig.count("status_omitted"),
        20_001 - seen.connections.len() as u64
    );
}

/// The queue of events of a program that does not handle them would grow without bound.
#[test]
fn a_program_that_waits_for_its_status_handles_events() {
    let rig = Rig::with_patience("", std::time::Duration::from_secs(3600));
    rig.engine.books().unowned_connections = 20_000;
    let mut deaf = rig.program_of(1);
    deaf.post(Request::Status);
    eventually("the status is made", || rig.count("status_omitted") > 0);
    let mut waiting = rig.program_of(1);
    waiting.open(0);
    waiting.post(Request::Status);
    rig.engine.emit(EngineEvent::Corrupted {
        client: ClientId(waiting.client),
        slot: 0,
        what: "a test",
    });
    waiting.cut_off();
}

/// A status has up to 4 MiB: several programs that do not read theirs must not multiply that.
#[test]
fn a_user_has_one_unread_status_at_a_time() {
    let rig = Rig::with_patience("", std::time::Duration::from_secs(30));
    rig.engine.books().unowned_connections = 20_000;
    let mut deaf = rig.program_of(1);
    deaf.post(Request::Status);
    eventually("the status is made", || rig.count("status_omitted") > 0);
    let omitted = rig.count("status_omitted");
    let mut others: Vec<_> = (0..3).map(|_| rig.program_of(1)).collect();
    for program in &mut others {
        program.post(Request::Status);
    }
    let mut stranger = rig.program_of(2);
    assert!(!status(&mut stranger).connections.is_empty());
    assert_eq!(
        rig.count("status_omitted"),
        2 * omitted,
        "none was made for the user's other programs"
    );
    assert!(matches!(deaf.next(), Some((_, Reply::Status(_), _))));
    std::thread::scope(|scope| {
        for program in &mut others {
            scope.spawn(|| assert!(matches!(program.next(), Some((_, Reply::Status(_), _)))));
        }
    });
}

#[test]
fn link_events_reach_programs() {
    let rig = Rig::new("");
    let link_event = |link, up| esp_engine::EngineEvent::Link {
        link: esp_engine::LinkId(link),
        condition: esp_engine::LinkCondition {
            up,
            mtu: 9000,
            gone: false,
            addr: esp_proto::MacAddr([2, 0, 0, 0, 0, 9]).into(),
            index: 1,
        },
    };
    rig.engine.emit(link_event(0, false));
    let mut program = rig.program();
    eventually("net0 is down", || !status(&mut program).interfaces[0].up);
    let seen = status(&mut program).interfaces.remove(0);
    assert_eq!(
        (seen.mtu, seen.addr),
        (9000, esp_proto::MacAddr([2, 0, 0, 0, 0, 9]).into())
    );
    let Reply::Stream { interface, .. } = program.ask(connect(0)) else {
        panic!()
    };
    assert_eq!(interface, "net1");
    let named = Request::BindEdp {
        interface: Some("net0".into()),
        port: 0,
        rings: RINGS,
    };
    assert!(
        matches!(program.ask(named), Reply::Edp { .. }),
        "binding sends nothing"
    );
    rig.engine.emit(link_event(1, false));
    eventually("net1 is down", || !status(&mut program).interfaces[1].up);
    assert_eq!(program.refused(connect(0)).0, ErrorKind::LinkDown);
}

#[test]
fn metrics_show_every_counter() {
    let rig = Rig::new("");
    let mut program = rig.program();
    program.open(0);
    let telemetry = esp_daemon::telemetry::Telemetry::new();
    assert!(rig.runtime.block_on(telemetry.refresh(&rig.node)));
    let text = telemetry.handle().render();
    for line in [
        "esp_rx_frames_total{interface=\"net0\"} 5",
        "esp_rx_frames_total{interface=\"net1\"} 6",
        "esp_turns_total 3",
        "esp_control_connections_total 1",
        "esp_programs 1",
        "esp_ring_bytes 12288",
        "esp_connections{interface=\"net0\"} 1",
        "esp_link_up{interface=\"net1\"} 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in:\n{text}"
        );
    }
    for (name, help, _) in rig.node.stats.list() {
        assert!(
            text.contains(&format!("\nesp_{name}_total ")),
            "{name} is not in:\n{text}"
        );
        assert!(text.contains(help), "{help} is not in:\n{text}");
    }
}
