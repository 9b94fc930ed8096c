//! The provider of libfabric under the programs of Debian's package libfabric-bin.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use esp_tests::process::programs;
use esp_tests::{lab_or_skip, wait_until};
use lab::{Lab, LabOptions};

/// Limit of one program.
const LIMIT: &str = "60";
/// The server of `fi_pingpong` among the sockets of its node: port 47592, no peer, listening.
const LISTENS: &str = ":B9E8 00000000:0000 0A";

/// Puts the provider where libfabric looks. `None`: a program is missing, so the test is skipped.
fn provider(test: &str) -> Option<PathBuf> {
    if Command::new("fi_pingpong").arg("-h").output().is_err() {
        println!("{test}: SKIPPED: no fi_pingpong (apt install libfabric-bin)");
        return None;
    }
    let built = programs().join("libesp_fi.so");
    if !built.is_file() {
        println!(
            "{test}: SKIPPED: no {} (cargo build -p libfabric)",
            built.display()
        );
        return None;
    }
    let dir = programs().join(format!("fi-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("create a folder");
    std::fs::copy(built, dir.join("libesp-fi.so")).expect("copy the provider");
    Some(dir)
}

fn command(program: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg(LIMIT).arg(program).args(args);
    command.env("FI_PROVIDER_PATH", dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `fi_pingpong` with checks between two nodes. Returns the client's output.
fn pingpong(lab: &Lab, dir: &Path, (server, client): (usize, usize)) -> Output {
    let args = ["-p", "esp", "-e", "rdm", "-c", "-I", "50"];
    let start = |node, args: &[&str]| {
        let mut command = command("fi_pingpong", dir, args);
        let started = lab.run_in(node, move || command.spawn());
        started.expect("enter the node").expect("start fi_pingpong")
    };
    let running = start(server, &args);
    let sockets = format!("/proc/{}/net/tcp", running.id());
    wait_until("the server listens", || {
        let list = std::fs::read_to_string(&sockets).expect("the sockets of the node");
        list.contains(LISTENS)
    });
    let address = format!("10.99.0.{}", server + 1);
    let other = start(client, &[&args[..], &[&address]].concat());
    let output = other.wait_with_output().expect("wait for the client");
    let served = running.wait_with_output().expect("wait for the server");
    assert!(served.status.success(), "{}", text(&served));
    output
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn check(test: &str, options: &LabOptions, nodes: (usize, usize)) {
    let Some(dir) = provider(test) else { return };
    let Some(lab) = lab_or_skip(test, options) else {
        return;
    };
    let output = pingpong(&lab, &dir, nodes);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for size in ["64 ", "256 ", "1k ", "4k ", "64k ", "1m "] {
        assert!(said.lines().any(|line| line.starts_with(size)), "{said}");
    }
    std::fs::remove_dir_all(dir).expect("remove the folder");
}

#[test]
fn pingpong_without_a_daemon() {
    let mut options = LabOptions::new(2);
    options.daemon = false;
    check("pingpong_without_a_daemon", &options, (0, 1));
}

#[test]
fn pingpong_within_a_node() {
    let mut options = LabOptions::new(1);
    options.daemon = false;
    check("pingpong_within_a_node", &options, (0, 0));
}

#[test]
fn pingpong_with_daemons() {
    check("pingpong_with_daemons", &LabOptions::new(2), (0, 1));
}

#[test]
fn a_node_without_a_carrier_has_no_endpoint() {
    let test = "a_node_without_a_carrier_has_no_endpoint";
    let Some(dir) = provider(test) else { return };
    let mut fi_info = command("fi_info", &dir, &["-p", "esp"]);
    fi_info
        .env("ESP_INTERFACES", "none0")
        .env("FI_LOG_LEVEL", "warn");
    let output = fi_info.output().expect("run fi_info");
    let said = text(&output);
    assert!(said.contains("no endpoint is possible"), "{said}");
    assert!(!said.contains("provider: esp"), "{said}");
    std::fs::remove_dir_all(dir).expect("remove the folder");
}
