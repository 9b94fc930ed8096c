//! `esp dump` on the cables of a lab: live, to a file that tshark reads with our dissector, and its
//! errors. (What it prints for each kind of packet is tested in the crate `cli`.)

mod job;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use esp_client::{Client, EspAddr, EspListener, EspStream};
use esp_tests::frames::in_switch;
use esp_tests::process::{bare_lab, output, programs, signal};
use esp_tests::{PATIENCE, check_pattern, lab_or_skip, pair, send_pattern, wait_until};
use lab::{Lab, LabOptions};
use rustix::process::Signal;

/// Bytes of a transfer.
const LENGTH: u64 = 200_000;

/// A running `esp dump`.
struct Dump {
    child: Child,
    /// Its output, until it is closed.
    out: Option<BufReader<ChildStdout>>,
    err: BufReader<ChildStderr>,
}

/// Result of a dump.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    /// Rest of its output.
    out: String,
    err: String,
}

fn dump_command(args: &[&str]) -> Command {
    let mut command = Command::new(programs().join("esp"));
    command.arg("dump").args(args);
    command
}

impl Dump {
    /// Starts it, and waits until it captures.
    fn start(mut command: Command) -> Dump {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start esp dump");
        let out = child.stdout.take().map(BufReader::new);
        let mut err = BufReader::new(child.stderr.take().expect("its errors"));
        let mut line = String::new();
        err.read_line(&mut line).expect("read its errors");
        assert!(line.starts_with("listening on "), "{line:?}");
        Dump { child, out, err }
    }

    /// Starts it at the switch's end of a node's cable, where both directions pass.
    fn on_cable(lab: &Lab, node: usize, args: &[&str]) -> Dump {
        let port = format!("port{node}");
        in_switch(lab, || {
            Dump::start(dump_command(&[&["-i", &port], args].concat()))
        })
    }

    /// Starts it in a node.
    fn in_node(lab: &Lab, node: usize, args: &[&str]) -> Dump {
        let mut command = lab
            .command(node, programs().join("esp"))
            .expect("a command of the node");
        command.args(["dump", "-i", "eth0"]).args(args);
        Dump::start(command)
    }

    /// Reads lines until `enough` returns true for those read so far.
    fn read_until(&mut self, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        let out = self.out.as_mut().expect("its output is open");
        while !enough(&lines) {
            let mut line = String::new();
            let len = out.read_line(&mut line).expect("read its output");
            assert!(len > 0, "it ended: {lines:#?}");
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn interrupt(self) -> Ended {
        signal(i32::try_from(self.child.id()).expect("an id"), Signal::INT);
        self.finish()
    }

    fn finish(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        if let Some(rest) = &mut self.out {
            rest.read_to_string(&mut out).expect("its output");
        }
        self.err.read_to_string(&mut err).expect("its errors");
        let code = self.child.wait().expect("wait for it").code();
        Ended { code, out, err }
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends bytes from node 0 to node 1 and closes the stream in both directions.
fn transfer((left, right): &(EspStream, EspStream)) {
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(left, LENGTH, 1));
        scope.spawn(|| send_pattern(right, 0, 2));
        scope.spawn(|| check_pattern(left, 0, 2));
        scope.spawn(|| check_pattern(right, LENGTH, 1));
    });
}

/// True for lines with a FIN in each direction.
fn both_fins(lines: &[String]) -> bool {
    let mut ends: Vec<&str> = lines
        .iter()
        .filter(|line| line.contains("Flags [F.]"))
        .filter_map(|line| line.split(" > ").next()?.rsplit(' ').next())
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends.len() == 2
}

/// Sums up the data of all packets, each sequence number once, from a port or to it.
fn bytes_of(lines: &[String]) -> u64 {
    let number = |line: &str, name: &str| -> Option<u64> {
        let (_, rest) = line.rsplit_once(name)?;
        rest.split([',', ' ']).next()?.parse().ok()
    };
    let mut data: Vec<(u64, u64)> = lines
        .iter()
        .filter(|line| line.contains("Flags [.]") || line.contains("Flags [A.]"))
        .filter_map(|line| Some((number(line, ", seq ")?, number(line, ", length ")?)))
        .collect();
    data.sort_unstable();
    data.dedup();
    data.iter().map(|(_, len)| len).sum()
}

/// A path for a file, which is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("esp-tests-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns these fields of every packet in a file.
fn tshark(file: &Path, names: &[&str]) -> Vec<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/wireshark/esp.lua");
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(file);
    command.env("HOME", "/nonexistent");
    command
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()));
    command.args(["-T", "fields", "-E", "separator=/t"]);
    names.iter().for_each(|name| {
        command.args(["-e", name]);
    });
    let ended = output(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.err.to_lowercase().contains("lua"), "{ended:?}");
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    ended.out.lines().map(row).collect()
}

