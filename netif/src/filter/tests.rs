//! Runs the programs in a small interpreter; `tests/filter.rs` runs them in the kernel.

use super::*;

/// A frame as the interpreter sees it.
struct Frame {
    bytes: Vec<u8>,
    kind: u8,
    tag: Option<u16>,
}

impl Frame {
    fn to_port(port: u16) -> Frame {
        let mut bytes = vec![0u8; 60];
        bytes[12..14].copy_from_slice(&TYPE.to_be_bytes());
        bytes[14..16].copy_from_slice(&port.to_be_bytes());
        Frame {
            bytes,
            kind: libc::PACKET_HOST,
            tag: None,
        }
    }
}

const TYPE: u16 = 0x88b5;

/// Runs a program as the kernel does; returns the number of bytes kept and the number of
/// instructions executed.
fn run(filter: &Filter, frame: &Frame) -> (u32, usize) {
    let (mut at, mut a, mut steps) = (0usize, 0u32, 0usize);
    loop {
        let i = filter.program[at];
        at += 1;
        steps += 1;
        let mut jump = |holds: bool| at += usize::from(if holds { i.if_true } else { i.if_false });
        match i.code {
            LOAD_HALF => match frame.bytes.get(i.operand as usize..i.operand as usize + 2) {
                Some(bytes) => a = u32::from(u16::from_be_bytes([bytes[0], bytes[1]])),
                None => return (0, steps),
            },
            LOAD_BYTE if i.operand == PACKET_KIND => a = u32::from(frame.kind),
            LOAD_WORD if i.operand == VLAN_PRESENT => a = u32::from(frame.tag.is_some()),
            LOAD_WORD if i.operand == VLAN_TAG => a = u32::from(frame.tag.unwrap_or(0)),
            AND => a &= i.operand,
            JUMP => at += i.operand as usize,
            IF_EQUAL => jump(a == i.operand),
            IF_ABOVE => jump(a > i.operand),
            IF_AT_LEAST => jump(a >= i.operand),
            RETURN => return (i.operand, steps),
            other => panic!("instruction {other:#x} at {at}"),
        }
    }
}

fn accepts(filter: &Filter, frame: &Frame) -> bool {
    match run(filter, frame).0 {
        0 => false,
        u32::MAX => true,
        part => panic!("keeps {part} bytes of a frame"),
    }
}

/// Asserts what the kernel checks: every jump ends inside the program, and the program ends in a
/// return.
fn assert_well_formed(filter: &Filter) {
    let program = &filter.program;
    for (at, i) in program.iter().enumerate() {
        let reach = match i.code {
            JUMP => i.operand as usize,
            IF_EQUAL | IF_ABOVE | IF_AT_LEAST => usize::from(i.if_true.max(i.if_false)),
            _ => continue,
        };
        assert!(
            at + 1 + reach < program.len(),
            "instruction {at} jumps out of the program"
        );
    }
    assert_eq!(program.last().unwrap().code, RETURN);
}

fn assert_accepts_exactly(filter: &Filter, wanted: impl Fn(u16) -> bool) {
    assert_well_formed(filter);
    for port in 0..=u16::MAX {
        assert_eq!(
            accepts(filter, &Frame::to_port(port)),
            wanted(port),
            "port {port}"
        );
    }
}

#[test]
fn ports_and_ranges() {
    let filter = Filter::for_ports(TYPE, [80..=80, 1000..=1999, 0..=0, 65535..=65535]).unwrap();
    assert_accepts_exactly(&filter, |p| matches!(p, 0 | 80 | 1000..=1999 | 65535));
}

#[test]
fn ranges_that_overlap_touch_or_are_empty() {
    #[allow(clippy::reversed_empty_ranges)]
    let filter = Filter::for_ports(TYPE, [20..=30, 10..=19, 25..=40, 90..=80, 50..=50]).unwrap();
    assert_eq!(
        filter.program.len(),
        preamble(TYPE).len() + 1 + 1 + 4 + 3,
        "two ranges remain"
    );
    assert_accepts_exactly(&filter, |p| matches!(p, 10..=40 | 50));
}

#[test]
fn no_port_and_every_port() {
    assert_accepts_exactly(&Filter::for_ports(TYPE, []).unwrap(), |_| false);
    assert_accepts_exactly(&Filter::for_ports(TYPE, [0..=u16::MAX]).unwrap(), |_| true);
    assert_accepts_exactly(&Filter::for_ethertype(TYPE), |_| true);
}

