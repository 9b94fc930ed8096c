//! Whole jobs in one process: a rank is a thread, and the folder is temporary.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::files::Folder;
use super::{Fixed, Notes};
use crate::{BootError, Bootstrap, Environment, MAX_VALUE, detect_in};

/// A temporary folder, removed on drop.
struct Temp(PathBuf);

impl Temp {
    fn new() -> Temp {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("esp-boot-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Temp(path)
    }

    fn join(&self, rank: u32, size: u32) -> Result<Bootstrap, BootError> {
        self.join_within(rank, size, "60")
    }

    fn join_within(&self, rank: u32, size: u32, seconds: &str) -> Result<Bootstrap, BootError> {
        detect_in(&Environment::of(&[
            ("ESP_JOB_RANK", &rank.to_string()),
            ("ESP_JOB_SIZE", &size.to_string()),
            ("ESP_JOB_DIR", self.0.to_str().unwrap()),
            ("ESP_BOOT_TIMEOUT", seconds),
        ]))
    }

    fn write(&self, name: &str, text: &[u8]) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn notes_are_exchanged_fence_by_fence() {
    const SIZE: u32 = 5;
    let folder = Temp::new();
    let names: Vec<String> = thread::scope(|scope| {
        let work = |rank| {
            let folder = &folder;
            move || {
                let mut job = folder.join(rank, SIZE).unwrap();
                assert_eq!(
                    (job.rank(), job.size(), job.launcher()),
                    (rank, SIZE, "fixed")
                );
                for round in 0..3u8 {
                    let key = format!("round{round}");
                    let value = vec![round; (rank as usize * MAX_VALUE) / 4];
                    job.put(&key, &value).unwrap();
                    job.fence().unwrap();
                    for peer in 0..SIZE {
                        let found = job.get(peer, &key).unwrap().unwrap();
                        assert_eq!(found, vec![round; (peer as usize * MAX_VALUE) / 4]);
                        assert_eq!(job.get(peer, "nothing").unwrap(), None);
                    }
                }
                assert!(matches!(
                    job.get(SIZE, "round0"),
                    Err(BootError::Argument(_))
                ));
                job.finalize().unwrap();
                job.job().to_owned()
            }
        };
        let threads: Vec<_> = (0..SIZE).map(|rank| scope.spawn(work(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(
        names
            .iter()
            .all(|name| *name == names[0] && name.len() == 32),
        "{names:?}"
    );
    assert_ne!(Temp::new().join(0, 1).unwrap().job(), names[0]);
}

#[test]
fn a_folder_is_for_one_job_and_a_rank_for_one_process() {
    let folder = Temp::new();
    let _first = folder.join(0, 2).unwrap();
    let text = folder.join(0, 2).map(drop).unwrap_err().to_string();
    assert!(text.contains("a new empty folder"), "{text}");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = Temp::new();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let text = folder.join(0, 1).map(drop).unwrap_err().to_string();
    assert!(text.contains("chmod 700"), "{text}");
    let missing = Environment::of(&[
        ("ESP_JOB_RANK", "0"),
        ("ESP_JOB_SIZE", "1"),
        ("ESP_JOB_DIR", "/nonexistent/folder"),
    ]);
    let text = detect_in(&missing).map(drop).unwrap_err().to_string();
    assert!(text.contains("ESP_JOB_DIR=/nonexistent/folder"), "{text}");
}

#[test]
fn a_missing_process_is_named() {
    let folder = Temp::new();
    let mut job = folder.join_within(1, 3, "0.05").unwrap();
    let error = job.fence().unwrap_err();
    assert!(matches!(error, BootError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("rank 0 and 1 others"), "{error}");
}

#[test]
fn the_last_fence_waits_for_as_long_as_others_work() {
    let folder = Temp::new();
    let mut jobs = [0, 1].map(|rank| folder.join_within(rank, 2, "0.2").unwrap());
    let [first, second] = &mut jobs;
    std::thread::scope(|scope| {
        let met = scope.spawn(|| first.fence_at_end());
        // Longer than the limit of other fences.
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert!(!met.is_finished(), "it did not wait");
        second.fence_at_end().unwrap();
        met.join().unwrap().unwrap();
    });
    // Later calls have the limit again.
    let [first, _] = &mut jobs;
    assert!(matches!(first.fence(), Err(BootError::Timeout { .. })));
}

#[test]
fn a_process_that_died_is_named_at_once() {
    let folder = Temp::new();
    folder.write("rank-1", &ended_process());
    let mut job = folder.join(0, 2).unwrap();
    let error = job.fence().unwrap_err().to_string();
    assert!(
        error.contains("rank 1") && error.contains("ended"),
        "{error}"
    );
}

/// Values that a process wrote after the last scan of the folder, and before its end, are read.
#[test]
fn a_process_that_ended_after_the_fence_is_not_missing() {
    let folder = Temp::new();
    let text = folder.0.to_str().unwrap();
    let job = Fixed {
        folder: Folder::open(text).unwrap(),
        rank: 0,
        size: 2,
        timeout: Duration::from_secs(60),
        fences: 0,
        put: Notes::new(),
        seen: BTreeMap::new(),
    };
    folder.write("rank-1", &ended_process());
    assert!(matches!(job.check_alive(1), Err(BootError::Protocol(_))));
    folder.write("notes-0-1", b"");
    job.check_alive(1).unwrap();
    folder.write("abort", b"1 7 out of memory");
    let error = job.check_alive(1).unwrap_err();
    assert!(
        matches!(error, BootError::Aborted { code: 7, .. }),
        "{error}"
    );
}

/// Returns the identity of a process that has ended.
fn ended_process() -> Vec<u8> {
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let me = super::process::Process::me().unwrap().to_string();
    let namespace = me.rsplit(' ').next().unwrap();
    format!("{} 1 {namespace}", gone.id()).into_bytes()
}

#[test]
fn an_abort_ends_waiting_and_running_processes() {
    let folder = Temp::new();
    let mut other = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let me = super::process::Process::me().unwrap().to_string();
    let namespace = me.rsplit(' ').next().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", other.id())).unwrap();
    let start = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .to_owned();
    folder.write(
        "rank-2",
        format!("{} {start} {namespace}", other.id()).as_bytes(),
    );
    // Rank 1 is a thread of this process, which must not be ended, so its claim names no process.
    folder.write("rank-1", b"no process");
    let mut job = folder.join(0, 3).unwrap();
    let answer = job.abort(7, "out of\nmemory");
    assert!(
        matches!(
            answer,
            BootError::Aborted {
                rank: 0,
                code: 7,
                ..
            }
        ),
        "{answer}"
    );
    assert!(!other.wait().unwrap().success());
    fs::remove_file(folder.0.join("rank-1")).unwrap();
    let mut late = folder.join(1, 3).unwrap();
    match late.fence().unwrap_err() {
        BootError::Aborted {
            rank: 0,
            code: 7,
            why,
        } => assert_eq!(why, "out of memory"),
        other => panic!("{other}"),
    }
}

#[test]
fn hostile_files_are_errors() {
    let long = vec![b'0'; (1 << 20) + 1];
    let note = [
        b"k ".to_vec(),
        vec![b'0'; 2 * MAX_VALUE + 2],
        b"\n".to_vec(),
    ]
    .concat();
    for content in [
        &b"key"[..],
        b"key 0g\n",
        b"../k 00\n",
        b"k 00\n\n",
        &[0xff, 0xfe],
        &long,
        &note,
    ] {
        let folder = Temp::new();
        folder.write("notes-0-1", content);
        let mut job = folder.join(0, 2).unwrap();
        let error = job.fence().unwrap_err().to_string();
        assert!(
            (error.contains("values of rank 1") || error.contains("notes-0-1"))
                && error.lines().count() == 1,
            "{error}"
        );
    }
    let folder = Temp::new();
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("notes-0-1")).unwrap();
    assert!(folder.join(0, 2).unwrap().fence().is_err());
    let folder = Temp::new();
    fs::create_dir(folder.0.join("notes-0-1")).unwrap();
    assert!(folder.join(0, 2).unwrap().fence().is_err());
    for name in [&b"x"[..], b"", b"00"] {
        let folder = Temp::new();
        folder.write("job", name);
        assert!(folder.join(0, 1).is_err());
    }
    for words in [&b""[..], b"-1 99999999999 \x1b[2J", b"x y z"] {
        let folder = Temp::new();
        folder.write("abort", words);
        let error = folder.join(0, 2).unwrap().fence().unwrap_err();
        assert!(
            matches!(error, BootError::Aborted { .. }) && !error.to_string().contains('\u{1b}'),
            "{error}"
        );
    }
}
