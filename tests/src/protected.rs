//! Key files, and protected packets of ESP in UDP on a cable.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::frames::{EDP, ESP, Tap};
use crate::process::TempFile;

/// Flag of a protected packet.
pub const SEC: u8 = 0x80;
/// Offset of the checksum of UDP in a frame of ESP in UDP over IPv4.
pub const UDP_CHECKSUM: usize = 14 + 20 + 6;
/// Offset of the packet type.
pub const PACKET: usize = 14 + 20 + 8;
/// Offset of the flags.
pub const FLAGS: usize = PACKET + 12;
/// Offset of the EtherType.
const ETHERTYPE: usize = 12;
/// Offset of the protocol of IPv4.
const PROTOCOL: usize = 14 + 9;

/// A key file, accessible to its owner alone.
pub struct KeyFile(TempFile);

impl KeyFile {
    /// Creates a file with the key of 32 equal bytes.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn new(byte: u8) -> KeyFile {
        let file = KeyFile(TempFile::new(""));
        file.set_mode(0o600);
        file.set(byte);
        file
    }

    /// Replaces the key.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn set(&self, byte: u8) {
        fs::write(self.path(), format!("{byte:02x}").repeat(32)).expect("write a key");
    }

    /// Changes the permissions.
    ///
    /// # Panics
    /// When they cannot be changed.
    pub fn set_mode(&self, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.path(), mode).expect("chmod");
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns its path as text.
    ///
    /// # Panics
    /// When the path is not text.
    pub fn text(&self) -> &str {
        self.path().to_str().expect("a path of text")
    }
}

/// Returns true for a frame with ESP in UDP over IPv4.
pub fn is_in_udp(frame: &[u8]) -> bool {
    let is_udp =
        frame.get(ETHERTYPE..ETHERTYPE + 2) == Some(&[8, 0]) && frame.get(PROTOCOL) == Some(&17);
    is_udp && [ESP, EDP].iter().any(|of| has_type(frame, PACKET, *of))
}

/// Returns true for a frame of a stream on Ethernet. (Datagrams are also sent by daemons alone.)
pub fn is_raw(frame: &[u8]) -> bool {
    has_type(frame, ETHERTYPE, ESP)
}

fn has_type(frame: &[u8], at: usize, wanted: u16) -> bool {
    frame.get(at..at + 2) == Some(&wanted.to_be_bytes())
}

/// Returns true if ESP in UDP in this frame is protected.
pub fn is_protected(frame: &[u8]) -> bool {
    frame.get(FLAGS).is_some_and(|flags| flags & SEC != 0)
}

/// Returns true if the frame contains this text.
pub fn shows(frame: &[u8], text: &[u8]) -> bool {
    frame.windows(text.len()).any(|part| part == text)
}

/// Returns the frames with ESP in UDP among those heard so far.
pub fn heard(tap: &mut Tap) -> Vec<Vec<u8>> {
    tap.all()
        .into_iter()
        .filter(|frame| is_in_udp(frame))
        .collect()
}
