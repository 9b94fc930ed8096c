//! How peers are reached: printed on request, and replaced or named when there is no way.

use std::time::{Duration, Instant};

use esp_tests::open_mpi::Program;
use esp_tests::process::{daemon_pid, output, passed, signal};
use rustix::process::Signal;

use super::{lab, mpirun};

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
