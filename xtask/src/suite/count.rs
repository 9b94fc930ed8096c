//! Counts of tests.

use std::fmt;

/// How tests went. A test that skipped itself is in `skipped` only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Which, and why.
    pub(crate) skipped: Vec<String>,
    /// Marked `#[ignore]`.
    pub(crate) ignored: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
        self.ignored += other.ignored;
    }

    /// Loudly.
    pub(crate) fn tell_skips(&self) {
        let count = self.skipped.len() + self.ignored;
        if count == 0 {
            return;
        }
        println!("\n!!! {count} tests were SKIPPED: they did not run, so they show nothing");
        for skipped in &self.skipped {
            println!("  {skipped}");
        }
        if self.ignored > 0 {
            println!("  {} are marked #[ignore]", self.ignored);
        }
        if !self.skipped.is_empty() {
            println!("  As the superuser they run: sudo -E env \"PATH=$PATH\" cargo xtask test");
        }
    }
}

/// The line in the form that people and scripts know from other test runners.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len() + self.ignored
        )
    }
}

/// The reason a test gives for not running, if this line is one. Where tests run one at a time, its name stands before it.
pub(crate) fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim();
    let line = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")).map_or(line, |(_, said)| said);
    if line.starts_with("SKIPPED") { Some(line) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let mut sum = Counts { passed: 2, failed: 0, skipped: vec!["a".into()], ignored: 1 };
        sum.add(Counts { passed: 3, failed: 1, skipped: vec!["b".into()], ignored: 0 });
        assert_eq!(sum.to_string(), "5 passed, 1 failed, 3 skipped");
    }

    #[test]
    fn only_a_line_that_begins_so_is_a_skip() {
        assert_eq!(skip_reason("  SKIPPED: needs root"), Some("SKIPPED: needs root"));
        assert_eq!(skip_reason("nothing was SKIPPED"), None);
        assert_eq!(skip_reason("test a::b ... SKIPPED a: no"), Some("SKIPPED a: no"));
        assert_eq!(skip_reason("test a::b ... ok"), None);
    }
}
