//! Programs without a daemon that have a key.

use std::io::{Read, Write};
use std::time::Duration;

use esp_client::{
    Client, EspAddr, EspError, EspListener, EspStream, PacketKey, Poller, Protection,
    SecureCounters,
};
use esp_tests::frames::Tap;
use esp_tests::process::{bare_lab, output, programs};
use esp_tests::protected::{FLAGS, PACKET, UDP_CHECKSUM, heard, is_protected, shows};
use esp_tests::{PATIENCE, wait_until};
use lab::Lab;

use crate::{KeyFile, SEC};

const MARK: &[u8] = b"this text must not be seen on the wire";

/// Returns the protection by keys of 32 equal bytes; without any, none.
fn by_keys(bytes: &[u8], encrypt: bool) -> Protection {
    match bytes {
        [] => Protection::None,
        bytes => Protection::Keys {
            keys: bytes.iter().map(|&b| PacketKey::new([b; 32])).collect(),
            encrypt,
        },
    }
}

/// Returns a client without a daemon whose packets are encrypted by these keys.
fn udp_client(lab: &Lab, node: usize, keys: &[u8]) -> (Client, Poller) {
    protected_client(lab, node, by_keys(keys, true))
}

fn protected_client(lab: &Lab, node: usize, protection: Protection) -> (Client, Poller) {
    let opened = lab.run_in(node, || Client::polled_udp(|_| true, Some(protection)));
    opened.expect("enter the node").expect("a UDP client")
}

