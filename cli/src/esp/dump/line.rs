//! Formats a packet as one line, in the style of tcpdump(8).

use std::fmt::{self, Display, Write};
use std::time::Duration;

use esp_client::{EdpKind, NodeAddr};
use esp_proto::ResetReason;
use esp_proto::secure::{self, FLAG_SEC, Protected, Suite};
use esp_proto::wire::{
    EdpFrame, EspFrame, Ext, FEATURE_ECN, FEATURE_MOVES, FLAG_ACK, FLAG_ASK, FLAG_FIN, FLAG_PRB,
    FLAG_RST, FLAG_SYN, FrameType, HEADER_LEN, Header, InfoReply, Move, Reset, Retry, SetUp, Step,
};

use super::decode::{Content, Link, Packet, Problem, Protocol, explain};
use super::streams::Relative;
use crate::names::Names;

/// Maximum number of ranges shown of a selective acknowledgement.
const MAX_RANGES: usize = 4;

/// Format of the lines.
#[derive(Debug)]
pub(super) struct Style {
    pub(super) names: Names,
    pub(super) ethernet: bool,
    pub(super) verbose: bool,
    /// 0: time of day, 1: none, 2: seconds since 1970, otherwise: seconds since the previous
    /// packet.
    pub(super) times: u8,
}

impl Style {
    /// Returns the beginning of a line: the time, given as a duration since 1970.
    pub(super) fn time(&self, time: Duration, before: Option<Duration>) -> String {
        let since = |time: Duration| format!("{}.{:06} ", time.as_secs(), time.subsec_micros());
        match self.times {
            0 => {
                let day = time.as_secs() % 86_400;
                let (hour, minute, second) = (day / 3600, day / 60 % 60, day % 60);
                let micros = time.subsec_micros();
                format!("{hour:02}:{minute:02}:{second:02}.{micros:06} ")
            }
            1 => String::new(),
            2 => since(time),
            _ => since(before.map_or(Duration::ZERO, |before| time.saturating_sub(before))),
        }
    }

    /// Returns the line of a packet, without the time. `len` is the frame's length.
    pub(super) fn packet(
        &self,
        link: &Link,
        len: usize,
        packet: &Packet<'_>,
        numbers: Relative,
    ) -> String {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut line, link, len, packet, numbers);
        line
    }

    fn write(
        &self,
        line: &mut String,
        link: &Link,
        len: usize,
        packet: &Packet<'_>,
        numbers: Relative,
    ) -> fmt::Result {
        if self.ethernet {
            write!(line, "{} > {}, ", link.src, link.dst)?;
            if let Some(vlan) = link.vlan {
                write!(line, "vlan {vlan}, ")?;
            }
            write!(line, "ethertype 0x{:04x}, length {len}: ", link.ethertype)?;
        }
        line.push_str(match packet.protocol {
            Protocol::Esp => "ESP ",
            Protocol::Edp => "EDP ",
        });
        let Some(header) = &packet.header else {
            write!(
                line,
                "{} > {}: ",
                self.node(packet.src),
                self.node(packet.dst)
            )?;
            return problem(line, &packet.content);
        };
        self.end(line, packet.src, header.src_port)?;
        line.push_str(" > ");
        self.end(line, packet.dst, header.dst_port)?;
        line.push_str(": ");
        match &packet.content {
            Ok(Content::Protected(what)) => {
                if packet.protocol == Protocol::Esp {
                    write!(line, "Flags [{}], ", flags(header.flags & !FLAG_SEC))?;
                }
                protected(line, what)?;
                write!(line, ", length {}", header.len)?;
                if self.verbose {
                    numbers_of(line, header)?;
                    line.push(')');
                }
                Ok(())
            }
            Ok(content) => {
                match content.stream() {
                    Some(frame) => self.stream(line, header, frame, content, numbers)?,
                    None => datagram(line, header, content)?,
                }
                write!(line, ", length {}", header.len)?;
                if self.verbose {
                    details(line, packet, header, content)?;
                }
                Ok(())
            }
            problem_of => {
                if packet.protocol == Protocol::Esp {
                    write!(line, "Flags [{}], ", flags(header.flags))?;
                }
                problem(line, problem_of)?;
                write!(line, ", length {}", header.len)
            }
        }
    }

    fn node(&self, addr: NodeAddr) -> String {
        match self.names.of(addr) {
            Some(name) => name.escape_debug().to_string(),
            None => addr.to_string(),
        }
    }

    fn end(&self, line: &mut String, addr: NodeAddr, port: u16) -> fmt::Result {
        write!(line, "{}.{port}", self.node(addr))
    }

    fn stream(
        &self,
        line: &mut String,
        header: &Header,
        frame: &EspFrame<'_>,
        content: &Content<'_>,
        numbers: Relative,
    ) -> fmt::Result {
        write!(line, "Flags [{}]", flags(header.flags))?;
        // A bare acknowledgement, a reset and a move have no number of their own.
        let numbered = !matches!(
            frame.kind,
            FrameType::Ack | FrameType::Rst | FrameType::Move
        );
        if numbered {
            write!(line, ", seq {}", numbers.seq)?;
        }
        if header.flags & FLAG_ACK != 0 && frame.kind != FrameType::Rst {
            write!(line, ", ack {}", numbers.ack)?;
        }
        match content {
            Content::SetUp(_, block) => {
                write!(line, ", credit {}, max {}", block.credit, block.max_payload)?;
            }
            Content::Reset(_, reset) => write!(line, ", reset {}", reason(reset))?,
            Content::Move(_, block) => {
                write!(line, ", move {} epoch {}", step(block), block.epoch)?;
            }
            _ => {}
        }
        match &frame.ext {
            Some(ext) => extension(line, frame, ext, numbers),
            None => Ok(()),
        }
    }
}

