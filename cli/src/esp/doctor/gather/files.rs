//! Reads files of the kernel and parses their formats.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Maximum length of a file, in bytes; the rest is ignored.
const MAX_LEN: u64 = 1 << 20;
/// Upper bound of the numbers of cores; greater numbers are ignored.
const MAX_CORES: u32 = 1 << 16;

/// The folder that contains `proc` and `sys`: `/`, or another one in tests.
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn below(root: &Path) -> Files {
        Files(root.to_owned())
    }

    /// Returns the path of a file.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file without surrounding white space; `None` if it cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.path(path)).ok()?;
        file.take(MAX_LEN).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number in a file.
    pub(super) fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the names in a folder, in order.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path));
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().ok();
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| name(entry.ok()?))
            .collect();
        names.sort();
        names
    }

    /// Returns the value of `key` in a file of `key: value` lines.
    pub(super) fn value(&self, path: impl AsRef<Path>, key: &str) -> Option<String> {
        value(&self.text(path)?, key).map(str::to_owned)
    }
}

/// Returns the value of `key` in `key: value` lines.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let after = |line: &'a str| line.strip_prefix(key)?.strip_prefix(':');
    text.lines().find_map(after).map(str::trim)
}

/// Parses a list of cores, such as `0-3,8`; ignores invalid ranges.
pub(super) fn cores(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first..=last.min(MAX_CORES))
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// A folder with planted files, removed on drop.
#[cfg(test)]
pub(super) struct Planted(PathBuf);

#[cfg(test)]
impl Planted {
    /// Creates a folder with these files; `name` is the name of the test.
    pub(super) fn new(name: &str, files: &[(&str, &str)]) -> Planted {
        let folder = format!("esp-doctor-{}-{name}", std::process::id());
        let planted = Planted(std::env::temp_dir().join(folder));
        for (path, text) in files {
            let path = planted.0.join(path);
            let folder = path.parent().expect("a file lies in a folder");
            std::fs::create_dir_all(folder).expect("a folder");
            std::fs::write(&path, text).expect("a file");
        }
        planted
    }

    pub(super) fn files(&self) -> Files {
        Files::below(&self.0)
    }
}

#[cfg(test)]
impl Drop for Planted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_parsed() {
        assert_eq!(cores("0-3,8\n"), BTreeSet::from([0, 1, 2, 3, 8]));
        assert_eq!(cores("5"), BTreeSet::from([5]));
        for bad in ["", "x", "3-1", "-1", "1-x", ","] {
            assert_eq!(cores(bad), BTreeSet::new(), "{bad}");
        }
        assert!(cores("0-4294967295").len() <= 1 + MAX_CORES as usize);
    }

    #[test]
    fn values_are_found_by_their_whole_key() {
        let text = "CapEffX:\t1\nCapEff:\t000001ffffffffff\n";
        assert_eq!(value(text, "CapEff"), Some("000001ffffffffff"));
        assert_eq!(value(text, "Cap"), None);
    }
}
