//! Reads the output of `cargo test -- --show-output`.

use super::count::{Counts, skip_reason};

/// Which words of tests are being repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    None,
    /// Of those that passed: nobody wants to read them, except that they skipped themselves.
    Successes,
    Failures,
}

/// Takes the output line by line.
#[derive(Debug, Default)]
pub(super) struct Reader {
    counts: Counts,
    section: Section,
    /// Whose words follow.
    test: String,
}

impl Reader {
    /// Returns whether a person should see this line.
    pub(super) fn line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.section = Section::None;
            self.result(result);
            return true;
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----")) {
            name.clone_into(&mut self.test);
        } else if let Some(reason) = skip_reason(line) {
            if self.section == Section::None {
                self.test.clear();
            }
            self.skip(reason);
            return true;
        }
        self.section != Section::Successes
    }

    pub(super) fn finish(mut self) -> Counts {
        // They were reported as passed.
        self.counts.passed = self.counts.passed.saturating_sub(self.counts.skipped.len());
        self.counts
    }

    fn skip(&mut self, reason: &str) {
        let name = if self.test.is_empty() { "a test" } else { self.test.as_str() };
        let known = !self.test.is_empty()
            && self.counts.skipped.last().is_some_and(|last| last.starts_with(&format!("{name}: ")));
        // One test may give several reasons.
        if !known {
            self.counts.skipped.push(format!("{name}: {reason}"));
        }
    }

    /// What stands behind `test result: `, like `ok. 5 passed; 0 failed; 1 ignored; …`.
    fn result(&mut self, text: &str) {
        let numbers = text.split_once(". ").map_or("", |(_, numbers)| numbers);
        for part in numbers.split(';') {
            let Some((number, word)) = part.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match word {
                "passed" => self.counts.passed += number,
                "failed" => self.counts.failed += number,
                "ignored" => self.counts.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test a ... ok
test b ... FAILED
test c ... ok
test d ... ignored

successes:

---- a stdout ----
chatter
SKIPPED: no permission
SKIPPED: no tool either

---- c stdout ----
more chatter

successes:
    a
    c

failures:

---- b stdout ----
thread 'b' panicked

failures:
    b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
SKIPPED written past the capture
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_and_what_is_shown() {
        let mut reader = Reader::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| reader.line(line)).collect();
        let counts = reader.finish();
        assert_eq!((counts.passed, counts.failed, counts.ignored), (2, 1, 1));
        assert_eq!(counts.skipped, ["a: SKIPPED: no permission", "a test: SKIPPED written past the capture"]);
        assert!(shown.contains(&"thread 'b' panicked") && shown.contains(&"SKIPPED: no permission"));
        assert!(!shown.contains(&"chatter") && !shown.contains(&"more chatter"));
    }
}
