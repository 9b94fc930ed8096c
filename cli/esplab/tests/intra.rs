//! Tests of benchmarks within a node, and of `esplab tune`: all rows exist and are plausible. No
//! time is asserted.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{TestResult, esplab, esplab_ends, programs, unique};
use serde_json::Value;

/// Serializes the tests: concurrent benchmarks would compete for cores.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a benchmark in its short form.
fn rows(name: &str) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    let _alone = alone();
    let out = esplab_ends(&["bench", "--quick", "--json", "--only", name], 0);
    let rows: Vec<Value> = out
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    for row in &rows {
        assert_eq!(row["bench"], name, "{row}");
        sane(row);
    }
    Ok(rows)
}

/// Checks that a row has a figure or a reason for its absence; only peers and compilers may be
/// missing.
fn sane(row: &Value) {
    let positive = |field: &str| row[field].as_f64().is_some_and(|v| v > 0.0);
    let path = row["path"].as_str().unwrap_or_default();
    if row["rounds"] == 0 {
        assert!(!path.starts_with("p2p") && path != "transport", "{row}");
        let note = row["note"].as_str().unwrap_or_default();
        assert!(
            note.starts_with("not ") || note.contains("process_vm_readv is refused"),
            "{row}"
        );
        return;
    }
    assert!(row["rounds"].as_u64() <= Some(3), "{row}");
    assert_ne!(
        positive("gbit_s"),
        positive("p50_us"),
        "a speed or a time: {row}"
    );
    if let (Some(p50), Some(p99)) = (row["p50_us"].as_f64(), row["p99_us"].as_f64()) {
        assert!(p50 > 0.0 && p99 > 0.0, "{row}");
    }
    for ratio in [
        "ratio_to_best_peer",
        "ratio_to_limit",
        "ratio_to_two_copy",
        "ratio_to_base",
    ] {
        assert!(
            row[ratio].is_null() || row[ratio]["median"].as_f64().is_some_and(|v| v >= 0.0),
            "{row}"
        );
    }
}

fn paths<'a>(rows: &'a [Value], what: &str) -> BTreeSet<&'a str> {
    rows.iter()
        .filter(|r| r["what"] == what)
        .filter_map(|r| r["path"].as_str())
        .collect()
}

#[test]
fn shm_has_rows_of_peers_and_limits() -> TestResult {
    let rows = rows("shm")?;
    let latency = paths(&rows, "latency");
    assert!(
        ["limit: cache line", "p2p", "openmpi", "mpich", "ucx"]
            .iter()
            .all(|p| latency.contains(p)),
        "{latency:?}"
    );
    let bandwidth = paths(&rows, "bandwidth");
    let wanted = [
        "limit: memcpy",
        "limit: kernel's copy",
        "p2p",
        "p2p two-copy",
        "p2p one-copy",
        "openmpi two-copy",
    ];
    assert!(
        wanted.iter().all(|p| bandwidth.contains(p)),
        "{bandwidth:?}"
    );
    let ours = |size: u64| {
        rows.iter()
            .filter(move |r| r["size"] == size && r["path"] == "p2p")
    };
    for size in [8, 64, 1024] {
        let row = ours(size).next().ok_or("no row")?;
        assert!(
            row["p50_us"].is_number() && row["p99_us"].is_number() && row["gbit_s"].is_null(),
            "{row}"
        );
    }
    assert_eq!(
        ours(65_536).count(),
        4,
        "one buffer by one and by many sends, some, and out of cache"
    );
    assert_eq!(ours(4_194_304).count(), 3, "64 buffers are never in cache");
    Ok(())
}

