//! Tests with a fake launcher, which answers as hydra does or violates the protocol.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::line::Line;
use super::wire::Wire;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Answers of a launcher to one process: maps a command to lines.
type Answer = Box<dyn FnMut(&str) -> Vec<String> + Send>;

/// Serves a connection until it closes; returns the commands.
fn serve(stream: UnixStream, mut answer: Answer) -> JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let mut heard = Vec::new();
        let mut out = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            for answer in answer(&line) {
                if out.write_all(answer.as_bytes()).is_err() {
                    return heard;
                }
            }
            heard.push(line);
        }
        heard
    })
}

/// Key-value space and barrier that all processes of a job share.
#[derive(Clone)]
struct Hydra {
    board: Arc<Mutex<BTreeMap<String, String>>>,
    barrier: Arc<Barrier>,
    value_max: usize,
}

impl Hydra {
    fn new(size: usize, value_max: usize) -> Hydra {
        Hydra {
            board: Arc::default(),
            barrier: Arc::new(Barrier::new(size)),
            value_max,
        }
    }

    /// Answers as `mpiexec.hydra` 4.0 does.
    fn answer(&self) -> Answer {
        let hydra = self.clone();
        Box::new(move |line| {
            assert!(line.len() < 1024, "old launchers read 1023 bytes: {line}");
            let words = Line::parse(line.as_bytes()).unwrap();
            let word = |name| words.get(name).unwrap_or_default().to_owned();
            let mut board = hydra.board.lock().unwrap();
            vec![match word("cmd").as_str() {
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
                "get_maxes" => {
                    format!(
                        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={}\n",
                        hydra.value_max
                    )
                }
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0_2_host\n".into(),
                "put" => {
                    assert!(word("value").len() <= hydra.value_max && word("key").len() <= 64);
                    board.insert(word("key"), word("value"));
                    "cmd=put_result rc=0 msg=success\n".into()
                }
                "get" => match board.get(&word("key")) {
                    Some(value) => format!("cmd=get_result rc=0 msg=success value={value}\n"),
                    None => format!(
                        "cmd=get_result rc=-1 msg=key_{}_not_found value=unknown\n",
                        word("key")
                    ),
                },
                "barrier_in" => {
                    drop(board);
                    hydra.barrier.wait();
                    "cmd=barrier_out\n".into()
                }
                "finalize" => "cmd=finalize_ack\n".into(),
                "abort" => return Vec::new(),
                other => panic!("unknown command {other}"),
            }]
        })
    }
}

/// Starts a process of a job whose launcher gives these answers.
fn start(
    answer: Answer,
    rank: u32,
    size: u32,
    timeout: Duration,
) -> (Result<Bootstrap, BootError>, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = serve(theirs, answer);
    (
        Pmi1::greet(Wire::new(OwnedFd::from(ours), timeout), rank, size),
        server,
    )
}

#[test]
fn values_of_all_lengths_are_exchanged_in_parts() {
    // 64 leaves room for three or four dozen digits per part, 1024 is hydra's limit.
    for value_max in [64, 1024] {
        let hydra = Hydra::new(3, value_max);
        thread::scope(|scope| {
            for rank in 0..3 {
                let hydra = &hydra;
                scope.spawn(move || {
                    let (job, server) = start(hydra.answer(), rank, 3, PATIENCE);
                    let mut job = job.unwrap();
                    assert_eq!(
                        (job.rank(), job.size(), job.job()),
                        (rank, 3, "kvs_1_0_2_host")
                    );
                    let lengths = [0, 1, 31, 32, 33, 500, 1024, MAX_VALUE];
                    let byte =
                        |peer: u32, length: usize| vec![u8::try_from(peer).unwrap() + 0xf0; length];
                    for length in lengths {
                        job.put(&format!("k{length}"), &byte(rank, length)).unwrap();
                    }
                    job.fence().unwrap();
                    for peer in 0..3 {
                        for length in lengths {
                            let found = job.get(peer, &format!("k{length}")).unwrap();
                            assert_eq!(found, Some(byte(peer, length)));
                        }
                        assert_eq!(job.get(peer, "none").unwrap(), None);
                    }
                    assert!(matches!(job.get(3, "k0"), Err(BootError::Argument(_))));
                    assert!(matches!(job.put("k0", b""), Err(BootError::Argument(_))));
                    assert!(matches!(job.put("x y", b""), Err(BootError::Argument(_))));
                    assert!(matches!(
                        job.put("long", &[0; MAX_VALUE + 1]),
                        Err(BootError::Argument(_))
                    ));
                    job.finalize().unwrap();
                    assert!(matches!(job.fence(), Err(BootError::Finalized)));
                    drop(job);
                    let heard = server.join().unwrap();
                    assert_eq!(heard.last().map(String::as_str), Some("cmd=finalize"));
                });
            }
        });
    }
}

