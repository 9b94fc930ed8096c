//! `esp doctor` finds faults that are planted in a lab, and none in a healthy one. (Faults that
//! cannot be planted in namespaces are planted into its facts, in the crate `cli`.)

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use esp_client::control::codec::{Decoder, encode, receive};
use esp_client::control::{Envelope, ErrorKind, ErrorReply, Reply, Request};
use esp_tests::frames::in_switch;
use esp_tests::process::{
    Daemon, Finished, bare_lab, configured_lab, ip, ip_in_switch, output, programs, signal,
};
use esp_tests::{lab_or_skip, wait_until};
use lab::{Carriers, Lab, LabOptions};
use rustix::process::Signal;
use serde_json::Value;

/// What doctor found.
struct Diagnosis {
    code: Option<i32>,
    lines: Vec<Value>,
}

/// Runs doctor in a node, by a command line that ends with the program's path.
fn examine_by(lab: &Lab, node: usize, wrapper: &[&str], args: &[&str]) -> Diagnosis {
    let (first, rest) = wrapper.split_first().expect("a command");
    let mut command = lab.command(node, first).expect("a command of the node");
    command.args(rest).arg(programs().join("esp"));
    let finished = output(command.args(["doctor", "--json"]).args(args));
    assert_eq!(finished.err, "", "{finished:?}");
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    Diagnosis {
        code: finished.code,
        lines: finished.out.lines().map(parse).collect(),
    }
}

fn examine(lab: &Lab, node: usize, args: &[&str]) -> Diagnosis {
    examine_by(lab, node, &["env"], args)
}

impl Diagnosis {
    fn of_type(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["type"] == kind)
    }

    /// Returns the checks that found a warning or an error, without those of the machine and its
    /// Open MPI, which are not the lab's.
    fn faults<'a>(&'a self) -> BTreeSet<&'a str> {
        let is_fault = |f: &&Value| f["level"] == "warning" || f["level"] == "error";
        let check = |f: &'a Value| f["check"].as_str().expect("a check");
        let of_lab = |check: &&str| !check.starts_with("host.") && !check.starts_with("mpi.");
        let faults = self.of_type("finding").filter(is_fault);
        faults.map(check).filter(of_lab).collect()
    }

    /// Asserts that these faults are found, and no others; each error has a fix.
    #[track_caller]
    fn has(&self, faults: &[&str]) {
        let expected: BTreeSet<&str> = faults.iter().copied().collect();
        assert_eq!(self.faults(), expected, "{:#?}", self.lines);
        assert_eq!(self.code != Some(0), self.is_bad(), "{:?}", self.code);
        for finding in self.of_type("finding") {
            let bad = finding["level"] == "warning" || finding["level"] == "error";
            assert!(!bad || finding["fix"].is_string(), "{finding}");
        }
    }

    fn is_bad(&self) -> bool {
        let summary = self.lines.last().expect("a summary");
        summary["errors"] != 0 || summary["warnings"] != 0
    }

    #[track_caller]
    fn finding(&self, check: &str) -> &Value {
        let mut findings = self.of_type("finding");
        let finding = findings.find(|finding| finding["check"] == check);
        finding.expect(check)
    }

    /// Returns the text of a check's finding.
    #[track_caller]
    fn what(&self, check: &str) -> &str {
        self.finding(check)["what"].as_str().expect("a text")
    }
}

