//! Messages between client and server, which are lines of JSON on a separate stream, and the first
//! line of the streams that are measured.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use esp_client::EspStream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::flags::Plan;
use crate::out::{Failure, printable};

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Maximum wait for a message that the other side sends at once.
pub(super) const AT_ONCE: Duration = Duration::from_secs(10);

/// First line of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hello {
    /// The control stream of a test. The client sends or receives datagrams on these ports.
    Test {
        cookie: String,
        plan: Plan,
        #[serde(default)]
        ports: Vec<u16>,
    },
    /// A stream of the test with this cookie.
    Data { cookie: String, index: u16 },
}

/// Answer to [`Hello::Test`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The server waits for the streams.
    Ready,
    /// The server receives or sends datagrams on these ports.
    Ports(Vec<u16>),
    /// The server refuses the test.
    Refused(String),
}

/// Sent when the server has all streams: both sides start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begin;

/// Ends the sending of datagrams, which have no end of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End;

/// Datagrams that a stream has sent or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Datagrams {
    pub(super) packets: u64,
    /// Gaps in the sequence numbers received.
    pub(super) lost: u64,
    pub(super) out_of_order: u64,
    /// Smoothed variation of the transit times (RFC 3550, section 6.4.1), in milliseconds.
    pub(super) jitter_ms: f64,
}

/// Results of one side, by stream. The sides exchange them at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) bytes: Vec<u64>,
    /// `None` if this side does not know the number.
    pub(super) retransmits: Vec<Option<u64>>,
    pub(super) seconds: f64,
    pub(super) cpu: Cpu,
    /// Empty for streams.
    #[serde(default)]
    pub(super) datagrams: Vec<Datagrams>,
}

/// CPU time, in percent of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cpu {
    pub(super) user: f64,
    pub(super) system: f64,
}

/// Sends a message.
pub(super) fn send(mut stream: &EspStream, message: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(message).map_err(Failure::new)?;
    let line = format!("{text}\n");
    stream.write_all(line.as_bytes()).map_err(Failure::broken)
}

/// Receives a message, waiting for at most `patience`, or without a limit until the stream ends or
/// breaks.
pub(super) fn receive<T: DeserializeOwned>(
    mut stream: &EspStream,
    patience: impl Into<Option<Duration>>,
) -> Result<T, Failure> {
    let patience = patience.into();
    stream.set_read_timeout(patience).map_err(Failure::broken)?;
    let mut line = Vec::new();
    let mut byte = [0];
    // Reads byte by byte, because the bytes after the line in a data stream are not a message.
    loop {
        match stream.read(&mut byte) {
            Ok(0) => {
                return Err(Failure::Broken(
                    "the other side ended the test; see its messages".into(),
                ));
            }
            Ok(_) if byte == *b"\n" => break,
            Ok(_) if line.len() < MAX_MESSAGE => line.extend(byte),
            Ok(_) => return Err(Failure::Broken("a message of the peer is too long".into())),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                return Err(Failure::Broken(format!(
                    "no answer for {} s: is a test of another client running?",
                    patience.unwrap_or_default().as_secs()
                )));
            }
            Err(error) => return Err(Failure::broken(error)),
        }
    }
    stream.set_read_timeout(None).map_err(Failure::broken)?;
    parse(&line)
}

/// Parses a message. The error contains text from the peer.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(line).map_err(|error| {
        let error = printable(&error.to_string());
        Failure::Broken(format!(
            "the peer is not an esperf of this version: {error}"
        ))
    })
}

/// Returns the failure of a test that the server refuses for the reason `why`.
pub(super) fn refused(why: &str) -> Failure {
    Failure::Broken(format!("the server refuses: {}", printable(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_peer_does_not_reach_the_terminal_as_it_is() {
        let unknown = r#"{"\u001b]0;title\u0007": 1}"#;
        let error = parse::<Reply>(unknown.as_bytes()).expect_err("no such reply");
        for text in [error.to_string(), refused("\u{1b}[2Jfull\r\n").to_string()] {
            assert!(!text.contains(char::is_control), "{text:?}");
        }
        assert!(refused("full").to_string().ends_with(": full"));
    }
}