#[test]
fn an_abort_sends_the_exit_code() {
    let hydra = Hydra::new(1, 1024);
    let (job, server) = start(
        {
            let mut answer = hydra.answer();
            // The launcher closes the connection.
            Box::new(move |line| {
                if line.contains("abort") {
                    vec!["bye\n".into()]
                } else {
                    answer(line)
                }
            })
        },
        0,
        1,
        PATIENCE,
    );
    let answer = job.unwrap().abort(9, "tired\n");
    assert!(
        matches!(
            answer,
            BootError::Aborted {
                rank: 0,
                code: 9,
                ..
            }
        ),
        "{answer}"
    );
    assert!(answer.to_string().contains("tired"));
    assert_eq!(
        server.join().unwrap().last().unwrap(),
        "cmd=abort exitcode=9"
    );
}

#[test]
fn the_variant_with_a_port_learns_rank_and_size() {
    let run = |lines: &'static [&'static str]| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut out = stream.try_clone().unwrap();
            let mut input = BufReader::new(stream).lines().map_while(Result::ok);
            assert_eq!(input.next().unwrap(), "cmd=initack pmiid=5");
            for line in lines {
                out.write_all(format!("{line}\n").as_bytes()).unwrap();
            }
            let mut answer = Hydra::new(1, 1024).answer();
            for line in input {
                for answer in answer(&line) {
                    out.write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        let env = Environment::of(&[("PMI_PORT", &address), ("PMI_ID", "5")]);
        let job = Pmi1::start(&env, PATIENCE);
        let result = job
            .map(|job| (job.rank(), job.size()))
            .map_err(|e| e.to_string());
        server.join().unwrap();
        result
    };
    let good = run(&[
        "cmd=initack",
        "cmd=set size=8",
        "cmd=set rank=5",
        "cmd=set debug=0",
    ]);
    assert_eq!(good, Ok((5, 8)));
    for (lines, part) in [
        (&["cmd=initack rc=1 msg=full"][..], "full"),
        (
            &["cmd=initack rc=0", "cmd=set size=8", "cmd=set debug=0"],
            "did not send the rank",
        ),
        (
            &["cmd=initack rc=0", "cmd=set size=8 rank=8 debug=0"],
            "8 ranks are numbered",
        ),
        (
            &["cmd=initack rc=0", "cmd=set size=x rank=0 debug=0"],
            "size=x",
        ),
        (&["cmd=initack rc=0", "cmd=barrier_out"], "`barrier_out`"),
    ] {
        let text = run(lines).unwrap_err();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_descriptor_that_is_not_a_socket_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let number = file.as_raw_fd().to_string();
    let env = Environment::of(&[("PMI_FD", &number), ("PMI_RANK", "0"), ("PMI_SIZE", "1")]);
    let text = Pmi1::start(&env, PATIENCE).unwrap_err().to_string();
    assert!(text.contains("not the launcher's socket"), "{text}");
    // A socket works, and the launcher's descriptor stays open.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = serve(theirs, Hydra::new(1, 1024).answer());
    let number = ours.as_raw_fd().to_string();
    let env = Environment::of(&[("PMI_FD", &number), ("PMI_RANK", "0"), ("PMI_SIZE", "1")]);
    drop(Pmi1::start(&env, PATIENCE).unwrap());
    drop(ours);
    assert_eq!(server.join().unwrap().len(), 3);
}

/// Starts a job whose launcher answers `cmd` with `reply`, and all other commands as hydra does.
fn disturbed(cmd: &'static str, reply: &'static str) -> Result<(), BootError> {
    let mut answer = Hydra::new(1, 1024).answer();
    let wrong = format!("cmd={cmd}");
    let (job, _server) = start(
        Box::new(move |line| {
            if line.split(' ').next() == Some(&wrong) {
                vec![reply.to_owned()]
            } else {
                answer(line)
            }
        }),
        0,
        1,
        Duration::from_millis(300),
    );
    let mut job = job?;
    job.put("k", b"value")?;
    job.fence()?;
    job.get(0, "k")?;
    job.finalize()
}

#[test]
fn hostile_answers_are_errors() {
    assert!(disturbed("nothing", "").is_ok());
    for (cmd, answer, part) in [
        (
            "init",
            "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
            "PMI-2, not PMI-1",
        ),
        (
            "init",
            "cmd=response_to_init rc=-1\n",
            "refused to speak PMI-1",
        ),
        (
            "init",
            "rubbish\n",
            "`(nothing)` instead of `response_to_init`",
        ),
        ("init", "\n", "`(nothing)`"),
        ("init", "\u{1b}[2J cmd=\u{1b}[2J\n", "`[2J`"),
        (
            "get_maxes",
            "cmd=maxes keylen_max=64 vallen_max=0\n",
            "vallen_max=0",
        ),
        (
            "get_maxes",
            "cmd=maxes keylen_max=64 vallen_max=99999999999999999999\n",
            "vallen_max=9999",
        ),
        (
            "get_maxes",
            "cmd=maxes keylen_max=64\n",
            "vallen_max=(missing)",
        ),
        (
            "get_maxes",
            "cmd=maxes keylen_max=10 vallen_max=1024\n",
            "not enough",
        ),
        (
            "get_maxes",
            "cmd=maxes keylen_max=64 vallen_max=4\n",
            "not enough",
        ),
        (
            "get_my_kvsname",
            "cmd=my_kvsname kvsname=\n",
            "invalid job name",
        ),
        ("get_my_kvsname", "cmd=my_kvsname\n", "invalid job name"),
        (
            "put",
            "cmd=put_result rc=-1 msg=full\n",
            "refused to publish a value: full",
        ),
        (
            "put",
            "cmd=get_result rc=0\n",
            "`get_result` instead of `put_result`",
        ),
        ("barrier_in", "cmd=barrier_out rc=3\n", "rc 3"),
        ("barrier_in", "", "no answer within 0.3 s"),
        ("barrier_in", "cmd=barrier_out", "no answer within"),
        ("get", "cmd=get_result rc=0\n", "without a value"),
        ("get", "cmd=get_result rc=0 value=5\n", "malformed"),
        ("get", "cmd=get_result rc=0 value=4097.\n", "malformed"),
        ("get", "cmd=get_result rc=0 value=-1.\n", "malformed"),
        ("get", "cmd=get_result rc=0 value=5.\n", "malformed"),
        ("get", "cmd=get_result rc=0 value=2.00000\n", "malformed"),
        ("get", "cmd=get_result rc=0 value=1.zz\n", "malformed"),
        ("finalize", "cmd=finalize_nak\n", "`finalize_nak`"),
    ] {
        let text = disturbed(cmd, answer)
            .map_err(|e| e.to_string())
            .expect_err(answer);
        assert!(text.contains(part), "{answer}: {text}");
        assert!(
            !text.chars().any(char::is_control) && text.len() < 400,
            "{text:?}"
        );
    }
}

#[test]
fn a_line_without_end_is_bounded() {
    let (job, server) = start(Box::new(|_| vec!["x".repeat(1 << 20)]), 0, 1, PATIENCE);
    let text = job.unwrap_err().to_string();
    assert!(text.contains("more than 8192 bytes"), "{text}");
    drop(server);
}

#[test]
fn a_trickle_of_bytes_does_not_extend_the_time_limit() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        while theirs.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    let limit = Duration::from_millis(50);
    let begin = Instant::now();
    let error = Pmi1::greet(Wire::new(OwnedFd::from(ours), limit), 0, 1).unwrap_err();
    // Either bound may be reached first; without both it would take eight seconds and fail
    // differently.
    assert!(
        matches!(error, BootError::Timeout { .. }),
        "{error}, {:?}",
        begin.elapsed()
    );
    server.join().unwrap();
}

