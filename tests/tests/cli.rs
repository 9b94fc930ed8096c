//! The programs while nodes are in trouble: loss, narrow paths, death, hostile names. (Their work
//! on a quiet lab is tested in the crate `cli`.)

use esp_client::control::Request;
use esp_tests::frames::in_switch;
use esp_tests::process::{Daemon, Finished, TempFile, bare_lab, ip_in_switch, output, programs};
use esp_tests::raw::RawProgram;
use esp_tests::{client, lab_or_skip, pair, wait_until};
use lab::{Lab, LabOptions};
use serde_json::Value;

/// Runs one of our programs in a node.
fn run(lab: &Lab, node: usize, program: &str, args: &[&str]) -> Finished {
    output(
        lab.command(node, programs().join(program))
            .expect("a command of the node")
            .args(args),
    )
}

#[track_caller]
fn json(finished: &Finished) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    finished.out.lines().map(parse).collect()
}

#[test]
fn esping_counts_three_and_says_by_its_exit_code_how_it_went() {
    let Some(lab) = lab_or_skip("esping_counts_three", &LabOptions::new(2)) else {
        return;
    };
    let good = run(&lab, 0, "esping", &["-c", "3", "-i", "0.01", "node1"]);
    assert_eq!((good.code, good.err.as_str()), (Some(0), ""), "{good:?}");
    assert_eq!(
        good.out.matches(" bytes from node1").count(),
        3,
        "{}",
        good.out
    );
    assert!(
        good.out
            .contains("3 packets transmitted, 3 received, 0% packet loss"),
        "{}",
        good.out
    );

    let absent = run(
        &lab,
        0,
        "esping",
        &["-c", "2", "-i", "0.01", "-W", "0.05", "02:e5:00:00:00:77"],
    );
    assert_eq!(absent.code, Some(1), "{absent:?}");
    assert!(
        absent
            .out
            .contains("2 packets transmitted, 0 received, 100% packet loss"),
        "{}",
        absent.out
    );

    for args in [
        &["no-such-name"][..],
        &["-I", "eth9", "node1"],
        &["ff:ff:ff:ff:ff:ff"],
    ] {
        let bad = run(&lab, 0, "esping", args);
        assert_eq!((bad.code, bad.out.as_str()), (Some(2), ""), "{bad:?}");
        bad.complaint();
    }
}

#[test]
fn esping_asks_several_nodes_and_helps_with_their_names() {
    let Some(lab) = lab_or_skip("esping_asks_several_nodes", &LabOptions::new(3)) else {
        return;
    };
    let several = run(
        &lab,
        0,
        "esping",
        &["-c", "2", "-i", "0.01", "--json", "-D", "node1", "node2"],
    );
    assert_eq!(several.code, Some(0), "{several:?}");
    let lines = json(&several);
    let of = |kind: &str, target: &str| {
        let lines = lines.iter();
        let found = lines.filter(|line| line["type"] == kind && line["target"] == target);
        found.cloned().collect::<Vec<_>>()
    };
    for target in ["node1", "node2"] {
        assert_eq!(of("reply", target).len(), 2, "{several:?}");
        assert_eq!(of("summary", target)[0]["received"], 2, "{several:?}");
        assert!(of("reply", target)[0]["time"].is_f64(), "{several:?}");
    }
    let flood = run(&lab, 0, "esping", &["-f", "-c", "50", "node1"]);
    assert_eq!(flood.code, Some(0), "{flood:?}");
    assert!(
        flood.out.contains("50 packets transmitted, 50 received"),
        "{flood:?}"
    );
    assert!(!flood.out.contains("bytes from"), "{flood:?}");

    let near = run(&lab, 0, "esping", &["-c", "1", "ndoe1"]);
    let near = near.complaint();
    assert!(near.contains("did you mean `node1`?"), "{near}");
    let no_names = TempFile::new("");
    let variable = format!("ESP_ETHERS={}", no_names.path().display());
    let mut command = lab.command(0, "env").expect("a command of the node");
    command.arg(variable).arg(programs().join("esping"));
    let found = output(command.args(["-c", "1", "nod2"]));
    let found = found.complaint();
    let hint = "calls itself `node2` has the address 02:e5:00:00:00:03";
    assert!(found.contains(hint), "{found}");
}

