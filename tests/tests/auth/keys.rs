//! Nodes with other keys, without keys, and with new ones.

use std::io::{Read, Write};

use esp_tests::process::{Daemon, bare_lab, signal};
use esp_tests::{check_pattern, counter, send_pattern, wait_until};
use rustix::process::Signal;

use crate::{KeyFile, config, connect};

/// A configuration under which connecting fails soon.
fn impatient(text: &str) -> String {
    text.replace("[timers]", "[timers]\nconnect_timeout = \"300ms\"")
}

#[test]
fn another_key_and_no_key_reach_nothing() {
    let Some(lab) = bare_lab("another_key_and_no_key_reach_nothing", 2) else {
        return;
    };
    let (key, other) = (KeyFile::new(1), KeyFile::new(2));
    let right = Daemon::start(&lab, 1, &config(&[&key], ""));
    for (what, counted, text) in [
        ("another key", "auth_drop_key", config(&[&other], "")),
        ("no key", "auth_drop_plain", "[timers]\n".to_owned()),
    ] {
        let left = Daemon::start(&lab, 0, &impatient(&text));
        let before = counter(&right.client(), counted);
        assert!(connect(&left.client(), &right.client()).is_err(), "{what}");
        assert!(counter(&right.client(), counted) > before, "{what}");
        assert_eq!(counter(&right.client(), "rx_frames"), 0, "{what}");
        assert_eq!(counter(&right.client(), "auth_setups_sent"), 0, "{what}");
    }
}

#[test]
fn without_require_nodes_with_and_without_keys_talk() {
    let Some(lab) = bare_lab("without_require_nodes_with_and_without_keys_talk", 3) else {
        return;
    };
    let key = KeyFile::new(1);
    let with = config(&[&key], "require = false");
    let daemons = [
        Daemon::start(&lab, 0, &with),
        Daemon::start(&lab, 1, &with),
        Daemon::start(&lab, 2, ""),
    ];
    let clients = daemons.each_ref().map(Daemon::client);
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 1)] {
        let (left, right) = connect(&clients[from], &clients[to]).expect("connect");
        std::thread::scope(|scope| {
            scope.spawn(|| send_pattern(&left, 1 << 20, 1));
            check_pattern(&right, 1 << 20, 1);
        });
    }
    assert!(
        counter(&clients[0], "auth_opened") > 100,
        "between those with a key"
    );
}

#[test]
fn keys_are_replaced_while_a_stream_runs() {
    let Some(lab) = bare_lab("keys_are_replaced_while_a_stream_runs", 2) else {
        return;
    };
    let keys = [[1, 2], [1, 2]].map(|pair| pair.map(KeyFile::new));
    let start = |node: usize| {
        let [first, second] = &keys[node];
        Daemon::start(&lab, node, &config(&[first, second], ""))
    };
    let daemons = [start(0), start(1)];
    let (mut left, mut right) =
        connect(&daemons[0].client(), &daemons[1].client()).expect("connect");
    // The new key first; then another one in the place of the old.
    for (node, first, second) in [(0, 2, 1), (1, 2, 1), (0, 2, 3), (1, 2, 3)] {
        keys[node][0].set(first);
        keys[node][1].set(second);
        signal(daemons[node].pid(), Signal::HUP);
        for _ in 0..20 {
            left.write_all(b"there").expect("write");
            let mut text = [0; 5];
            right.read_exact(&mut text).expect("read");
            right.write_all(b"back!").expect("write");
            left.read_exact(&mut text).expect("read");
        }
    }
    // The first session was of key 1, which no node has any more.
    wait_until("a session of the new key", || {
        left.write_all(b"there").expect("write");
        let mut text = [0; 5];
        right.read_exact(&mut text).expect("read");
        counter(&daemons[0].client(), "auth_sessions") > 1
    });
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = bare_lab("a_key_that_others_can_read_is_refused", 1) else {
        return;
    };
    let key = KeyFile::new(1);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(key.path(), open).expect("chmod");
    let file = esp_tests::process::TempFile::new(&config(&[&key], ""));
    let program = esp_tests::process::programs().join("esp-daemon");
    let output = lab
        .command(0, program)
        .expect("a command")
        .arg("--check-config")
        .arg(file.path())
        .output()
        .expect("run esp-daemon");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("chmod 600"),
        "{error}"
    );
}
