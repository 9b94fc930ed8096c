//! The thresholds of this machine, in a TOML file, sizes in bytes: table `shm` as `esplab tune`
//! writes it, table `ib` as docs/infiniband.md describes it.
//!
//! ```toml
//! [shm]
//! shared_cache = 16384
//! same_socket = 8192
//! other_socket = 4096
//! [ib]
//! long_from = 32768
//! ```
//! Other tables belong to other programs.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::Deserialize;
use shm_btl::Thresholds;

use crate::JoinError;
use crate::error::printable;

/// Maximum length of the file in bytes.
const MAX_FILE: u64 = 64 << 10;

#[derive(Deserialize)]
struct Tables {
    shm: Option<Shm>,
    ib: Option<Rdma>,
}

/// Settings for InfiniBand and RoCE, see [`ib_btl::IbConfig`]; `None` means its default.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Rdma {
    /// Number of blocks for each peer, which are its credits.
    pub blocks: Option<usize>,
    /// Minimum length of a short message's body that the sender registers instead of copying it, in
    /// bytes; by default never.
    pub held_from: Option<usize>,
    /// Minimum length of a *long* body, in bytes.
    pub long_from: Option<usize>,
    /// Use one shared receive queue instead of blocks for each peer; by default in jobs of more
    /// than 256 ranks.
    pub shared: Option<bool>,
    /// Number of blocks of the shared receive queue.
    pub shared_blocks: Option<usize>,
    /// Retransmission timeout: 4.096 µs · 2ⁿ; hardware may take up to four times that.
    pub timeout: Option<u8>,
    /// Number of retransmissions before the peer is lost.
    pub retries: Option<u8>,
}

/// The tables `shm` and `ib` of a file.
type Found = (Option<Thresholds>, Option<Rdma>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shm {
    shared_cache: Option<usize>,
    same_socket: Option<usize>,
    other_socket: Option<usize>,
}

/// Reads the tables of a file. `named`: the file must exist.
pub(crate) fn read(file: &Path, named: bool) -> Result<Found, JoinError> {
    let wrong = |what: String| JoinError::Tune(format!("{}: {what}", file.display()));
    let mut text = String::new();
    let found = File::open(file).and_then(|f| f.take(MAX_FILE + 1).read_to_string(&mut text));
    match found {
        Err(e) if e.kind() == ErrorKind::NotFound && !named => return Ok(Found::default()),
        Err(e) => return Err(wrong(e.to_string())),
        Ok(_) if text.len() as u64 > MAX_FILE => {
            return Err(wrong(format!("longer than {MAX_FILE} bytes")));
        }
        Ok(_) => {}
    }
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Found, String> {
    let tables: Tables =
        toml::from_str(text).map_err(|e| printable(e.message(), 200).replace('\n', " "))?;
    let default = Thresholds::default();
    let shm = tables.shm.map(|shm| Thresholds {
        shared_cache: shm.shared_cache.unwrap_or(default.shared_cache),
        same_socket: shm.same_socket.unwrap_or(default.same_socket),
        other_socket: shm.other_socket.unwrap_or(default.other_socket),
    });
    Ok((shm, tables.ib))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_other_tables_ignored() {
        assert_eq!(parse("[idle]\nspin = \"3us\"\n"), Ok(Found::default()));
        let found = parse("[shm]\nshared_cache = 4096\n[idle]\nx = 1\n");
        let shm = Thresholds {
            shared_cache: 4096,
            ..Thresholds::default()
        };
        assert_eq!(found, Ok((Some(shm), None)));
        let found = parse(
            "[ib]\nlong_from = 65536\nshared = true\nheld_from = 8192\ntimeout = 15\nretries = 5\n",
        )
        .unwrap();
        let ib = Rdma {
            long_from: Some(65536),
            shared: Some(true),
            held_from: Some(8192),
            ..Rdma::default()
        };
        let ib = Rdma {
            timeout: Some(15),
            retries: Some(5),
            ..ib
        };
        assert_eq!(found, (None, Some(ib)));
        for wrong in [
            "[shm]\nshared_cache = -1\n",
            "[shm]\nshared = 1\n",
            "[shm]\nsame_socket = \"x\"\n",
            "[ib]\nlong_from = -1\n",
            "[ib]\nlong = 1\n",
            "[ib]\nshared = 1\n",
            "]",
        ] {
            let text = parse(wrong).unwrap_err();
            assert!(!text.is_empty() && text.lines().count() == 1, "{text}");
        }
    }
}
