//! Keys that a process has published: the rules of [`Bootstrap::put`](crate::Bootstrap::put), the
//! same for every launcher.

use std::collections::BTreeSet;

use crate::{BootError, MAX_KEY, MAX_VALUE};

/// The keys used so far.
#[derive(Debug, Default)]
pub(crate) struct Keys(BTreeSet<String>);

impl Keys {
    /// Notes a key, or says why it may not be put.
    pub(crate) fn add(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        check(key)?;
        if value.len() > MAX_VALUE {
            return Err(BootError::TooLong(value.len()));
        }
        if self.0.insert(key.to_owned()) {
            Ok(())
        } else {
            Err(BootError::KeyTwice(key.to_owned()))
        }
    }
}

/// Checks the form of a key.
pub(crate) fn check(key: &str) -> Result<(), BootError> {
    let fine = (1..=MAX_KEY).contains(&key.len())
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if fine {
        Ok(())
    } else {
        Err(BootError::BadKey(crate::error::printable(key)))
    }
}

/// Checks that the job has the rank.
pub(crate) fn check_rank(rank: u32, size: u32) -> Result<(), BootError> {
    if rank < size {
        Ok(())
    } else {
        Err(BootError::NoRank { rank, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_plain_and_used_once() {
        let mut keys = Keys::default();
        keys.add("cards-1_A", &[0; MAX_VALUE]).unwrap();
        assert!(matches!(
            keys.add("cards-1_A", &[]),
            Err(BootError::KeyTwice(_))
        ));
        assert!(matches!(
            keys.add("b", &[0; MAX_VALUE + 1]),
            Err(BootError::TooLong(_))
        ));
        for bad in [
            "",
            "a b",
            "a=b",
            "a\n",
            "ä",
            "../x",
            "0123456789012345678901234",
        ] {
            assert!(
                matches!(keys.add(bad, &[]), Err(BootError::BadKey(_))),
                "{bad}"
            );
        }
    }
}
