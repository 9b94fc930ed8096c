//! Classic BPF programs by which the kernel selects the frames of a socket.
//!
//! A program examines a frame as it is on the wire: the EtherType at byte 12 and the 16-bit
//! destination port, which both protocols of this project have at byte 14. Port sets are searched
//! binarily, so a thousand ports cost ten comparisons.

use std::ops::RangeInclusive;

use socket2::SockFilter;

/// Maximum number of instructions of a program (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

const ETHERTYPE_OFFSET: u32 = 12;
const PORT_OFFSET: u32 = 14;

const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// Loads the half-word at an offset plus the length of the IPv4 header, which
/// [`LOAD_IP_HEADER_LEN`] has loaded.
const LOAD_HALF_INDEXED: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const LOAD_IP_HEADER_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// First offset that addresses kernel metadata instead of bytes of the frame.
const KERNEL: u32 = libc::SKF_AD_OFF as u32;
const VLAN_TAG: u32 = KERNEL + libc::SKF_AD_VLAN_TAG as u32;
const VLAN_PRESENT: u32 = KERNEL + libc::SKF_AD_VLAN_TAG_PRESENT as u32;
const INTERFACE: u32 = KERNEL + libc::SKF_AD_IFINDEX as u32;
const PACKET_KIND: u32 = KERNEL + libc::SKF_AD_PKTTYPE as u32;
const VLAN_ID_MASK: u32 = 0x0fff;

/// Keeps all bytes of the frame.
const ACCEPT: Instruction = step(RETURN, u32::MAX);
const REJECT: Instruction = step(RETURN, 0);

/// One instruction; `struct sock_filter` of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    /// Instructions to skip when a comparison holds.
    if_true: u8,
    /// Instructions to skip when it does not.
    if_false: u8,
    /// Constant, offset or distance.
    operand: u32,
}

const fn step(code: u16, operand: u32) -> Instruction {
    branch(code, operand, 0, 0)
}

const fn branch(code: u16, operand: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code,
        if_true,
        if_false,
        operand,
    }
}

/// The ports need a longer program than the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a filter for {ranges} separate port ranges needs {instructions} instructions; the kernel \
     allows {MAX_INSTRUCTIONS}"
)]
pub struct FilterTooLong {
    /// Number of ranges after merging neighbours.
    pub ranges: usize,
    /// Number of instructions that the program would have.
    pub instructions: usize,
}

/// A complete program. Frames too short for the bytes it examines are rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    program: Vec<Instruction>,
}

impl Filter {
    /// Accepts received frames of an EtherType, untagged or priority-tagged, that are for this
    /// station or a group it belongs to.
    pub fn for_ethertype(ethertype: u16) -> Filter {
        let mut program = preamble(ethertype);
        program.push(ACCEPT);
        Filter { program }
    }

    /// Accepts frames of [`for_ethertype`](Filter::for_ethertype) to a destination port in one of
    /// the ranges. Ranges may overlap, touch, be empty, and come in any order. Without ranges,
    /// every frame is rejected.
    ///
    /// # Errors
    /// [`FilterTooLong`] above about 800 separate ranges.
    pub fn for_ports(
        ethertype: u16,
        ports: impl IntoIterator<Item = RangeInclusive<u16>>,
    ) -> Result<Filter, FilterTooLong> {
        let ranges = merge(ports.into_iter().collect());
        let mut program = preamble(ethertype);
        match ranges.as_slice() {
            [] => program.push(REJECT),
            [(0, u16::MAX)] => program.push(ACCEPT),
            ranges => {
                program.push(step(LOAD_HALF, PORT_OFFSET));
                let whole = |&(low, high)| (low, high, u32::MAX);
                program.extend(search(&ranges.iter().map(whole).collect::<Vec<_>>()));
            }
        }
        checked(program, ranges.len())
    }

    /// Accepts frames of these EtherTypes in any direction, and UDP datagrams over IPv4 and IPv6
    /// whose payload begins with one of the types. Fragments and IPv6 extension headers are not
    /// parsed. For a [`CaptureSocket`](crate::CaptureSocket).
    pub fn for_capture(types: [u16; 2]) -> Filter {
        let program = vec![
            step(LOAD_HALF, ETHERTYPE_OFFSET),
            branch(IF_EQUAL, types[0].into(), 18, 0),
            branch(IF_EQUAL, types[1].into(), 17, 0),
            branch(IF_EQUAL, libc::ETH_P_IP as u32, 2, 0),
            branch(IF_EQUAL, libc::ETH_P_IPV6 as u32, 9, 0),
            REJECT,
            // IPv4: protocol, fragment offset, length of the header.
            step(LOAD_BYTE, 23),
            branch(IF_EQUAL, libc::IPPROTO_UDP as u32, 0, 11),
            step(LOAD_HALF, 20),
            branch(IF_ANY_BIT, 0x1fff, 9, 0),
            step(LOAD_IP_HEADER_LEN, 14),
            step(LOAD_HALF_INDEXED, 14 + 8),
            branch(IF_EQUAL, types[0].into(), 7, 0),
            branch(IF_EQUAL, types[1].into(), 6, 5),
            // IPv6: next header, and the bytes after the UDP header.
            step(LOAD_BYTE, 20),
            branch(IF_EQUAL, libc::IPPROTO_UDP as u32, 0, 3),
            step(LOAD_HALF, 14 + 40 + 8),
            branch(IF_EQUAL, types[0].into(), 2, 0),
            branch(IF_EQUAL, types[1].into(), 1, 0),
            REJECT,
            ACCEPT,
        ];
        Filter { program }
    }

    /// Rejects every frame.
    pub fn nothing() -> Filter {
        Filter {
            program: vec![REJECT],
        }
    }

