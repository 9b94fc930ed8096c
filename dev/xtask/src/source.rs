//! Rust source in which gates can look for code without being fooled by comments, literals and tests.
//!
//! This is no parser: it knows comments, literals, attributes and brackets, which is what the gates need.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::outcome::{Failure, cannot_run};
use crate::workspace;

/// One file.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// As written.
    pub(crate) text: String,
    /// The same bytes with those of comments and literals replaced by spaces (line ends stay): every position means the
    /// same in both.
    pub(crate) code: String,
    /// The whole file is compiled for tests only.
    pub(crate) is_test: bool,
    /// Items that are compiled for tests only.
    tests: Vec<Range<usize>>,
}

impl Source {
    pub(crate) fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Source {
        let text = text.into();
        let code = blank(&text);
        let tests = test_items(&code);
        Source {
            path: path.into(),
            text,
            code,
            is_test: false,
            tests,
        }
    }

    /// All Rust files below a folder. Those that a `#[cfg(test)] mod name;` of another one brings in are marked as tests.
    pub(crate) fn read_all(dir: &Path) -> Result<Vec<Source>, Failure> {
        let mut sources = Vec::new();
        for path in workspace::files(dir, &|p| p.extension().is_some_and(|e| e == "rs")) {
            match fs::read_to_string(&path) {
                Ok(text) => sources.push(Source::new(path, text)),
                Err(e) => return cannot_run(format!("reading {}: {e}", path.display())),
            }
        }
        let modules: BTreeSet<PathBuf> = sources.iter().flat_map(Source::test_modules).collect();
        for source in &mut sources {
            // `tests.rs`, `tests/mod.rs` and everything in `tests/`.
            let stem = source.path.with_extension("");
            source.is_test = stem.ancestors().any(|p| modules.contains(p));
        }
        Ok(sources)
    }

    /// This position is compiled for tests only.
    pub(crate) fn in_test(&self, at: usize) -> bool {
        self.is_test || self.tests.iter().any(|range| range.contains(&at))
    }

    /// Line number of a position, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.text
            .as_bytes()
            .iter()
            .take(at)
            .filter(|&&b| b == b'\n')
            .count()
            + 1
    }

    /// `file:line` of a position.
    pub(crate) fn place(&self, at: usize) -> String {
        format!("{}:{}", workspace::shown(&self.path), self.line(at))
    }

    /// Positions of an identifier in the code.
    pub(crate) fn idents<'a>(&'a self, ident: &'a str) -> impl Iterator<Item = usize> + 'a {
        words(&self.code, ident)
    }

    /// Paths without extension of the files that hold this file's test modules.
    fn test_modules(&self) -> Vec<PathBuf> {
        let stem = self.path.with_extension("");
        let inside = match stem.file_name().and_then(|n| n.to_str()) {
            Some("mod" | "lib" | "main") => stem.parent().unwrap_or(&stem).to_owned(),
            _ => stem,
        };
        let names = self.tests.iter().filter_map(|range| {
            let item = self.code.get(range.clone())?.trim_end().strip_suffix(';')?;
            item.split_whitespace()
                .rev()
                .nth(1)
                .filter(|word| *word == "mod")?;
            item.split_whitespace().next_back()
        });
        names.map(|name| inside.join(name)).collect()
    }
}

/// Positions where `word` stands and is not part of a longer identifier.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text.get(..at).and_then(|t| t.chars().next_back());
            let after = text.get(at + word.len()..).and_then(|t| t.chars().next());
            !before.is_some_and(is_part) && !after.is_some_and(is_part)
        })
}

/// Replaces the bytes of comments and literals by spaces.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let length = match byte {
            b'/' if rest.starts_with(b"//") => {
                rest.iter().position(|&b| b == b'\n').or(Some(rest.len()))
            }
            b'/' if rest.starts_with(b"/*") => Some(block_comment(rest)),
            b'"' => Some(quoted(rest)),
            b'r' if !follows_ident(bytes, at) => raw_string(rest),
            b'\'' => char_literal(rest),
            _ => None,
        };
        let Some(length) = length else {
            at += 1;
            continue;
        };
        for byte in out
            .iter_mut()
            .skip(at)
            .take(length)
            .filter(|b| **b != b'\n')
        {
            *byte = b' ';
        }
        at += length.max(1);
    }
    // Whole literals were replaced, so no character was cut in two.
    String::from_utf8(out).unwrap_or_default()
}

/// The `r` of `br"…"` and `cr"…"` begins a literal; that of `for"` cannot stand there.
fn follows_ident(bytes: &[u8], at: usize) -> bool {
    let before = bytes.get(..at).unwrap_or_default();
    let word = before
        .iter()
        .rev()
        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
        .count();
    !matches!((word, before.last()), (0, _) | (1, Some(b'b' | b'c')))
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of `r"…"`, `r#"…"#`, …; `None` for anything else that begins with r.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let hashes = rest.get(1..)?.iter().take_while(|&&b| b == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"')
        .chain(std::iter::repeat_n(b'#', hashes))
        .collect();
    let body = rest.get(2 + hashes..)?;
    let length = body
        .windows(end.len())
        .position(|w| w == end)
        .map_or(body.len(), |at| at + end.len());
    Some(2 + hashes + length)
}

/// Length of a character literal; `None` for the tick of a lifetime.
fn char_literal(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        let end = rest.iter().skip(3).position(|&b| b == b'\'');
        return end.map(|at| at + 4);
    }
    // One character of up to four bytes, then a tick. A lifetime has no tick there, or an ident that is longer than one.
    let ascii = rest.get(1).is_some_and(u8::is_ascii);
    let end = rest
        .iter()
        .skip(2)
        .take(if ascii { 1 } else { 4 })
        .position(|&b| b == b'\'');
    end.map(|at| at + 3)
}

/// Items behind `#[cfg(test)]`, `#[cfg(all(test, …))]` and `#[test]`, attributes included.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[") {
        if items.last().is_some_and(|last| last.contains(&at)) {
            continue;
        }
        let end = bracket_end(code, at + 1);
        let attribute: String = code
            .get(at..end)
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let all_of = attribute.strip_prefix("#[cfg(all(").unwrap_or_default();
        let has_test = all_of.split([',', ')']).any(|part| part == "test");
        if attribute == "#[cfg(test)]"
            || attribute == "#[test]"
            || (has_test && !all_of.contains("any("))
        {
            items.push(at..item_end(code, end));
        }
    }
    items
}

/// Position behind the bracket that closes the one at `open`.
fn bracket_end(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Position behind the item that begins at `start`: behind its block, or its semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let mut at = start;
    let bytes = code.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => {
                let end = bracket_end(code, at);
                let is_use = code
                    .get(start..at)
                    .is_some_and(|text| words(text, "use").next().is_some());
                if !is_use {
                    return end;
                }
                at = end;
            }
            b'(' | b'[' => at = bracket_end(code, at),
            _ => at += 1,
        }
    }
    code.len()
}

#[cfg(test)]
mod tests;
