//! The thresholds of this machine, as `esplab tune` writes them: table `shm` of a TOML file, sizes in bytes.
//!
//! ```toml
//! [shm]
//! shared_cache = 16384
//! same_socket = 8192
//! other_socket = 4096
//! ```
//! Other tables are for other programs.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::Deserialize;
use shm_btl::Thresholds;

use crate::JoinError;
use crate::error::printable;

/// Longest file, in bytes.
const MAX_FILE: u64 = 64 << 10;

#[derive(Deserialize)]
struct Tables {
    shm: Option<Shm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shm {
    shared_cache: Option<usize>,
    same_socket: Option<usize>,
    other_socket: Option<usize>,
}

/// The thresholds in a file. `None`: it has none, or is not there and need not be.
pub(crate) fn read(file: &Path, named: bool) -> Result<Option<Thresholds>, JoinError> {
    let wrong = |what: String| JoinError::Tune { file: file.to_owned(), what };
    let mut text = String::new();
    let found = File::open(file).and_then(|f| f.take(MAX_FILE + 1).read_to_string(&mut text));
    match found {
        Err(e) if e.kind() == ErrorKind::NotFound && !named => return Ok(None),
        Err(e) => return Err(wrong(e.to_string())),
        Ok(_) if text.len() as u64 > MAX_FILE => return Err(wrong(format!("longer than {MAX_FILE} bytes"))),
        Ok(_) => {}
    }
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Option<Thresholds>, String> {
    let tables: Tables = toml::from_str(text).map_err(|e| printable(e.message(), 200).replace('\n', " "))?;
    let Some(shm) = tables.shm else { return Ok(None) };
    let default = Thresholds::default();
    Ok(Some(Thresholds {
        shared_cache: shm.shared_cache.unwrap_or(default.shared_cache),
        same_socket: shm.same_socket.unwrap_or(default.same_socket),
        other_socket: shm.other_socket.unwrap_or(default.other_socket),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_the_rest_is_left_alone() {
        assert_eq!(parse("[idle]\nspin = \"3us\"\n"), Ok(None));
        let found = parse("[shm]\nshared_cache = 4096\n[idle]\nx = 1\n").unwrap().unwrap();
        assert_eq!(found, Thresholds { shared_cache: 4096, ..Thresholds::default() });
        for wrong in
            ["[shm]\nshared_cache = -1\n", "[shm]\nshared = 1\n", "[shm]\nsame_socket = \"x\"\n", "]"]
        {
            let text = parse(wrong).unwrap_err();
            assert!(!text.is_empty() && text.lines().count() == 1, "{text}");
        }
    }
}
