//! Programs without a daemon, and jobs, that have a key.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use esp_client::{Client, EspAddr, EspListener, EspStream, PacketKey, Poller, SecureCounters};
use esp_tests::frames::Tap;
use esp_tests::process::{bare_lab, output, programs};
use esp_tests::{PATIENCE, wait_until};
use lab::{Lab, LabOptions};

use crate::{KeyFile, SEC, config};

/// Offsets in a frame of ESP in UDP over IPv4.
const UDP_CHECKSUM: usize = 14 + 20 + 6;
const PACKET: usize = 14 + 20 + 8;
const FLAGS: usize = PACKET + 12;
const MARK: &[u8] = b"this text must not be seen on the wire";

/// Returns a client without a daemon whose packets are protected by this key.
fn udp_client(lab: &Lab, node: usize, key: Option<u8>) -> (Client, Poller) {
    let key = key.map(|byte| PacketKey::new([byte; 32]));
    let opened = lab.run_in(node, || Client::polled_udp(|_| true, key));
    opened.expect("enter the node").expect("a UDP client")
}

fn connect(from: &Client, to: &Client, patience: Duration) -> Option<(EspStream, EspStream)> {
    let listener = EspListener::builder().bind_at(to, 0).expect("listen");
    let addr = to.interface(None).expect("an interface").addr;
    let address = EspAddr::new(addr, listener.port());
    std::thread::scope(|scope| {
        let builder = EspStream::builder().timeout(patience);
        let left = scope.spawn(move || builder.connect_at(from, address));
        let accepted = listener.accept_timeout(patience);
        let left = left.join().expect("no panic");
        Some((left.ok()?, accepted.ok()?.0))
    })
}

fn exchange((left, right): &(EspStream, EspStream)) {
    for (mut from, mut to) in [(left, right), (right, left)] {
        from.write_all(MARK).expect("write");
        let mut text = vec![0; MARK.len()];
        to.read_exact(&mut text).expect("read");
        assert_eq!(text, MARK);
    }
}

/// Returns the frames with ESP in UDP among those heard so far.
fn heard(tap: &mut Tap) -> Vec<Vec<u8>> {
    let is_ours = |frame: &Vec<u8>| {
        let is_udp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
        is_udp && matches!(frame.get(PACKET..PACKET + 2), Some([0x88, 0xb5 | 0xb6]))
    };
    tap.all().into_iter().filter(is_ours).collect()
}

fn counted(client: &Client, of: fn(&SecureCounters) -> u64) -> u64 {
    let counters = client.key_counters().expect("counters");
    counters.iter().map(of).sum()
}

#[test]
fn a_key_hides_what_programs_send() {
    let Some(lab) = bare_lab("a_key_hides_what_programs_send", 2) else {
        return;
    };
    for key in [None, Some(1)] {
        let mut taps = [Tap::of_cable(&lab, 0), Tap::of_cable(&lab, 1)];
        let clients = [0, 1].map(|node| udp_client(&lab, node, key));
        let ends = connect(&clients[0].0, &clients[1].0, PATIENCE).expect("connect");
        exchange(&ends);
        let frames: Vec<_> = taps.iter_mut().flat_map(heard).collect();
        let shows = |frame: &Vec<u8>| frame.windows(MARK.len()).any(|part| part == MARK);
        assert_eq!(frames.iter().any(shows), key.is_none(), "{key:?}");
        let protected = |frame: &Vec<u8>| frame[FLAGS] & SEC != 0;
        assert!(frames.len() > 6, "{} frames", frames.len());
        assert_eq!(frames.iter().all(protected), key.is_some(), "{key:?}");
        let opened = counted(&clients[0].0, |counters| counters.auth_opened);
        assert_eq!(opened > 0, key.is_some());
    }
}

