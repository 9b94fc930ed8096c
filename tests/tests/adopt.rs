//! Leases go on without their daemon, and the next daemon adopts them.

use std::fs;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use esp_client::control::ErrorKind;
use esp_client::{Client, EspError, EspListener, EspStream, Path};
use esp_tests::process::{Daemon, bare_lab, signal, waits_in};
use esp_tests::program::Program;
use esp_tests::{PATIENCE, address, client, counter, wait_until};
use lab::Lab;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::process::{Pid as Process, Signal};

const PROGRAM: &str = env!("CARGO_BIN_EXE_esp-test-program");
const ALL: &str = "[lease]\nallow = \"all\"\n";
const IMPATIENT: &str = "[timers]\npeer_timeout = \"1s\"\nkeepalive = \"300ms\"\n[lease]\nallow = \"all\"\ngrace = \"60s\"\n";

/// Writes and echoes until `stop` is set.
struct Flow {
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Flow {
    fn run(&self, mut left: &EspStream, mut right: &EspStream) {
        for stream in [left, right] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        }
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut got = [0; 3000];
                while right.read_exact(&mut got).is_ok() {
                    right.write_all(&got).expect("echo");
                }
            });
            let mut round = 0u64;
            while !self.stop.load(Ordering::Relaxed) {
                let sent = [round as u8; 3000];
                left.write_all(&sent).expect("write");
                let mut got = [0; 3000];
                left.read_exact(&mut got).expect("the echo");
                assert_eq!(sent, got);
                round += 1;
                self.rounds.store(round, Ordering::Relaxed);
            }
            left.shutdown(std::net::Shutdown::Write).expect("finish");
        });
    }

    fn goes_on(&self, when: &str) {
        let goal = self.rounds.load(Ordering::Relaxed) + 50;
        wait_until(when, || self.rounds.load(Ordering::Relaxed) >= goal);
    }
}

/// Stops the flow when dropped, so that a failed test does not hang.
struct Ends<'a>(&'a Flow);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of connections over leases that the node's daemon shows.
fn leased(lab: &Lab, node: usize) -> usize {
    let status = client(lab, node).status().expect("status");
    status
        .connections
        .iter()
        .filter(|c| c.path == "lease" && c.state == "established")
        .count()
}

#[test]
fn streams_survive_restarts_of_their_daemon() {
    let Some(lab) = bare_lab("adopt_streams", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, ALL);
    let _far = Daemon::start(&lab, 1, ALL);
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    here.set_daemon_wait(Duration::ZERO);
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&here, 7000)
        .unwrap();
    let connect = || {
        let left = EspStream::builder()
            .path(Path::Lease)
            .connect_at(&there, address(0, 7000))
            .unwrap();
        (left, listener.accept_timeout(PATIENCE).unwrap().0)
    };
    let (left, right) = connect();
    // One stream from a leased range of ports of the node whose daemon ends.
    let far_listener = EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&there, 7100)
        .unwrap();
    let out = EspStream::builder()
        .path(Path::Lease)
        .connect_at(&here, address(1, 7100))
        .unwrap();
    let (far_out, _) = far_listener.accept_timeout(PATIENCE).unwrap();
    wait_until("all are shown", || leased(&lab, 0) == 2);
    let flows = [0, 1].map(|_| Flow {
        stop: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
    });
    thread::scope(|scope| {
        let _ends = (Ends(&flows[0]), Ends(&flows[1]));
        scope.spawn(|| flows[0].run(&left, &right));
        scope.spawn(|| flows[1].run(&out, &far_out));
        for round in 0..3 {
            if round == 1 {
                assert!(near.terminate().success());
            } else {
                near.kill();
            }
            wait_until("the program notices", || here.check().is_err());
            flows
                .iter()
                .for_each(|flow| flow.goes_on("data without a daemon"));
            // A leased listener accepts without its daemon.
            let late = connect();
            near = Daemon::start(&lab, 0, ALL);
            wait_until("all are adopted and shown", || leased(&lab, 0) == 3);
            assert_eq!(counter(&client(&lab, 0), "leases_adopted"), 2);
            flows
                .iter()
                .for_each(|flow| flow.goes_on("data with the next daemon"));
            // The ports are in use, for leases and for another user.
            for steps in [
                &["path:lease", "listen:7000"][..],
                &["uid:4000", "listen:7000"],
            ] {
                let mut program = Program::start(PROGRAM, &lab.socket(0), steps);
                program.says("ok ");
                let line = program.says("error listen:7000");
                assert!(line.contains("InUse"), "{line}");
                program.kill();
            }
            drop(late);
            wait_until("its end is reported", || leased(&lab, 0) == 2);
            // New ones are opened over the adopted leases.
            let more = EspStream::builder()
                .path(Path::Lease)
                .connect_at(&here, address(1, 7100))
                .unwrap();
            drop((far_listener.accept_timeout(PATIENCE).unwrap(), more));
            drop(connect());
            wait_until("their end is reported", || leased(&lab, 0) == 2);
        }
    });
    drop((left, right, out, listener));
    // The last daemon has the port again.
    wait_until("the port is free again", || {
        EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&client(&lab, 0), 7000)
            .is_ok()
    });
}

