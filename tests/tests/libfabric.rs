//! The provider of libfabric under the programs of Debian's package libfabric-bin, and the layer
//! below it, between nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_tests::frames::Tap;
use esp_tests::links::set;
use esp_tests::process::programs;
use esp_tests::protected::{KeyFile, is_in_udp, is_protected, is_raw};
use esp_tests::{lab_or_skip, wait_until};
use job::endpoint::{OpenEndpoint, parse};
use lab::{Lab, LabOptions};
use p2p::{
    Atomic, AtomicOp, AtomicType, Completion, Context, Error, Exposure, Pattern, Refusal, Regions,
    Remote, Target,
};

/// Limit of one program.
const LIMIT: &str = "60";
/// The server of `fi_pingpong` among the sockets of its node: port 47592, no peer, listening.
const LISTENS: &str = ":B9E8 00000000:0000 0A";

/// Puts the provider into a folder for libfabric. `None`: a program is missing, so the test is
/// skipped.
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
fn pingpong(lab: &Lab, dir: &Path, nodes: (usize, usize)) -> Output {
    pingpong_with(lab, dir, nodes, &[])
}

/// Runs it with these variables.
fn pingpong_with(
    lab: &Lab,
    dir: &Path,
    (server, client): (usize, usize),
    variables: &[(&str, &str)],
) -> Output {
    let args = ["-p", "esp", "-e", "rdm", "-c", "-I", "50"];
    let start = |node, args: &[&str]| {
        let mut command = command("fi_pingpong", dir, args);
        command.env("ESP_SOCKET", lab.socket(node));
        command.envs(variables.iter().copied());
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

/// Returns the options of a lab of this many nodes without daemons.
fn without_daemons(nodes: usize) -> LabOptions {
    let mut options = LabOptions::new(nodes);
    options.daemon = false;
    options
}

#[test]
fn pingpong_without_a_daemon() {
    check("pingpong_without_a_daemon", &without_daemons(2), (0, 1));
}

#[test]
fn pingpong_within_a_node() {
    check("pingpong_within_a_node", &without_daemons(1), (0, 0));
}

#[test]
fn a_node_without_an_interface_reaches_itself() {
    let test = "a_node_without_an_interface_reaches_itself";
    let Some(dir) = provider(test) else { return };
    let Some(lab) = lab_or_skip(test, &without_daemons(1)) else {
        return;
    };
    set(&lab, 0, "eth0", "down");
    set(&lab, 0, "lo", "down");
    let offered = |caps: &str| {
        let mut fi_info = command("fi_info", &dir, &["-p", "esp", "-c", caps]);
        fi_info.env("FI_LOG_LEVEL", "warn");
        let output = lab.run_in(0, move || fi_info.output());
        text(&output.expect("enter the node").expect("run fi_info"))
    };
    let (local, remote) = (offered("FI_LOCAL_COMM"), offered("FI_REMOTE_COMM"));
    assert!(local.contains("provider: esp"), "{local}");
    assert!(local.contains("only peers of this node"), "{local}");
    assert!(!remote.contains("provider: esp"), "{remote}");
    let any = || {
        let open = || job::endpoint::open(&job::Options::default(), Arc::default());
        lab.run_in(0, open).expect("enter the node")
    };
    let (sender, receiver) = (any().expect("open one"), any().expect("open another"));
    let (identity, addresses) = parse(&receiver.name).expect("its name");
    let (mut room, body) = ([0u8; 4], *b"body");
    let from = Pattern {
        peer: None,
        context: Context::ALL[0],
        tag: 7,
        ignore: 0,
    };
    let target = Target {
        peer: sender.endpoint.add_peer(identity, addresses).expect("add"),
        context: Context::ALL[0],
        tag: 7,
        data: None,
        sync: false,
    };
    // SAFETY: both are there until the end of the test.
    unsafe {
        let received = receiver.endpoint.recv(room.as_mut_ptr(), 4, &from, 1);
        received.expect("start to receive");
        let sent = sender.endpoint.send(body.as_ptr(), 4, &target, 2);
        sent.expect("start to send");
    }
    let received = report(&receiver, &sender);
    assert_eq!((received.result, room), (Ok(()), body));
    std::fs::remove_dir_all(dir).expect("remove the folder");
}

#[test]
fn pingpong_with_daemons() {
    check("pingpong_with_daemons", &LabOptions::new(2), (0, 1));
}

/// With a key file all packets are encrypted, and take UDP, although leases are possible.
#[test]
fn a_key_encrypts_all_packets() {
    let test = "a_key_encrypts_all_packets";
    let Some(dir) = provider(test) else { return };
    let mut options = LabOptions::new(2);
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    let key = KeyFile::new(1);
    for variables in [&[("ESP_KEY_FILE", key.text())][..], &[]] {
        let mut tap = Tap::of_cable(&lab, 1);
        let output = pingpong_with(&lab, &dir, (0, 1), variables);
        assert!(output.status.success(), "{}", text(&output));
        let frames = tap.all();
        let in_udp: Vec<_> = frames.iter().filter(|frame| is_in_udp(frame)).collect();
        assert!(in_udp.len() > 100, "{} frames", in_udp.len());
        let has_key = !variables.is_empty();
        let all = in_udp.iter().all(|frame| is_protected(frame));
        let raw = frames.iter().any(|frame| is_raw(frame));
        assert_eq!((all, raw), (has_key, !has_key), "{variables:?}");
    }
    // Without the key there is no endpoint that reaches another node.
    key.set_mode(0o640);
    for (name, value, why) in [
        ("ESP_KEY_FILE", key.text(), "chmod 600"),
        ("ESP_AUTH", "encrypt", "name its file in ESP_KEY_FILE"),
    ] {
        let mut fi_info = command("fi_info", &dir, &["-p", "esp", "-c", "FI_REMOTE_COMM"]);
        fi_info.env(name, value).env("FI_LOG_LEVEL", "warn");
        let output = lab.run_in(0, move || fi_info.output());
        let said = text(&output.expect("enter the node").expect("run fi_info"));
        assert!(!said.contains("provider: esp"), "{said}");
        assert!(said.contains(why), "{said}");
    }
    std::fs::remove_dir_all(dir).expect("remove the folder");
}

/// Endpoints without a key in common do not reach each other; the error names the variable.
#[test]
fn endpoints_without_a_key_in_common_do_not_meet() {
    let test = "endpoints_without_a_key_in_common_do_not_meet";
    let Some(lab) = lab_or_skip(test, &without_daemons(2)) else {
        return;
    };
    let (key, other) = (KeyFile::new(1), KeyFile::new(2));
    let both: [&Path; 2] = [other.path(), key.path()];
    for (here, there, meet) in [
        (&[key.path()][..], &both[..], true),
        (&[key.path()], &[other.path()], false),
        (&[key.path()], &[], false),
        (&[], &[key.path()], false),
    ] {
        let open = |node, files: &[&Path]| {
            let options = job::Options {
                transports: vec![job::Transport::Udp],
                key_files: files.iter().map(|file| file.to_path_buf()).collect(),
                ..job::Options::default()
            };
            let opened = lab.run_in(node, move || {
                job::endpoint::open(&options, Arc::new(Regions::default()))
            });
            opened.expect("enter the node").expect("open an endpoint")
        };
        let (a, b) = (open(0, here), open(1, there));
        let (identity, addresses) = parse(&b.name).expect("a name");
        let target = Target {
            peer: a.endpoint.add_peer(identity, addresses).expect("add"),
            context: Context::ALL[0],
            tag: 7,
            data: None,
            sync: false,
        };
        let (mut room, body) = ([0u8; 4], *b"body");
        let from = Pattern {
            peer: None,
            context: Context::ALL[0],
            tag: 7,
            ignore: 0,
        };
        // SAFETY: both are there until the end of the round.
        unsafe {
            let received = b.endpoint.recv(room.as_mut_ptr(), 4, &from, 1);
            received.expect("start to receive");
            let sent = a.endpoint.send(body.as_ptr(), 4, &target, 2);
            let sent = sent.map(|_| ());
            match meet {
                true => sent.expect("start to send"),
                false => {
                    let result = sent.and_then(|()| report(&a, &b).result);
                    let error = result.expect_err("unreachable").to_string();
                    assert!(error.contains("ESP_KEY_FILE"), "{error}");
                }
            }
        }
        if meet {
            assert_eq!((report(&b, &a).result, room), (Ok(()), body));
        }
        for open in [a, b] {
            open.endpoint.close().expect("close");
        }
    }
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

/// An endpoint of this process in a node, over UDP.
fn endpoint(lab: &Lab, node: usize, regions: &Arc<Regions>) -> OpenEndpoint {
    let options = job::Options {
        transports: vec![job::Transport::Udp],
        ..job::Options::default()
    };
    let regions = Arc::clone(regions);
    let opened = lab.run_in(node, move || job::endpoint::open(&options, regions));
    opened.expect("enter the node").expect("open an endpoint")
}

/// Polls two endpoints until the first one has a report.
fn report(first: &OpenEndpoint, second: &OpenEndpoint) -> Completion {
    let until = Instant::now() + Duration::from_secs(60);
    let mut found = None;
    while found.is_none() {
        first.endpoint.poll(|completion| found = Some(completion));
        second.endpoint.poll(|_| ());
        assert!(Instant::now() < until, "no report");
    }
    found.expect("found above")
}

#[test]
fn peers_access_registered_memory_only() {
    let test = "peers_access_registered_memory_only";
    let Some(lab) = lab_or_skip(test, &without_daemons(2)) else {
        return;
    };
    let (here, there) = (Arc::new(Regions::default()), Arc::new(Regions::default()));
    let (a, b) = (endpoint(&lab, 0, &here), endpoint(&lab, 1, &there));
    let (identity, addresses) = parse(&b.name).expect("a name");
    let peer = a
        .endpoint
        .add_peer(identity, addresses)
        .expect("add a peer");
    const LENGTH: usize = 1 << 20;
    let memory: &'static mut [u8] = Box::leak(vec![3; LENGTH].into_boxed_slice());
    let exposure = Exposure {
        at: memory.as_mut_ptr(),
        length: LENGTH,
        address: 0,
        readable: true,
        writable: true,
    };
    // SAFETY: it outlives the accesses, and is read only after them.
    assert!(unsafe { there.expose(5, exposure) });
    let place = |key, address| Remote { peer, key, address };
    let bytes: &'static [u8] = Box::leak((0..LENGTH).map(|at| at as u8).collect());
    let write = |length, to: Remote| {
        // SAFETY: static.
        unsafe { a.endpoint.write((bytes.as_ptr(), length), &to, None, 1) }.expect("write");
        report(&a, &b).result
    };
    // A wrong key, and a write that ends outside.
    assert!(matches!(
        write(LENGTH, place(6, 0)),
        Err(Error::Refused(Refusal::UnknownKey))
    ));
    assert!(matches!(
        write(LENGTH, place(5, 1)),
        Err(Error::Refused(Refusal::Outside))
    ));
    assert!(memory.iter().all(|byte| *byte == 3));
    assert_eq!(write(LENGTH - 8, place(5, 8)), Ok(()));
    let mut got = vec![0; LENGTH];
    // SAFETY: kept until it is reported.
    unsafe { a.endpoint.read((got.as_mut_ptr(), LENGTH), &place(5, 0), 2) }.expect("read");
    assert_eq!(report(&a, &b).result, Ok(()));
    assert!(got[..8] == [3; 8] && got[8..] == bytes[..LENGTH - 8] && got == *memory);
    let operand = 4u64.to_ne_bytes();
    let sum = Atomic {
        op: AtomicOp::Sum,
        number: AtomicType::U64,
        length: 8,
        operands: &operand,
    };
    let mut old = [0; 8];
    // SAFETY: kept until it is reported.
    unsafe { a.endpoint.atomic(&sum, old.as_mut_ptr(), &place(5, 0), 3) }.expect("an atomic call");
    assert_eq!((report(&a, &b).result, old), (Ok(()), [3; 8]));
    assert_eq!(memory[..9], [7, 3, 3, 3, 3, 3, 3, 3, 0]);
    for open in [a, b] {
        open.endpoint.close().expect("close");
    }
}
