//! What became of the cases.

use std::fmt::Write as _;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every rank is content.
    Passed,
    /// Did not run, and why.
    Skipped(String),
    /// Which rank saw what.
    Failed(String),
}

/// All cases of a suite.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whose suite.
    pub suite: String,
    /// Case and outcome, in order.
    pub lines: Vec<(&'static str, Outcome)>,
}

impl Report {
    pub(super) fn new(suite: String, seed: u64) -> Report {
        println!("conformance of {suite}, BTL_SEED={seed}");
        Report {
            suite,
            lines: Vec::new(),
        }
    }

    /// Notes and prints one.
    pub(super) fn add(&mut self, case: &'static str, outcome: Outcome) {
        let suite = &self.suite;
        match &outcome {
            Outcome::Passed => println!("{suite}: {case}: ok"),
            Outcome::Skipped(why) => println!("{suite}: {case}: skipped: {why}"),
            Outcome::Failed(why) => println!("{suite}: {case}: FAILED: {why}"),
        }
        self.lines.push((case, outcome));
    }

    /// How many passed, were skipped, failed.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&Outcome) -> bool| {
            self.lines
                .iter()
                .filter(|(_, outcome)| wanted(outcome))
                .count()
        };
        (
            count(|outcome| matches!(outcome, Outcome::Passed)),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
        )
    }

    /// Whether the transport conforms.
    ///
    /// # Errors
    /// The cases that failed; or that none ran.
    pub fn verdict(&self) -> Result<(), String> {
        let (passed, skipped, failed) = self.counts();
        println!(
            "{}: {passed} passed, {skipped} skipped, {failed} failed",
            self.suite
        );
        if failed == 0 && passed > 0 {
            return Ok(());
        }
        let mut text = format!(
            "{}: {passed} passed, {skipped} skipped, {failed} failed",
            self.suite
        );
        for (case, outcome) in &self.lines {
            if let Outcome::Failed(why) = outcome {
                let _ = write!(text, "\n  {case}: {why}");
            }
        }
        Err(text)
    }
}