#[test]
fn papers_has_rows_of_all_experiments() -> TestResult {
    let rows = rows("papers")?;
    let whats: BTreeSet<&str> = rows.iter().filter_map(|r| r["what"].as_str()).collect();
    for what in [
        "multi-pair",
        "buffer reuse",
        "skew",
        "copies: latency",
        "copies: bandwidth",
    ] {
        assert!(whats.contains(what), "{what} in {whats:?}");
        assert!(
            paths(&rows, what).iter().any(|p| p.starts_with("p2p")),
            "{what}"
        );
    }
    assert!(
        whats
            .iter()
            .filter(|what| what.starts_with("cost: "))
            .count()
            >= 6,
        "{whats:?}"
    );
    let crowd = rows
        .iter()
        .filter(|r| r["what"] == "multi-pair" && r["pairs"] == 2);
    let cores = std::thread::available_parallelism()?.get();
    assert!(crowd.clone().count() > 0);
    assert!(
        crowd.clone().all(|r| cores >= 4 || r["note"].is_string()),
        "oversubscription is noted"
    );
    let skewed = rows
        .iter()
        .filter(|r| r["what"] == "skew" && r["consumer_us"].as_f64() > Some(0.0));
    assert!(skewed.clone().count() > 0);
    assert!(
        skewed
            .clone()
            .all(|r| r["rounds"] == 0 || r["ratio_to_base"]["median"].is_number())
    );
    Ok(())
}

#[test]
fn matching_compares_short_and_long_queues() -> TestResult {
    let rows = rows("matching")?;
    for what in ["unexpected", "posted"] {
        let mut ours = rows
            .iter()
            .filter(|r| r["what"] == what && r["path"] == "p2p");
        let (few, many) = (
            ours.next().ok_or("no row")?,
            ours.next().ok_or("no second row")?,
        );
        assert_eq!(
            (&few["queue"], &many["queue"]),
            (&10.into(), &10_000.into())
        );
        assert!(
            many["ratio_to_base"]["median"].is_number() && few["ratio_to_base"].is_null(),
            "{many}"
        );
    }
    Ok(())
}

#[test]
fn missing_peers_have_rows_with_a_note() -> TestResult {
    let _alone = alone();
    let program = programs().join("esplab");
    let args = ["bench", "--quick", "--json", "--only", "matching"];
    let output = Command::new(program)
        .args(args)
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null())
        .output()?;
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "ours do not need them: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rows: Vec<Value> = out
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    rows.iter().for_each(sane);
    for (peer, package) in [("openmpi", "openmpi-bin"), ("mpich", "mpich")] {
        let row = rows.iter().find(|r| r["path"] == peer).ok_or("no row")?;
        let note = row["note"].as_str().ok_or("no note")?;
        assert!(
            note.starts_with("not installed") && note.contains(package),
            "{row}"
        );
    }
    assert!(
        rows.iter()
            .any(|r| r["path"] == "p2p" && r["p50_us"].is_number())
    );
    Ok(())
}

/// Folder that is removed on drop.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn tune_writes_the_file_that_jobs_read() -> TestResult {
    let _alone = alone();
    let folder = Folder(std::env::temp_dir().join(unique("tune")));
    let shm = folder.0.join("deep/er/tune.toml");
    fs::create_dir(&folder.0)?;
    let tune = |more: &[&str]| -> Result<Output, Box<dyn std::error::Error>> {
        let shm = shm.to_str().ok_or("a name")?;
        Ok(esplab(
            &[&["tune", "--quick", "--output", shm], more].concat(),
        ))
    };
    let output = tune(&[])?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if std::thread::available_parallelism()?.get() < 2 {
        assert_eq!(
            output.status.code(),
            Some(1),
            "nothing to measure between: {err}"
        );
        assert!(err.contains("one CPU"), "{err}");
        return Ok(());
    }
    assert!(output.status.success(), "{err}");
    assert!(out.contains("[shm]"), "{out}");
    let written = fs::read_to_string(&shm)?;
    for name in ["shared_cache", "same_socket", "other_socket"] {
        let line = written
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .ok_or("a line is missing")?;
        let number = line
            .trim_start_matches(" = ")
            .split_whitespace()
            .next()
            .ok_or("no number")?;
        assert!(number.parse::<u64>()? > 0, "{line}");
    }
    // A job reads the file.
    let program = programs().join("esplab");
    let rank = Command::new(program)
        .args(["bench", "--quick", "--only", "matching"])
        .env("ESP_TUNE", &shm)
        .output()?;
    assert!(
        rank.status.success(),
        "{}",
        String::from_utf8_lossy(&rank.stderr)
    );
    let text = String::from_utf8_lossy(&rank.stdout);
    assert!(
        text.contains(shm.to_str().ok_or("a name")?),
        "the table names the file of the thresholds: {text}"
    );

    let again = tune(&[])?;
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"));
    assert!(tune(&["--force"])?.status.success());
    Ok(())
}
