//! A second parser of the wire format, written from `docs/wire-format.md` alone: it shares no code
//! with the codec of esp-proto, so that a misreading there is detected here. It judges frames as a
//! *sender* must make them.

mod forge;
mod text;

pub use forge::Forge;

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
/// Feature MOVES.
pub const MOVES: u8 = 1;
/// Feature ECN.
pub const ECN: u8 = 2;
/// Feature RESUME.
pub const RESUME: u8 = 4;
/// Feature COOKIES.
pub const COOKIES: u8 = 8;
/// Step of a MOVE: the sender moves.
pub const GO: u8 = 3;
/// Step of a MOVE: the sender has followed.
pub const DONE: u8 = 4;

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
    /// Maximum payload.
    pub max_payload: u16,
    /// Incarnation of this side.
    pub nonce: u64,
    /// The nonce being answered.
    pub peer_nonce: u64,
    /// Packets that may be sent.
    pub credit: u16,
    /// Microseconds.
    pub max_ack_delay: u16,
    /// Features offered.
    pub features: u8,
    /// Job key.
    pub key: &'a [u8],
}

/// The fields of a move block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveView {
    /// Step.
    pub step: u8,
    /// The peer's FIN was received.
    pub fin_received: bool,
    /// The sender has lost its state.
    pub resumed: bool,
    /// Maximum payload of the sending interface.
    pub max_payload: u16,
    /// Number of the move.
    pub epoch: u32,
    /// The receiver's nonce.
    pub receiver: u64,
    /// The sender's nonce.
    pub sender: u64,
    /// Packets that may be sent.
    pub credit: u16,
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
    /// The frames stand for UDP datagrams.
    pub is_udp: bool,
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
        let is_info_request = packet_type == rules.edp && view.flags == 1 && view.payload == [3];
        let least = if is_info_request && rules.is_udp {
            12 + 128 // W-123
        } else {
            60
        };
        if frame.len() < least {
            return Err(format!("W-123: an INFO_REQUEST of {} bytes", frame.len()));
        }
        let padding = &rest[used..];
        if padding.iter().any(|byte| *byte != 0) {
            return Err("W-04: padding that is not zero".into());
        }
        if !padding.is_empty() && frame.len() > least {
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
        if self.is_retry() && self.payload.len() != 18 {
            return Err("W-150: RETRY without a cookie".into());
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
            // The type byte, and a body of at most 64 bytes.
            Some(1) if group && self.payload.len() > 65 => {
                Err("W-78: a long echo request to a group".into())
            }
            Some(1 | 3) => Ok(0),
            Some(2 | 4) if !group => Ok(0),
            Some(5) if !group && self.payload.len() == 3 => Ok(0),
            Some(6) if !group && self.payload.len() == 4 && self.payload[3] <= 1 => Ok(0),
            other => Err(format!("W-72, W-74: control type {other:?}, group {group}")),
        }
    }

    /// Returns true for a RST that asks for a SYN with a cookie (W-150).
    pub fn is_retry(&self) -> bool {
        self.flags & RST != 0 && self.payload.first() == Some(&11)
    }

    /// Returns the nonce in a RST.
    pub fn reset_nonce(&self) -> u64 {
        self.payload.get(2..10).map_or(0, |bytes| be64(bytes, 0))
    }

    /// Returns the block of a MOVE.
    pub fn move_block(&self) -> Option<MoveView> {
        let block = self.payload.get(..34)?;
        Some(MoveView {
            step: block[0],
            fin_received: block[1] & 1 != 0,
            resumed: block[1] & 2 != 0,
            max_payload: be16(block, 2),
            epoch: u32::from(be16(block, 4)) << 16 | u32::from(be16(block, 6)),
            receiver: be64(block, 8),
            sender: be64(block, 16),
            credit: be16(block, 32),
        })
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
            features: p[7],
            key: p.get(28..28 + usize::from(p[1])).unwrap_or_default(),
        };
        let after_key = &p[28 + set_up.key.len()..];
        // W-100: 1 to 8 addresses, if there are any.
        let rails = match (p[7] & !(ECN | RESUME | COOKIES), after_key) {
            (0, []) => true,
            (MOVES, [count, macs @ ..]) => {
                (1..=8).contains(count)
                    && macs.len() == 6 * usize::from(*count)
                    && macs.chunks(6).all(|mac| mac[0] & 1 == 0 && mac != [0; 6])
            }
            _ => false,
        };
        let answer = self.flags & ACK != 0;
        let cookies = p[7] & COOKIES != 0; // W-150: in a SYN only, whose peer nonce may be a cookie
        let sound = set_up.key.len() == usize::from(p[1])
            && set_up.key.len() <= 32
            && set_up.max_payload >= 64
            && p[4..7] == [0; 3]
            && rails
            && set_up.nonce != 0
            && !(answer && cookies)
            && (cookies || (set_up.peer_nonce != 0) == answer);
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

#[cfg(test)]
mod tests;
