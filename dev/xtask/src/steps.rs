//! A list of steps with their times, printed at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::outcome::{Failure, Outcome};

/// The steps done so far. A failed step does not keep the next from running.
pub(crate) struct Steps {
    title: &'static str,
    started: Instant,
    rows: Vec<(&'static str, Duration, Outcome)>,
}

impl Steps {
    pub(crate) fn new(title: &'static str) -> Steps {
        Steps {
            title,
            started: Instant::now(),
            rows: Vec::new(),
        }
    }

    /// Runs a step and prints its result.
    pub(crate) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Outcome) {
        eprintln!("\n==> {name}");
        let started = Instant::now();
        let result = work();
        match &result {
            Ok(text) => eprintln!("{name}: {text}"),
            Err(failure) => eprintln!("{name}: FAILED: {failure}"),
        }
        self.rows.push((name, started.elapsed(), result));
    }

    /// Prints the list. The exit code is that of the worst step: 1 if something is wrong, else 2 if
    /// something could not run, else 0.
    pub(crate) fn finish(self) -> ExitCode {
        println!("\n==> {}: summary", self.title);
        for (name, took, result) in &self.rows {
            let (mark, text) = match result {
                Ok(text) => ("ok", text.as_str()),
                Err(Failure::Failed(text)) => ("FAILED", text.as_str()),
                Err(Failure::CannotRun(text)) => ("COULD NOT RUN", text.as_str()),
            };
            let text = text.lines().next().unwrap_or_default();
            println!("{name:<12} {:>7.1} s  {mark}: {text}", took.as_secs_f64());
        }
        let total = self.started.elapsed().as_secs_f64();
        println!("{:<12} {total:>7.1} s  {}", "total", self.word());
        self.exit_code()
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.rows
            .iter()
            .filter_map(|(_, _, result)| result.as_ref().err())
    }

    fn word(&self) -> String {
        match (self.rows.len(), self.failures().count()) {
            (all, 0) => format!("all {all} steps passed"),
            (all, bad) => format!("{bad} of {all} steps did not pass"),
        }
    }

    fn exit_code(&self) -> ExitCode {
        let failed = self.failures().find(|f| matches!(f, Failure::Failed(_)));
        match failed.or_else(|| self.failures().next()) {
            Some(failure) => failure.exit_code(),
            // An empty list has proved nothing.
            None if self.rows.is_empty() => ExitCode::from(1),
            None => ExitCode::SUCCESS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{cannot_run, failed};

    #[test]
    fn the_worst_step_decides() {
        let mut steps = Steps::new("test");
        assert_eq!(
            steps.exit_code(),
            ExitCode::from(1),
            "nothing done is not a pass"
        );
        steps.step("good", || Ok("fine".into()));
        assert_eq!(steps.exit_code(), ExitCode::SUCCESS);
        steps.step("missing", || cannot_run("no tool"));
        assert_eq!(steps.exit_code(), ExitCode::from(2));
        steps.step("bad", || failed("broken"));
        assert_eq!(steps.exit_code(), ExitCode::from(1));
        assert_eq!(steps.word(), "2 of 3 steps did not pass");
    }
}
