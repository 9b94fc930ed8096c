//! The lines of PMI-1: `cmd=name key=value key=value`, ended by a newline.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::BootError;
use crate::error::printable;

/// Maximum length of a received line, in bytes. Values have at most 1024 in all known launchers.
pub(super) const MAX_LINE: usize = 8192;
/// Maximum number of words of a line.
const MAX_WORDS: usize = 64;

/// A line from the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    words: Vec<(String, String)>,
}

/// Creates an error about a line of the launcher.
pub(super) fn wrong(what: impl Display) -> BootError {
    BootError::Protocol(format!("{}: {what}", super::NAME))
}

impl Line {
    /// Parses a line. Words without `=`, which some messages have, are ignored.
    pub(super) fn parse(bytes: &[u8]) -> Result<Line, BootError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| wrong("the launcher sent bytes that are not UTF-8"))?;
        let mut words = Vec::new();
        for word in text.split_ascii_whitespace() {
            let Some((name, value)) = word.split_once('=') else {
                continue;
            };
            if words.len() == MAX_WORDS {
                return Err(wrong(format!(
                    "the launcher sent a line of more than {MAX_WORDS} words"
                )));
            }
            words.push((name.to_owned(), value.to_owned()));
        }
        Ok(Line { words })
    }

    /// Returns the first value with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|(n, value)| (n == name).then_some(value.as_str()))
    }

    /// Returns an error unless the command of the line is `cmd`.
    pub(super) fn expect(self, cmd: &str) -> Result<Line, BootError> {
        match self.get("cmd") {
            Some(found) if found == cmd => Ok(self),
            found => Err(wrong(format!(
                "the launcher answered `{}` instead of `{cmd}`",
                printable(found.unwrap_or("(nothing)"))
            ))),
        }
    }

    /// Returns an error unless `rc` is 0. `what` names the request.
    pub(super) fn succeeded(self, what: &str) -> Result<Line, BootError> {
        match self.get("rc") {
            Some("0") => Ok(self),
            rc => {
                let why = printable(self.get("msg").unwrap_or("no reason given"));
                let rc = printable(rc.unwrap_or("missing"));
                Err(wrong(format!(
                    "the launcher refused to {what}: {why} (rc {rc})"
                )))
            }
        }
    }

    /// Returns a required number in a range.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Result<T, BootError> {
        let value = self.get(name).unwrap_or("(missing)");
        let number = value.parse().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| {
            let (value, first, last) = (printable(value), range.start(), range.end());
            wrong(format!(
                "the launcher sent {name}={value}, which is not in {first} to {last}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_is_parsed() {
        let line = Line::parse(b"cmd=get_result rc=0 msg=success value=0a=b").unwrap();
        assert_eq!((line.get("value"), line.get("x")), (Some("0a=b"), None));
        assert!(line.expect("get_result").unwrap().succeeded("read").is_ok());
        let line = Line::parse(b"cmd=put_result rc=-1 msg=duplicate_key").unwrap();
        let text = line
            .clone()
            .succeeded("publish a value")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("refused to publish a value: duplicate_key (rc -1)"),
            "{text}"
        );
        assert!(
            line.expect("maxes")
                .unwrap_err()
                .to_string()
                .contains("`put_result` instead of `maxes`")
        );
    }

    #[test]
    fn numbers_have_a_range() {
        let line = Line::parse(b"a=5 b=-1 c=99999999999999999999999 d=").unwrap();
        assert_eq!(line.number("a", 1..=5).unwrap(), 5);
        for name in ["b", "c", "d", "e"] {
            assert!(line.number(name, 0..=5).is_err(), "{name}");
        }
        assert!(line.number("a", 6..=9).is_err());
    }

    #[test]
    fn too_many_words_and_invalid_text_are_refused() {
        assert!(Line::parse("a=1 ".repeat(65).as_bytes()).is_err());
        assert!(Line::parse(&[0xff, 0xfe]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(line) = Line::parse(&bytes) {
                let _ = line.number("rc", 0..=1);
                if let Err(e) = line.expect("x") {
                    prop_assert!(!e.to_string().chars().any(char::is_control));
                }
            }
        }
    }
}