#[test]
fn except_ports_rejects_only_these_ports() {
    let filter = Filter::except_ports(TYPE, [0..=0, 4000..=4010, 7..=7, 65535..=65535]).unwrap();
    assert_accepts_exactly(&filter, |p| !matches!(p, 0 | 4000..=4010 | 7 | 65535));
    assert_accepts_exactly(&Filter::except_ports(TYPE, []).unwrap(), |_| true);
    assert_accepts_exactly(&Filter::except_ports(TYPE, [0..=u16::MAX]).unwrap(), |_| {
        false
    });
}

#[test]
fn many_ports_are_searched_binarily() {
    let filter = Filter::for_ports(TYPE, (0..600u16).map(|n| n * 100..=n * 100 + n % 3)).unwrap();
    assert_accepts_exactly(&filter, |p| p / 100 < 600 && p % 100 <= (p / 100) % 3);
    let steps = (0..=u16::MAX)
        .map(|port| run(&filter, &Frame::to_port(port)).1)
        .max()
        .unwrap();
    assert!(steps <= 35, "{steps} instructions for one frame");
}

#[test]
fn program_size_is_bounded() {
    let ports = |count: u16| Filter::for_ports(TYPE, (0..count).map(|n| n * 40..=n * 40 + 1));
    let max = (1..1600)
        .take_while(|&count| ports(count).is_ok())
        .last()
        .unwrap();
    assert!(max >= 800, "{max} ranges fit");
    assert!(ports(max).unwrap().program.len() <= MAX_INSTRUCTIONS);
    let error = ports(max + 1).unwrap_err();
    assert_eq!(error.ranges, usize::from(max) + 1);
    assert!(error.instructions > MAX_INSTRUCTIONS);
}

#[test]
fn other_types_stations_and_vlans_are_rejected() {
    let filter = Filter::for_ports(TYPE, [7..=7]).unwrap();
    let with = |change: fn(&mut Frame)| {
        let mut frame = Frame::to_port(7);
        change(&mut frame);
        accepts(&filter, &frame)
    };
    assert!(with(|_| ()));
    assert!(!with(|f| f.bytes[13] = 0xb6), "another EtherType");
    // Frames for other stations, sent, looped back, and two kinds within the kernel.
    for kind in libc::PACKET_OTHERHOST..=7 {
        let frame = Frame {
            kind,
            ..Frame::to_port(7)
        };
        assert!(!accepts(&filter, &frame), "packet type {kind}");
    }
    assert!(with(|f| f.kind = libc::PACKET_BROADCAST));
    assert!(with(|f| f.kind = libc::PACKET_MULTICAST));
    assert!(!with(|f| f.tag = Some(5)), "of VLAN 5");
    assert!(with(|f| f.tag = Some(0x2000)), "only a priority");
}

#[test]
fn frames_truncated_before_the_port_are_rejected() {
    let filter = Filter::for_ports(TYPE, [7..=7]).unwrap();
    for len in 0..16 {
        let mut frame = Frame::to_port(7);
        frame.bytes.truncate(len);
        assert!(!accepts(&filter, &frame), "{len} bytes");
    }
}

#[test]
fn a_port_chooses_a_number() {
    // For a group, a frame starts after its EtherType.
    let number = |program: &Filter, port: u16| {
        run(
            program,
            &Frame {
                bytes: port.to_be_bytes().into(),
                kind: 0,
                tag: None,
            },
        )
        .0
    };
    assert_eq!(number(&choose(&[]).unwrap(), 7), 0);
    let ranges: Vec<_> = (0..500u16)
        .map(|n| (n * 100, n * 100 + n % 3, n + 1))
        .collect();
    let program = choose(&ranges).unwrap();
    assert_well_formed(&program);
    for port in 0..=u16::MAX {
        let (block, within) = (port / 100, port % 100);
        let wanted = if block < 500 && within <= block % 3 {
            u32::from(block) + 1
        } else {
            0
        };
        assert_eq!(number(&program, port), wanted, "port {port}");
    }
    assert_eq!(
        run(
            &program,
            &Frame {
                bytes: vec![1],
                kind: 0,
                tag: None
            }
        )
        .0,
        0,
        "cut off"
    );
    assert!(choose(&(0..3000).map(|n| (n * 2, n * 2, 1)).collect::<Vec<_>>()).is_err());
}