/// Starts a holder at node 0 that echoes to a stream of node 1.
fn echoing(lab: &Lab, listener: &EspListener) -> (Program, EspStream) {
    let connect = format!("connect:1:{}", listener.port());
    let program = Program::start(PROGRAM, &lab.socket(0), &["path:lease", &connect, "echo"]);
    let (stream, _) = listener.accept_timeout(PATIENCE).expect("accept");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    program.says("ok path");
    program.says("ok connect");
    echo(&stream);
    (program, stream)
}

fn echo(mut stream: &EspStream) {
    stream.write_all(b"hello").expect("write");
    let mut got = [0; 5];
    stream.read_exact(&mut got).expect("read");
    assert_eq!(&got, b"hello");
}

/// Reads to the end, which must be an error.
#[track_caller]
fn read_to_error(mut stream: &EspStream) -> EspError {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(n) => panic!("an orderly end after {n} bytes"),
        Err(error) => EspError::of(&error).expect("one of ours").clone(),
    }
}

/// Checks that the stream gets neither an answer nor an error for four peer time-outs.
fn is_only_silent(mut stream: &EspStream) {
    stream
        .set_read_timeout(Some(Duration::from_secs(4)))
        .expect("a time-out");
    let error = stream.read(&mut [0; 5]).expect_err("silence");
    assert!(
        matches!(EspError::of(&error), Some(EspError::CallTimedOut { .. })),
        "{error}"
    );
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
}

#[test]
fn next_daemon_answers_for_a_stopped_holder_and_resets_peers_of_a_dead_one() {
    let Some(lab) = bare_lab("adopt_liveness", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, IMPATIENT);
    let _far = Daemon::start(&lab, 1, IMPATIENT);
    for path in [Path::Daemon, Path::Lease] {
        let listener = EspListener::builder()
            .path(path)
            .bind_at(&client(&lab, 1), 0)
            .unwrap();
        let (mut program, mut stream) = echoing(&lab, &listener);
        near.kill();
        near = Daemon::start(&lab, 0, IMPATIENT);
        wait_until("it is adopted", || leased(&lab, 0) == 1);
        signal(program.pid(), Signal::STOP);
        stream.write_all(b"there").unwrap();
        is_only_silent(&stream);
        signal(program.pid(), Signal::CONT);
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there");
        program.kill();
        // Not `TimedOut`, because the next daemon knew the connection.
        let error = read_to_error(&stream);
        assert!(matches!(error, EspError::PeerDied { .. }), "{error:?}");
        wait_until("nothing is left", || leased(&lab, 0) == 0);
    }
}

#[test]
fn ports_are_reserved_for_a_late_holder() {
    let Some(lab) = bare_lab("adopt_late", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, IMPATIENT);
    let _far = Daemon::start(&lab, 1, IMPATIENT);
    let there = client(&lab, 1);
    let mut holder = Program::start(
        PROGRAM,
        &lab.socket(0),
        &["path:lease", "listen:7000", "accept", "echo"],
    );
    holder.says("ok path");
    holder.says("ok listen");
    let mut stream = EspStream::builder()
        .path(Path::Daemon)
        .connect_at(&there, address(0, 7000))
        .unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    holder.says("ok accept");
    echo(&stream);
    // It is stopped while the daemon is replaced.
    signal(holder.pid(), Signal::STOP);
    near.kill();
    near = Daemon::start(&lab, 0, IMPATIENT);
    stream.write_all(b"hello").unwrap();
    is_only_silent(&stream);
    let thief = Program::start(PROGRAM, &lab.socket(0), &["listen:7000"]);
    let line = thief.says("error listen:7000");
    assert!(line.contains("InUse"), "{line}");
    signal(holder.pid(), Signal::CONT);
    stream.read_exact(&mut [0; 5]).unwrap();
    wait_until("it is adopted", || leased(&lab, 0) == 1);
    // Without a grace period another program gets the port of a late holder.
    signal(holder.pid(), Signal::STOP);
    near.kill();
    let hasty = IMPATIENT.replace("60s", "0s");
    near = Daemon::start(&lab, 0, &hasty);
    let taken = client(&lab, 0);
    let mut new = None;
    wait_until("the port is free", || {
        new = EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&taken, 7000)
            .ok();
        new.is_some()
    });
    let error = read_to_error(&stream);
    assert!(matches!(error, EspError::Forgotten { .. }), "{error:?}");
    signal(holder.pid(), Signal::CONT);
    // Either the refused adoption or the peer's reset is first.
    let line = holder.says("error echo");
    assert!(
        line.contains("EndedHere") || line.contains("Forgotten"),
        "{line}"
    );
    holder.finish();
    let left = EspStream::builder()
        .path(Path::Daemon)
        .connect_at(&there, address(0, 7000))
        .unwrap();
    new.unwrap().accept_timeout(PATIENCE).unwrap();
    drop((left, near));
}

