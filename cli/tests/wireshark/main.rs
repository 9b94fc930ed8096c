//! Tests of the Wireshark dissector, run by tshark on capture files that are created here.
//!
//! If tshark is not installed, the tests are skipped.

mod analysis;
mod hostile;
mod vectors;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Stations of all captures.
const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// UDP port of daemons.
const UDP_PORT: u16 = 2805;
/// Minimum length of a packet in UDP.
const MIN_PACKET: usize = 48;

/// A frame of a capture.
struct Record {
    /// Time since the start, in microseconds.
    time: u32,
    bytes: Vec<u8>,
    /// Length of the frame before it was cut.
    len: usize,
}

impl Record {
    fn new(time: u32, bytes: Vec<u8>) -> Record {
        let len = bytes.len();
        Record { time, bytes, len }
    }
}

/// Wraps a packet, which starts with its type, in an Ethernet frame; from B to A if `back`.
fn ethernet(packet: &[u8], back: bool) -> Vec<u8> {
    let (dst, src) = if back { (A, B) } else { (B, A) };
    [&dst[..], &src, packet].concat()
}

/// Wraps the payload of a datagram in an Ethernet frame with IPv4.
fn udp(payload: &[u8], ports: (u16, u16), back: bool) -> Vec<u8> {
    let len = |more: usize| u16::try_from(payload.len() + more).expect("a short packet");
    let hosts = [[10, 0, 0, 1], [10, 0, 0, 2]];
    let (src, dst) = if back {
        (hosts[1], hosts[0])
    } else {
        (hosts[0], hosts[1])
    };
    let mut packet = vec![0x08, 0, 0x45, 0];
    packet.extend(len(28).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(src);
    packet.extend(dst);
    for word in [ports.0, ports.1, len(8), 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(payload);
    ethernet(&packet, back)
}

/// Pads a packet as its sender does in UDP (W-120).
fn padded(packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes.resize(bytes.len().max(MIN_PACKET), 0);
    bytes
}

/// A capture file (pcap, in microseconds), removed on drop.
struct Capture(PathBuf);

impl Capture {
    fn of(records: &[Record]) -> Capture {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("esp-wireshark-{}-{number}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1] {
            file.extend(word.to_le_bytes());
        }
        for record in records {
            let words = [
                1_700_000_000 + record.time / 1_000_000,
                record.time % 1_000_000,
                u32::try_from(record.bytes.len()).expect("a short frame"),
                u32::try_from(record.len).expect("a short frame"),
            ];
            file.extend(words.into_iter().flat_map(u32::to_le_bytes));
            file.extend(&record.bytes);
        }
        fs::write(&path, file).expect("write a capture file");
        Capture(path)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn dissector() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("wireshark/esp.lua")
}

/// Returns false, and reports that the test is skipped, if tshark is not installed.
fn has_tshark(test: &str) -> bool {
    let found = Command::new("tshark")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_err() {
        netns::skip(
            test,
            "tshark is not installed (Debian: apt-get install tshark)",
        );
    }
    found.is_ok()
}

/// Runs tshark with the dissector on a capture; returns its standard output.
fn tshark(capture: &Capture, scripts: &[&Path], args: &[&str]) -> String {
    run(Command::new("tshark"), capture, scripts, args)
}

/// Runs tshark with the dissector and a limit on its address space, in bytes.
fn tshark_within(limit: u64, capture: &Capture, args: &[&str]) -> String {
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={limit}")).arg("tshark");
    run(command, capture, &[], args)
}

fn run(mut command: Command, capture: &Capture, scripts: &[&Path], args: &[&str]) -> String {
    command.arg("-n").arg("-r").arg(&capture.0);
    // Ignore the user's preferences and plugins.
    command.env("HOME", "/nonexistent").env("LC_ALL", "C.UTF-8");
    command.env_remove("XDG_CONFIG_HOME");
    for script in [dissector().as_path()].iter().chain(scripts) {
        command
            .arg("-X")
            .arg(format!("lua_script:{}", script.display()));
    }
    let output = command
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("run tshark");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    assert!(!errors.to_lowercase().contains("lua"), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns these fields of every frame; several values of a field are joined by commas.
fn fields(capture: &Capture, names: &[&str], options: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["-T", "fields", "-E", "separator=/t"];
    for name in names {
        args.extend(["-e", name]);
    }
    args.extend(options);
    let text = tshark(capture, &[], &args);
    let row = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(row).collect()
}
