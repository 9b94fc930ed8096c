//! Command line of `esp dump`.

use std::path::PathBuf;

use super::decode::Types;

/// Show ESP and EDP packets of an interface or a capture file, like tcpdump(8) for IP
///
/// Flags: S SYN, F FIN, R RST, P probe, A acknowledgement requested, `.` ACK; `[SP]` is a move.
/// Sequence numbers are relative to the SYN. Times are UTC, as in the log of esp-daemon.
///
/// Live capture needs CAP_NET_RAW. Frames that this machine sends over raw Ethernet bypass packet
/// capture; capture them at the receiver or the switch. ESP in UDP is captured in both directions.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// Interface to capture
    #[arg(short, value_name = "IF", required_unless_present = "read")]
    pub(super) interface: Option<String>,
    /// Read a capture file (pcap or pcapng; - is standard input) instead
    #[arg(short, value_name = "FILE", conflicts_with = "interface")]
    pub(super) read: Option<PathBuf>,
    /// Write frames to a capture file (pcapng; - is standard output) instead of printing packets
    #[arg(short, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
    /// Stop after COUNT packets (frames, with -w)
    #[arg(short, value_name = "COUNT", value_parser = crate::units::count)]
    pub(super) count: Option<u64>,
    /// Show addresses instead of names
    #[arg(short)]
    pub(super) numeric: bool,
    /// Show the Ethernet header
    #[arg(short)]
    pub(super) ethernet: bool,
    /// Show no times; -tt: seconds since 1970; -ttt: seconds since the previous packet
    #[arg(short, action = clap::ArgAction::Count)]
    pub(super) times: u8,
    /// Show all fields (-vv is the same)
    #[arg(short, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// Show the bytes of the packet; -xx: those of the frame
    #[arg(short = 'x', action = clap::ArgAction::Count)]
    pub(super) hex: u8,
    /// EtherType of ESP
    #[arg(long, value_name = "TYPE", value_parser = ethertype, default_value = "0x88b5")]
    pub(super) esp_type: u16,
    /// EtherType of EDP
    #[arg(long, value_name = "TYPE", value_parser = ethertype, default_value = "0x88b6")]
    pub(super) edp_type: u16,
    /// Conditions, all of which must hold: `esp`, `edp`, `host NAME|ADDRESS`, `port NUMBER`
    #[arg(value_name = "FILTER")]
    pub(super) filter: Vec<String>,
}

impl Flags {
    /// Returns the EtherTypes of both protocols.
    pub(super) fn types(&self) -> Types {
        Types {
            esp: self.esp_type,
            edp: self.edp_type,
        }
    }
}

/// Parses an EtherType, in hexadecimal with `0x`.
fn ethertype(text: &str) -> Result<u16, String> {
    let hex = text.strip_prefix("0x").unwrap_or_default();
    u16::from_str_radix(hex, 16)
        .ok()
        .filter(|number| *number >= 0x600)
        .ok_or_else(|| format!("invalid EtherType `{text}`: write 0x600 to 0xffff"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethertypes_are_parsed() {
        assert_eq!(ethertype("0x88b5"), Ok(0x88b5));
        for bad in ["", "0x", "88b5", "0x10000", "0x5ff", "0x+8b5x"] {
            assert!(ethertype(bad).is_err(), "{bad}");
        }
    }
}