#[test]
fn esping_shows_the_loss_of_the_wire() {
    let mut options = LabOptions::new(2);
    options.wire.loss_ppm = 250_000;
    let Some(lab) = lab_or_skip("esping_shows_the_loss", &options) else {
        return;
    };
    let lossy = run(
        &lab,
        0,
        "esping",
        &["-c", "60", "-i", "0.005", "-W", "0.1", "--json", "node1"],
    );
    assert_eq!(lossy.code, Some(1), "{lossy:?}");
    let lines = json(&lossy);
    let (summary, replies) = lines.split_last().expect("lines");
    let number = |name: &str| summary[name].as_u64().expect(name);
    assert_eq!(
        (number("sent"), number("received")),
        (60, replies.len() as u64)
    );
    assert!(
        number("received") < 60 && number("received") > 0,
        "{summary}"
    );
    let loss = 100.0 * (60 - number("received")) as f64 / 60.0;
    assert!(
        (summary["loss_percent"].as_f64().unwrap() - loss).abs() < 0.01,
        "{summary}"
    );
    assert!(lab.frames_lost().unwrap() >= 60 - number("received"));
}

#[test]
fn esping_finds_the_largest_payload_of_a_narrow_way() {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    let Some(lab) = lab_or_skip("esping_finds_the_largest_payload", &options) else {
        return;
    };
    let mtu = || {
        let found = run(
            &lab,
            0,
            "esping",
            &["--mtu", "-W", "0.05", "--json", "node1"],
        );
        let [line] = json(&found).try_into().expect("one line");
        (found.code, line["payload"].as_u64())
    };
    assert_eq!(mtu(), (Some(0), Some(8989)));
    ip_in_switch(&lab, "link set dev port1 mtu 4000");
    // The kernel's bridge lets four bytes more through, for a VLAN tag.
    let (code, payload) = mtu();
    assert!(
        code == Some(1) && matches!(payload, Some(3989..=3993)),
        "{code:?} {payload:?}"
    );
}

#[test]
fn esping_discovers_all_others_by_name() {
    let Some(lab) = lab_or_skip("esping_discovers", &LabOptions::new(4)) else {
        return;
    };
    let found = run(
        &lab,
        2,
        "esping",
        &["--discover", "-c", "1", "-W", "0.3", "--json"],
    );
    assert_eq!(found.code, Some(0), "{found:?}");
    let mut names: Vec<_> = json(&found)
        .iter()
        .map(|node| node["node_name"].as_str().expect("a name").to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["node0", "node1", "node3"]);
}

