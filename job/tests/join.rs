//! Jobs without a launcher: each process runs `p2p-check`, with its rank in environment variables.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit, longer than anything here takes on a machine busy with other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// A temporary folder of this user, removed on drop.
struct Temp(PathBuf);

impl Temp {
    fn new() -> Temp {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("esp-job-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let private = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
        std::fs::set_permissions(&path, private).unwrap();
        Temp(path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the path of an example, which cargo builds with this test.
fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe
        .parent()
        .and_then(|deps| deps.parent())
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        path.is_file(),
        "{} is missing: cargo build -p job --examples",
        path.display()
    );
    path
}

/// Starts a process with these variables only, without the tests' own environment.
fn start(variables: &BTreeMap<&str, String>) -> Child {
    start_program("p2p-check", variables)
}

fn start_program(name: &str, variables: &BTreeMap<&str, String>) -> Child {
    let mut command = Command::new(program(name));
    command
        .env_clear()
        .envs(variables)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Returns the variables of a process of a job. No daemon serves the socket, so there is no
/// Ethernet.
fn rank_environment(dir: &Temp, rank: u32, size: u32) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("ESP_JOB_DIR", dir.0.to_str().unwrap().to_owned()),
        ("ESP_JOB_RANK", rank.to_string()),
        ("ESP_JOB_SIZE", size.to_string()),
        ("ESP_SOCKET", "/nonexistent/esp.sock".to_owned()),
        ("ESP_BOOT_TIMEOUT", "100".to_owned()),
    ])
}

