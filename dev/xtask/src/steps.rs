//! A list of steps with their times, printed at the end.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::outcome::{Failure, Outcome};

/// What was done so far. One failed step does not keep the next from running; the caller decides that between tiers.
pub(crate) struct Steps {
    title: &'static str,
    started: Instant,
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    took: Duration,
    result: Option<Outcome>,
}

impl Steps {
    pub(crate) fn new(title: &'static str) -> Steps {
        Steps {
            title,
            started: Instant::now(),
            rows: Vec::new(),
        }
    }

    /// Does a step and tells how it went.
    pub(crate) fn step(&mut self, name: &'static str, work: impl FnOnce() -> Outcome) {
        heading(name);
        let started = Instant::now();
        let result = work();
        let took = started.elapsed();
        match &result {
            Ok(text) => eprintln!("{name}: {text}"),
            Err(failure) => eprintln!("{name}: FAILED: {failure}"),
        }
        self.rows.push(Row {
            name,
            took,
            result: Some(result),
        });
    }

    /// Notes a step that was left out because an earlier one failed.
    pub(crate) fn left_out(&mut self, name: &'static str) {
        self.rows.push(Row {
            name,
            took: Duration::ZERO,
            result: None,
        });
    }

    /// Nothing has failed so far.
    pub(crate) fn all_passed(&self) -> bool {
        self.rows
            .iter()
            .all(|row| matches!(row.result, Some(Ok(_))))
    }

    /// Prints the list. The exit code is that of the worst step: 1 if something is wrong, else 2 if something could not
    /// run, else 0.
    pub(crate) fn finish(self) -> ExitCode {
        heading(&format!("{}: summary", self.title));
        for row in &self.rows {
            let (mark, text) = match &row.result {
                Some(Ok(text)) => ("ok", text.as_str()),
                Some(Err(Failure::Failed(text))) => ("FAILED", text.as_str()),
                Some(Err(Failure::CannotRun(text))) => ("COULD NOT RUN", text.as_str()),
                None => ("left out", "an earlier step failed"),
            };
            let text = text.lines().next().unwrap_or_default();
            println!(
                "{:<14} {:>7.1} s  {mark}: {text}",
                row.name,
                row.took.as_secs_f64()
            );
        }
        println!(
            "{:<14} {:>7.1} s  {}",
            "total",
            self.started.elapsed().as_secs_f64(),
            self.word()
        );
        let _ = std::io::stdout().flush();
        self.exit_code()
    }

    fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.rows
            .iter()
            .filter_map(|row| row.result.as_ref()?.as_ref().err())
    }

    fn word(&self) -> String {
        match (self.rows.len(), self.failures().count()) {
            (0, _) => "nothing was done".into(),
            (all, 0) => format!("all {all} steps passed"),
            (all, bad) => format!("{bad} of {all} steps did not pass"),
        }
    }

    fn exit_code(&self) -> ExitCode {
        let failed = self.failures().find(|f| matches!(f, Failure::Failed(_)));
        match failed.or_else(|| self.failures().next()) {
            Some(failure) => failure.exit_code(),
            // A list of nothing has proved nothing.
            None if self.rows.is_empty() => ExitCode::from(1),
            None => ExitCode::SUCCESS,
        }
    }
}

fn heading(text: &str) {
    eprintln!("\n==> {text}");
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
        assert!(steps.all_passed());
        assert_eq!(steps.exit_code(), ExitCode::SUCCESS);
        steps.step("missing", || cannot_run("no tool"));
        assert!(!steps.all_passed());
        assert_eq!(steps.exit_code(), ExitCode::from(2));
        steps.step("bad", || failed("broken"));
        assert_eq!(steps.exit_code(), ExitCode::from(1));
        assert_eq!(steps.word(), "2 of 3 steps did not pass");
    }

    #[test]
    fn a_step_left_out_is_no_pass() {
        let mut steps = Steps::new("test");
        steps.left_out("later");
        assert!(!steps.all_passed());
    }
}
