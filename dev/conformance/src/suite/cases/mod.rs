//! The cases, by promise.

mod basic;
mod death;
mod dropped;
mod held;
mod life;
mod matched;
mod noticed;
mod one_sided;
mod traffic;
mod wake;

use super::Case;

/// Every case, in groups.
pub const CASES: &[&[Case]] = &[
    basic::CASES,
    traffic::CASES,
    one_sided::CASES,
    held::CASES,
    noticed::CASES,
    matched::CASES,
    wake::CASES,
    life::CASES,
    death::CASES,
    dropped::CASES,
];
