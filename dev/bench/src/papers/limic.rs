//! "Design and Performance Evaluation of LiMIC on InfiniBand Cluster".

use super::experiment::{Curves, Paper, Row, Take, pair};

const BANDWIDTH: &str = "copies: bandwidth, buffers: 64, reused";
const SIZE: Option<u64> = Some(65_536);

pub(super) static PAPER: Paper = Paper {
    key: "limic",
    name: "LiMIC",
    title: "Design and Performance Evaluation of LiMIC (Linux Kernel Module for MPI Intra-node \
            Communication) on InfiniBand Cluster",
    by: "H.-W. Jin, S. Sur, L. Chai, D. K. Panda; The Ohio State University, ICPP 2005",
    text: "A kernel module that copies a message once, from the sender's to the receiver's memory. \
           Measured in MVAPICH 0.9.4 on eight nodes of two Xeon of 3.0 GHz with 512 KiB of cache, \
           compared with MVAPICH's shared memory (two copies) and its loopback through the \
           InfiniBand card. Here one copy is cross-memory attach (`process_vm_readv`), a system \
           call of every Linux, in the point-to-point layer `p2p`; it is compared with two copies \
           of the same layer. Open MPI's shared memory with one copy and with two is measured in \
           the same rounds and is in the charts. All processes run on one node.",
    rows: &[
        Row {
            experiment: "latency, 64 KiB",
            place: "section 5.2.1, figure 10",
            claim: "71 % less than MVAPICH (72 % in the abstract)",
            ratio: Some(0.29),
            here: "half a round trip between two processes, one copy compared with two",
            take: Take::Pair(pair(
                "copies",
                "copies: latency",
                SIZE,
                "p2p one-copy",
                "p2p two-copy",
            )),
            less: "Two copies are made by two cores at once through a cache that both share; the \
                   paper's were in two packages, and MVAPICH 0.9.4 had a loopback through the card \
                   besides its shared memory.",
            more: "The second copy misses the cache here.",
        },
        Row {
            experiment: "bandwidth, window of 64, 64 KiB",
            place: "section 5.2.1, figure 11",
            claim: "405 % more than MVAPICH",
            ratio: Some(5.05),
            here: "windows of 64 messages from and to 64 buffers",
            take: Take::Pair(pair(
                "copies",
                BANDWIDTH,
                SIZE,
                "p2p one-copy",
                "p2p two-copy",
            )),
            less: "MVAPICH 0.9.4 had shared memory and a loopback through the card, which crosses \
                   the I/O bus twice (section 2.1); here both ways are copies by processors.",
            more: "The second copy misses the cache here.",
        },
        Row {
            experiment: "bandwidth, 1 MiB",
            place: "section 5.2.1, figure 11",
            claim: "a curve, no number",
            ratio: None,
            here: "the same with 1 MiB",
            take: Take::Pair(pair(
                "copies",
                BANDWIDTH,
                Some(1 << 20),
                "p2p one-copy",
                "p2p two-copy",
            )),
            less: "Two copies run on two cores at once, one copy on one.",
            more: "A window of 64 MiB is in no cache, so that each copy costs memory bandwidth.",
        },
        Row {
            experiment: "entry of the kernel",
            place: "section 5.1.1, figure 8",
            claim: "around 3 µs for the trap",
            ratio: None,
            here: "an empty system call, in batches of 100",
            take: Take::Alone(pair(
                "copies",
                "cost: system call",
                None,
                "limit: system call",
                "",
            )),
            less: "",
            more: "",
        },
        Row {
            experiment: "Alltoall, 64 KiB, two processes on each of two nodes",
            place: "section 5.2.2, figure 13",
            claim: "24 % less time than MVAPICH",
            ratio: Some(0.76),
            here: "four processes of one node on these cores",
            take: Take::Pair(pair(
                "collectives",
                "alltoall, 4 ranks",
                SIZE,
                "p2p one-copy",
                "p2p two-copy",
            )),
            less: "Four processes share the cores and their cache, which favours copies of \
                   shared memory.",
            more: "All messages stay within the node, of the paper's a third.",
        },
        Row {
            experiment: "IS, class A",
            place: "section 5.3, figure 14",
            claim: "12.66 % less time (13.5 % with class B)",
            ratio: Some(0.873),
            here: "own exchange of an integer sort with the 2²³ keys of class A, two processes",
            take: Take::Pair(pair(
                "keys",
                "sort of 2^23 keys",
                None,
                "p2p one-copy",
                "p2p two-copy",
            )),
            less: "Counting keys, not moving them, takes most of an iteration on this processor.",
            more: "Messages of 8 MiB are in no cache.",
        },
        Row {
            experiment: "HPL",
            place: "section 5.4, figure 16",
            claim: "more Gflop/s of a node; bars, no number",
            ratio: None,
            here: "HPL of Debian's hpcc, two processes by Open MPI over the provider of libfabric",
            take: Take::Pair(pair("hpl", "HPL", None, "p2p one-copy", "p2p two-copy")),
            less: "HPL computes for most of its time, in which copies make no difference.",
            more: "Its panels are long messages.",
        },
    ],
    charts: &[
        Curves {
            name: "limic-latency",
            title: "within a node: one-way latency over size",
            run: "copies",
            what: &[("", "copies: latency")],
            contenders: &[
                "p2p one-copy",
                "p2p two-copy",
                "openmpi",
                "openmpi two-copy",
            ],
        },
        Curves {
            name: "limic-bandwidth",
            title: "within a node: bandwidth of windows of 64 messages",
            run: "copies",
            what: &[("", BANDWIDTH)],
            contenders: &[
                "p2p one-copy",
                "p2p two-copy",
                "openmpi",
                "openmpi two-copy",
            ],
        },
    ],
};
