//! The cases, by promise.

mod basic;

use super::Case;

/// Every case, in groups.
pub const CASES: &[&[Case]] = &[basic::CASES];
