//! Findings of checks.

use std::fmt::Display;

use serde::Serialize;

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// It is as it should be.
    Ok,
    /// Worth knowing, but not a fault.
    Note,
    /// It works, but slowly or not always: exit code 1.
    Warning,
    /// Something does not work: exit code 2.
    Error,
}

impl Level {
    /// Returns the word for the output.
    pub(super) fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// Name of the check, `GROUP.CHECK`, as in docs/doctor.md.
    pub(super) check: &'static str,
    /// Interface or peer that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    pub(super) level: Level,
    /// Sentence that describes the finding.
    pub(super) what: String,
    /// Command or step that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, what: impl Display) -> Finding {
        Finding {
            check,
            subject: None,
            level,
            what: what.to_string(),
            fix: None,
        }
    }

    pub(super) fn ok(check: &'static str, what: impl Display) -> Finding {
        Finding::new(check, Level::Ok, what)
    }

    pub(super) fn note(check: &'static str, what: impl Display) -> Finding {
        Finding::new(check, Level::Note, what)
    }

    pub(super) fn warning(check: &'static str, what: impl Display) -> Finding {
        Finding::new(check, Level::Warning, what)
    }

    pub(super) fn error(check: &'static str, what: impl Display) -> Finding {
        Finding::new(check, Level::Error, what)
    }

    /// Creates a finding that is a warning if `bad`, or else a note.
    pub(super) fn warning_if(bad: bool, check: &'static str, what: impl Display) -> Finding {
        let level = if bad { Level::Warning } else { Level::Note };
        Finding::new(check, level, what)
    }

    /// Adds the command or step that fixes it.
    #[must_use]
    pub(super) fn fix(mut self, fix: impl Display) -> Finding {
        self.fix = Some(fix.to_string());
        self
    }

    /// Sets the interface or peer that was checked.
    #[must_use]
    pub(super) fn of(mut self, subject: &str) -> Finding {
        self.subject = Some(subject.to_owned());
        self
    }

    /// Returns the heading under which it is shown.
    pub(super) fn heading(&self) -> String {
        let group = self.check.split('.').next().unwrap_or_default();
        match &self.subject {
            Some(subject) => format!("{group} {subject}"),
            None => group.to_owned(),
        }
    }
}