#[test]
fn a_program_without_the_key_reaches_nothing() {
    let Some(lab) = bare_lab("a_program_without_the_key_reaches_nothing", 2) else {
        return;
    };
    let victim = udp_client(&lab, 0, Some(1)).0;
    let patience = Duration::from_millis(500);
    for other in [Some(2), None] {
        let stranger = udp_client(&lab, 1, other).0;
        assert!(connect(&stranger, &victim, patience).is_none(), "{other:?}");
        assert!(connect(&victim, &stranger, patience).is_none(), "{other:?}");
    }
    assert!(counted(&victim, |counters| counters.auth_drop_key) > 0);
    assert!(counted(&victim, |counters| counters.auth_drop_plain) > 0);
    assert_eq!(counted(&victim, |counters| counters.auth_opened), 0);
}

#[test]
fn forged_packets_to_a_program_are_counted() {
    let Some(lab) = bare_lab("forged_packets_to_a_program_are_counted", 2) else {
        return;
    };
    let clients = [0, 1].map(|node| udp_client(&lab, node, Some(1)).0);
    let mut tap = Tap::of_cable(&lab, 1);
    let ends = connect(&clients[0], &clients[1], PATIENCE).expect("connect");
    exchange(&ends);
    let to_victim = Tap::of_cable(&lab, 0);
    // Without the checksum of UDP, which the kernel verifies first.
    let bare = |mut frame: Vec<u8>| {
        frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0);
        frame
    };
    let last = heard(&mut tap).into_iter().map(bare).next_back();
    let last = last.expect("a frame");
    let mut forged = last.clone();
    let at = forged.len() - 1;
    forged[at] ^= 1;
    // A counter that was not used yet.
    forged[PACKET + 13 + 4..PACKET + 25].copy_from_slice(&1_000_000u64.to_be_bytes());
    let mut plain = last.clone();
    plain[FLAGS] &= !SEC;
    let before = counted(&clients[0], SecureCounters::dropped);
    for (what, frame, of) in [
        (
            "replayed",
            &last,
            (|c| c.auth_drop_replay) as fn(&SecureCounters) -> u64,
        ),
        ("forged", &forged, |c| c.auth_drop_forged),
        ("plain", &plain, |c| c.auth_drop_plain),
    ] {
        let earlier = counted(&clients[0], of);
        to_victim.send(frame);
        wait_until(what, || counted(&clients[0], of) > earlier);
    }
    assert_eq!(counted(&clients[0], SecureCounters::dropped), before + 3);
    exchange(&ends);
}

/// Runs `p2p-check` as a job of two nodes; returns its output, and the frames of ESP in UDP that
/// were on the wire.
fn job(lab: &Lab, variables: &[(&str, &str)]) -> (String, Vec<Vec<u8>>) {
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
            .envs(variables.iter().copied());
        output(&mut command)
    };
    let ranks = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| scope.spawn(move || start(rank)));
        ranks.map(|rank| rank.join().expect("no panic"))
    });
    for rank in &ranks {
        assert_eq!(rank.code, Some(0), "{rank:?}");
    }
    let frames = taps.iter_mut().flat_map(heard).collect();
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
    const ENCRYPTED: &str = "packets over UDP are encrypted by a key of the job";
    const CHECKED: &str = "packets over UDP have a checksum (no authentication)";
    for (lab, variables, expected) in [
        (&lab, &[][..], None),
        (&lab, &[("ESP_ENCRYPT", "1")][..], Some(ENCRYPTED)),
        (&lab, &[("ESP_CHECKSUM", "1")][..], Some(CHECKED)),
        (&with_key, &[][..], Some(ENCRYPTED)),
        (&with_key, &[("ESP_ENCRYPT", "0")][..], None),
        (&with_checksum, &[][..], Some(CHECKED)),
        (&with_checksum, &[("ESP_CHECKSUM", "0")][..], None),
    ] {
        let (text, frames) = job(lab, variables);
        for line in [ENCRYPTED, CHECKED] {
            let says = text.contains(line);
            assert_eq!(says, expected == Some(line), "{variables:?}: {text}");
        }
        assert!(frames.len() > 100, "{} frames", frames.len());
        let protected = |frame: &Vec<u8>| frame[FLAGS] & SEC != 0;
        let all = frames.iter().all(protected);
        assert_eq!(all, expected.is_some(), "{variables:?}");
    }
}
