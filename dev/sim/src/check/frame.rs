//! A second parser of the wire format, written from `docs/wire-format.md` alone: it shares no code
//! with the codec of esp-proto, so that a misreading there is detected here. It judges frames as a
//! *sender* must make them.

use esp_proto::MacAddr;

/// The sequence number is valid for opening.
pub const SYN: u8 = 0x01;
/// The ack sequence is valid.
pub const ACK: u8 = 0x02;
/// No more data.
pub const FIN: u8 = 0x04;
/// Ends the connection at once.
pub const RST: u8 = 0x08;
/// An extension block follows the payload.
pub const EXT: u8 = 0x10;
/// Probe.
pub const PRB: u8 = 0x20;
/// Data that requests an acknowledgement.
pub const ASK: u8 = 0x40;

/// The fields of a frame.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// EtherType.
    pub packet_type: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Source port.
    pub src_port: u16,
    /// Sequence.
    pub seq: u16,
    /// Ack sequence.
    pub ack: u16,
    /// Flags.
    pub flags: u8,
    /// Payload.
    pub payload: &'a [u8],
    /// Extension block with an unchecked head.
    pub ext: Option<ExtView<'a>>,
}

/// The fields of an extension block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtView<'a> {
    /// CREDIT.
    pub credit: Option<u16>,
    /// PROBED.
    pub probed: Option<u16>,
    /// CE: number of packets received with a congestion mark.
    pub ce: Option<u16>,
    /// SACK bitmap; empty if absent.
    pub sack: &'a [u8],
}

/// The fields of a set-up block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUpView<'a> {
    /// Largest payload.
    pub max_payload: u16,
    /// Incarnation of this side.
    pub nonce: u64,
    /// The nonce being answered.
    pub peer_nonce: u64,
    /// Packets that may be sent.
    pub credit: u16,
    /// Microseconds.
    pub max_ack_delay: u16,
    /// Feature ECN.
    pub ecn: bool,
    /// Job key.
    pub key: &'a [u8],
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn mac(bytes: &[u8], at: usize) -> MacAddr {
    MacAddr([
        bytes[at],
        bytes[at + 1],
        bytes[at + 2],
        bytes[at + 3],
        bytes[at + 4],
        bytes[at + 5],
    ])
}

/// EtherTypes and MTU of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// EtherType of ESP.
    pub esp: u16,
    /// EtherType of EDP.
    pub edp: u16,
    /// Bytes after the EtherType.
    pub mtu: u32,
}

