use super::super::write::CaptureFile;
use super::*;

/// Time, bytes, length and direction of a frame.
type Frame = (Duration, Vec<u8>, usize, Option<bool>);

fn read(file: &[u8]) -> Result<(Vec<Frame>, u64), String> {
    let mut frames = Vec::new();
    let skipped = frames_of("a file", file, |seen| {
        frames.push((seen.time, seen.bytes.to_vec(), seen.len, seen.outgoing));
        Ok(ControlFlow::Continue(()))
    });
    skipped
        .map(|skipped| (frames, skipped))
        .map_err(|error| error.to_string())
}

fn frames_to_write() -> Vec<Frame> {
    let time = |nanos| Duration::new(1_700_000_000, nanos);
    vec![
        (time(1), vec![1; 61], 61, Some(true)),
        (time(999_999_999), vec![2; 60], 1514, Some(false)),
        (time(5), vec![], 0, None),
    ]
}

fn pcapng() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = CaptureFile::begin(&mut bytes, Some("eth0")).expect("begin");
    for (time, bytes, len, outgoing) in &frames_to_write() {
        let (time, len, outgoing) = (*time, *len, *outgoing);
        let seen = Seen {
            time,
            bytes,
            len,
            outgoing,
        };
        file.frame(&seen).expect("write a frame");
    }
    let counts = netif::Statistics {
        received: 3,
        dropped: 1,
    };
    file.end(Duration::from_secs(1_700_000_001), Some(counts))
        .expect("end");
    drop(file);
    bytes
}

/// Returns a pcap file with one frame, big-endian if `big`, with nanoseconds if `nanos`.
fn pcap(big: bool, nanos: bool, linktype: u32) -> Vec<u8> {
    let word = |word: u32| match big {
        true => word.to_be_bytes(),
        false => word.to_le_bytes(),
    };
    let half = |half: u16| match big {
        true => half.to_be_bytes(),
        false => half.to_le_bytes(),
    };
    let magic = if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut bytes = word(magic).to_vec();
    bytes.extend([half(2), half(4)].concat());
    for number in [0, 0, 65535, linktype, 1_700_000_000, 7, 3, 60] {
        bytes.extend(word(number));
    }
    bytes.extend([1, 2, 3]);
    bytes
}

#[test]
fn what_is_written_is_read_back() {
    assert_eq!(read(&pcapng()), Ok((frames_to_write(), 0)));
}

#[test]
fn all_kinds_of_pcap_are_read() {
    for (big, nanos, time) in [
        (false, false, 7000),
        (false, true, 7),
        (true, false, 7000),
        (true, true, 7),
    ] {
        let frame = (Duration::new(1_700_000_000, time), vec![1, 2, 3], 60, None);
        assert_eq!(read(&pcap(big, nanos, 1)), Ok((vec![frame], 0)));
    }
    assert_eq!(read(&pcap(false, false, 101)), Ok((vec![], 1)), "raw IP");
}

#[test]
fn errors_say_what_is_wrong() {
    for (file, part) in [
        (
            &b"no capture at all, but a text"[..],
            "not a pcap or pcapng",
        ),
        (&pcap(false, false, 1)[..41], "ends within a block"),
        (&pcapng()[..pcapng().len() - 1], "ends within a block"),
        (&[], "a file"),
    ] {
        let error = read(file).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_end_of_a_reader_is_passed_on() {
    let mut count = 0;
    let whole = pcapng();
    let skipped = frames_of("a file", whole.as_slice(), |_| {
        count += 1;
        Ok(ControlFlow::Break(()))
    });
    assert_eq!((count, skipped.ok()), (1, Some(0)));
}

/// No file makes the reader panic or use more than its buffer.
#[test]
fn hostile_files_are_read_or_refused() {
    for whole in [pcapng(), pcap(true, true, 1)] {
        for len in 0..whole.len() {
            let _ = read(&whole[..len]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                if let Ok((frames, _)) = read(&changed) {
                    assert!(frames.len() <= 8, "byte {at} = {value}");
                }
            }
        }
    }
}
