//! Rare cases for programs that use `AF_ENET`, from C.

use super::*;

/// A lab with a server on node 1, and the program.
struct Edges {
    lab: Lab,
    program: PathBuf,
    _server: Killed,
}

impl Edges {
    /// Starts the server; `None` where the lab cannot be made.
    fn new(test: &str) -> Option<Edges> {
        let lab = lab_or_skip(test, &LabOptions::new(2))?;
        let program = compiled("edges");
        let mut server = esprun(&lab, 1, &[], &program);
        server.args(["serve", "2805"]);
        let mut server = Killed(server.spawn().expect("start the server"));
        prints(&mut server.0, "ready");
        Some(Edges {
            lab,
            program,
            _server: server,
        })
    }

    /// Returns a command for this case on node 0.
    fn case(&self, name: &str) -> Command {
        let mut command = esprun(&self.lab, 0, &["-v"], &self.program);
        command.args([name, "2805", &Node(1).mac_text()]);
        command
    }

    fn passes(&self, name: &str) {
        let ended = output(&mut self.case(name));
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(0), "PASS\n"),
            "{ended:?}"
        );
    }
}

#[test]
fn a_socket_has_no_state_of_one_that_is_closed() {
    if let Some(edges) = Edges::new("a_socket_has_no_state") {
        edges.passes("again");
    }
}

#[test]
fn names_that_another_user_has_bound_get_no_datagrams() {
    if let Some(edges) = Edges::new("names_that_another_user") {
        edges.passes("planted");
    }
}

#[test]
fn programs_refuse_the_descriptors_of_others() {
    if let Some(edges) = Edges::new("programs_refuse_the_descriptors") {
        edges.passes("refusing");
    }
}

#[test]
fn a_datagram_socket_is_connected_to_a_former_peer_again() {
    let Some(edges) = Edges::new("a_datagram_socket_is_connected") else {
        return;
    };
    let mut program = edges.case("peers");
    let mut program = Killed(program.stdin(Stdio::piped()).spawn().expect("start it"));
    prints(&mut program.0, "ready");
    let broker = broker_of(program.0.id());
    wait_until("the broker serves the last peer alone", || {
        let threads = fs::read_dir(format!("/proc/{broker}/task")).expect("its threads");
        let names =
            threads.map(|thread| fs::read_to_string(thread.expect("one").path().join("comm")));
        names
            .filter(|name| name.as_ref().is_ok_and(|name| name == "edp-direct\n"))
            .count()
            == 1
    });
}

#[test]
fn a_listener_that_could_not_listen_can_try_again() {
    if let Some(edges) = Edges::new("a_listener_that_could_not") {
        edges.passes("listening");
    }
}

#[test]
fn the_end_of_a_stream_is_no_reset_without_free_descriptors() {
    if let Some(edges) = Edges::new("the_end_of_a_stream") {
        edges.passes("end");
    }
}

#[test]
fn a_connection_without_a_request_has_failed() {
    if let Some(edges) = Edges::new("a_connection_without_a_request") {
        edges.passes("unasked");
    }
}

#[test]
fn two_processes_send_the_first_datagrams_of_a_socket() {
    if let Some(edges) = Edges::new("two_processes_send") {
        edges.passes("both_first");
    }
}

#[test]
fn several_datagrams_are_sent_and_received_by_one_call() {
    if let Some(edges) = Edges::new("several_datagrams_are_sent") {
        edges.passes("many");
    }
}

#[test]
fn signals_interrupt_the_connect_of_a_stream() {
    if let Some(edges) = Edges::new("signals_interrupt_the_connect") {
        edges.passes("connecting");
    }
}
