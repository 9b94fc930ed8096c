//! The extension block (section 6): credit, answered probe, congestion marks, selective
//! acknowledgement.

use super::{Reader, WireError, Writer, put};
use crate::seq::Seq;

/// Maximum length of a block in bytes (W-43).
pub const MAX_EXT: usize = 136;
/// Maximum length of a bitmap in bytes.
pub const MAX_SACK: usize = 128;

const CREDIT: u8 = 0x01;
const PROBED: u8 = 0x02;
const SACK: u8 = 0x04;
const CE: u8 = 0x08;

/// An extension block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ext<'a> {
    /// First sequence that the receiver of the block may not use (W-37).
    pub credit: Option<Seq>,
    /// Data length of the probe being answered (W-51).
    pub probed: Option<u16>,
    /// Number of packets received with a congestion mark, modulo 2^16 (W-112).
    pub ce: Option<u16>,
    /// Bitmap of the packets received after the gap at `ack` (W-42), at most 128 bytes; empty when
    /// absent.
    pub sack: &'a [u8],
}

impl<'a> Ext<'a> {
    /// Parses the block at the front of the bytes after the payload. Any error drops the frame
    /// (W-43).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::read(bytes).ok_or(WireError::Extension)
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let len = usize::from(*bytes.first()?);
        if len > MAX_EXT {
            return None;
        }
        let mut block = Reader(bytes.get(..len)?);
        let [_, fields] = block.array()?;
        if fields & !(CREDIT | PROBED | SACK | CE) != 0 {
            return None;
        }
        let mut ext = Ext::default();
        if fields & CREDIT != 0 {
            ext.credit = Some(Seq(block.u16()?));
        }
        if fields & PROBED != 0 {
            ext.probed = Some(block.u16()?);
        }
        if fields & CE != 0 {
            ext.ce = Some(block.u16()?);
        }
        if fields & SACK != 0 {
            if !(1..=MAX_SACK).contains(&block.0.len()) {
                return None;
            }
            ext.sack = core::mem::take(&mut block.0);
        }
        // A block longer than its fields is malformed, too (W-43).
        block.0.is_empty().then_some(ext)
    }

    /// Writes the block to the front of `out`, which must hold it, and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (mut block, mut fields) = (Writer { out, len: 2 }, 0);
        let numbers = [
            (CREDIT, self.credit.map(|edge| edge.0)),
            (PROBED, self.probed),
            (CE, self.ce),
        ];
        for (bit, number) in numbers {
            if let Some(number) = number {
                fields |= bit;
                block.put(&number.to_be_bytes());
            }
        }
        if !self.sack.is_empty() {
            fields |= SACK;
            block.put(self.sack);
        }
        put(
            block.out,
            0,
            &[u8::try_from(block.len).unwrap_or(0), fields],
        );
        block.len
    }

    /// Returns the number of sequences after `ack` that the bitmap covers, up to its last set bit:
    /// bit `k` of byte `j` is number `1 + 8j + k` (W-42). 0 without a set bit.
    pub fn sack_reach(&self) -> u16 {
        let last = self
            .sack
            .iter()
            .enumerate()
            .rev()
            .find(|(_, byte)| **byte != 0);
        last.map_or(0, |(j, byte)| {
            // j < 128, so the sum stays below 1025.
            u16::try_from(8 * j).unwrap_or(u16::MAX - 8) + (8 - byte.leading_zeros() as u16)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 10] = [10, 15, 0x12, 0x34, 0x23, 0x1d, 0xfe, 0xdc, 5, 0x80];

    #[test]
    fn both_directions_on_literal_bytes() {
        let ext = Ext {
            credit: Some(Seq(0x1234)),
            probed: Some(0x231d),
            ce: Some(0xfedc),
            sack: &[5, 0x80],
        };
        assert_eq!(Ext::parse(&BYTES), Ok(ext));
        let mut out = [0u8; MAX_EXT];
        let len = ext.emit(&mut out);
        assert_eq!(out[..len], BYTES);
    }

    #[test]
    fn padding_after_the_block_is_ignored() {
        assert_eq!(
            Ext::parse(&[4, 1, 0, 9, 0, 0, 0]).unwrap().credit,
            Some(Seq(9))
        );
        assert_eq!(Ext::parse(&[2, 0, 0]).unwrap(), Ext::default());
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let refused: [&[u8]; 13] = [
            &[],
            &[0],
            &[1, 0],
            &[3, 1, 0],          // shorter than CREDIT
            &[4, 1, 0],          // longer than the frame
            &[5, 1, 0, 0, 0],    // longer than its fields
            &[2, 4],             // SACK without a byte
            &[2, 8],             // CE without a byte
            &[3, 8, 0],          // CE cut off
            &[5, 8, 0, 0, 0],    // longer than CE
            &[2, 16],            // unknown field
            &[4, 2, 0],          // PROBED cut off
            &[7, 3, 0, 0, 0, 0], // cut off
        ];
        for bytes in refused {
            assert_eq!(Ext::parse(bytes), Err(WireError::Extension), "{bytes:?}");
        }
        let mut long = [0u8; 200];
        (long[0], long[1]) = (131, 4);
        assert_eq!(
            Ext::parse(&long),
            Err(WireError::Extension),
            "129 bytes of bitmap"
        );
        long[0] = 130;
        assert!(Ext::parse(&long).is_ok());
        (long[0], long[1]) = (135, 7);
        assert_eq!(Ext::parse(&long), Err(WireError::Extension));
        (long[0], long[1]) = (136, 15);
        assert!(Ext::parse(&long).is_ok(), "every field at its longest");
        long[0] = 137;
        assert_eq!(Ext::parse(&long), Err(WireError::Extension));
    }

    #[test]
    fn reach_is_the_last_set_bit() {
        let reach = |sack| {
            Ext {
                sack,
                ..Ext::default()
            }
            .sack_reach()
        };
        assert_eq!(reach(&[]), 0);
        assert_eq!(reach(&[0, 0]), 0);
        assert_eq!(reach(&[1]), 1);
        assert_eq!(reach(&[0x80]), 8);
        assert_eq!(reach(&[0, 0b10, 0]), 10);
        assert_eq!(reach(&[0xff; 128]), 1024);
    }
}
