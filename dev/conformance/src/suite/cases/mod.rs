//! The cases, grouped by promise.

mod basic;
mod death;
mod dropped;
mod ends;
mod held_sends;
mod life;
mod noticed_puts;
mod one_sided;
mod traffic;
mod wake;

use super::Case;

/// All cases, in groups.
pub const CASES: &[&[Case]] = &[
    basic::CASES,
    traffic::CASES,
    one_sided::CASES,
    held_sends::CASES,
    noticed_puts::CASES,
    wake::CASES,
    life::CASES,
    death::CASES,
    dropped::CASES,
];