/// Connects two clients, or returns the error of the one that connects.
fn connect(
    from: &Client,
    to: &Client,
    patience: Duration,
) -> std::io::Result<(EspStream, EspStream)> {
    let listener = EspListener::builder().bind_at(to, 0).expect("listen");
    let addr = to.interface(None).expect("an interface").addr;
    let address = EspAddr::new(addr, listener.port());
    std::thread::scope(|scope| {
        let builder = EspStream::builder().timeout(patience);
        let left = scope.spawn(move || builder.connect_at(from, address));
        let accepted = listener.accept_timeout(patience);
        let left = left.join().expect("no panic")?;
        Ok((left, accepted?.0))
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

fn counted(client: &Client, of: fn(&SecureCounters) -> u64) -> u64 {
    let counters = client.key_counters().expect("counters");
    counters.iter().map(of).sum()
}

#[test]
fn a_key_hides_what_programs_send() {
    let Some(lab) = bare_lab("a_key_hides_what_programs_send", 2) else {
        return;
    };
    for (protection, is_shown) in [
        (by_keys(&[], true), true),
        (by_keys(&[1], false), true),
        (by_keys(&[1], true), false),
    ] {
        let has_keys = protection.has_keys();
        let mut taps = [Tap::of_cable(&lab, 0), Tap::of_cable(&lab, 1)];
        let clients = [0, 1].map(|node| protected_client(&lab, node, protection.clone()));
        let ends = connect(&clients[0].0, &clients[1].0, PATIENCE).expect("connect");
        exchange(&ends);
        let frames: Vec<_> = taps.iter_mut().flat_map(heard).collect();
        let mark = frames.iter().any(|frame| shows(frame, MARK));
        assert_eq!(mark, is_shown, "{protection:?}");
        assert!(frames.len() > 6, "{} frames", frames.len());
        let all = frames.iter().all(|frame| is_protected(frame));
        assert_eq!(all, has_keys, "{protection:?}");
        let opened = counted(&clients[0].0, |counters| counters.auth_opened);
        assert_eq!(opened > 0, has_keys);
    }
}

#[test]
fn one_side_that_encrypts_is_sufficient() {
    let Some(lab) = bare_lab("one_side_that_encrypts_is_sufficient", 2) else {
        return;
    };
    let mut taps = [Tap::of_cable(&lab, 0), Tap::of_cable(&lab, 1)];
    let one = protected_client(&lab, 0, by_keys(&[1], false)).0;
    let other = protected_client(&lab, 1, by_keys(&[1], true)).0;
    exchange(&connect(&one, &other, PATIENCE).expect("connect"));
    exchange(&connect(&other, &one, PATIENCE).expect("connect"));
    let frames: Vec<_> = taps.iter_mut().flat_map(heard).collect();
    assert!(frames.len() > 6, "{} frames", frames.len());
    assert!(!frames.iter().any(|frame| shows(frame, MARK)));
}

#[test]
fn a_program_without_the_key_reaches_nothing() {
    let Some(lab) = bare_lab("a_program_without_the_key_reaches_nothing", 2) else {
        return;
    };
    let victim = udp_client(&lab, 0, &[1]).0;
    let patience = Duration::from_millis(500);
    for other in [&[2][..], &[]] {
        let stranger = udp_client(&lab, 1, other).0;
        for (from, to) in [(&stranger, &victim), (&victim, &stranger)] {
            let error = connect(from, to, patience).expect_err("no connection");
            let found = EspError::of(&error);
            assert!(
                matches!(found, Some(EspError::ConnectCallTimedOut(_))),
                "{error}"
            );
            assert!(error.to_string().contains("ESP_KEY_FILE"), "{error}");
        }
    }
    assert!(counted(&victim, |counters| counters.auth_drop_key) > 0);
    assert!(counted(&victim, |counters| counters.auth_drop_plain) > 0);
    assert_eq!(counted(&victim, |counters| counters.auth_opened), 0);
}

/// A new key comes in as at daemons: added as the second one, made the first, and the old one
/// removed. Programs of two neighbouring steps reach each other, those of the ends do not.
#[test]
fn keys_are_replaced_step_by_step() {
    let Some(lab) = bare_lab("keys_are_replaced_step_by_step", 2) else {
        return;
    };
    const OLD: u8 = 1;
    const NEW: u8 = 2;
    let steps = [&[OLD][..], &[OLD, NEW], &[NEW, OLD], &[NEW]];
    for pair in steps.windows(2) {
        let one = udp_client(&lab, 0, pair[0]).0;
        let other = udp_client(&lab, 1, pair[1]).0;
        exchange(&connect(&one, &other, PATIENCE).expect("connect"));
        exchange(&connect(&other, &one, PATIENCE).expect("connect"));
    }
    let (first, last) = (udp_client(&lab, 0, &[OLD]).0, udp_client(&lab, 1, &[NEW]).0);
    let patience = Duration::from_millis(500);
    connect(&first, &last, patience).expect_err("no key in common");
    assert!(counted(&last, |counters| counters.auth_drop_key) > 0);
}

/// An unusable key file ends each program, which sends nothing.
#[test]
fn programs_do_not_start_with_an_unusable_key_file() {
    let Some(lab) = bare_lab("programs_do_not_start_with_an_unusable_key_file", 2) else {
        return;
    };
    let key = KeyFile::new(1);
    key.set_mode(0o640);
    let missing = format!("{}-missing", key.text());
    let mut tap = Tap::of_cable(&lab, 0);
    for (variables, part) in [
        (&[("ESP_KEY_FILE", key.text())][..], "chmod 600"),
        (&[("ESP_KEY_FILE", missing.as_str())], "No such file"),
        (&[("ESP_AUTH", "encrypt")], "name its file in ESP_KEY_FILE"),
        (&[("ESP_AUTH", "yes")], "expected encrypt, integrity or off"),
    ] {
        for words in [
            &["espcat", "--carrier", "udp", "10.99.0.2", "7"][..],
            &["espcat", "--carrier", "udp", "-l", "7"],
            &["esping", "-c", "1", "10.99.0.2"],
            &["esprun", "--tcp", "true"],
        ] {
            let mut command = lab
                .command(0, programs().join(words[0]))
                .expect("a command");
            command.args(&words[1..]).envs(variables.iter().copied());
            let finished = output(&mut command);
            assert_ne!(finished.code, Some(0), "{words:?} {variables:?}");
            let said = &finished.err;
            assert!(said.contains(part), "{words:?} {variables:?}: {said}");
        }
    }
    assert_eq!(heard(&mut tap), Vec::<Vec<u8>>::new());
}

#[test]
fn forged_packets_to_a_program_are_counted() {
    let Some(lab) = bare_lab("forged_packets_to_a_program_are_counted", 2) else {
        return;
    };
    // Encrypted or not, all bytes of a packet are covered.
    for encrypt in [true, false] {
        let protection = by_keys(&[1], encrypt);
        let clients = [0, 1].map(|node| protected_client(&lab, node, protection.clone()).0);
        forged_packets_are_counted(&lab, &clients);
    }
}

fn forged_packets_are_counted(lab: &Lab, clients: &[Client; 2]) {
    let mut tap = Tap::of_cable(lab, 1);
    let ends = connect(&clients[0], &clients[1], PATIENCE).expect("connect");
    exchange(&ends);
    let to_victim = Tap::of_cable(lab, 0);
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
