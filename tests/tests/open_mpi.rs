//! Unmodified MPI programs over ESP: Open MPI's mpirun with our component (`bindings/ompi`), on the
//! nodes of a lab.
//!
//! The programs (`tests/mpi/programs`) check every byte. They are compiled here with the system's
//! `mpicc`. `tests/mpi/run` runs foreign suites.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esp_tests::links::{silence, two_rails};
use esp_tests::open_mpi::Program;
use esp_tests::process::{Finished, daemon_pid, output, passed, programs, signal};
use esp_tests::{client, counter, lab_or_skip, wait_until};
use lab::{Lab, LabOptions};
use rustix::process::Signal;

/// Time limit of a job in seconds, on a machine that is busy with other tests.
const PATIENCE: &str = "150";
/// Daemon configuration with short timeouts.
const IMPATIENT: &str =
    "[timers]\npeer_timeout = \"1500ms\"\nkeepalive = \"400ms\"\nconnect_timeout = \"1s\"\n";

/// Returns the command `esplab mpirun` in a lab that is up.
fn mpirun(
    lab: &Lab,
    ranks: u32,
    nodes: usize,
    btl: &str,
    more: &[&str],
    program: &Path,
) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", PATIENCE])
        .arg(programs().join("esplab"))
        .arg("mpirun");
    command.args([
        "--name",
        lab.name(),
        "-n",
        &ranks.to_string(),
        "--nodes",
        &nodes.to_string(),
    ]);
    command
        .args(["--btl", btl])
        .args(more)
        .arg("--")
        .arg(program);
    for name in [
        "PMI_FD",
        "PMI_PORT",
        "PMIX_NAMESPACE",
        "ESP_SOCKET",
        "ESPLAB",
    ] {
        command.env_remove(name);
    }
    command
}

fn lab(test: &str, nodes: usize, mtu: u32, config: &str) -> Option<Lab> {
    let mut options = LabOptions::new(nodes);
    options.wire.mtu = mtu;
    options.daemon_config = config.into();
    lab_or_skip(test, &options)
}

/// Runs a program on two nodes, over ESP alone, then with shared memory within the nodes.
fn passes(test: &str, name: &str, ranks: u32, mtu: u32) {
    let Some(program) = Program::new(test, name) else {
        return;
    };
    let Some(lab) = lab(test, 2, mtu, "") else {
        return;
    };
    for btl in ["esp,self", "esp,vader,self"] {
        passed(&output(&mut mpirun(
            &lab,
            ranks,
            2,
            btl,
            &[],
            program.file(),
        )));
    }
}

#[test]
fn ping_pong() {
    passes("ping_pong", "pingpong", 2, 9000);
}

#[test]
fn many_messages_of_all_kinds() {
    passes("many_messages_of_all_kinds", "talk", 4, 1500);
}

#[test]
fn one_sided() {
    passes("one_sided", "onesided", 4, 1500);
}

#[test]
fn several_threads() {
    passes("several_threads", "threads", 4, 9000);
}

/// Runs messages of all kinds over ESP alone, with MCA parameters.
fn talks(test: &str, options: &LabOptions, ranks: u32, parameters: &[&str]) {
    let Some(program) = Program::new(test, "talk") else {
        return;
    };
    let Some(lab) = lab_or_skip(test, options) else {
        return;
    };
    let more: Vec<&str> = parameters
        .iter()
        .flat_map(|parameter| ["--mca", parameter])
        .collect();
    passed(&output(&mut mpirun(
        &lab,
        ranks,
        options.wire.nodes,
        "esp,self",
        &more,
        program.file(),
    )));
}

/// Ranks of one node are connected by its daemon.
#[test]
fn within_a_node() {
    talks("within_a_node", &LabOptions::new(1), 3, &[]);
}

/// Eager messages may be longer than fragments, and must not be truncated.
#[test]
fn fragments_shorter_than_eager_messages() {
    let parameters = ["btl_esp_max_send_size=16384"];
    talks(
        "fragments_shorter_than_eager_messages",
        &LabOptions::new(2),
        2,
        &parameters,
    );
}

/// Parameters that leave little room.
const SMALL: [&str; 4] = [
    "btl_esp_rings=32768",
    "btl_esp_eager_limit=4096",
    "btl_esp_max_send_size=8000",
    "btl_esp_rndv_eager_limit=4096",
];