/// Returns the letters of ESP flags.
fn flags(flags: u8) -> String {
    let letters = [
        (FLAG_SYN, 'S'),
        (FLAG_FIN, 'F'),
        (FLAG_RST, 'R'),
        (FLAG_PRB, 'P'),
        (FLAG_ASK, 'A'),
        (0x80, '?'),
        (FLAG_ACK, '.'),
    ];
    let set = letters.iter().filter(|(flag, _)| flags & flag != 0);
    let text: String = set.map(|(_, letter)| letter).collect();
    if text.is_empty() { "none".into() } else { text }
}

/// Writes the fields of a protected packet that are readable without a key.
fn protected(line: &mut String, what: &Protected) -> fmt::Result {
    match *what {
        Protected::SetUp { step, suite, key } => {
            let step = match step {
                secure::Step::Hello => "HELLO",
                secure::Step::Accept => "ACCEPT",
            };
            let mode = match suite.contains(Suite::ENCRYPT) {
                true => "encrypt",
                false => "integrity",
            };
            let cipher = match suite.cipher() {
                secure::Cipher::Aes128Gcm => "AES-128-GCM",
                secure::Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
                secure::Cipher::Crc32c => {
                    return write!(line, "set-up {step}, checksum by CRC-32C");
                }
            };
            write!(line, "set-up {step}, {mode} by {cipher}, key {}", name(key))
        }
        Protected::Broadcast { counter, key } => {
            write!(line, "protected broadcast {counter}, key {}", name(key))
        }
        Protected::Packet { session, counter } => {
            write!(
                line,
                "protected, session {session:#010x}, counter {counter}"
            )
        }
    }
}

/// Returns a key's name in hexadecimal digits.
fn name(secure::KeyId(id): secure::KeyId) -> String {
    format!("{:08x}", u32::from_be_bytes(id))
}

/// Appends the fields of the header that the line does not contain yet, without the closing
/// bracket.
fn numbers_of(line: &mut String, header: &Header) -> fmt::Result {
    write!(
        line,
        " (type 0x{:04x}, raw seq {}, raw ack {}, flags 0x{:02x}",
        header.packet_type, header.seq, header.ack, header.flags
    )
}

fn problem<T>(line: &mut String, content: &Result<T, Problem>) -> fmt::Result {
    match content {
        Err(Problem::Malformed(error)) => write!(line, "[malformed: {}]", explain(*error)),
        Err(Problem::Cut) => write!(line, "[cut off by the capture]"),
        Ok(_) => Ok(()),
    }
}

fn extension(
    line: &mut String,
    frame: &EspFrame<'_>,
    ext: &Ext<'_>,
    numbers: Relative,
) -> fmt::Result {
    if let Some(edge) = ext.credit {
        // Interpreted as signed: a forged edge may be below the acknowledged number.
        write!(line, ", credit {}", edge.ahead_of(frame.ack) as i16)?;
    }
    if let Some(probed) = ext.probed {
        write!(line, ", probed {probed}")?;
    }
    if let Some(marks) = ext.ce {
        write!(line, ", marks {marks}")?;
    }
    if !ext.sack.is_empty() {
        write!(line, ", sack {{{}}}", ranges(ext.sack, numbers.ack))?;
    }
    Ok(())
}

/// Formats the ranges of a bitmap: bit `k` of byte `j` is number `ack + 1 + 8j + k` (W-42).
fn ranges(bitmap: &[u8], ack: i64) -> String {
    let bits = bitmap
        .iter()
        .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
    let mut found: Vec<(i64, i64)> = Vec::new();
    for (number, _) in (ack + 1..).zip(bits).filter(|(_, set)| *set) {
        match found.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => found.push((number, number)),
        }
    }
    let shown = found
        .iter()
        .take(MAX_RANGES)
        .map(|(from, to)| match to - from {
            0 => from.to_string(),
            _ => format!("{from}-{to}"),
        });
    let mut text = shown.collect::<Vec<_>>().join(",");
    if found.len() > MAX_RANGES {
        let _ = write!(text, ",… ({} ranges)", found.len());
    }
    text
}