    /// Accepts frames of [`for_ethertype`](Filter::for_ethertype) to a destination port in none of
    /// the ranges: the rest for the node when some ports have sockets of their own.
    ///
    /// # Errors
    /// As for [`for_ports`](Filter::for_ports).
    pub fn except_ports(
        ethertype: u16,
        ports: impl IntoIterator<Item = RangeInclusive<u16>>,
    ) -> Result<Filter, FilterTooLong> {
        let mut gaps = Vec::new();
        let mut next = Some(0u16);
        for (low, high) in merge(ports.into_iter().collect()) {
            if let Some(from) = next
                && from < low
            {
                gaps.push(from..=low - 1);
            }
            next = high.checked_add(1);
        }
        gaps.extend(next.map(|from| from..=u16::MAX));
        Filter::for_ports(ethertype, gaps)
    }

    /// Restricts the program to frames with these two bytes (big endian) at `offset` from the
    /// destination address.
    #[must_use]
    pub fn with_half(self, offset: u32, value: u16) -> Filter {
        self.restricted(step(LOAD_HALF, offset), value.into())
    }

    /// Restricts the program to frames received on this interface: a holder of the socket could
    /// bind it to another one.
    #[must_use]
    pub fn on_interface(self, index: u32) -> Filter {
        self.restricted(step(LOAD_WORD, INTERFACE), index)
    }

    fn restricted(mut self, load: Instruction, value: u32) -> Filter {
        // Inserted after the preamble, whose jumps stay within it.
        let check = [load, branch(IF_EQUAL, value, 1, 0), REJECT];
        self.program.splice(PREAMBLE..PREAMBLE, check);
        self
    }

    pub(crate) fn kernel_program(&self) -> Vec<SockFilter> {
        self.program
            .iter()
            .map(|i| SockFilter::new(i.code, i.if_true, i.if_false, i.operand))
            .collect()
    }
}

/// Returns the instructions that reject other EtherTypes, frames not for this station, and frames
/// of a VLAN, which belong to the VLAN's interface (W-09). Without such an interface, the kernel
/// delivers them without the tag to a socket of this EtherType, marked as for another station.
///
/// Not for this station are the packet types above `PACKET_MULTICAST`: frames for other stations,
/// which a promiscuous interface receives, and those that this machine sends, which a socket bound
/// to `ETH_P_ALL` sees as well.
fn preamble(ethertype: u16) -> Vec<Instruction> {
    vec![
        step(LOAD_HALF, ETHERTYPE_OFFSET),
        branch(IF_EQUAL, u32::from(ethertype), 1, 0),
        REJECT,
        step(LOAD_BYTE, PACKET_KIND),
        branch(IF_ABOVE, u32::from(libc::PACKET_MULTICAST), 0, 1),
        REJECT,
        step(LOAD_WORD, VLAN_PRESENT),
        branch(IF_EQUAL, 0, 4, 0),
        step(LOAD_WORD, VLAN_TAG),
        step(AND, VLAN_ID_MASK),
        branch(IF_EQUAL, 0, 1, 0),
        REJECT,
    ]
}

/// Number of instructions of the preamble.
const PREAMBLE: usize = 12;

/// Returns a program whose result is the third number of the range that contains the port, and 0
/// for none. For a fan-out group, where a frame starts after its EtherType. Ranges must be sorted
/// and disjoint.
pub(crate) fn choose(ranges: &[(u16, u16, u16)]) -> Result<Filter, FilterTooLong> {
    let mut program = vec![step(LOAD_HALF, 0)];
    let wide = |&(low, high, slot)| (low, high, u32::from(slot));
    program.extend(search(&ranges.iter().map(wide).collect::<Vec<_>>()));
    checked(program, ranges.len())
}

fn checked(program: Vec<Instruction>, ranges: usize) -> Result<Filter, FilterTooLong> {
    if program.len() > MAX_INSTRUCTIONS {
        return Err(FilterTooLong {
            ranges,
            instructions: program.len(),
        });
    }
    Ok(Filter { program })
}

/// Returns instructions that look up the port in the accumulator: the number of its range, or 0.
/// Every path ends in a return.
fn search(ranges: &[(u16, u16, u32)]) -> Vec<Instruction> {
    let (left, right) = ranges.split_at(ranges.len() / 2);
    match (left, right) {
        ([], [(low, high, number)]) if low == high => {
            vec![
                branch(IF_EQUAL, u32::from(*low), 0, 1),
                step(RETURN, *number),
                REJECT,
            ]
        }
        ([], [(low, high, number)]) => vec![
            branch(IF_AT_LEAST, u32::from(*low), 0, 2),
            branch(IF_ABOVE, u32::from(*high), 1, 0),
            step(RETURN, *number),
            REJECT,
        ],
        ([_, ..], [(first, _, _), ..]) => {
            let left = search(left);
            let mut program = match u8::try_from(left.len()) {
                Ok(distance) => vec![branch(IF_AT_LEAST, u32::from(*first), distance, 0)],
                // A conditional jump reaches 255 instructions only.
                Err(_) => vec![
                    branch(IF_AT_LEAST, u32::from(*first), 0, 1),
                    // Programs above 4096 instructions are refused, so the distance fits.
                    step(JUMP, left.len() as u32),
                ],
            };
            program.extend(left);
            program.extend(search(right));
            program
        }
        _ => vec![REJECT],
    }
}

/// Returns sorted ranges with a gap between any two.
fn merge(ports: Vec<RangeInclusive<u16>>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = ports
        .into_iter()
        .filter(|range| !range.is_empty())
        .map(RangeInclusive::into_inner)
        .collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (low, high) in ranges {
        match merged.last_mut() {
            Some((_, last)) if low <= last.saturating_add(1) => *last = high.max(*last),
            _ => merged.push((low, high)),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
