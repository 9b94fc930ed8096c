//! Jobs of libesp whose packets are protected: by a key of the job, or by key files.

use std::fs;
use std::path::PathBuf;

use esp_tests::frames::Tap;
use esp_tests::process::{Finished, bare_lab, output, programs};
use esp_tests::protected::{is_in_udp, is_protected, is_raw};
use lab::{Lab, LabOptions};

use crate::{KeyFile, config};

const ENCRYPTED: &str = "packets over UDP are encrypted by a key of the job";
const READABLE: &str = "packets over UDP are authenticated by a key of the job, and readable";
const BY_FILES: &str = "packets over UDP are encrypted by the keys of ESP_KEY_FILE";
const CHECKED: &str = "packets over UDP have a checksum (no authentication)";

type Variables<'a> = &'a [(&'a str, &'a str)];

/// Runs `p2p-check` as a job of two nodes, each rank with its own variables; returns how they ended
/// and the frames that were on the wire.
fn ranks(lab: &Lab, variables: [Variables<'_>; 2]) -> ([Finished; 2], Vec<Vec<u8>>) {
    let folder = Folder::new();
    let mut taps = [Tap::of_cable(lab, 0), Tap::of_cable(lab, 1)];
    let start = |rank: usize| {
        let program = programs().join("examples/p2p-check");
        let mut command = lab.command(rank, program).expect("a command");
        command
            .env("ESP_BOOT", "fixed")
            .env("ESP_JOB_DIR", &folder.0)
            .env("ESP_JOB_SIZE", "2")
            .env("ESP_JOB_RANK", rank.to_string())
            .env("ESP_BTL", "shm,eth,udp")
            .env("ESP_BTL_VERBOSE", "1")
            .env("ESP_TUNE", "")
            .envs(variables[rank].iter().copied());
        output(&mut command)
    };
    let ranks = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || start(rank)));
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    (ranks, taps.iter_mut().flat_map(Tap::all).collect())
}