/// Short messages are copied when there is no room, and long ones wait.
#[test]
fn small_rings_and_lost_frames() {
    let mut options = LabOptions::new(2);
    options.wire.loss_ppm = 2000;
    talks("small_rings_and_lost_frames", &options, 2, &SMALL);
}

/// A process whose backlog is full refuses messages, and Open MPI repeats them.
#[test]
fn a_full_backlog_loses_nothing() {
    let parameters = [&["btl_esp_backlog=1000"], &SMALL[..]].concat();
    talks(
        "a_full_backlog_loses_nothing",
        &LabOptions::new(2),
        2,
        &parameters,
    );
}

/// Returns the number of frames that a node's interface has sent.
fn frames_sent(lab: &Lab, node: usize, interface: &str) -> u64 {
    let mut command = lab.command(node, "ip").expect("a command");
    let shown = output(command.args(["-s", "link", "show", "dev", interface]));
    let mut lines = shown
        .out
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("TX:"))
        .skip(1);
    let words = lines.next().unwrap_or_default().split_whitespace().nth(1);
    words
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{shown:?}"))
}

/// Bursts of short messages over leases arrive in order and in time when their sender computes
/// instead of calling MPI.
#[test]
fn bursts_arrive_while_the_sender_computes() {
    let test = "bursts_arrive_while_the_sender_computes";
    let Some(program) = Program::new(test, "bursts") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    passed(&output(&mut mpirun(
        &lab,
        2,
        2,
        "esp,self",
        &[],
        program.file(),
    )));
}

/// Two interfaces are two modules, and messages are striped over them.
#[test]
fn several_interfaces() {
    let test = "several_interfaces";
    let Some(lab) = two_rails(test, "") else {
        return;
    };
    for (name, ranks) in [("talk", 4), ("onesided", 2), ("threads", 2)] {
        let Some(program) = Program::new(test, name) else {
            return;
        };
        let before = ["eth0", "eth1"].map(|interface| frames_sent(&lab, 0, interface));
        let more = [
            "--mca",
            "btl_esp_if_include=eth0,eth1",
            "--mca",
            "btl_esp_verbose=1",
        ];
        let finished = output(&mut mpirun(
            &lab,
            ranks,
            2,
            "esp,self",
            &more,
            program.file(),
        ));
        passed(&finished);
        for pair in [
            "eth0 to eth0 02:e5:00:00:00:",
            "eth1 to eth1 02:e5:00:00:01:",
        ] {
            assert!(finished.err.contains(pair), "{pair}: {finished:?}");
        }
        // One-sided communication uses one interface only.
        let most = if name == "onesided" { 1 } else { 2 };
        for interface in &["eth0", "eth1"][..most] {
            let sent = frames_sent(&lab, 0, interface) - before[usize::from(*interface == "eth1")];
            assert!(sent > 200, "{name}: {sent} frames over {interface}");
        }
    }
}

