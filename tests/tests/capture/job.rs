//! Jobs of two ranks, captured on the cable of one node and decoded by tshark: our own program, and
//! an MPI program under Open MPI.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use esp_tests::open_mpi::Program;
use esp_tests::process::{output, passed, programs};
use esp_tests::{lab_or_skip, pair, wait_until};
use lab::{Lab, LabOptions};

use super::{Dump, LENGTH, Scratch, both_fins, dump_command, transfer, tshark};

/// `PI_ERROR` of Wireshark.
const ERROR: u64 = 0x0080_0000;

/// Fields of every packet, in the order of [`Packet`].
const FIELDS: [&str; 10] = [
    "espe.stream",
    "espe.kind",
    "eth.src",
    "espe.nxtseq",
    "espe.ack",
    "espe.len",
    "espe.analysis.acks_frame",
    "edpe.control",
    "_ws.expert.severity",
    "_ws.col.Info",
];

/// A packet as tshark decodes it.
struct Packet {
    stream: Option<u64>,
    kind: String,
    from: String,
    /// Sequence number that follows those of the packet.
    next: Option<i64>,
    ack: Option<i64>,
    len: Option<u64>,
    /// It acknowledges an earlier frame.
    acknowledges: bool,
    control: String,
    /// Highest severity of its remarks.
    severity: u64,
    info: String,
}

impl Packet {
    fn of(fields: &[String]) -> Packet {
        let number = |text: &String| text.parse().ok();
        let relative = |text: &String| text.parse().ok();
        let severities = fields[8].split(',').filter_map(|text| text.parse().ok());
        Packet {
            stream: number(&fields[0]),
            kind: fields[1].clone(),
            from: fields[2].clone(),
            next: relative(&fields[3]),
            ack: relative(&fields[4]),
            len: number(&fields[5]),
            acknowledges: !fields[6].is_empty(),
            control: fields[7].clone(),
            severity: severities.max().unwrap_or(0),
            info: fields[9].clone(),
        }
    }
}

/// Port of the stream that follows a job: once it is in the capture, all before it is.
const LAST: u16 = 5999;

/// Runs a job while the cable of node 0 is captured, and checks how tshark decodes it: its
/// peers are verified by datagrams, and connections, segments and acknowledgements are those of at
/// least `least` bytes. Nothing is malformed.
fn is_decoded(test: &str, lab: &Lab, least: u64, job: impl FnOnce()) {
    let file = Scratch::new(&format!("{test}.pcapng"));
    let capture = Dump::on_cable(lab, 0, &["-w", file.text()]);
    job();
    transfer(&pair(lab, 0, 1, LAST));
    wait_until("the last stream is in the file", || {
        let filter = format!("port {LAST}");
        let read = output(&mut dump_command(&["-r", file.text(), "-n", &filter]));
        both_fins(&read.out.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    let ended = capture.interrupt();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("\n0 frames dropped"), "{ended:?}");
    if output(Command::new("sh").args(["-c", "command -v tshark"])).code != Some(0) {
        netns::skip(test, "tshark is not installed");
        return;
    }
    let rows = tshark(&file.0, &FIELDS);
    let packets: Vec<Packet> = rows.iter().map(|fields| Packet::of(fields)).collect();
    for Packet { info, severity, .. } in &packets {
        assert!(*severity < ERROR, "{severity:#x}: {info}");
        assert!(!info.to_lowercase().contains("malformed"), "{info}");
    }
    assert!(packets.iter().any(|p| !p.control.is_empty()), "no EDP");

    let mut streams: BTreeMap<u64, Vec<&Packet>> = BTreeMap::new();
    for packet in &packets {
        if let Some(number) = packet.stream {
            streams.entry(number).or_default().push(packet);
        }
    }
    let bytes: u64 = streams
        .values()
        .map(|packets| bytes_of_stream(packets))
        .sum();
    let count = streams.len();
    // The last stream's bytes are not the job's.
    assert!(bytes >= least + LENGTH, "{bytes} bytes in {count} streams");
}

/// Checks the set-up of a stream, and that all data of it is acknowledged; returns the number of
/// its bytes.
fn bytes_of_stream(packets: &[&Packet]) -> u64 {
    let infos = || packets.iter().map(|p| p.info.as_str()).collect::<Vec<_>>();
    let has = |kind: &str| packets.iter().any(|p| p.kind == kind);
    assert!(has("syn") && has("synack"), "{:#?}", infos());
    // By sender and sequence number, so that retransmissions count once.
    let mut data: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    let mut acked: BTreeMap<&str, i64> = BTreeMap::new();
    for packet in packets {
        if let (Some(len @ 1..), Some(next), "data") = (packet.len, packet.next, &*packet.kind) {
            data.insert((&packet.from, next), len);
        }
        if let Some(ack) = packet.ack {
            let most = acked.entry(&packet.from).or_default();
            *most = ack.max(*most);
        }
    }
    for (from, next) in data.keys() {
        let others = acked.iter().filter(|(sender, _)| *sender != from);
        let ack = others.map(|(_, ack)| *ack).max().unwrap_or(0);
        assert!(ack >= *next, "{ack} of {next} of {from}: {:#?}", infos());
    }
    let is_timed = packets.iter().any(|p| p.acknowledges);
    assert!(is_timed || data.is_empty(), "{:#?}", infos());
    data.values().sum()
}

/// A folder by which a job starts, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_job_is_decoded() {
    let test = "a_job_is_decoded";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let folder = format!("esp-tests-{}-job", std::process::id());
    let folder = Folder(std::env::temp_dir().join(folder));
    std::fs::create_dir(&folder.0).expect("make a folder");
    let rank = |rank: usize| {
        let mut command = lab.command(rank, "timeout").expect("a command of the node");
        command.args(["-k", "5", "100"]);
        command.arg(programs().join("examples/p2p-check"));
        command.env("ESP_JOB_SIZE", "2");
        command.env("ESP_JOB_RANK", rank.to_string());
        command.env("ESP_JOB_DIR", &folder.0);
        command.env("ESP_BTL", "self,shm,eth");
        command
    };
    // Its messages have up to some MiB.
    is_decoded(test, &lab, 1 << 20, || {
        let mut other = rank(1);
        let other = other.stdout(Stdio::null()).stderr(Stdio::null());
        let mut other = other.spawn().expect("start a rank");
        let finished = output(&mut rank(0));
        assert!(other.wait().expect("wait for it").success());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.out.contains("PASS "), "{finished:?}");
    });
}

#[test]
fn an_mpi_program_is_decoded() {
    let test = "an_mpi_program_is_decoded";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    is_decoded(test, &lab, 1 << 20, || {
        let mut mpirun = Command::new("timeout");
        mpirun
            .args(["-k", "5", "150"])
            .arg(programs().join("esplab"));
        mpirun.args(["mpirun", "--name", lab.name(), "-n", "2", "--nodes", "2"]);
        // UDP would be captured before its segments are cut.
        mpirun.args(["--btl", "esp,self", "--mca", "btl_esp_carrier=raw"]);
        mpirun.arg("--").arg(program.file());
        // Rounds, and sizes of messages.
        mpirun.args(["20", "1", "1000", "100000"]);
        passed(&output(&mut mpirun));
    });
}
