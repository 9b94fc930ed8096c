//! Benchmarks within a node: the point-to-point layer over shared memory compared with other
//! projects' and with the limits of the machine.
//!
//! A *contender* is a group of processes that take *work* line by line and answer with nanoseconds.
//! All contenders run at the same time, are pinned alike and sleep while others measure. A *round*
//! runs every *measure* of a benchmark by all its contenders in turn; ratios are medians of the
//! rounds' ratios. The peers' programs are in `dev/bench/peers` and compiled at first use; a
//! missing peer has a row with a note.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | benchmarks and their measures |
//! | [`work`] | work of a group, and its answer |
//! | [`contender`] | contenders, and how their processes are started |
//! | [`join`] | setup of our ranks |
//! | `group` | the processes of a contender |
//! | `ucx` | `ucx_perftest`, which takes no work by lines |
//! | [`ours`] | work over the point-to-point layer |
//! | `collectives` | collective operations and the exchange of a sort over it |
//! | [`bare`] | work over a transport alone |
//! | [`run`] | alternating rounds |
//! | [`report`] | rows and tables |

pub mod bare;
mod collectives;
pub mod contender;
mod group;
pub mod join;
pub mod ours;
pub mod plan;
pub mod report;
pub mod run;
mod ucx;
pub mod work;
