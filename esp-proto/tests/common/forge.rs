//! The builder of hand-made frames.

use esp_proto::wire::Header;
use esp_proto::*;

/// A hand-made ESP frame, starting with the EtherType, padded.
pub struct Forge {
    pub dst_port: Port,
    pub src_port: Port,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: u8,
    pub payload: Vec<u8>,
    pub ext: Vec<u8>,
}

impl Forge {
    /// A bare acknowledgement from port 5000 of A to port 1000 of B with the given numbers.
    pub fn ack(seq: Seq, ack: Seq) -> Forge {
        let flags = wire::FLAG_ACK;
        Forge {
            dst_port: 1000,
            src_port: 5000,
            seq,
            ack,
            flags,
            payload: vec![],
            ext: vec![],
        }
    }

    pub fn flags(mut self, flags: u8) -> Forge {
        self.flags = flags;
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Forge {
        self.payload = payload.to_vec();
        self
    }

    pub fn ext(mut self, ext: &[u8]) -> Forge {
        self.ext = ext.to_vec();
        self.flags |= wire::FLAG_EXT;
        self
    }

    pub fn reset(mut self, reason: ResetReason, nonce: u64) -> Forge {
        self.flags = wire::FLAG_RST;
        self.payload = vec![0; wire::RESET_LEN];
        wire::Reset { reason, nonce }.emit(&mut self.payload);
        self
    }

    pub fn syn(nonce: u64, seq: Seq) -> Forge {
        Forge::ack(seq, Seq(0)).set_up(wire::FLAG_SYN, &set_up(nonce, 0))
    }

    /// Makes it a SYN or SYN+ACK.
    pub fn set_up(mut self, flags: u8, block: &wire::SetUp<'_>) -> Forge {
        self.flags = flags;
        self.payload = vec![0; wire::MAX_SETUP];
        let len = block.emit(&mut self.payload);
        self.payload.truncate(len);
        self
    }

    pub fn ports(mut self, dst_port: Port, src_port: Port) -> Forge {
        (self.dst_port, self.src_port) = (dst_port, src_port);
        self
    }

    pub fn build(&self) -> Vec<u8> {
        let header = Header {
            packet_type: 0x88b5,
            dst_port: self.dst_port,
            src_port: self.src_port,
            seq: self.seq,
            ack: self.ack,
            len: self.payload.len() as u16,
            flags: self.flags,
        };
        let mut body = header.emit().to_vec();
        body.extend_from_slice(&self.payload);
        body.extend_from_slice(&self.ext);
        body.resize(body.len().max(48), 0);
        body
    }
}

pub fn set_up(nonce: u64, peer_nonce: u64) -> wire::SetUp<'static> {
    let (max_payload, features, credit, max_ack_delay) = (1489, 0, 100, 200);
    wire::SetUp {
        max_payload,
        features,
        nonce,
        peer_nonce,
        credit,
        max_ack_delay,
        key: &[],
        rails: &[],
    }
}
