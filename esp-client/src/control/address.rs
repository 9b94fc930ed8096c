//! Addresses in messages: their text form.

use esp_proto::NodeAddr;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(addr: &NodeAddr, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(addr)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NodeAddr, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(serde::de::Error::custom)
}