fn reason(reset: &Reset) -> String {
    match reset.reason {
        ResetReason::Refused => "REFUSED".into(),
        ResetReason::Version(spoken) => format!("VERSION {spoken}"),
        ResetReason::BadKey => "BAD_KEY".into(),
        ResetReason::Aborted => "ABORTED".into(),
        ResetReason::ProgramDied => "PROGRAM_DIED".into(),
        ResetReason::Resources => "RESOURCES".into(),
        ResetReason::Protocol => "PROTOCOL".into(),
        ResetReason::TimedOut => "TIMED_OUT".into(),
        ResetReason::Unknown => "UNKNOWN".into(),
        ResetReason::Shutdown => "SHUTDOWN".into(),
        // W-150: a request to repeat the SYN, not an end.
        ResetReason::Other(Retry::REASON) => "RETRY".into(),
        ResetReason::Other(code) => code.to_string(),
    }
}

fn step(block: &Move) -> &'static str {
    match block.step {
        Step::Ask => "ASK",
        Step::Answer => "ANSWER",
        Step::Go => "GO",
        Step::Done => "DONE",
        Step::Gone => "GONE",
    }
}

fn datagram(line: &mut String, header: &Header, content: &Content<'_>) -> fmt::Result {
    let number = header.seq;
    match content {
        Content::Info(info) => {
            let name = info.name.escape_debug();
            write!(
                line,
                "info reply {number}, name \"{name}\", max {}",
                info.max_payload
            )
        }
        Content::Datagram(frame) => match frame.kind {
            EdpKind::Data => write!(line, "datagram {number}"),
            EdpKind::EchoRequest => write!(line, "echo request {number}"),
            EdpKind::EchoReply => write!(line, "echo reply {number}"),
            EdpKind::InfoRequest => write!(line, "info request {number}"),
            EdpKind::InfoReply => write!(line, "info reply {number}"),
            EdpKind::PortQuery => write!(line, "port query {number}, port {}", asked(frame)),
            EdpKind::PortReply => {
                let state: &dyn Display = match frame.body.get(2) {
                    Some(0) => &"free",
                    Some(1) => &"held",
                    Some(other) => other,
                    None => &"?",
                };
                write!(line, "port reply {number}, port {} {state}", asked(frame))
            }
        },
        _ => Ok(()),
    }
}

/// Returns the port of a query or reply.
fn asked(frame: &EdpFrame<'_>) -> u16 {
    frame
        .body
        .first_chunk()
        .map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// Appends all other fields, for `-v`.
fn details(
    line: &mut String,
    packet: &Packet<'_>,
    header: &Header,
    content: &Content<'_>,
) -> fmt::Result {
    let ext = content.stream().and_then(|frame| frame.ext);
    let ext_len = ext.map_or(0, |_| {
        let at = HEADER_LEN + usize::from(header.len);
        packet.bytes.get(at).copied().map_or(0, usize::from)
    });
    let used = HEADER_LEN + usize::from(header.len) + ext_len;
    let padding = packet.bytes.len().saturating_sub(used);
    numbers_of(line, header)?;
    match content {
        Content::SetUp(_, block) => set_up(line, block)?,
        Content::Reset(_, reset) => write!(line, ", nonce {:#018x}", reset.nonce)?,
        Content::Move(_, block) => write!(
            line,
            ", max {}, receiver's nonce {:#018x}, sender's nonce {:#018x}, received {} bytes{}, \
             credit {}",
            block.max_payload,
            block.nonce,
            block.sender_nonce,
            block.received,
            if block.finished { " and FIN" } else { "" },
            block.credit
        )?,
        Content::Info(InfoReply {
            version,
            features,
            incarnation,
            ..
        }) => write!(
            line,
            ", version {version}, features {features:#x}, incarnation {incarnation:#x}"
        )?,
        Content::Stream(_) | Content::Datagram(_) | Content::Protected(_) => {}
    }
    if let Some(edge) = ext.and_then(|ext| ext.credit) {
        write!(line, ", raw credit edge {edge}")?;
    }
    write!(line, ", extension {ext_len}, padding {padding})")
}

fn set_up(line: &mut String, block: &SetUp<'_>) -> fmt::Result {
    let feature = |bit, name| if block.features & bit != 0 { name } else { "" };
    write!(
        line,
        ", nonce {:#018x}, peer nonce {:#018x}, features {:#x}{}{}, ack delay {} µs, key {} bytes",
        block.nonce,
        block.peer_nonce,
        block.features,
        feature(FEATURE_MOVES, " MOVES"),
        feature(FEATURE_ECN, " ECN"),
        block.max_ack_delay,
        block.key.len()
    )?;
    for address in block.rails.as_chunks::<6>().0 {
        write!(line, ", also {}", esp_client::MacAddr(*address))?;
    }
    Ok(())
}

/// Returns lines of hexadecimal numbers, 16 bytes per line.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, row) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "\n\t0x{:04x}: ", 16 * at);
        for pair in row.chunks(2) {
            text.push(' ');
            for byte in pair {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
    text
}
