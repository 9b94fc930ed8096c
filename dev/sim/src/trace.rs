//! Frames and events as lines of text.

use crate::check::frame::{Rules, View};
use crate::link::Fate;
use esp_proto::Instant;
use esp_proto::secure::Protected;

/// Formats a frame.
pub fn line(now: Instant, place: &str, bytes: &[u8], fate: Option<Fate>) -> String {
    let rules = Rules {
        esp: 0x88b5,
        edp: 0x88b6,
        mtu: u32::MAX >> 1,
        is_udp: false,
    };
    let text = match (
        bytes.get(12..).and_then(Protected::parse),
        View::of(bytes, &rules),
    ) {
        (Some(protected), _) => format!("{protected:?}, {} bytes", bytes.len()),
        (None, Ok(view)) => view.text(rules.edp),
        (None, Err(error)) => format!("? {error} {:02x?}", &bytes[..bytes.len().min(60)]),
    };
    let fate = match fate {
        None | Some(Fate::Sent) => String::new(),
        Some(fate) => format!("  [{fate:?}]"),
    };
    format!(
        "{:14.6} ms {place:>9} {text}{fate}",
        now.as_nanos() as f64 / 1e6
    )
}

/// Formats any other event.
pub fn note(now: Instant, node: usize, text: &str) -> String {
    format!(
        "{:14.6} ms    node {node} {text}",
        now.as_nanos() as f64 / 1e6
    )
}