impl<'a> View<'a> {
    /// Parses a frame and returns the first violation, if any.
    pub fn of(frame: &'a [u8], rules: &Rules) -> Result<View<'a>, String> {
        if frame.len() < 60 {
            return Err(format!("W-04: {} bytes, not padded to 60", frame.len()));
        }
        if frame.len() > rules.mtu as usize + 14 {
            return Err(format!("W-08: {} bytes at MTU {}", frame.len(), rules.mtu));
        }
        let (packet_type, len, flags) = (be16(frame, 12), usize::from(be16(frame, 22)), frame[24]);
        let Some(payload) = frame.get(25..25 + len) else {
            return Err(format!(
                "W-03: data length {len} in a frame of {} bytes",
                frame.len()
            ));
        };
        let mut view = View {
            dst: mac(frame, 0),
            src: mac(frame, 6),
            packet_type,
            dst_port: be16(frame, 14),
            src_port: be16(frame, 16),
            seq: be16(frame, 18),
            ack: be16(frame, 20),
            flags,
            payload,
            ext: None,
        };
        if view.src.0[0] & 1 != 0 {
            return Err("W-07: group address as source".into());
        }
        let rest = &frame[25 + len..];
        let used = match packet_type {
            esp if esp == rules.esp => view.check_esp(rest)?,
            edp if edp == rules.edp => view.check_edp()?,
            other => return Err(format!("W-01: packet type {other:04x}")),
        };
        let padding = &rest[used..];
        if padding.iter().any(|byte| *byte != 0) {
            return Err("W-04: padding that is not zero".into());
        }
        if !padding.is_empty() && frame.len() > 60 {
            return Err(format!(
                "W-04: {} bytes of padding beyond the least length",
                padding.len()
            ));
        }
        Ok(view)
    }

    fn check_esp(&mut self, rest: &'a [u8]) -> Result<usize, String> {
        let flags = self.flags;
        if flags & 0x80 != 0 {
            return Err(format!("W-05: reserved flag in {flags:02x}"));
        }
        let plain = flags & !EXT;
        let allowed = [
            SYN,
            SYN | ACK,
            SYN | PRB,
            ACK,
            ACK | ASK,
            ACK | FIN,
            ACK | PRB,
            RST,
            RST | ACK,
        ]
        .contains(&plain);
        let may_extend = flags & ACK != 0 && flags & (SYN | RST) == 0;
        if !allowed || (flags & EXT != 0 && !may_extend) {
            return Err(format!("W-11: flags {flags:02x}"));
        }
        if plain == ACK | ASK && self.payload.is_empty() {
            return Err("W-11: a bare acknowledgement that asks".into());
        }
        if plain == ACK | FIN && !self.payload.is_empty() {
            return Err("W-13: FIN with data".into());
        }
        if self.dst_port == 0 || self.src_port == 0 {
            return Err("W-15: port 0".into());
        }
        if self.dst.0[0] & 1 != 0 {
            return Err("W-07: ESP to a group address".into());
        }
        if plain == SYN | PRB {
            self.check_move()?;
        } else if flags & SYN != 0 {
            self.set_up()?;
        }
        if flags & RST != 0 && self.payload.len() < 10 {
            return Err("section 8: short reset block".into());
        }
        if flags & EXT == 0 {
            return Ok(0);
        }
        let (ext, used) = ext(rest).ok_or_else(|| {
            format!(
                "W-43: extension block {:02x?}",
                &rest[..rest.len().min(140)]
            )
        })?;
        self.ext = Some(ext);
        Ok(used)
    }

    /// Checks a MOVE (W-100 to W-106, W-131).
    fn check_move(&self) -> Result<(), String> {
        let p = self.payload;
        let sound = p.len() == 34
            && (1..=5).contains(&p[0])
            && p[1] <= 3
            && be16(p, 2) >= 64
            && p[4..8] != [0; 4]
            && be64(p, 8) != 0
            && be64(p, 16) != 0
            && be16(p, 32) <= 4096
            && self.ack == 0;
        if sound {
            Ok(())
        } else {
            Err(format!("W-101: move block {p:02x?}"))
        }
    }

    fn check_edp(&self) -> Result<usize, String> {
        if self.flags & !1 != 0 {
            return Err(format!("W-05: reserved flag in {:02x}", self.flags));
        }
        let group = self.dst.0[0] & 1 != 0;
        if self.flags & 1 == 0 {
            return if group {
                Err("W-72: data to a group".into())
            } else {
                Ok(0)
            };
        }
        match self.payload.first() {
            Some(1 | 3) => Ok(0),
            Some(2 | 4) if !group => Ok(0),
            Some(5) if !group && self.payload.len() == 3 => Ok(0),
            Some(6) if !group && self.payload.len() == 4 && self.payload[3] <= 1 => Ok(0),
            other => Err(format!("W-72, W-74: control type {other:?}, group {group}")),
        }
    }

    /// Returns the set-up block of a SYN or SYN+ACK.
    pub fn set_up(&self) -> Result<SetUpView<'a>, String> {
        let p = self.payload;
        if p.len() < 28 || p[0] != 1 {
            return Err(format!("section 3: set-up block {p:02x?}"));
        }
        let set_up = SetUpView {
            max_payload: be16(p, 2),
            nonce: be64(p, 8),
            peer_nonce: be64(p, 16),
            credit: be16(p, 24),
            max_ack_delay: be16(p, 26),
            ecn: p[7] & 2 != 0,
            key: p.get(28..28 + usize::from(p[1])).unwrap_or_default(),
        };
        let behind = &p[28 + set_up.key.len()..];
        // W-100: 1 to 8 addresses, if there are any.
        let rails = match (p[7] & !6, behind) {
            (0, []) => true,
            (1, [count, macs @ ..]) => {
                (1..=8).contains(count)
                    && macs.len() == 6 * usize::from(*count)
                    && macs.chunks(6).all(|mac| mac[0] & 1 == 0 && mac != [0; 6])
            }
            _ => false,
        };
        let answer = self.flags & ACK != 0;
        let sound = set_up.key.len() == usize::from(p[1])
            && set_up.key.len() <= 32
            && set_up.max_payload >= 64
            && p[4..7] == [0; 3]
            && rails
            && set_up.nonce != 0
            && (set_up.peer_nonce != 0) == answer;
        if sound {
            Ok(set_up)
        } else {
            Err(format!("section 3: set-up block {set_up:?}"))
        }
    }

    /// Returns true for a frame that uses a sequence number as data (W-12).
    pub fn is_data(&self) -> bool {
        self.flags & !(EXT | ASK) == ACK && !self.payload.is_empty()
    }

    /// Returns true for a FIN.
    pub fn is_fin(&self) -> bool {
        self.flags & FIN != 0
    }