#[test]
fn espstat_shows_connections_listeners_and_drops() {
    let Some(lab) = lab_or_skip("espstat_shows", &LabOptions::new(2)) else {
        return;
    };
    let (left, _right) = pair(&lab, 0, 1, 7000);
    let _listener = esp_client::EspListener::builder()
        .bind_at(&client(&lab, 0), 7001)
        .unwrap();
    let stat = |args: &[&str]| {
        let shown = run(&lab, 0, "espstat", args);
        assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{shown:?}");
        shown
    };
    let text = stat(&["-p"]).out;
    let row = text
        .lines()
        .find(|line| line.contains("node1:7000"))
        .expect("the connection");
    let local = format!("eth0:{}", left.local_addr().port);
    assert!(row.contains("established") && row.contains(&local), "{row}");
    assert!(row.contains(&format!("[{}]", std::process::id())), "{row}");
    let listening = stat(&["-l"]).out;
    assert!(
        listening.contains("eth0:7001") && !listening.contains("node1:7000"),
        "{listening}"
    );
    let filtered = |filter: &[&str]| stat(filter).out;
    let only = filtered(&["-i", "state", "established", "dport", "=", "7000"]);
    assert!(
        only.contains("node1:7000") && only.contains(" cwnd:"),
        "{only}"
    );
    assert!(!only.contains("7001") && !only.contains('['), "{only}");
    let none = filtered(&["dst node1 and not dport 7000"]);
    assert!(none.contains("matches the filter"), "{none}");
    let wrong = run(&lab, 0, "espstat", &["dport = 7000 and state opened"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(
        wrong
            .err
            .ends_with("opened\n                         ^^^^^^\n"),
        "{wrong:?}"
    );
    let lines = json(&stat(&["--json"]));
    let connection = lines
        .iter()
        .find(|line| line["type"] == "connection")
        .expect("the connection");
    assert_eq!(
        (&connection["peer_port"], &connection["state"]),
        (&7000.into(), &"established".into())
    );
    let counters = json(&stat(&["--counters", "--json", "-a"]));
    assert!(
        counters
            .iter()
            .any(|c| c["name"] == "rx_drop_runt" && c["value"] == 0)
    );
    assert!(
        counters
            .iter()
            .any(|c| c["name"] == "tx_syns" && c["value"] == 1)
    );
}

#[test]
fn names_that_programs_choose_cannot_disturb_a_terminal() {
    let Some(lab) = lab_or_skip("names_that_programs_choose", &LabOptions::new(1)) else {
        return;
    };
    let mut program = RawProgram::new(&lab.socket(0));
    let name = format!("\u{1b}[2J\r\n\u{7}{}", "x".repeat(1000));
    program.ask(Request::Hello {
        version: esp_client::control::VERSION,
        program: name,
        engine: None,
    });
    program.listen(7000, 1);
    for args in [&["-p"][..], &["--json"]] {
        let shown = run(&lab, 0, "espstat", args);
        assert!(shown.out.contains("7000"), "{}", shown.out);
        assert!(
            !shown.out.chars().any(|c| c.is_control() && c != '\n'),
            "{:?}",
            shown.out
        );
        assert!(!shown.out.contains(&"x".repeat(65)), "{}", shown.out);
    }
    let log = std::fs::read_to_string(lab.socket(0).with_file_name("daemon.log")).unwrap();
    assert!(!log.chars().any(|c| c.is_control() && c != '\n'), "{log:?}");
}

#[test]
fn programs_without_a_daemon_say_so_in_one_line() {
    let Some(lab) = bare_lab("programs_without_a_daemon", 2) else {
        return;
    };
    let programs: [(&str, &[&str]); 4] = [
        ("esping", &["-c", "1", "node1"]),
        ("espstat", &[]),
        ("esplab", &["send", "node1:7000"]),
        ("esplab", &["recv", "7000"]),
    ];
    let all_fail = |why: &str| {
        for (program, args) in programs {
            let refused = run(&lab, 0, program, args);
            assert_eq!(
                (refused.code, refused.out.as_str()),
                (Some(2), ""),
                "{refused:?}"
            );
            let text = refused.complaint();
            assert!(text.contains("esp.sock") && text.contains(why), "{text}");
        }
    };
    all_fail("no such socket");
    Daemon::start(&lab, 0, "").kill();
    all_fail("no esp-daemon is listening on this socket");
}

#[test]
fn a_transfer_whose_receiver_dies_fails_with_a_reason() {
    let Some(lab) = lab_or_skip("a_transfer_whose_receiver_dies", &LabOptions::new(2)) else {
        return;
    };
    let there = client(&lab, 1);
    let mut receiver = lab.command(1, programs().join("esplab")).unwrap();
    let mut receiver = receiver.args(["recv", "-q", "7000"]).spawn().unwrap();
    wait_until("it listens", || {
        !there.status().unwrap().listeners.is_empty()
    });
    let mut sender = lab.command(0, programs().join("esplab")).unwrap();
    sender.args(["send", "-q", "--bytes", "100g", "node1:7000"]);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| output(&mut sender));
        wait_until("bytes flow", || {
            there
                .status()
                .unwrap()
                .connections
                .iter()
                .any(|c| c.bytes_received > Some(1 << 20))
        });
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        let failed = sending.join().unwrap();
        assert_eq!(
            (failed.code, failed.out.as_str()),
            (Some(2), ""),
            "{failed:?}"
        );
        assert!(
            failed.complaint().contains("ended without closing"),
            "{failed:?}"
        );
    });
}

/// The switch must not filter IP packets, which the kernel's bridge does where a container engine
/// has loaded `br_netfilter`.
#[test]
fn the_switch_has_no_rules_for_packets() {
    let Some(lab) = bare_lab("the_switch_has_no_rules_for_packets", 2) else {
        return;
    };
    let rules = || std::fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    match in_switch(&lab, rules) {
        Ok(text) => assert_eq!(text.trim(), "0"),
        Err(_) => assert!(
            rules().is_err(),
            "the module is loaded, and the switch does not know it"
        ),
    }
}
