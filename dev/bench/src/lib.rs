//! The benchmarks: ESP beside TCP and beside a bare packet-socket loop, in alternating rounds of
//! one run.
//!
//! One machine's absolute times change from day to day; what holds is the ratio of two paths
//! measured in turn. So a *round* runs every *case* of a bench once, one after the other, and a
//! ratio is the median of the rounds' ratios.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | which cases a bench has, in which labs |
//! | [`run`] | makes the labs, goes round by round, gathers |
//! | [`report`] | rows for `--json`, tables for people |
//! | [`worker`] | the two programs of a case, run inside the nodes (`esplab worker`) |
//! | [`incast`] | many nodes send to one through a slow link |
//! | [`rails`] | a job over one interface and over two |
//! | [`intra`] | the benches within one node: shared memory beside other projects' |
#![forbid(unsafe_code)]

pub mod cores;
mod ends;
mod hold;
pub mod incast;
pub mod intra;
pub mod plan;
pub mod rails;
mod raw;
pub mod report;
pub mod run;
pub mod samples;
mod scratch;
pub mod worker;
