//! Benchmarks that compare ESP with TCP, a bare packet-socket loop and other MPI transports.
//!
//! Absolute times differ from machine to machine and from day to day; ratios of protocols measured
//! in turn do not. A *round* runs every *case* of a benchmark once, one after the other. A ratio is
//! the median of the rounds' ratios, given with the smallest and the largest of them.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | benchmarks between two nodes: labs and cases |
//! | [`run`] | runs them round by round |
//! | [`report`] | their rows |
//! | [`table`] | tables of rows as text and Markdown |
//! | [`page`] | the performance page: tables, charts, description of the machine |
//! | [`results`], [`against`] | figures of all benchmarks in one form, and their comparison |
//! | [`task`] | what a program of a case does, and its result |
//! | [`worker`] | the two programs of a case, which run inside the nodes (`esplab worker`) |
//! | [`incast`] | eight nodes send to one through a slow link |
//! | [`rails`] | a job over one interface and over two |
//! | [`engines`] | many programs of a node through one daemon with several engines |
//! | [`programs`] | many programs of a node through one daemon |
//! | [`protect`] | suites of protected packets, and TLS of the kernel |
//! | [`intra`] | benchmarks within one node: shared memory compared with other projects' |
//! | [`papers`] | the experiments of five papers, and their page |
#![forbid(unsafe_code)]

pub mod about;
pub mod against;
pub mod cores;
mod ends;
pub mod engines;
mod hold;
pub mod incast;
pub mod intra;
pub mod page;
pub mod papers;
pub mod plan;
pub mod programs;
pub mod protect;
pub mod rails;
mod raw;
mod raw_udp;
pub mod report;
pub mod results;
pub mod run;
pub mod samples;
mod scratch;
mod stream;
pub mod table;
pub mod task;
pub mod worker;