#[test]
fn a_launcher_that_hangs_up_is_an_error_not_a_signal() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = Pmi1::greet(Wire::new(OwnedFd::from(ours), PATIENCE), 0, 1).unwrap_err();
    assert!(matches!(error, BootError::Closed(_)), "{error}");
}

#[test]
fn a_launcher_that_never_reads_is_an_error() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let wire = Wire::new(OwnedFd::from(ours), Duration::from_millis(100));
    let long = "x".repeat(1 << 24);
    assert!(matches!(
        wire.send(&long, "a test"),
        Err(BootError::Timeout { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_answers_are_taken_without_harm(
        answers in prop::collection::vec(
            prop_oneof![
                "[ -~]{0,60}\n",
                Just("cmd=response_to_init pmi_version=1 rc=0\n".to_owned()),
                Just("cmd=maxes keylen_max=64 vallen_max=64\n".to_owned()),
                Just("cmd=my_kvsname kvsname=k\n".to_owned()),
                Just("cmd=put_result rc=0\n".to_owned()),
                Just("cmd=barrier_out\n".to_owned()),
                Just("cmd=get_result rc=0 value=3.0001\n".to_owned()),
                Just("cmd=get_result rc=0 value=\n".to_owned()),
            ],
            0..12,
        )
    ) {
        let mut answers = answers.into_iter();
        let (job, _server) = start(
            // Commands after the last answer get none, and the client gives up at the timeout.
            Box::new(move |_| answers.next().into_iter().collect()),
            0,
            1,
            Duration::from_millis(5),
        );
        if let Ok(mut job) = job {
            let _ = job.put("k", &[1, 2, 3]);
            let _ = job.fence();
            if let Ok(Some(value)) = job.get(0, "k") {
                prop_assert!(value.len() <= MAX_VALUE);
            }
        }
    }
}
