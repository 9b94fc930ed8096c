//! Tests of the judgement: sound frames pass, and each fault is named by its rule.

use super::*;
use crate::net::mac_of;

const RULES: Rules = Rules {
    esp: 0x88b5,
    edp: 0x88b6,
    mtu: 1500,
    is_udp: false,
};

fn forge(flags: u8) -> Forge {
    Forge {
        seq: 7,
        ack: 9,
        ..Forge::new(mac_of(0), 1000, mac_of(1), 2000, flags)
    }
}

fn judge(frame: &[u8]) -> Result<(), String> {
    View::of(frame, &RULES).map(|_| ())
}

#[test]
fn sound_frames_pass_and_show_their_fields() {
    let bytes = Forge {
        payload: vec![1, 2, 3],
        ..forge(ACK | EXT)
    };
    let bytes = Forge {
        tail: vec![9, 13, 0x12, 0x34, 0x00, 0x05, 0x01, 0x00, 0x80],
        ..bytes
    }
    .bytes();
    let view = View::of(&bytes, &RULES).expect("sound");
    assert_eq!((view.seq, view.ack, view.payload), (7, 9, &[1u8, 2, 3][..]));
    let ext = view.ext.expect("extension");
    assert_eq!(
        (ext.credit, ext.probed, ext.ce, ext.sack),
        (Some(0x1234), None, Some(5), &[1u8, 0, 0x80][..])
    );
    assert_eq!(
        view.text(0x88b6),
        "ESP 1000>2000 ACK seq=7 ack=9 len=3 credit=4660 ce=5 sack=[01, 00, 80]"
    );
    assert!(judge(&forge(SYN).with_set_up(5, 0, 10).bytes()).is_ok());
    assert!(judge(&forge(SYN | ACK).with_set_up(5, 6, 10).bytes()).is_ok());
    assert!(judge(&forge(RST).with_reset(9, 0).bytes()).is_ok());
}

#[test]
fn echo_requests_to_all_are_short() {
    let echo = |dst: MacAddr, len: usize| {
        let mut payload = vec![0; 1 + len];
        payload[0] = 1;
        let frame = Forge {
            packet_type: RULES.edp,
            seq: 7,
            payload,
            ..Forge::new(mac_of(0), 1000, dst, 0, 1)
        };
        judge(&frame.bytes())
    };
    assert_eq!(echo(MacAddr::BROADCAST, 64), Ok(()));
    let text = echo(MacAddr::BROADCAST, 65).expect_err("65 bytes");
    assert!(text.starts_with("W-78"), "{text}");
    assert_eq!(echo(mac_of(1), 65), Ok(()));
}

#[test]
fn each_fault_is_named() {
    let fault = |frame: Vec<u8>, rule: &str| {
        let text = judge(&frame).expect_err(rule);
        assert!(text.starts_with(rule), "{text} is not {rule}");
    };
    fault(forge(ACK).bytes()[..59].to_vec(), "W-04");
    fault([forge(ACK).bytes(), vec![0]].concat(), "W-04");
    let mut dirty = forge(ACK).bytes();
    dirty[59] = 1;
    fault(dirty, "W-04");
    let mut long = forge(ACK).bytes();
    long[22] = 1;
    fault(long, "W-03");
    fault(
        Forge {
            payload: vec![0; 1490],
            ..forge(ACK)
        }
        .bytes(),
        "W-08",
    );
    fault(forge(ACK | 0x80).bytes(), "W-05");
    for flags in [
        0,
        FIN,
        PRB,
        ACK | ASK,
        SYN | ASK,
        ACK | FIN | ASK,
        ASK,
        SYN | FIN,
        SYN | ACK | EXT,
        RST | ACK | EXT,
        ACK | FIN | PRB,
        EXT,
        SYN | RST,
    ] {
        fault(forge(flags).bytes(), "W-11");
    }
    fault(
        Forge {
            payload: vec![1],
            ..forge(ACK | FIN)
        }
        .bytes(),
        "W-13",
    );
    fault(
        Forge {
            src_port: 0,
            ..forge(ACK)
        }
        .bytes(),
        "W-15",
    );
    fault(
        Forge {
            packet_type: 0x0800,
            ..forge(ACK)
        }
        .bytes(),
        "W-01",
    );
    fault(forge(SYN).with_set_up(0, 0, 10).bytes(), "section 3");
    fault(forge(SYN).with_set_up(1, 2, 10).bytes(), "section 3");
    fault(
        Forge {
            payload: vec![1; 9],
            ..forge(RST)
        }
        .bytes(),
        "section 8",
    );
    for tail in [
        vec![],
        vec![1, 0],
        vec![4, 0, 0, 0],
        vec![3, 1, 0],
        vec![2, 4],
        vec![2, 8],
        vec![3, 8, 0],
        vec![2, 16],
    ] {
        fault(
            Forge {
                tail,
                ..forge(ACK | EXT)
            }
            .bytes(),
            "W-43",
        );
    }
}

#[test]
fn info_requests_are_padded_over_udp_alone() {
    let udp = Rules {
        is_udp: true,
        ..RULES
    };
    let request = |padded: usize| {
        let mut bytes = Forge {
            packet_type: 0x88b6,
            payload: vec![3],
            ..forge(1)
        }
        .bytes();
        bytes.resize(padded, 0);
        bytes
    };
    assert!(View::of(&request(140), &udp).is_ok());
    let text = View::of(&request(139), &udp).expect_err("139 bytes");
    assert!(text.starts_with("W-123"), "{text}");
    assert!(View::of(&request(141), &udp).is_err());
    assert!(judge(&request(60)).is_ok());
    assert!(judge(&request(140)).is_err());
}
