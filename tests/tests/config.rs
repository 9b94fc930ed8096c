//! Mistakes in the configuration and the command line of a daemon.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use esp_client::control::codec::encode;
use esp_client::control::{Envelope, ErrorKind, ErrorReply, Reply};
use esp_tests::lab_or_skip;
use esp_tests::process::{Daemon, Finished, TempFile, bare_lab, output, programs};
use lab::{Lab, LabOptions};

fn check_config(text: &str) -> Finished {
    let file = TempFile::new(text);
    let mut finished = output(
        Command::new(programs().join("esp-daemon"))
            .arg("--check-config")
            .arg(file.path()),
    );
    finished.err = finished
        .err
        .replace(&file.path().display().to_string(), "FILE");
    finished
}

#[test]
fn a_wrong_configuration_is_named_by_line_and_key() {
    let good = check_config("[timers]\nkeepalive = \"3s\"\n");
    assert_eq!((good.code, good.err.as_str()), (Some(0), ""));
    for (text, named) in [
        (
            "[limits]\nstreans = 5\n",
            "FILE:2: limits.streans: unknown key",
        ),
        ("nonsense = 1\n", "FILE:1: nonsense: unknown key"),
        ("[limits]\nstreams = -1\n", "FILE:2: limits.streams"),
        (
            "[timers]\npeer_timeout = \"soon\"\n",
            "FILE:2: timers.peer_timeout",
        ),
        ("[rings]\nmax = 5000\n", "FILE:2: rings.max"),
        ("[timers]\nmax_rto = \"5min\"\n", "FILE:2: timers.max_rto"),
        ("[socket]\nmode = \"1777\"\n", "FILE:2: socket.mode"),
        (
            "[limits.uid.root]\nstreams = 1\n",
            "FILE:1: limits.uid.root",
        ),
        ("[limits\n", "FILE:1"),
    ] {
        let bad = check_config(text);
        assert_eq!(bad.code, Some(2), "{text}");
        assert!(
            bad.complaint().contains(named),
            "{named} not in {}",
            bad.complaint()
        );
    }
    let missing = output(
        Command::new(programs().join("esp-daemon")).args(["--check-config", "/nonexistent/x.toml"]),
    );
    assert_eq!(missing.code, Some(2));
    assert!(missing.complaint().contains("/nonexistent/x.toml"));
}

/// Runs an `esp-daemon` that must not start: one line, exit code 2.
#[track_caller]
fn refuses_to_start(lab: &Lab, wrapper: &[&str], args: &[&str], says: &[&str]) {
    let daemon = programs().join("esp-daemon");
    let mut words = wrapper.to_vec();
    words.push(daemon.to_str().expect("a path"));
    let mut command = lab.command(0, words[0]).expect("a command of the node");
    let socket = lab.dir().join("never.sock");
    command
        .args(&words[1..])
        .args(args)
        .arg("--socket")
        .arg(&socket);
    let finished = output(&mut command);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let text = finished.complaint();
    assert!(says.iter().all(|part| text.contains(part)), "{text}");
    assert!(!socket.exists());
}

#[test]
fn a_daemon_that_cannot_start_says_why_in_one_line() {
    let Some(lab) = bare_lab("a_daemon_that_cannot_start", 1) else {
        return;
    };
    let empty = TempFile::new("");
    let config = empty.path().to_str().expect("a path");
    let without = [
        "setpriv",
        "--bounding-set=-net_raw",
        "--inh-caps=-net_raw",
        "--",
    ];
    if Path::new("/usr/bin/setpriv").exists() {
        let args = ["--interface", "eth0", "--config", config];
        refuses_to_start(
            &lab,
            &without,
            &args,
            &["CAP_NET_RAW", "setcap cap_net_raw+ep", "eth0"],
        );
    } else {
        netns::skip("a_daemon_that_cannot_start", "no setpriv");
    }
    refuses_to_start(
        &lab,
        &[],
        &["--interface", "eth9", "--config", config],
        &["eth9", "eth0"],
    );
    refuses_to_start(
        &lab,
        &[],
        &["--interface", "lo", "--config", config],
        &["lo", "loopback"],
    );
    refuses_to_start(&lab, &[], &["--config", config], &["--interface", "eth0"]);
    refuses_to_start(
        &lab,
        &[],
        &["--interface", "eth0", "--config", "/nonexistent/x"],
        &["/nonexistent/x"],
    );
    let wrong = TempFile::new("[timers]\nkeep_alive = \"1s\"\n");
    let wrong = wrong.path().to_str().expect("a path");
    refuses_to_start(
        &lab,
        &[],
        &["--interface", "eth0", "--config", wrong],
        &["timers.keep_alive"],
    );
    // None of them left a claim.
    Daemon::start(&lab, 0, "");
}

/// Runs the check of an upgrade in a node.
fn check_upgrade(lab: &Lab, socket: &Path) -> Finished {
    let daemon = programs().join("esp-daemon");
    let mut command = lab.command(0, daemon).expect("a command");
    command.args(["--check-upgrade", "--interface", "eth0", "--socket"]);
    output(command.arg(socket))
}

#[test]
fn a_daemon_of_another_version_is_found_before_it_is_replaced() {
    let test = "a_daemon_of_another_version_is_found";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(1)) else {
        return;
    };
    let good = check_upgrade(&lab, &lab.socket(0));
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.out.contains("programs continue"), "{good:?}");
    // The daemon still serves.
    esp_tests::client(&lab, 0).status().expect("its status");

    let none = check_upgrade(&lab, Path::new("/nonexistent/esp.sock"));
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(none.out.contains("no daemon runs"), "{none:?}");

    let other = lab.socket(0).with_file_name("other.sock");
    let listener = UnixListener::bind(&other).expect("a socket");
    let answered = std::thread::spawn(move || {
        let (mut program, _) = listener.accept().expect("a program");
        let mut hello = [0; 1024];
        assert!(program.read(&mut hello).expect("its hello") > 0);
        let body = Reply::Error(ErrorReply {
            kind: ErrorKind::Version,
            message: "esp-daemon speaks version 4 of the control messages".into(),
        });
        let reply = encode(&Envelope { id: 1, body }).expect("a reply");
        program.write_all(&reply).expect("send it");
    });
    let bad = check_upgrade(&lab, &other);
    answered.join().expect("no panic");
    assert_eq!(bad.code, Some(2), "{bad:?}");
    let said = bad.complaint();
    assert!(
        said.contains("could not continue with this version") && said.contains("speaks version 4"),
        "{said}"
    );
}
