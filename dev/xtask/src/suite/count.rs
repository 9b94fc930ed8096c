//! Counts of tests.

use std::fmt;

/// How tests went. A test that skipped itself is in `skipped` only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Which, and why; those marked `#[ignore]` among them.
    pub(crate) skipped: Vec<String>,
}

/// Tests marked `#[ignore]` that are none: other tests start them, in a process of their own.
const HELPERS: &[&str] = &["shm::tests::process::the_other_process"];

/// What is noted for a test marked `#[ignore]`; nothing for a helper.
pub(crate) fn ignored(name: &str) -> Option<String> {
    (!HELPERS.contains(&name)).then(|| format!("{name}: marked #[ignore]"))
}

impl Counts {
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// How many were looked at.
    pub(crate) fn all(&self) -> usize {
        self.passed + self.failed + self.skipped.len()
    }

    /// Loudly.
    pub(crate) fn tell_skips(&self) {
        if self.skipped.is_empty() {
            return;
        }
        println!(
            "\n!!! {} tests were SKIPPED: they did not run, so they show nothing",
            self.skipped.len()
        );
        for skipped in &self.skipped {
            println!("  {skipped}");
        }
        println!(
            "Those that lack a permission run as the superuser: sudo -E env \"PATH=$PATH\" cargo xtask test\n"
        );
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
            self.skipped.len()
        )
    }
}

/// The reason a test gives for not running, if this line is one.
pub(crate) fn skip_reason(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with("SKIPPED") {
        Some(line)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let mut sum = Counts {
            passed: 2,
            failed: 0,
            skipped: vec!["a".into()],
        };
        sum.add(Counts {
            passed: 3,
            failed: 1,
            skipped: vec!["b".into()],
        });
        assert_eq!(sum.to_string(), "5 passed, 1 failed, 2 skipped");
        assert_eq!(sum.all(), 8);
    }

    #[test]
    fn an_ignored_test_is_skipped_and_a_helper_is_not() {
        assert_eq!(ignored("a::slow"), Some("a::slow: marked #[ignore]".into()));
        assert_eq!(ignored(HELPERS[0]), None);
    }

    #[test]
    fn only_a_line_that_begins_so_is_a_skip() {
        assert_eq!(
            skip_reason("  SKIPPED: needs root"),
            Some("SKIPPED: needs root")
        );
        assert_eq!(skip_reason("nothing was SKIPPED"), None);
    }
}
