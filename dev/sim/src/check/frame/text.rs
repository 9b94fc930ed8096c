//! The text of a frame, for traces and failures.

use super::{ACK, ASK, FIN, PRB, RST, SYN, View, be64};

impl View<'_> {
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
