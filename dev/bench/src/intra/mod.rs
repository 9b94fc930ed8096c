//! Benchmarks within a node: our point-to-point layer over shared memory beside other projects' and
//! beside what the machine can do.
//!
//! A *contender* is a group of processes that take *work* line by line and answer with nanoseconds;
//! all are alive at the same time, sleep when it is not their turn, and are pinned alike. A *round*
//! runs every *measure* of a bench, each by all its contenders one after the other; ratios are
//! medians of the rounds' ratios. The peers' programs are in `dev/bench/peers` and compiled when
//! they are needed; what is not installed has a row that says so.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | which benches there are and what they measure |
//! | [`work`] | what a group is told, and its answer |
//! | [`contender`] | who is measured, how its processes are started |
//! | [`join`] | how ours are set up |
//! | `group` | the processes of a contender |
//! | `ucx` | `ucx_perftest`, which is no such group |
//! | [`ours`] | the work through our point-to-point layer |
//! | [`bare`] | the work by a transport alone |
//! | [`run`] | round by round |
//! | [`report`] | rows and tables |

pub mod bare;
pub mod contender;
mod group;
pub mod join;
pub mod ours;
pub mod plan;
pub mod report;
pub mod run;
mod ucx;
pub mod work;