    /// Returns one line for display.
    pub fn text(&self, edp: u16) -> String {
        if self.packet_type == edp {
            let kind = if self.flags & 1 == 0 {
                None
            } else {
                self.payload.first()
            };
            return format!(
                "EDP {}>{} seq={} len={} control={kind:?}",
                self.src_port,
                self.dst_port,
                self.seq,
                self.payload.len()
            );
        }
        let names = [
            (SYN, "SYN"),
            (ACK, "ACK"),
            (FIN, "FIN"),
            (RST, "RST"),
            (PRB, "PRB"),
            (ASK, "ASK"),
        ];
        let flags: Vec<&str> = names
            .iter()
            .filter(|(bit, _)| self.flags & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let mut line = format!(
            "ESP {}>{} {} seq={} ack={} len={}",
            self.src_port,
            self.dst_port,
            flags.join("+"),
            self.seq,
            self.ack,
            self.payload.len()
        );
        if let Some(ext) = &self.ext {
            if let Some(edge) = ext.credit {
                line += &format!(" credit={edge}");
            }
            if let Some(len) = ext.probed {
                line += &format!(" probed={len}");
            }
            if let Some(count) = ext.ce {
                line += &format!(" ce={count}");
            }
            if !ext.sack.is_empty() {
                line += &format!(" sack={:02x?}", ext.sack);
            }
        }
        if self.flags & SYN != 0
            && let Ok(set_up) = self.set_up()
        {
            line += &format!(
                " nonce={:x} peer={:x} credit={} max={}",
                set_up.nonce, set_up.peer_nonce, set_up.credit, set_up.max_payload
            );
        }
        if self.flags & RST != 0 {
            line += &format!(
                " reason={} nonce={:x}",
                self.payload[0],
                be64(self.payload, 2)
            );
        }
        line
    }
}

fn ext(bytes: &[u8]) -> Option<(ExtView<'_>, usize)> {
    let len = usize::from(*bytes.first()?);
    if !(2..=136).contains(&len) || bytes.len() < len || bytes[1] & !15 != 0 {
        return None;
    }
    let (fields, mut at) = (bytes[1], 2);
    let mut view = ExtView::default();
    let numbers = [
        (1, &mut view.credit),
        (2, &mut view.probed),
        (8, &mut view.ce),
    ];
    for (bit, slot) in numbers {
        if fields & bit != 0 {
            *slot = Some(be16(bytes.get(at..at + 2).filter(|_| at + 2 <= len)?, 0));
            at += 2;
        }
    }
    if fields & 4 != 0 {
        view.sack = bytes
            .get(at..len)
            .filter(|sack| (1..=128).contains(&sack.len()))?;
        at = len;
    }
    (at == len).then_some((view, len))
}

/// Builder of an ESP frame, for tests that forge frames.
#[derive(Clone, Debug)]
pub struct Forge {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// EtherType.
    pub packet_type: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Source port.
    pub src_port: u16,
    /// Sequence.
    pub seq: u16,
    /// Ack sequence.
    pub ack: u16,
    /// Flags.
    pub flags: u8,
    /// Payload.
    pub payload: Vec<u8>,
    /// Bytes after the payload.
    pub tail: Vec<u8>,
}

impl Forge {
    /// Creates a frame of the default EtherType with only its flags set.
    pub fn new(src: MacAddr, src_port: u16, dst: MacAddr, dst_port: u16, flags: u8) -> Self {
        let (payload, tail) = (Vec::new(), Vec::new());
        Forge {
            dst,
            src,
            packet_type: 0x88b5,
            dst_port,
            src_port,
            seq: 0,
            ack: 0,
            flags,
            payload,
            tail,
        }
    }

    /// Adds a set-up block.
    #[must_use]
    pub fn with_set_up(mut self, nonce: u64, peer_nonce: u64, credit: u16) -> Self {
        self.payload = vec![1, 0, 0x05, 0xd1, 0, 0, 0, 0];
        self.payload.extend(nonce.to_be_bytes());
        self.payload.extend(peer_nonce.to_be_bytes());
        self.payload.extend(credit.to_be_bytes());
        self.payload.extend(200u16.to_be_bytes());
        self
    }

    /// Adds a reset block.
    #[must_use]
    pub fn with_reset(mut self, reason: u8, nonce: u64) -> Self {
        self.payload = vec![reason, 0];
        self.payload.extend(nonce.to_be_bytes());
        self
    }

    /// Returns the padded frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(60);
        out.extend(self.dst.0);
        out.extend(self.src.0);
        let len = self.payload.len() as u16;
        for field in [
            self.packet_type,
            self.dst_port,
            self.src_port,
            self.seq,
            self.ack,
            len,
        ] {
            out.extend(field.to_be_bytes());
        }
        out.push(self.flags);
        out.extend(&self.payload);
        out.extend(&self.tail);
        out.resize(out.len().max(60), 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::mac_of;

    const RULES: Rules = Rules {
        esp: 0x88b5,
        edp: 0x88b6,
        mtu: 1500,
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
}
