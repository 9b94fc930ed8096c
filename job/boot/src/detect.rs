//! Detection of the launcher that started this process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crate::error::printable;
use crate::fixed::Fixed;
use crate::pmi1::Pmi1;
use crate::pmix::Pmix;
use crate::{BootError, Bootstrap, MAX_SIZE, Single};

/// Default of `ESP_BOOT_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum of `ESP_BOOT_TIMEOUT`, in seconds.
const MAX_TIMEOUT: f64 = 86_400.0;

/// Environment variables.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Reads the environment of this process. Invalid UTF-8 is replaced, so that an error can show
    /// it.
    pub fn of_this_process() -> Environment {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Environment(variables.collect())
    }

    /// Creates an environment with these variables.
    pub fn of(variables: &[(&str, &str)]) -> Environment {
        let variables = variables
            .iter()
            .map(|&(name, value)| (name.into(), value.into()));
        Environment(variables.collect())
    }

    /// Returns a variable; an empty one counts as unset.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns a required variable. `because` names the part that needs it.
    pub(crate) fn need(
        &self,
        variable: &str,
        because: &str,
        remedy: &str,
    ) -> Result<&str, BootError> {
        self.get(variable).ok_or_else(|| {
            BootError::Environment(format!(
                "{variable} is not set but needed by {because}: {remedy}"
            ))
        })
    }

    /// Returns a required number.
    pub(crate) fn number<T: std::str::FromStr>(
        &self,
        variable: &str,
        because: &str,
        remedy: &str,
    ) -> Result<T, BootError> {
        let value = self.need(variable, because, remedy)?;
        let number = value.parse();
        number.map_err(|_| bad(variable, value, "expected a number"))
    }

    /// Returns the maximum time to wait for an answer.
    fn timeout(&self) -> Result<Duration, BootError> {
        let Some(value) = self.get("ESP_BOOT_TIMEOUT") else {
            return Ok(TIMEOUT);
        };
        match value.parse() {
            Ok(seconds) if (0.001..=MAX_TIMEOUT).contains(&seconds) => {
                Ok(Duration::from_secs_f64(seconds))
            }
            _ => {
                let want = "expected 0.001 to 86400 seconds";
                Err(bad("ESP_BOOT_TIMEOUT", value, want))
            }
        }
    }
}

/// Creates an error about the value of a variable.
pub(crate) fn bad(variable: &str, value: &str, want: &str) -> BootError {
    let value = printable(value);
    BootError::Environment(format!(
        "invalid environment variable {variable}={value}: {want}"
    ))
}

/// Checks that the rank is below the size. `names` are the variables from which they come.
pub(crate) fn check_place(rank: u32, size: u32, names: (&str, &str)) -> Result<(), BootError> {
    if size == 0 || size > MAX_SIZE {
        let want = "a job has 1 to 1048576 processes";
        return Err(bad(names.1, &size.to_string(), want));
    }
    if rank >= size {
        let want = format!("the {size} ranks are numbered from 0");
        return Err(bad(names.0, &rank.to_string(), &want));
    }
    Ok(())
}

/// Detects the launcher of this process and connects to it.
///
/// # Errors
/// If the environment or the launcher's answer is invalid, or the library for PMIx is missing.
pub fn detect() -> Result<Bootstrap, BootError> {
    detect_in(&Environment::of_this_process())
}

/// Detects the launcher from a given environment and connects to it.
///
/// # Errors
/// As [`detect`].
pub fn detect_in(env: &Environment) -> Result<Bootstrap, BootError> {
    let timeout = env.timeout()?;
    let choice = match env.get("ESP_BOOT") {
        Some(name) => name,
        None if env.get("PMIX_NAMESPACE").is_some() => "pmix",
        None if env.get("PMI_FD").is_some() || env.get("PMI_PORT").is_some() => "pmi1",
        None if ["ESP_JOB_RANK", "ESP_JOB_SIZE", "ESP_JOB_DIR"]
            .iter()
            .any(|v| env.get(v).is_some()) =>
        {
            "fixed"
        }
        None => "single",
    };
    match choice {
        "pmix" => Pmix::start(env, timeout),
        "pmi1" => Pmi1::start(env, timeout),
        "fixed" => Fixed::start(env, timeout),
        "single" => Ok(Single::start()),
        other => Err(bad(
            "ESP_BOOT",
            other,
            "expected pmix, pmi1, fixed or single",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(variables: &[(&str, &str)]) -> String {
        match detect_in(&Environment::of(variables)) {
            Ok(job) => panic!("{variables:?} was taken by {}", job.launcher()),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn without_a_launcher_it_is_a_job_of_one() {
        for variables in [&[][..], &[("PMI_FD", ""), ("ESP_JOB_RANK", "")]] {
            let job = detect_in(&Environment::of(variables)).unwrap();
            assert_eq!((job.rank(), job.size(), job.launcher()), (0, 1, "single"));
        }
        let forced = Environment::of(&[("PMI_FD", "77"), ("ESP_BOOT", "single")]);
        assert_eq!(detect_in(&forced).unwrap().launcher(), "single");
    }

    #[test]
    fn an_invalid_environment_is_refused_with_the_variable_named() {
        for (variables, part) in [
            (
                &[("ESP_BOOT", "mpd")][..],
                "ESP_BOOT=mpd: expected pmix, pmi1, fixed or single",
            ),
            (&[("ESP_BOOT_TIMEOUT", "-1")], "ESP_BOOT_TIMEOUT=-1"),
            (&[("ESP_BOOT_TIMEOUT", "NaN")], "ESP_BOOT_TIMEOUT=NaN"),
            (&[("ESP_BOOT_TIMEOUT", "inf")], "ESP_BOOT_TIMEOUT=inf"),
            (&[("PMI_FD", "6")], "PMI_RANK is not set"),
            (
                &[("PMI_FD", "6"), ("PMI_RANK", "x"), ("PMI_SIZE", "2")],
                "PMI_RANK=x: expected a number",
            ),
            (
                &[("PMI_FD", "6"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")],
                "PMI_RANK=2: the 2 ranks",
            ),
            (
                &[("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "0")],
                "PMI_SIZE=0",
            ),
            (
                &[("PMI_FD", "6"), ("PMI_RANK", "0"), ("PMI_SIZE", "99999999")],
                "PMI_SIZE=99999999",
            ),
            (
                &[("PMI_FD", "-6"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")],
                "PMI_FD=-6",
            ),
            (
                &[("PMI_FD", "100000"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")],
                "PMI_FD=100000",
            ),
            (&[("PMI_PORT", "nohost")], "PMI_ID is not set"),
            (
                &[("PMI_PORT", "nocolon"), ("PMI_ID", "0")],
                "PMI_PORT=nocolon",
            ),
            (&[("ESP_JOB_RANK", "0")], "ESP_JOB_SIZE is not set"),
            (
                &[("ESP_JOB_RANK", "0"), ("ESP_JOB_SIZE", "2")],
                "ESP_JOB_DIR is not set",
            ),
        ] {
            let text = error(variables);
            assert!(
                text.contains(part) && text.lines().count() == 1,
                "{variables:?}: {text}"
            );
        }
    }

    #[test]
    fn the_text_of_a_variable_cannot_disturb_a_terminal() {
        let text = error(&[("ESP_BOOT", "\u{1b}[2J\r\n")]);
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