#[test]
fn a_transfer_is_shown_live_and_stored_for_tshark() {
    let Some(lab) = lab_or_skip("a_transfer_is_shown_live", &LabOptions::new(2)) else {
        return;
    };
    let file = Scratch::new("transfer.pcapng");
    let mut shown = Dump::on_cable(&lab, 0, &["-n", "esp", "and", "port", "5000"]);
    let stored = Dump::on_cable(&lab, 0, &["-w", file.text()]);
    let ends = pair(&lab, 0, 1, 5000);
    transfer(&ends);
    let lines = shown.read_until(both_fins);
    assert!(
        lines[0].contains("Flags [S], seq 0, credit "),
        "{}",
        lines[0]
    );
    let answer = &lines[1];
    assert!(answer.contains("Flags [S.], seq 0, ack 1, "), "{answer}");
    assert_eq!(bytes_of(&lines), LENGTH);

    let ended = shown.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let counts: Vec<&str> = ended.err.lines().collect();
    assert!(counts[0].ends_with(" packets shown"), "{ended:?}");
    assert!(counts[1].ends_with(" frames received"), "{ended:?}");
    assert_eq!(counts[2], "0 frames dropped by the kernel", "{ended:?}");

    // The file may be read while it grows.
    wait_until("the end of the transfer is in the file", || {
        let read = output(&mut dump_command(&["-r", file.text(), "-n"]));
        both_fins(&read.out.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    let ended = stored.interrupt();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.err.contains(" frames written"), "{ended:?}");

    let read = output(&mut dump_command(&["-r", file.text(), "-n", "port 5000"]));
    assert_eq!((read.code, read.err.as_str()), (Some(0), ""), "{read:?}");
    let read: Vec<String> = read.out.lines().map(str::to_owned).collect();
    assert_eq!(bytes_of(&read), LENGTH);
    if output(Command::new("sh").args(["-c", "command -v tshark"])).code != Some(0) {
        netns::skip("a_transfer_is_stored_for_tshark", "tshark is not installed");
        return;
    }
    let names = ["espe.port", "espe.stream", "espe.kind", "espe.malformed"];
    let packets = tshark(&file.0, &names);
    let ours: Vec<_> = packets.iter().filter(|p| p[0].contains("5000")).collect();
    assert_eq!(ours.len(), read.len());
    assert!(ours.iter().all(|p| p[1] == ours[0][1]), "one connection");
    assert!(ours.iter().all(|p| p[3].is_empty()), "{ours:?}");
    assert_eq!(
        (ours[0][2].as_str(), ours[1][2].as_str()),
        ("syn", "synack")
    );
}

#[test]
fn segments_in_udp_are_shown_one_by_one() {
    let mut options = LabOptions::new(2);
    options.daemon = false;
    let Some(lab) = lab_or_skip("segments_in_udp_are_shown", &options) else {
        return;
    };
    let client = |node| -> Client {
        let made = lab.run_in(node, || Client::udp_at(0).expect("a UDP client"));
        made.expect("enter the node")
    };
    // At the sender, where the kernel has not cut the segments yet, in both directions.
    let mut shown = Dump::in_node(&lab, 0, &["-n", "-e", "esp"]);
    let (from, to) = (client(0), client(1));
    let listener = EspListener::builder().bind_at(&to, 5000).expect("listen");
    let there = to.interface(None).expect("an interface").addr;
    let left = EspStream::builder();
    let left = left.connect_at(&from, EspAddr::new(there, 5000));
    let left = left.expect("connect");
    let (right, _) = listener.accept_timeout(PATIENCE).expect("accept");
    transfer(&(left, right));
    let lines = shown.read_until(both_fins);
    assert_eq!(bytes_of(&lines), LENGTH);
    assert!(!lines.iter().any(|line| line.contains("malformed")));
    // Of the frame, which is longer than the MTU.
    let long = |line: &&String| {
        let (_, rest) = line.split_once(", length ")?;
        rest.split(':')
            .next()?
            .parse::<u32>()
            .ok()
            .filter(|len| *len > 3000)
    };
    assert!(lines.iter().filter_map(|line| long(&line)).count() > 1);
    assert_eq!(shown.interrupt().code, Some(0));
}

#[test]
fn a_closed_pipe_ends_the_dump_quietly() {
    let Some(lab) = lab_or_skip("a_closed_pipe_ends_the_dump", &LabOptions::new(2)) else {
        return;
    };
    let mut shown = Dump::on_cable(&lab, 0, &["-n"]);
    let _ends = pair(&lab, 0, 1, 5000);
    shown.read_until(|lines| lines.len() == 1);
    // No more frames are needed for the end.
    drop(shown.out.take());
    let ended = shown.finish();
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
}

#[test]
fn a_count_ends_the_dump() {
    let Some(lab) = lab_or_skip("a_count_ends_the_dump", &LabOptions::new(2)) else {
        return;
    };
    let shown = Dump::on_cable(&lab, 0, &["-n", "-t", "-c", "2"]);
    let _ends = pair(&lab, 0, 1, 5000);
    let ended = shown.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 2, "{ended:?}");
    assert!(lines[0].starts_with("ESP 02:e5:"), "{ended:?}");
    assert!(ended.err.starts_with("2 packets shown\n"), "{ended:?}");
}

#[test]
fn errors_say_what_to_do() {
    let Some(lab) = bare_lab("errors_say_what_to_do", 1) else {
        return;
    };
    let run = |program: &str, args: &[&str]| {
        let mut command = lab.command(0, program).expect("a command of the node");
        output(command.args(args))
    };
    let esp = programs().join("esp");
    let esp = esp.to_str().expect("a path in UTF-8");
    let unknown = run(esp, &["dump", "-i", "eth9"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    let text = unknown.complaint();
    assert!(text.contains("eth9") && text.contains("eth0"), "{text}");

    // A superuser without capabilities.
    let args = ["--bounding-set=-all", esp, "dump", "-i", "eth0"];
    let denied = run("setpriv", &args);
    assert_eq!(denied.code, Some(2), "{denied:?}");
    let text = denied.complaint();
    assert!(
        text.contains("CAP_NET_RAW") && text.contains("setcap"),
        "{text}"
    );

    for (args, part) in [
        (&["dump", "-i", "eth0", "tcp"][..], "write esp, edp"),
        (&["dump", "-r", "/nonexistent"], "opening /nonexistent"),
        (&["dump", "-r", "/proc/version"], "not a pcap or pcapng"),
    ] {
        let failed = run(esp, args);
        assert_eq!(
            (failed.code, failed.out.as_str()),
            (Some(2), ""),
            "{failed:?}"
        );
        assert!(failed.complaint().contains(part), "{failed:?}");
    }
}