/// Stops only the main thread of a program, until it is dropped.
struct StoppedThread(Pid);

impl StoppedThread {
    fn new(program: &Program) -> StoppedThread {
        let thread = Pid::from_raw(program.pid());
        ptrace::seize(thread, ptrace::Options::empty()).expect("trace the program");
        ptrace::interrupt(thread).expect("interrupt its main thread");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("its main thread stops");
        StoppedThread(thread)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

/// The thread that requests a lease is stopped between the request and the adoption of the
/// program's other lease by the next daemon.
#[test]
fn a_stream_is_not_opened_over_a_lease_that_no_daemon_keeps() {
    let Some(lab) = bare_lab("adopt_granted", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, ALL);
    let _far = Daemon::start(&lab, 1, ALL);
    let listener = EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&client(&lab, 1), 7100)
        .unwrap();
    let steps = ["client", "listen:7000", "hold", "connect:1:7100", "echo"];
    let mut holder = Program::start(PROGRAM, &lab.socket(0), &steps);
    for step in &steps[..2] {
        holder.says(&format!("ok {step}"));
    }
    signal(near.pid(), Signal::STOP);
    holder.release();
    holder.says("ok hold");
    let thread = Process::from_raw(holder.pid()).expect("a process id");
    wait_until("it waits for the reply to its request for a lease", || {
        waits_in(thread, "futex")
    });
    let stopped = StoppedThread::new(&holder);
    signal(near.pid(), Signal::CONT);
    wait_until("the lease is granted", || {
        counter(&client(&lab, 0), "leases_granted") == 2
    });
    near.kill();
    near = Daemon::start(&lab, 0, ALL);
    wait_until("the other one is adopted", || {
        counter(&client(&lab, 0), "leases_adopted") == 1
    });
    drop(stopped);
    holder.says("ok connect");
    let (stream, _) = listener.accept_timeout(PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    echo(&stream);
    // The ports of a lease without a keeper are free after the grace period, and the peer is reset.
    let record = lab.socket(0).with_extension("sock.leases");
    let recorded = || fs::read_to_string(&record).unwrap_or_default();
    wait_until("the grace period is over", || {
        recorded().lines().count() == 1
    });
    echo(&stream);
    drop((stream, near));
}

/// The daemon is killed between the record of a listener's lease and the reply that grants it. The
/// next one then has the port reserved for a lease that the program does not have.
#[test]
fn a_listener_is_reached_though_its_daemon_ended_before_it_granted_the_lease() {
    let Some(lab) = bare_lab("adopt_recorded", 2) else {
        return;
    };
    let _far = Daemon::start(&lab, 1, ALL);
    let mut near = Daemon::start(&lab, 0, ALL);
    let there = client(&lab, 1);
    let record = lab.socket(0).with_extension("sock.leases");
    for port in [7000, 0, 7001, 0] {
        let before = fs::read_to_string(&record).unwrap_or_default();
        let listen = format!("listen:{port}");
        let mut program = Program::start(PROGRAM, &lab.socket(0), &[&listen, "port", "accept"]);
        let end = Instant::now() + PATIENCE;
        while fs::read_to_string(&record).unwrap_or_default() == before {
            assert!(Instant::now() < end, "no lease is recorded");
        }
        near.kill();
        near = Daemon::start(&lab, 0, ALL);
        program.says(&format!("ok {listen}"));
        let line = program.says("port ");
        let port = line["port ".len()..].parse().expect("a port");
        program.says("ok port");
        let stream = EspStream::builder()
            .connect_at(&there, address(0, port))
            .unwrap();
        program.says("ok accept");
        drop(stream);
        program.kill();
        wait_until("nothing is left", || {
            client(&lab, 0)
                .status()
                .expect("status")
                .listeners
                .is_empty()
        });
    }
    drop(near);
}

#[test]
fn ports_of_a_holder_that_died_meanwhile_are_free() {
    let Some(lab) = bare_lab("adopt_dead", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, IMPATIENT);
    let _far = Daemon::start(&lab, 1, IMPATIENT);
    let mut holder = Program::start(
        PROGRAM,
        &lab.socket(0),
        &["path:lease", "listen:7000", "accept", "hold"],
    );
    holder.says("ok path");
    holder.says("ok listen");
    let there = client(&lab, 1);
    let stream = EspStream::builder()
        .path(Path::Lease)
        .connect_at(&there, address(0, 7000))
        .unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    holder.says("ok accept");
    near.kill();
    holder.kill();
    near = Daemon::start(&lab, 0, IMPATIENT);
    EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&near.client(), 7000)
        .unwrap();
    // The new daemon answers no frame of the lease's connection while it may be adopted.
    let error = read_to_error(&stream);
    let ended = matches!(error, EspError::Forgotten { .. } | EspError::TimedOut(_));
    assert!(ended, "{error:?}");
}

#[test]
fn ports_of_a_holder_that_dies_before_it_adopts_are_free() {
    let Some(lab) = bare_lab("adopt_dying", 1) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, IMPATIENT);
    let mut holder = Program::start(
        PROGRAM,
        &lab.socket(0),
        &["path:lease", "listen:7000", "accept"],
    );
    holder.says("ok path");
    holder.says("ok listen");
    // Its lease waits for it.
    signal(holder.pid(), Signal::STOP);
    near.kill();
    near = Daemon::start(&lab, 0, IMPATIENT);
    let listen = || {
        EspListener::builder()
            .path(Path::Daemon)
            .bind_at(&near.client(), 7000)
    };
    let error = listen().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
    holder.kill();
    listen().expect("the port is free at once");
}

