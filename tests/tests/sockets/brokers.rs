//! Programs with a broker that does not answer or refuses: the test holds the broker's socket.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::*;

/// Connects without a time limit, and prints the errno, 0 on success.
const CONNECTS: &str = "import socket, sys\ns = socket.socket()\n\
                        print(s.connect_ex((sys.argv[1], 7000)))\n";

/// Returns a program on node 0 whose broker has this ID.
fn program(lab: &Lab, id: &str, script: &TempFile) -> Command {
    let mut command = lab.command(0, "python3").expect("a command");
    command.arg(script.path()).arg(Node(1).ip().to_string());
    command.env("LD_PRELOAD", programs().join("libesp_preload.so"));
    command.env("ESPRUN", format!("{id}:1:0:tcp"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

fn control(id: &str) -> String {
    format!("esp.{id}.control")
}

/// Returns a listener whose queue is full, and the sockets that fill it.
fn full(lab: &Lab, id: &str) -> Vec<OwnedFd> {
    let addr = SocketAddrUnix::new_abstract_name(control(id).as_bytes()).expect("short");
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .expect("a socket")
    };
    let fill = || {
        let mut all = vec![socket()];
        rustix::net::bind(all[0].as_fd(), &addr).expect("bind");
        rustix::net::listen(&all[0], 1).expect("listen");
        loop {
            all.push(socket());
            match rustix::net::connect(all[all.len() - 1].as_fd(), &addr) {
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN) => return all,
                Err(error) => panic!("connecting: {error}"),
            }
        }
    };
    lab.run_in(0, fill).expect("enter the node")
}

fn listener(lab: &Lab, id: &str) -> UnixListener {
    let addr = SocketAddr::from_abstract_name(control(id)).expect("short");
    let bind = || UnixListener::bind_addr(&addr).expect("bind");
    lab.run_in(0, bind).expect("enter the node")
}

#[test]
fn a_broker_that_does_not_answer_leaves_connections_to_tcp() {
    let Some(lab) = bare_lab("a_broker_that_does_not_answer", 2) else {
        return;
    };
    let _server = tcp_server(&lab, None, "0.0.0.0", 7000, 1000);
    let (_silent, _full) = (listener(&lab, "silent"), full(&lab, "full"));
    let script = TempFile::new(CONNECTS);
    let programs = ["silent", "full"].map(|id| {
        let started = program(&lab, id, &script).spawn();
        started.expect("start the program")
    });
    for program in programs {
        let ended = program.wait_with_output().expect("wait");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "0\n", "{ended:?}");
    }
}

#[test]
fn connect_fails_if_the_broker_refuses_the_connection() {
    let Some(lab) = bare_lab("connect_fails_if_the_broker", 2) else {
        return;
    };
    let control = listener(&lab, "refusing");
    let bind = || TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let via = lab.run_in(0, bind).expect("enter the node");
    let addr = via.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in control.incoming() {
            let mut stream = stream.expect("a connection");
            let mut line = String::new();
            let read = BufReader::new(&stream).read_line(&mut line);
            read.expect("a request");
            let answer = match line.contains("TcpConnect") {
                true => format!(r#"{{"Via":{{"ticket":1,"via":"{addr}"}}}}"#),
                false => r#"{"Failed":{"errno":110,"text":"late"}}"#.to_owned(),
            };
            // Fails if the program has ended.
            let _ = writeln!(stream, "{answer}");
        }
    });
    let ended = output(&mut program(&lab, "refusing", &TempFile::new(CONNECTS)));
    assert_eq!(ended.out, "110\n", "{ended:?}");
    drop(via);
}
