//! The builder of frames for tests that forge them.

use esp_proto::MacAddr;

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
