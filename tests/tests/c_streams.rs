//! Streams of C programs between two nodes of a lab: `job/capi/examples/upper.c` and those
//! of `c_streams/`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esp_client::EspStream;
use esp_tests::process::{Finished, Killed, daemon_pid, output, programs, signal};
use esp_tests::{address, client, lab_or_skip};
use lab::{Lab, LabOptions};
use rustix::process::Signal;

/// A compiled program in a temporary folder, removed on drop.
struct Compiled(PathBuf);

impl Compiled {
    /// Compiles a source file of this repository as a user does, with the shared library.
    fn new(test: &str, source: &str) -> Compiled {
        let dir = std::env::temp_dir().join(format!("esp-{test}-{}", std::process::id()));
        fs::create_dir(&dir).expect("make a folder");
        let compiled = Compiled(dir);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in ["libesp.so", "libesp.so.0"] {
            let link = compiled.0.join(name);
            std::os::unix::fs::symlink(programs().join("libesp.so"), link).expect("link it");
        }
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2"]);
        cc.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        cc.arg(root.join("job/capi/include"));
        cc.arg("-o").arg(compiled.program()).arg(root.join(source));
        cc.arg("-L").arg(&compiled.0).arg("-lesp");
        cc.arg(format!("-Wl,-rpath,{}", compiled.0.display()));
        let finished = output(&mut cc);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        compiled
    }

    fn upper(test: &str) -> Compiled {
        Compiled::new(test, "job/capi/examples/upper.c")
    }

    fn program(&self) -> PathBuf {
        self.0.join("program")
    }

    /// Starts it on a node, and waits until it listens on port 5000.
    fn serve(&self, lab: &Lab, node: usize) -> Killed {
        let mut command = lab.command(node, self.program()).expect("a command");
        command.args(["serve", "5000"]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = Killed(command.spawn().expect("start the server"));
        let mut line = String::new();
        let out = server.0.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line, "listening on port 5000\n", "{server:?}");
        server
    }

    fn send(&self, lab: &Lab, node: usize, address: &str, text: &str) -> Finished {
        let mut command = lab.command(node, self.program()).expect("a command");
        output(command.args(["send", address, text]))
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two clients at once: one of them is a program in Rust, whose stream stays open for the whole
/// test.
fn serves(test: &str, config: &str) {
    let mut options = LabOptions::new(2);
    options.daemon_config = config.into();
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    let upper = Compiled::upper(test);
    let _server = upper.serve(&lab, 1);
    let mut stream = EspStream::builder()
        .connect_at(&client(&lab, 0), address(1, 5000))
        .expect("connect");
    let mut answer = [0; 5];
    for _ in 0..3 {
        stream.write_all(b"first").expect("write");
        stream.read_exact(&mut answer).expect("read");
        assert_eq!(&answer, b"FIRST");
        let sent = upper.send(&lab, 0, "node1:5000", "hello, world");
        assert_eq!(
            (sent.code, &*sent.out),
            (Some(0), "HELLO, WORLD\n"),
            "{sent:?}"
        );
    }
    // More than the rings hold at once.
    let long = vec![b'x'; 3 << 20];
    let echoed = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut echoed = Vec::new();
            (&stream).read_to_end(&mut echoed).expect("read");
            echoed
        });
        (&stream).write_all(&long).expect("write");
        stream.shutdown(Shutdown::Write).expect("end it");
        reader.join().expect("the reader")
    });
    assert!(echoed == vec![b'X'; long.len()], "{} bytes", echoed.len());
}

#[test]
fn a_server_with_a_poller_and_its_clients() {
    serves("a_server_with_a_poller_and_its_clients", "");
}

#[test]
fn a_server_and_its_clients_over_leases() {
    serves(
        "a_server_and_its_clients_over_leases",
        "[lease]\nallow = \"all\"\n",
    );
}

#[test]
fn errors_have_a_code_and_a_text() {
    let test = "errors_have_a_code_and_a_text";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let upper = Compiled::upper(test);
    for (address, says) in [
        ("node1:5001", "the connection was refused ("),
        (
            "nosuch:5000",
            "no such node name, or several nodes have it (",
        ),
        ("node1", "arguments that do not fit together ("),
    ] {
        let refused = upper.send(&lab, 0, address, "x");
        assert_eq!(refused.code, Some(1), "{address}: {refused:?}");
        assert!(refused.err.contains(says), "{address}: {refused:?}");
    }
    let _server = upper.serve(&lab, 1);
    let mut second = lab.command(1, upper.program()).expect("a command");
    let refused = output(second.args(["serve", "5000"]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("the port is in use ("), "{refused:?}");
}

/// Returns the processor time of a process, in ticks of about 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    let (_, fields) = stat.rsplit_once(')').expect("the end of its name");
    let fields = fields.split_whitespace().skip(11).take(2);
    fields
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum()
}

/// A server with leases goes on when its daemon is killed, and sleeps while there is nothing to do.
#[test]
fn leases_outlive_the_daemon() {
    let test = "leases_outlive_the_daemon";
    let mut options = LabOptions::new(2);
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    let upper = Compiled::upper(test);
    let server = upper.serve(&lab, 1);
    signal(daemon_pid(&lab, 1), Signal::KILL);
    let sent = upper.send(&lab, 0, "node1:5000", "still here");
    assert_eq!(&*sent.out, "STILL HERE\n", "{sent:?}");
    let before = ticks(server.0.id());
    std::thread::sleep(std::time::Duration::from_millis(500));
    let used = ticks(server.0.id()) - before;
    assert!(used < 10, "{used} ticks of processor time without work");
}

/// The server sleeps on its descriptor when its daemon is killed.
#[test]
fn the_end_of_the_daemon_ends_a_server_that_sleeps() {
    let test = "the_end_of_the_daemon_ends_a_server_that_sleeps";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let upper = Compiled::upper(test);
    let mut server = upper.serve(&lab, 1);
    let sent = upper.send(&lab, 0, "node1:5000", "once");
    assert_eq!(&*sent.out, "ONCE\n", "{sent:?}");
    signal(daemon_pid(&lab, 1), Signal::KILL);
    let status = server.0.wait().expect("wait for it");
    let mut text = String::new();
    let err = server.0.stderr.as_mut().expect("its errors");
    err.read_to_string(&mut text).expect("read them");
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("accepting: this node's esp-daemon"), "{text}");
}

/// A connection that arrives between an attempt to accept it and the call that takes events.
#[test]
fn a_connection_is_not_slept_over() {
    let test = "a_connection_is_not_slept_over";
    let Some(lab) = lab_or_skip(test, &LabOptions::new(2)) else {
        return;
    };
    let server = Compiled::new(test, "tests/tests/c_streams/late.c");
    let mut server = server.serve(&lab, 1);
    // The server ends as soon as it has accepted, which may reset the stream before this returns.
    let _stream = EspStream::builder().connect_at(&client(&lab, 0), address(1, 5000));
    let status = server.0.wait().expect("wait for it");
    let mut text = String::new();
    let err = server.0.stderr.as_mut().expect("its errors");
    err.read_to_string(&mut text).expect("read them");
    assert_eq!((status.code(), &*text), (Some(0), ""));
}
