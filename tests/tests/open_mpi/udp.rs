//! Long messages over UDP, counted by datagrams and packets.

use esp_tests::open_mpi::Program;
use esp_tests::process::{output, passed};
use lab::Lab;

use super::{lab, mpirun};

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