fn wait(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("a process hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Runs a job; `change` adds to the variables of a rank.
fn job(
    size: u32,
    change: impl Fn(u32, &mut BTreeMap<&'static str, String>),
) -> Vec<(Option<i32>, String, String)> {
    job_of("p2p-check", size, change)
}

fn job_of(
    program: &str,
    size: u32,
    change: impl Fn(u32, &mut BTreeMap<&'static str, String>),
) -> Vec<(Option<i32>, String, String)> {
    let dir = Temp::new();
    let children: Vec<Child> = (0..size)
        .map(|rank| {
            let mut variables = rank_environment(&dir, rank, size);
            change(rank, &mut variables);
            start_program(program, &variables)
        })
        .collect();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let all = children.into_iter().map(wait);
    all.map(|o| (o.status.code(), text(o.stdout), text(o.stderr)))
        .collect()
}

#[test]
fn shared_memory_alone_is_enough_within_a_node() {
    let ended = job(3, |rank, variables| {
        if rank == 1 {
            variables.insert("ESP_BTL_VERBOSE", "1".into());
        }
        // Does not exist, whether or not this machine has RDMA.
        variables.insert("ESP_RDMA_PORTS", "none9".into());
    });
    for (rank, (code, out, err)) in ended.iter().enumerate() {
        assert_eq!(*code, Some(0), "rank {rank}: {out}{err}");
        assert_eq!(
            out.contains("PASS 9 checks, 3 ranks, started by fixed\n"),
            rank == 0,
            "{out}"
        );
        // Only a process that is to use Ethernet reports that there is no daemon.
        assert_eq!(
            err.contains("no transport eth, all peers are reached without it"),
            rank == 1,
            "{err}"
        );
        assert_eq!(
            err.contains("no transport ib, all peers are reached without it"),
            rank == 1,
            "{err}"
        );
        assert!(rank == 1 || err.is_empty(), "{err}");
    }
    assert!(
        ended[1].2.contains("/nonexistent/esp.sock"),
        "{}",
        ended[1].2
    );
}

/// If all processes reach each other alike, each reads the secret, the addresses of all, and about
/// 2√n digests. It does not read the reachability of the others, which would be n values of n
/// parts.
#[test]
fn a_start_reads_few_values_besides_the_addresses() {
    let ended = job_of("start", 9, |_, variables| {
        variables.insert("ESP_BTL", "self,shm".into());
    });
    for (code, _, err) in &ended {
        assert_eq!(*code, Some(0), "{err}");
    }
    // Only the first rank of each three reads the digests of its group.
    assert_eq!(
        values(&ended[0].1),
        Some(vec![1 + 9 + 3, 1 + 9 + 3 + 3]),
        "{}",
        ended[0].1
    );
}

/// Returns the median and the maximum of the values that a process has read, by the example
/// `start`.
fn values(out: &str) -> Option<Vec<u32>> {
    out.lines().find_map(|line| {
        let counts = line.strip_prefix("values read from the launcher")?;
        let counts = counts
            .split_whitespace()
            .map(|count| count.parse().unwrap());
        Some(counts.collect())
    })
}

/// Rank 0 decides whether ranks of other nodes are reached on use. Those of this node are reached
/// at the start in any case, after an exchange of places.
#[test]
fn a_large_job_reads_the_places_of_all_by_groups() {
    let ended = job_of("start", 9, |rank, variables| {
        variables.insert("ESP_BTL", "self,shm".into());
        variables.insert("ESP_LAZY_FROM", if rank == 0 { "9" } else { "10" }.into());
    });
    for (code, _, err) in &ended {
        assert_eq!(*code, Some(0), "{err}");
    }
    let few = 1 + 3 + 9 + 3;
    assert_eq!(
        values(&ended[0].1),
        Some(vec![few, few + 3 + 3]),
        "{}",
        ended[0].1
    );
}

#[test]
fn alone_it_is_a_job_of_one() {
    let child = start(&BTreeMap::from([("ESP_BTL_VERBOSE", "1".to_owned())]));
    let output = wait(child);
    let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && stderr_text.contains("no launcher: a job of one"),
        "{stderr_text}"
    );
    assert!(
        String::from_utf8_lossy(&output.stdout)
            .contains("PASS 9 checks, 1 ranks, started by single")
    );
}

/// Each process reports which peers cannot be reached and why, without waiting.
#[test]
fn every_process_reports_an_unreachable_peer() {
    for lazy_from in ["2", "100"] {
        let ended = job(3, |rank, variables| {
            variables.insert("ESP_LAZY_FROM", lazy_from.into());
            if rank == 1 {
                variables.insert("ESP_BTL", "eth".into());
            }
        });
        for (rank, (code, out, err)) in ended.iter().enumerate() {
            assert_eq!((*code, out.as_str()), (Some(2), ""), "rank {rank}: {err}");
            assert!(err.contains("cannot be reached"), "rank {rank}: {err}");
            assert!(
                err.contains("/nonexistent/esp.sock") && err.contains("esp-daemon"),
                "rank {rank}: {err}"
            );
        }
    }
}

#[test]
fn a_rank_without_any_transport_reports_the_selection() {
    let ended = job(2, |_, variables| {
        variables.insert("ESP_BTL", "self".into());
    });
    for (code, _, err) in ended {
        assert!(
            code == Some(2) && err.contains("cannot be reached"),
            "{err}"
        );
    }
}

/// The thresholds come from the file, and the error about an invalid file names it.
#[test]
fn thresholds_come_from_the_file() {
    let dir = Temp::new();
    let file = dir.0.join("tune.toml");
    std::fs::write(
        &file,
        "[shm]\nshared_cache = 77777\nsame_socket = 77777\nother_socket = 77777\n",
    )
    .unwrap();
    let name = file.to_str().unwrap().to_owned();
    let ended = job(2, |_, variables| {
        variables.insert("ESP_TUNE", name.clone());
        variables.insert("ESP_BTL_VERBOSE", "1".into());
    });
    for (code, out, err) in ended {
        assert_eq!(code, Some(0), "{err}");
        assert!(err.contains(&format!("thresholds of shm: {name}")), "{err}");
        // Where the kernel forbids one copy there is no threshold.
        assert!(
            err.contains("77777") || err.contains("two copies"),
            "{out}{err}"
        );
    }
    std::fs::write(&file, "[shm]\nshared_cache = \"much\"\n").unwrap();
    let output = wait(start(&BTreeMap::from([("ESP_TUNE", name.clone())])));
    let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && stderr_text.contains(&name)
            && stderr_text.contains("esplab tune"),
        "{stderr_text}"
    );
}
