//! A job of one process, without a launcher.

use std::collections::BTreeMap;

use crate::keys::{self, Keys};
use crate::{BootError, Bootstrap};

/// Bootstrap of a process that is a job by itself.
#[derive(Debug)]
pub(crate) struct Single {
    job: String,
    keys: Keys,
    put: BTreeMap<String, Vec<u8>>,
    seen: BTreeMap<String, Vec<u8>>,
    finalized: bool,
}

impl Single {
    pub(crate) fn new() -> Single {
        Single {
            job: format!("single-{}", std::process::id()),
            keys: Keys::default(),
            put: BTreeMap::new(),
            seen: BTreeMap::new(),
            finalized: false,
        }
    }

    fn alive(&self) -> Result<(), BootError> {
        if self.finalized {
            Err(BootError::Finalized)
        } else {
            Ok(())
        }
    }
}

impl Bootstrap for Single {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn launcher(&self) -> &'static str {
        "single"
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootError> {
        self.alive()?;
        self.keys.add(key, value)?;
        self.put.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.alive()?;
        self.seen.append(&mut self.put);
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        self.alive()?;
        keys::check_rank(rank, 1)?;
        keys::check(key)?;
        Ok(self.seen.get(key).cloned())
    }

    fn abort(&mut self, code: i32, why: &str) -> BootError {
        BootError::Aborted {
            rank: 0,
            code,
            why: crate::error::printable(why),
        }
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.alive()?;
        self.finalized = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_seen_after_a_fence_and_nothing_works_after_the_end() {
        let mut job = Single::new();
        job.put("a", b"1").unwrap();
        assert_eq!(job.get(0, "a").unwrap(), None);
        job.fence().unwrap();
        assert_eq!(job.get(0, "a").unwrap().as_deref(), Some(&b"1"[..]));
        assert!(matches!(
            job.get(1, "a"),
            Err(BootError::NoRank { rank: 1, size: 1 })
        ));
        job.finalize().unwrap();
        assert!(matches!(job.fence(), Err(BootError::Finalized)));
        assert!(matches!(job.put("b", b""), Err(BootError::Finalized)));
    }
}