#[test]
fn refused_adoption_ends_a_lease_with_the_daemons_error() {
    let Some(lab) = bare_lab("adopt_refused", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, ALL);
    let _far = Daemon::start(&lab, 1, ALL);
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    here.set_daemon_wait(Duration::ZERO);
    let listener = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&here, 7000)
        .unwrap();
    let left = EspStream::builder()
        .path(Path::Daemon)
        .connect_at(&there, address(0, 7000))
        .unwrap();
    let (right, _) = listener.accept_timeout(PATIENCE).unwrap();
    for stream in [&left, &right] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    near.kill();
    near = Daemon::start(&lab, 0, "[lease]\nallow = \"off\"\ngrace = \"60s\"\n");
    let error = read_to_error(&right);
    assert!(matches!(error, EspError::EndedHere { .. }), "{error:?}");
    let error = read_to_error(&left);
    assert!(matches!(error, EspError::PeerShutdown { .. }), "{error:?}");
    let error = listener.accept_timeout(PATIENCE).unwrap_err();
    match EspError::of(&error) {
        Some(EspError::Denied {
            kind: ErrorKind::Permission,
            message,
        }) => {
            assert!(message.contains("[lease]"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(counter(&near.client(), "leases_adopted"), 0);
}

#[test]
fn no_new_streams_without_a_daemon() {
    let Some(lab) = bare_lab("adopt_nothing_new", 2) else {
        return;
    };
    let mut near = Daemon::start(&lab, 0, ALL);
    let _far = Daemon::start(&lab, 1, ALL);
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    here.set_daemon_wait(Duration::ZERO);
    let listener = EspListener::builder()
        .path(Path::Daemon)
        .bind_at(&there, 7100)
        .unwrap();
    let connect = || {
        EspStream::builder()
            .path(Path::Lease)
            .connect_at(&here, address(1, 7100))
    };
    let first = connect().unwrap();
    near.kill();
    wait_until("the program notices", || here.check().is_err());
    let gone =
        |error: &std::io::Error| matches!(EspError::of(error), Some(EspError::DaemonGone { .. }));
    let error = connect().unwrap_err();
    assert!(gone(&error), "{error}");
    let error = EspListener::builder()
        .path(Path::Lease)
        .bind_at(&here, 7000)
        .unwrap_err();
    assert!(gone(&error), "{error}");
    near = Daemon::start(&lab, 0, ALL);
    wait_until("the lease is adopted", || leased(&lab, 0) == 1);
    connect().unwrap();
    // Streams through the daemon need a new client.
    assert!(here.check().is_err() && Client::connect(near.socket()).unwrap().check().is_ok());
    drop((first, listener));
}
