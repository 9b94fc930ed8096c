//! Replies of EDP (W-70, W-71, W-72, W-76): at most one for each request that a node has received,
//! with its ports, its sequence, and its body or port.

use super::frame::View;
use esp_proto::MacAddr;
use std::collections::BTreeMap;

/// A request: the node that received it, the address and port of its sender, its control type, its
/// sequence and its body.
type Request = (usize, MacAddr, u16, u8, u16, Vec<u8>);

/// Received requests that have not been answered, and how often each was received.
#[derive(Debug, Default)]
pub(super) struct Replies {
    open: BTreeMap<Request, u32>,
}

impl Replies {
    /// Records an EDP packet that a node handles.
    pub(super) fn receives(&mut self, node: usize, view: &View<'_>) {
        let Some((&kind, body)) = control(view) else {
            return;
        };
        if kind % 2 == 1 && view.dst_port == 0 {
            let request = (node, view.src, view.src_port, kind, view.seq, body.to_vec());
            *self.open.entry(request).or_default() += 1;
        }
    }

    /// Checks an EDP packet that a node sends.
    ///
    /// # Errors
    /// It is a reply, and the node has received no such request, or has answered it before.
    pub(super) fn sends(&mut self, node: usize, view: &View<'_>) -> Result<(), String> {
        let Some((&kind, body)) = control(view).filter(|(kind, _)| *kind % 2 == 0) else {
            return Ok(());
        };
        let asked = match kind {
            2 => body,
            4 => &[],
            _ => &body[..2],
        };
        let request = (
            node,
            view.dst,
            view.dst_port,
            kind - 1,
            view.seq,
            asked.to_vec(),
        );
        let open = self.open.get_mut(&request).filter(|open| **open > 0);
        match open {
            Some(open) if view.src_port == 0 => *open -= 1,
            Some(_) => return Err(format!("W-70: a reply from port {}", view.src_port)),
            None => {
                return Err(format!(
                    "W-70, W-71, W-76: a reply to no request: {request:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the type and the body of a control datagram.
fn control<'a>(view: &View<'a>) -> Option<(&'a u8, &'a [u8])> {
    view.payload.split_first().filter(|_| view.flags & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Forge, Rules};
    use super::*;
    use crate::net::mac_of;

    const RULES: Rules = Rules {
        esp: 0x88b5,
        edp: 0x88b6,
        mtu: 1500,
        is_udp: false,
    };

    fn packet(from: usize, to: usize, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let forge = Forge::new(mac_of(from), ports.0, mac_of(to), ports.1, 1);
        Forge {
            packet_type: RULES.edp,
            seq: 7,
            payload: payload.to_vec(),
            ..forge
        }
        .bytes()
    }

    #[test]
    fn a_reply_answers_one_request_with_its_fields() {
        let mut replies = Replies::default();
        let sends = |replies: &mut Replies, ports, payload: &[u8]| {
            let bytes = packet(1, 0, ports, payload);
            replies.sends(1, &View::of(&bytes, &RULES).expect("sound"))
        };
        let echo = packet(0, 1, (9, 0), b"\x01ab");
        replies.receives(1, &View::of(&echo, &RULES).expect("sound"));
        assert!(sends(&mut replies, (0, 9), b"\x02ac").is_err(), "body");
        assert!(sends(&mut replies, (0, 8), b"\x02ab").is_err(), "port");
        assert!(sends(&mut replies, (5, 9), b"\x02ab").is_err(), "own port");
        assert!(sends(&mut replies, (0, 9), b"\x04ab").is_err(), "type");
        assert_eq!(sends(&mut replies, (0, 9), b"\x02ab"), Ok(()));
        assert!(sends(&mut replies, (0, 9), b"\x02ab").is_err(), "twice");

        let query = packet(0, 1, (9, 0), &[5, 1, 2]);
        replies.receives(1, &View::of(&query, &RULES).expect("sound"));
        assert!(sends(&mut replies, (0, 9), &[6, 1, 3, 0]).is_err());
        assert_eq!(sends(&mut replies, (0, 9), &[6, 1, 2, 1]), Ok(()));
    }
}