/// Runs a job that succeeds; returns its output and frames.
fn job(lab: &Lab, variables: Variables<'_>) -> (String, Vec<Vec<u8>>) {
    let (ranks, frames) = ranks(lab, [variables; 2]);
    for rank in &ranks {
        assert_eq!(rank.code, Some(0), "{variables:?}: {rank:?}");
    }
    (ranks.map(|rank| rank.out + &rank.err).concat(), frames)
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("esp-auth-job-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).expect("create a folder");
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_job_is_protected_on_request_and_as_its_daemons_are() {
    let test = "a_job_is_protected_on_request_and_as_its_daemons_are";
    let Some(lab) = bare_lab(test, 2) else {
        return;
    };
    let key = KeyFile::new(1);
    let mut options = LabOptions::new(2);
    options.daemon_config = config(&[&key], "");
    let Some(with_key) = esp_tests::lab_or_skip(test, &options) else {
        return;
    };
    options.daemon_config = "checksum = \"require\"\n".into();
    let Some(with_checksum) = esp_tests::lab_or_skip(test, &options) else {
        return;
    };
    for (lab, variables, expected) in [
        (&lab, &[][..], None),
        (&lab, &[("ESP_AUTH", "encrypt")], Some(ENCRYPTED)),
        (&lab, &[("ESP_AUTH", "integrity")], Some(READABLE)),
        (&lab, &[("ESP_KEY_FILE", key.text())], Some(BY_FILES)),
        (&lab, &[("ESP_CHECKSUM", "1")], Some(CHECKED)),
        (&with_key, &[], Some(ENCRYPTED)),
        (&with_key, &[("ESP_AUTH", "off")], None),
        (&with_checksum, &[], Some(CHECKED)),
        (&with_checksum, &[("ESP_CHECKSUM", "0")], None),
    ] {
        let (text, frames) = job(lab, variables);
        for line in [ENCRYPTED, READABLE, BY_FILES, CHECKED] {
            let says = text.contains(line);
            assert_eq!(says, expected == Some(line), "{variables:?}: {text}");
        }
        let frames: Vec<_> = frames.into_iter().filter(|f| is_in_udp(f)).collect();
        assert!(frames.len() > 100, "{} frames", frames.len());
        let all = frames.iter().all(|frame| is_protected(frame));
        assert_eq!(all, expected.is_some(), "{variables:?}");
    }
}

/// With a key of its own a job sends nothing by raw Ethernet, which that key does not protect.
#[test]
fn a_demanded_key_excludes_raw_ethernet() {
    let test = "a_demanded_key_excludes_raw_ethernet";
    let mut options = LabOptions::new(2);
    options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    let Some(lab) = esp_tests::lab_or_skip(test, &options) else {
        return;
    };
    let key = KeyFile::new(1);
    let is_by_ethernet = |frames: &[Vec<u8>]| frames.iter().any(|frame| is_raw(frame));
    for variables in [
        &[("ESP_AUTH", "encrypt")][..],
        &[("ESP_KEY_FILE", key.text())],
    ] {
        let (text, frames) = job(&lab, variables);
        let without = format!("{} is set, and its packets are not", variables[0].0);
        assert!(text.contains(&without), "{text}");
        assert!(!text.contains("has eth: used"), "{text}");
        let in_udp: Vec<_> = frames.iter().filter(|frame| is_in_udp(frame)).collect();
        assert!(in_udp.len() > 100, "{} frames", in_udp.len());
        assert!(in_udp.iter().all(|frame| is_protected(frame)));
        assert!(!is_by_ethernet(&frames), "{variables:?}");
    }
    // Without a key it does.
    assert!(is_by_ethernet(&job(&lab, &[]).1));
}

/// Processes without a key in common do not start, and say why. No packet is sent in plain text.
#[test]
fn a_job_does_not_start_without_a_key_in_common() {
    let test = "a_job_does_not_start_without_a_key_in_common";
    let Some(lab) = bare_lab(test, 2) else {
        return;
    };
    let (key, other, open) = (KeyFile::new(1), KeyFile::new(2), KeyFile::new(3));
    open.set_mode(0o644);
    let files = |file| [("ESP_KEY_FILE", file)];
    let (key, other, open) = (files(key.text()), files(other.text()), files(open.text()));
    for (variables, part) in [
        (
            [&key[..], &other],
            "protected by a key, those of this process by another key",
        ),
        (
            [&key, &[]],
            "rank 0 uses the keys of ESP_KEY_FILE, and this process has none",
        ),
        (
            [&[], &key],
            "ESP_KEY_FILE is set for this process and not for rank 0",
        ),
        (
            [&[], &[("ESP_AUTH", "integrity")]],
            "ESP_AUTH is set for this process and not for",
        ),
        ([&key, &open], "chmod 600"),
        ([&open, &key], "chmod 600"),
    ] {
        let (ranks, frames) = ranks(&lab, variables);
        for rank in &ranks {
            assert!(!matches!(rank.code, Some(0) | None), "{rank:?}");
        }
        let said = ranks.map(|rank| rank.err).concat();
        assert!(said.contains(part), "{variables:?}: {said}");
        let in_udp = frames.iter().filter(|frame| is_in_udp(frame));
        let plain = in_udp.filter(|frame| !is_protected(frame)).count();
        assert_eq!(plain, 0, "{variables:?}");
    }
}

/// A job whose processes are in different steps of a key's replacement runs.
#[test]
fn a_job_runs_while_keys_are_replaced() {
    let Some(lab) = bare_lab("a_job_runs_while_keys_are_replaced", 2) else {
        return;
    };
    let (old, new) = (KeyFile::new(1), KeyFile::new(2));
    let first = format!("{}:{}", old.text(), new.text());
    let second = format!("{}:{}", new.text(), old.text());
    let variables = [&first, &second].map(|files| [("ESP_KEY_FILE", files.as_str())]);
    let (ranks, frames) = ranks(&lab, variables.each_ref().map(|one| &one[..]));
    for rank in &ranks {
        assert_eq!(rank.code, Some(0), "{rank:?}");
        assert!(rank.err.contains(BY_FILES), "{rank:?}");
    }
    let in_udp: Vec<_> = frames.iter().filter(|frame| is_in_udp(frame)).collect();
    assert!(in_udp.len() > 100, "{} frames", in_udp.len());
    assert!(in_udp.iter().all(|frame| is_protected(frame)));
}