/// An interface whose counterpart is down is not used. The others are.
#[test]
fn an_interface_that_is_down_at_one_node() {
    let test = "an_interface_that_is_down_at_one_node";
    let Some(program) = Program::new(test, "talk") else {
        return;
    };
    let Some(lab) = two_rails(test, "") else {
        return;
    };
    let mut command = lab.command(1, "ip").expect("a command");
    let done = output(command.args(["link", "set", "dev", "eth1", "down"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let more = ["--mca", "btl_esp_verbose=1"];
    let finished = output(&mut mpirun(&lab, 2, 2, "esp,self", &more, program.file()));
    passed(&finished);
    for words in [
        "rank 0 on node node0, interface eth1, not to rank 1 on node node1: ",
        "esp: rank 1 on node node1 to rank 0 on node node0: eth0 to eth0",
    ] {
        assert!(finished.err.contains(words), "{words}: {finished:?}");
    }
}

/// Connections over a failed link continue over the other one.
#[test]
fn one_of_two_links_is_pulled() {
    let test = "one_of_two_links_is_pulled";
    for path in ["daemon", "lease"] {
        let Some(lab) = two_rails(test, "[lease]\nallow = \"all\"\n") else {
            return;
        };
        let more = ["--mca", &format!("btl_esp_path={path}")];
        let Some(job) = Running::start(test, &lab, &more, &["5000"]) else {
            return;
        };
        // More frames than the set-up of connections takes.
        wait_until("eth1 is used", || frames_sent(&lab, 0, "eth1") > 20);
        silence(&lab, 1, true);
        passed(&job.end());
        if path == "daemon" {
            let moved: u64 = [0, 1]
                .map(|node| counter(&client(&lab, node), "connections_moved"))
                .iter()
                .sum();
            assert!(moved > 0, "nothing had to move");
        }
    }
}

/// With `verbose` each process prints how it reaches its peers.
#[test]
fn verbose_prints_how_peers_are_reached() {
    let test = "verbose_prints_how_peers_are_reached";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let finished = output(&mut mpirun(
        &lab,
        2,
        2,
        "esp,self",
        &["--mca", "btl_esp_verbose=1"],
        program.file(),
    ));
    passed(&finished);
    for words in [
        "esp: rank 0 on node node0 to rank 1 on node node1: eth0 to eth0",
        "esp: rank 1 on node node1 to rank 0 on node node0: eth0 to eth0",
        "EDP echo in",
    ] {
        assert_eq!(
            finished.err.matches(words).count().min(1),
            1,
            "{words}: {finished:?}"
        );
    }
}

/// Returns the number of UDP datagrams that a node has sent. Segments of one call count once.
fn datagrams_sent(lab: &Lab, node: usize) -> u64 {
    let mut command = lab.command(node, "cat").expect("a command");
    let shown = output(command.arg("/proc/net/snmp"));
    let mut rows = shown.out.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (rows.next().expect("names"), rows.next().expect("values"));
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, count) = columns
        .find(|(name, _)| *name == "OutDatagrams")
        .expect("a column");
    count.parse().expect("a number")
}

/// Each interface has a rail of raw Ethernet and one of UDP. Long messages take UDP, unless the
/// user excludes it.
#[test]
fn long_messages_take_udp() {
    let test = "long_messages_take_udp";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    let run = |carrier: &str| {
        let before = datagrams_sent(&lab, 0);
        let carrier = format!("btl_esp_carrier={carrier}");
        let more = ["--mca", "btl_esp_verbose=1", "--mca", &carrier];
        let finished = output(&mut mpirun(&lab, 2, 2, "esp,self", &more, program.file()));
        passed(&finished);
        (finished.err, datagrams_sent(&lab, 0) - before)
    };
    let (by_raw, by_udp) = ("eth0 to eth0 02:e5:00:00:00:", "eth0 to eth0 10.99.0.");
    let (said, sent) = run("auto");
    assert!(said.contains(by_raw) && said.contains(by_udp), "{said}");
    assert!(sent > 100, "{sent} datagrams");
    let (said, sent) = run("raw");
    assert!(said.contains(by_raw) && !said.contains(by_udp), "{said}");
    assert_eq!(sent, 0);
    let (said, _) = run("udp");
    assert!(!said.contains(by_raw) && said.contains(by_udp), "{said}");
}

/// Returns the number of packets that a node has sent. Segments of one call count once.
fn packets_sent(lab: &Lab, node: usize) -> u64 {
    let mut command = lab.command(node, "cat").expect("a command");
    let shown = output(command.arg("/sys/class/net/eth0/statistics/tx_packets"));
    shown.out.trim().parse().expect("a number")
}

/// A rank whose first message from a peer is a long one, received by UDP, replies by UDP. It once
/// sent all messages to that peer as raw frames.
#[test]
fn long_replies_to_a_long_first_message_take_udp() {
    let test = "long_replies_to_a_long_first_message_take_udp";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "[lease]\nallow = \"all\"\n") else {
        return;
    };
    let before = packets_sent(&lab, 1);
    let mut command = mpirun(&lab, 2, 2, "esp,self", &[], program.file());
    let finished = output(command.args(["100", "1048576"]));
    passed(&finished);
    // 31 messages of 1 MiB are 21 000 frames, or 510 segmented datagrams and their
    // acknowledgements.
    let sent = packets_sent(&lab, 1) - before;
    assert!((400..8000).contains(&sent), "{sent} packets");
}

/// If a node has no daemon, its ranks are reached by UDP. If that is excluded, one line names the
/// node, and TCP is used if the user lists it.
#[test]
fn a_node_without_a_daemon() {
    let test = "a_node_without_a_daemon";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    signal(daemon_pid(&lab, 1), Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::os::unix::net::UnixStream::connect(lab.socket(1)).is_ok()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    let finished = output(&mut mpirun(&lab, 2, 2, "esp,self", &[], program.file()));
    passed(&finished);
    assert!(!finished.err.contains("esp:"), "{finished:?}");
    let raw = ["--mca", "btl_esp_carrier=raw"];
    let finished = output(&mut mpirun(
        &lab,
        2,
        2,
        "esp,tcp,self",
        &raw,
        program.file(),
    ));
    passed(&finished);
    let line = finished
        .err
        .lines()
        .find(|line| line.contains("rank 1 on node node1"))
        .unwrap_or_default();
    assert!(
        line.contains("no Ethernet transport") && line.contains("esp.sock"),
        "{finished:?}"
    );
    let finished = output(&mut mpirun(&lab, 2, 2, "esp,self", &raw, program.file()));
    assert!(
        !matches!(finished.code, Some(0 | 124 | 137)),
        "{finished:?}"
    );
    assert!(
        finished.err.contains("rank 1 on node node1") && finished.err.contains("esp.sock"),
        "{finished:?}"
    );
}

/// A selected interface that does not exist is named, with those that do.
#[test]
fn an_interface_that_does_not_exist_is_named() {
    let test = "an_interface_that_does_not_exist_is_named";
    let Some(program) = Program::new(test, "pingpong") else {
        return;
    };
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let more = ["--mca", "btl_esp_if_include=ib7"];
    let finished = output(&mut mpirun(
        &lab,
        2,
        2,
        "esp,tcp,self",
        &more,
        program.file(),
    ));
    passed(&finished);
    assert!(
        finished.err.contains("ib7") && finished.err.contains("eth0"),
        "{finished:?}"
    );
}

/// A job that runs until it is ended.
struct Running {
    child: Child,
    program: Program,
}

impl Running {
    fn start(test: &str, lab: &Lab, more: &[&str], arguments: &[&str]) -> Option<Running> {
        let program = Program::new(test, "endless")?;
        let mut command = mpirun(lab, 2, 2, "esp,self", more, program.file());
        let child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let running = Running {
            child: child.expect("start mpirun"),
            program,
        };
        // Each rank writes its file when it has received from the other.
        let deadline = Instant::now() + Duration::from_secs(60);
        while running.pids().len() < 2 {
            assert!(Instant::now() < deadline, "the job did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(running)
    }

    /// Returns the process ids of the ranks, which they write to files.
    fn pids(&self) -> Vec<i32> {
        let read = |rank: u32| {
            let text = fs::read_to_string(
                self.program
                    .file()
                    .with_file_name(format!("endless.{rank}")),
            )
            .ok()?;
            text.trim().parse().ok()
        };
        (0..2).filter_map(read).collect()
    }

    /// Waits for the end of the job.
    fn end(self) -> Finished {
        let Running { child, program: _ } = self;
        let output = child.wait_with_output().expect("wait for mpirun");
        Finished {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

#[track_caller]
fn ended_with(finished: &Finished, words: &[&str]) {
    assert!(
        !matches!(finished.code, Some(0 | 124)),
        "the job ends by itself, with an error: {finished:?}"
    );
    assert!(
        words.iter().any(|words| finished.err.contains(words)),
        "{words:?}: {finished:?}"
    );
}

#[test]
fn a_killed_rank_ends_the_job() {
    let test = "a_killed_rank_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, "") else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    signal(job.pids()[1], Signal::KILL);
    // Printed by mpirun or by the other rank, whichever notices first.
    ended_with(&job.end(), &["its process ended", "signal 9"]);
}

#[test]
fn a_killed_daemon_ends_the_job() {
    let test = "a_killed_daemon_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, IMPATIENT) else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    signal(daemon_pid(&lab, 1), Signal::KILL);
    ended_with(
        &job.end(),
        &[
            "esp: rank 1 on node node1, interface eth0, has lost rank 0 on node node0",
            "esp: rank 0 on node node0, interface eth0, has lost rank 1 on node node1",
        ],
    );
}

#[test]
fn a_pulled_link_ends_the_job() {
    let test = "a_pulled_link_ends_the_job";
    let Some(lab) = lab(test, 2, 1500, IMPATIENT) else {
        return;
    };
    let Some(job) = Running::start(test, &lab, &[], &[]) else {
        return;
    };
    // Only ESP's frames are dropped: without its own connections mpirun would end the job.
    esp_tests::frames::in_switch(&lab, || {
        let rules = "add table bridge pulled; add chain bridge pulled frames { type filter hook forward priority 0; }; add rule bridge pulled frames ether type != { ip, ip6, arp } drop";
        let done = Command::new("nft").arg(rules).output().expect("nft");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    });
    ended_with(&job.end(), &["has lost rank"]);
}
