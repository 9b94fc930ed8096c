//! Reads the output of `cargo test -- --show-output`.

use super::count::{Counts, ignored, skip_reason};
use crate::process::Output;

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
    passed: usize,
    failed: usize,
    skipped_themselves: Vec<String>,
    ignored: Vec<String>,
    section: Section,
    /// Whose words follow.
    test: String,
}

impl Reader {
    /// Returns whether a person should see this line.
    pub(super) fn line(&mut self, output: Output, line: &str) -> bool {
        if output == Output::Error {
            // Written past the capture of the test harness.
            if let Some(reason) = skip_reason(line) {
                self.skipped_themselves.push(reason.to_owned());
            }
            return true;
        }
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => self.section = Section::Failures,
            _ => {}
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.section = Section::None;
            self.result(result);
        } else if let Some((name, _)) = line
            .strip_prefix("test ")
            .and_then(|l| l.split_once(" ... ignored"))
        {
            self.ignored.extend(ignored(name));
        } else if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|l| l.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.test);
        } else if let Some(reason) = skip_reason(line) {
            self.skip(reason);
            return true;
        }
        self.section != Section::Successes
    }

    pub(super) fn finish(self) -> Counts {
        // Those that skipped themselves were reported as passed.
        let passed = self.passed.saturating_sub(self.skipped_themselves.len());
        let skipped = [self.skipped_themselves, self.ignored].concat();
        Counts {
            passed,
            failed: self.failed,
            skipped,
        }
    }

    fn skip(&mut self, reason: &str) {
        let name = format!("{}: ", self.test);
        // One test may give several reasons.
        if !self
            .skipped_themselves
            .last()
            .is_some_and(|last| last.starts_with(&name))
        {
            self.skipped_themselves.push(name + reason);
        }
    }

    /// What stands behind `test result: `, like `ok. 5 passed; 0 failed; 1 ignored; …`.
    fn result(&mut self, text: &str) {
        let numbers = text.split_once(". ").map_or("", |(_, numbers)| numbers);
        for part in numbers.split(';') {
            let Some((number, word)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<usize>() else {
                continue;
            };
            match word {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
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
test d ... ignored, too slow

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
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_and_what_is_shown() {
        let mut reader = Reader::default();
        let shown: Vec<&str> = OUTPUT
            .lines()
            .filter(|line| reader.line(Output::Standard, line))
            .collect();
        assert!(reader.line(Output::Error, "SKIPPED e: past the capture"));
        assert!(reader.line(Output::Error, "   Compiling something"));
        let counts = reader.finish();
        assert_eq!((counts.passed, counts.failed), (2, 1));
        assert_eq!(
            counts.skipped,
            [
                "a: SKIPPED: no permission",
                "SKIPPED e: past the capture",
                "d: marked #[ignore]"
            ]
        );
        assert!(
            shown.contains(&"thread 'b' panicked") && shown.contains(&"SKIPPED: no permission")
        );
        assert!(!shown.contains(&"chatter") && !shown.contains(&"more chatter"));
    }
}
