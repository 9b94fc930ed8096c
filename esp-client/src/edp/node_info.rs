//! [`NodeInfo`]: reply to an information request (section 9 of the wire format).

use esp_proto::wire::InfoReply;

/// Reply of a node to an information request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Version of the node's set-up protocol.
    pub version: u8,
    /// Maximum payload it can receive, in bytes.
    pub max_payload: u16,
    /// Bits of optional features.
    pub features: u32,
    /// Random number that changes at each start of its daemon.
    pub incarnation: u64,
    /// Name of the node; may be empty.
    pub name: String,
}

impl NodeInfo {
    /// Parses the body of an `InfoReply`; `None` if it is malformed.
    pub fn parse(body: &[u8]) -> Option<NodeInfo> {
        let info = InfoReply::parse(body).ok()?;
        Some(NodeInfo {
            version: info.version,
            max_payload: info.max_payload,
            features: info.features,
            incarnation: info.incarnation,
            name: info.name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_information_is_parsed_or_refused() {
        let mut body = vec![1, 0x05, 0xd1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 5];
        body.extend(b"node1");
        let info = NodeInfo::parse(&body).unwrap();
        assert_eq!(
            (
                info.version,
                info.max_payload,
                info.features,
                info.incarnation
            ),
            (1, 1489, 2, 9)
        );
        assert_eq!(info.name, "node1");
        for cut in 0..body.len() {
            assert_eq!(NodeInfo::parse(&body[..cut]), None);
        }
        let mut long = body.clone();
        long[15] = 65;
        long.extend([b'x'; 80]);
        assert_eq!(NodeInfo::parse(&long), None);
        let mut not_text = body;
        not_text[16] = 0xff;
        assert_eq!(NodeInfo::parse(&not_text), None);
    }
}