/// Drops frames at the switch, by a condition of nftables.
fn drop_at_switch(lab: &Lab, condition: &str) {
    let rules = format!(
        "add table bridge doctor; flush table bridge doctor; \
         add chain bridge doctor frames {{ type filter hook forward priority 0; }}; \
         add rule bridge doctor frames {condition} drop"
    );
    let done = in_switch(lab, || Command::new("nft").arg(&rules).output());
    let done = done.expect("nft");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Creates a lab whose daemons serve both carriers, and grant leases to everyone.
fn both(test: &str, nodes: usize) -> Option<Lab> {
    let mut options = LabOptions::new(nodes);
    options.carriers = Carriers::Both;
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    lab_or_skip(test, &options)
}

#[test]
fn a_healthy_lab_has_no_fault() {
    let Some(lab) = both("a_healthy_lab_has_no_fault", 3) else {
        return;
    };
    let healthy = examine(&lab, 0, &["--all"]);
    healthy.has(&[]);
    assert!(healthy.what("daemon.lease").contains("may have leases"));
    let routes: Vec<_> = healthy.of_type("route").collect();
    assert_eq!(routes.len(), 4, "{routes:?}");
    for route in routes {
        let payload = route["payload"].as_u64().expect("it was measured");
        let udp = route["address"].as_str().expect("text").starts_with("10.");
        assert_eq!(payload, if udp { 1459 } else { 1489 }, "{route}");
        assert!(route["rtt_us"].as_f64().is_some_and(|rtt| rtt > 0.0));
    }
    let paths: Vec<_> = healthy.of_type("path").map(|p| &p["path"]).collect();
    assert_eq!(paths, ["lease", "lease", "udp", "lease", "lease", "udp"]);
}

#[test]
fn a_healthy_lab_with_two_interfaces_has_no_fault() {
    let mut options = LabOptions::new(2);
    options.rails = 2;
    let Some(lab) = lab_or_skip("a_healthy_lab_with_two_interfaces", &options) else {
        return;
    };
    let healthy = examine(&lab, 0, &["--peer", "node1"]);
    healthy.has(&[]);
    let interfaces: Vec<_> = healthy.of_type("route").map(|r| &r["interface"]).collect();
    assert_eq!(interfaces, ["eth0", "eth1"]);
    let mut routes = healthy.of_type("route");
    assert!(
        routes.all(|route| route["received"] == 10),
        "{:?}",
        healthy.lines
    );
    assert_eq!(examine(&lab, 0, &["--all"]).of_type("path").count(), 3);
    // A node reaches itself without the wire.
    examine(&lab, 0, &["--peer", "node0"]).has(&[]);
}

#[test]
fn a_stopped_daemon_is_found() {
    let Some(lab) = bare_lab("a_stopped_daemon_is_found", 2) else {
        return;
    };
    let none = examine(&lab, 0, &["--peer", "node1"]);
    none.has(&["daemon.stopped"]);
    assert_eq!(none.code, Some(2));
    // The interfaces are checked all the same.
    assert!(none.what("link.up").contains("MTU 1500"));

    let mut daemon = Daemon::start(&lab, 0, "");
    let elsewhere = examine_by(&lab, 0, &["env", "ESP_SOCKET=/nowhere/esp.sock"], &[]);
    elsewhere.has(&["daemon.stopped"]);
    let text = elsewhere.what("daemon.stopped");
    assert!(
        text.contains(&format!("process {}", daemon.pid())),
        "{text}"
    );

    // The superuser without the capability to use files of others.
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(daemon.socket(), mode(0o000)).expect("change the mode");
    let set = [
        "--bounding-set",
        "-dac_override",
        "--inh-caps",
        "-dac_override",
    ];
    let wrapper = [&["setpriv"][..], &set].concat();
    examine_by(&lab, 0, &wrapper, &[]).has(&["daemon.permission"]);
    std::fs::set_permissions(daemon.socket(), mode(0o666)).expect("change the mode");

    signal(daemon.pid(), Signal::STOP);
    examine(&lab, 0, &[]).has(&["daemon.silent"]);
    signal(daemon.pid(), Signal::CONT);
    examine(&lab, 0, &[]).has(&[]);
    daemon.kill();
    examine(&lab, 0, &[]).has(&["daemon.stale"]);
}

#[test]
fn a_daemon_of_another_control_version_is_found() {
    let Some(lab) = bare_lab("a_daemon_of_another_control_version", 1) else {
        return;
    };
    let listener = UnixListener::bind(lab.socket(0)).expect("a socket");
    let old = std::thread::spawn(move || {
        let (socket, _) = listener.accept().expect("doctor");
        let mut decoder = Decoder::<Request>::new();
        wait_until("the program introduces itself", || {
            let _ = receive(&socket, &mut decoder);
            matches!(decoder.next(), Ok(Some(_)))
        });
        let refusal = Envelope {
            id: 1,
            body: Reply::Error(ErrorReply {
                kind: ErrorKind::Version,
                message: "this daemon speaks version 1".into(),
            }),
        };
        let bytes = encode(&refusal).expect("a message");
        std::io::Write::write_all(&mut &socket, &bytes).expect("an answer");
    });
    let found = examine(&lab, 0, &[]);
    old.join().expect("the daemon");
    found.has(&["daemon.control"]);
    assert!(found.what("daemon.control").contains("speaks version 1"));
    found.what("link.up");
}

#[test]
fn faults_of_an_interface_are_found() {
    let Some(lab) = both("faults_of_an_interface_are_found", 2) else {
        return;
    };
    examine(&lab, 0, &["-I", "eth7"]).has(&["link.unknown"]);

    ip(&lab, 0, "link set eth0 down");
    let down = examine(&lab, 0, &["--peer", "node1"]);
    assert!(down.faults().contains("link.down"), "{:?}", down.faults());
    assert_eq!(down.code, Some(2));

    ip(&lab, 0, "link set eth0 up");
    ip_in_switch(&lab, "link set dev port0 down");
    let daemon = esp_tests::client(&lab, 0);
    wait_until("the daemon notices", || {
        !daemon.status().expect("status").interfaces[0].up
    });
    examine(&lab, 0, &[]).has(&["link.carrier"]);

    ip(&lab, 0, "link delete eth0");
    examine(&lab, 0, &[]).has(&["link.gone"]);
}

#[test]
fn different_mtus_are_found() {
    let mut options = LabOptions::new(3);
    options.wire.mtu = 9000;
    let Some(lab) = lab_or_skip("different_mtus_are_found", &options) else {
        return;
    };
    ip(&lab, 1, "link set eth0 mtu 4000");
    ip_in_switch(&lab, "link set dev port2 mtu 3000");
    let found = examine(&lab, 0, &["--peer", "node1", "--peer", "node2"]);
    found.has(&["peer.mtu", "peer.path"]);
    assert!(found.what("peer.mtu").contains("MTU 9000, the peer 4000"));
    let of_node2 = |route: &&Value| route["peer"] == "node2";
    let route = found.of_type("route").find(of_node2).expect("node2");
    // The kernel's bridge lets four bytes more through, for a VLAN tag.
    let payload = route["payload"].as_u64();
    assert!(matches!(payload, Some(2989..=2993)), "{payload:?}");
}

#[test]
fn filtered_packets_are_found() {
    let Some(lab) = both("filtered_packets_are_found", 2) else {
        return;
    };
    for (condition, fault) in [
        ("ether type 0x88b5", "peer.esp"),
        ("ether type 0x88b6", "peer.edp"),
        ("ether type { 0x88b5, 0x88b6 }", "peer.raw"),
        ("udp dport 2805", "peer.udp"),
    ] {
        drop_at_switch(&lab, condition);
        examine(&lab, 0, &["--peer", "node1"]).has(&[fault]);
    }
    drop_at_switch(&lab, "ether type != arp");
    let nothing = examine(&lab, 0, &["--peer", "node1"]);
    nothing.has(&["peer.silent"]);
    assert_eq!(nothing.of_type("path").count(), 0);
    examine(&lab, 0, &["--all"]).has(&["segment.alone"]);
    drop_at_switch(&lab, "ether type 0x1234");
    examine(&lab, 0, &["--peer", "node1"]).has(&[]);
}

#[test]
fn peers_without_a_daemon_or_a_name_are_found() {
    let Some(lab) = bare_lab("peers_without_a_daemon_or_a_name", 2) else {
        return;
    };
    let _own = Daemon::start(&lab, 0, "");
    let found = examine(&lab, 0, &["--peer", "node1", "--peer", "no-such-node"]);
    found.has(&["peer.silent", "peer.unknown"]);
    assert_eq!(found.code, Some(2));
    let text = found.what("peer.unknown");
    assert!(text.contains("no-such-node"), "{text}");
    let misspelt = examine(&lab, 0, &["--peer", "noed1"]);
    let unknown = misspelt.finding("peer.unknown");
    let fix = unknown["fix"].as_str().expect("a fix");
    assert!(fix.starts_with("did you mean node1?"), "{fix}");
    let group = examine(&lab, 0, &["--peer", "ff:ff:ff:ff:ff:ff"]);
    group.has(&["peer.unknown"]);
}

#[test]
fn names_and_addresses_of_two_nodes_are_found() {
    let Some(lab) = bare_lab("names_and_addresses_of_two_nodes", 4) else {
        return;
    };
    ip(&lab, 3, "link set eth0 address 02:e5:00:00:00:03");
    let named = |node, name| Daemon::start(&lab, node, &format!("node_name = \"{name}\""));
    let mut daemons = vec![named(0, "a"), named(1, "a"), named(2, "c")];
    let found = examine(&lab, 0, &["--all"]);
    found.has(&["segment.name"]);
    let text = found.what("segment.name");
    assert!(
        text.contains("02:e5:00:00:00:01, 02:e5:00:00:00:02"),
        "{text}"
    );

    daemons.push(named(3, "d"));
    let found = examine(&lab, 0, &["--all"]);
    assert!(
        found
            .faults()
            .is_superset(&BTreeSet::from(["segment.name", "segment.address"])),
        "{:?}",
        found.faults()
    );
    assert!(
        found
            .what("segment.address")
            .ends_with("02:e5:00:00:00:03: c, d")
    );

    // The other node with the address sees its own frames come back.
    let own = examine(&lab, 2, &[]);
    own.has(&[]);
    let asks = lab.run(3, programs().join("esping"), ["--discover", "-c", "1"]);
    assert!(asks.expect("esping").status.success());
    examine(&lab, 2, &[]).has(&["link.duplicate"]);
}

#[test]
fn refused_leases_are_found() {
    let Some(lab) = configured_lab("refused_leases_are_found", 1, "") else {
        return;
    };
    let by_default = examine(&lab, 0, &[]);
    by_default.has(&[]);
    assert!(
        by_default
            .what("daemon.lease")
            .contains("may not have a lease")
    );
    let demanded = examine_by(&lab, 0, &["env", "ESP_PATH=lease"], &[]);
    demanded.has(&["daemon.lease"]);
    assert_eq!(demanded.code, Some(2));
    let misspelt = examine_by(&lab, 0, &["env", "ESP_PATH=leese"], &[]);
    misspelt.has(&["daemon.unreached"]);

    let limits = "[lease]\nallow = \"all\"\n[limits]\nleases = 0\n";
    let Some(lab) = configured_lab("refused_leases_are_found", 1, limits) else {
        return;
    };
    let limited = examine(&lab, 0, &[]);
    limited.has(&["daemon.lease"]);
    let text = limited.what("daemon.lease");
    assert!(text.contains("limits.leases"), "{text}");
}

#[test]
fn limits_and_programs_of_the_machine_are_found() {
    let Some(lab) = configured_lab("limits_and_programs_of_the_machine", 1, "") else {
        return;
    };
    let locked = ["sh", "-c", "ulimit -l 64; exec \"$0\" \"$@\""];
    let text = examine_by(&lab, 0, &locked, &[]);
    assert!(text.what("host.memlock").contains("only 64 KiB"));

    // An Open MPI that ignores the component, because it is of another release.
    let folder = lab.dir().join("bin");
    std::fs::create_dir(&folder).expect("a folder");
    let program = folder.join("ompi_info");
    let script = "#!/bin/sh\nprintf '%s\\n' ompi:version:full:5.0.7 option:dlopen:yes \
                  'mca:btl:esp:version:\"component:4.1.4\"'\n";
    std::fs::write(&program, script).expect("a script");
    let mut mode = Command::new("chmod");
    assert_eq!(output(mode.arg("755").arg(&program)).code, Some(0));
    let path = format!(
        "PATH={}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let found = examine_by(&lab, 0, &["env", &path], &[]);
    let text = found.what("mpi.component");
    assert_eq!(
        text,
        "the component is for Open MPI 4.1.4; 5.0.7 ignores it"
    );
    assert_eq!(found.code, Some(2));
}

#[test]
fn the_text_is_for_terminals_and_pipes() {
    let Some(lab) = configured_lab("the_text_is_for_terminals_and_pipes", 2, "") else {
        return;
    };
    let shell = |script: &str| -> Finished {
        let mut command = lab.command(0, "sh").expect("a command of the node");
        output(command.args(["-c", script]).arg(programs().join("esp")))
    };
    let text = shell("\"$0\" doctor --all");
    assert_eq!(text.err, "", "{text:?}");
    assert!(text.out.contains("matrix"), "{}", text.out);
    assert!(!text.out.contains('\x1b'), "{:?}", text.out);
    assert!(
        text.out.lines().all(|line| line.chars().count() <= 80),
        "{}",
        text.out
    );
    let closed = shell("\"$0\" doctor --all | true");
    assert_eq!((closed.code, closed.err.as_str()), (Some(0), ""));
}
