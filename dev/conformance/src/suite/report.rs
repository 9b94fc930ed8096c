//! Results of the cases.

use std::fmt::Write as _;

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks passed.
    Passed,
    /// The case did not run, for this reason.
    Skipped(String),
    /// The case failed: the rank, and its observation.
    Failed(String),
}

/// Results of a suite.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the harness.
    pub suite: String,
    /// Cases and their results, in order.
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

    /// Adds and prints a result.
    pub(super) fn add(&mut self, case: &'static str, outcome: Outcome) {
        let suite = &self.suite;
        match &outcome {
            Outcome::Passed => println!("{suite}: {case}: ok"),
            Outcome::Skipped(why) => println!("{suite}: {case}: skipped: {why}"),
            Outcome::Failed(why) => println!("{suite}: {case}: FAILED: {why}"),
        }
        self.lines.push((case, outcome));
    }

    /// Returns the numbers of cases that passed, were skipped and failed.
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

    /// Returns whether the transport conforms.
    ///
    /// # Errors
    /// Lists the failed cases, or states that none ran.
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
