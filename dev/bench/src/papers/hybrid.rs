//! "Designing An Efficient Kernel-level and User-level Hybrid Approach for MPI Intra-node
//! Communication on Multi-core Systems".

use super::experiment::{Curves, Paper, Row, Take, pair};

const MULTI_PAIR: &str = "multi-pair, buffers: 64, reused, 1 pairs";
const TWO_PAIRS: &str = "multi-pair, buffers: 64, reused, 2 pairs";
const ONE: &str = "p2p one-copy";
const TWO: &str = "p2p two-copy";
/// With the thresholds of a job, and with skew.
const SET: &str = "p2p";

pub(super) static PAPER: Paper = Paper {
    key: "hybrid",
    name: "Hybrid",
    title: "Designing An Efficient Kernel-level and User-level Hybrid Approach for MPI Intra-node \
            Communication on Multi-core Systems",
    by: "L. Chai, P. Lai, H.-W. Jin, D. K. Panda; The Ohio State University and Konkuk University",
    text: "Shared memory for short messages and LiMIC2 (one copy by the kernel) for long ones, \
           with a threshold for each kind of pair of cores, and with one that rises while the \
           receiver is late. Measured in MVAPICH on nodes of two quad-core Xeon (Clovertown) of \
           2.0 GHz, where two cores share 4 MiB of cache, compared with MVAPICH's shared memory. \
           Here `p2p` has both ways and both thresholds: `p2p two-copy` is shared memory alone, \
           `p2p one-copy` copies once at 4 KiB and above, `p2p` has the thresholds of a job. This \
           machine has one kind of pair of cores.",
    rows: &[
        Row {
            experiment: "threshold of a pair that shares a cache",
            place: "section 3.1, figure 2a; section 4.1",
            claim: "32 KiB; 2 KiB within a socket, 1 KiB between sockets",
            ratio: None,
            here: "smallest size from which one copy has more bandwidth than two",
            take: Take::Threshold(pair("topology", MULTI_PAIR, None, ONE, TWO), 32_768),
            less: "Two copies run on both cores at once and stay in their cache; the kernel's \
                   copy runs on one and pays for every page.",
            more: "The kernel is entered in a fraction of the paper's 3 µs.",
        },
        Row {
            experiment: "bandwidth of all pairs, best size",
            place: "section 3.1, figures 2b and 2c",
            claim: "up to 70 % more within a socket, 98 % between sockets",
            ratio: Some(1.7),
            here: "one pair on two cores, windows of 64 messages",
            take: Take::Best(pair("topology", MULTI_PAIR, None, ONE, TWO)),
            less: "These cores share a cache, where the paper found no gain below 32 KiB either.",
            more: "Windows of this size are in no cache.",
        },
        Row {
            experiment: "bandwidth with more pairs than cores, best size",
            place: "section 3.1",
            claim: "four pairs on eight cores; no number",
            ratio: None,
            here: "two pairs on two cores",
            take: Take::Best(pair("topology", TWO_PAIRS, None, ONE, TWO)),
            less: "A process that waits for its core holds up both ways alike.",
            more: "One copy keeps one process busy, so that the other pair has the core.",
        },
        Row {
            experiment: "buffers used again, 16 KiB",
            place: "section 3.2, figure 3",
            claim: "one copy gains more of medium messages if buffers are used again; no number",
            ratio: None,
            here: "64 buffers, written before each window",
            take: Take::Pair(pair(
                "reuse",
                "buffer reuse, buffers: 64, reused",
                Some(16_384),
                ONE,
                TWO,
            )),
            less: "The buffers of both ways fit this processor's cache.",
            more: "One copy leaves the cache to the program's buffers.",
        },
        Row {
            experiment: "buffers never used again, 16 KiB",
            place: "section 3.2, figure 3",
            claim: "less gain of medium messages than with buffers used again; no number",
            ratio: None,
            here: "buffers of 128 MiB in turn",
            take: Take::Pair(pair(
                "reuse",
                "buffer reuse, buffers: out of cache",
                Some(16_384),
                ONE,
                TWO,
            )),
            less: "Both ways wait for memory, and two copies do so on two cores.",
            more: "Each copy that is saved is one through memory.",
        },
        Row {
            experiment: "misses of the cache",
            place: "section 3.3, figure 4",
            claim: "about 7 % fewer at 16 KiB and above",
            ratio: Some(0.93),
            here: "-",
            take: Take::Not(
                "not run: needs the processor's counters, which virtual machines often lack",
            ),
            less: "",
            more: "",
        },
        Row {
            experiment: "late receiver without skew-aware threshold, consumer computes 200 µs",
            place: "section 3.4, figure 6",
            claim: "time of the producer grows with the consumer's; shared memory stays; no number",
            ratio: None,
            here: "64 messages of 16 KiB, producer computes 1 µs: time of the producer",
            take: Take::Pair(pair(
                "skew",
                "skew, consumer 200 µs",
                Some(16_384),
                "p2p one-copy, skew off",
                TWO,
            )),
            less: "As in the paper: the producer waits for each receive.",
            more: "The producer does not wait for the receives.",
        },
        Row {
            experiment: "late receiver with skew-aware threshold, consumer computes 200 µs",
            place: "section 4.2, figure 7",
            claim: "close to shared memory",
            ratio: Some(1.0),
            here: "the same with the threshold that rises",
            take: Take::Pair(pair(
                "skew",
                "skew, consumer 200 µs",
                Some(16_384),
                ONE,
                TWO,
            )),
            less: "Messages sent before the receiver was found to be late still wait for it.",
            more: "A producer that does not wait has both cores' cache for itself.",
        },
        Row {
            experiment: "Alltoall, best size",
            place: "section 5.1, figure 8",
            claim: "up to 60 % less time, eight processes",
            ratio: Some(0.4),
            here: "`p2p` compared with two copies, two processes",
            take: Take::Best(pair("collectives", "alltoall, 2 ranks", None, SET, TWO)),
            less: "Two processes on two cores that share a cache gain least by one copy; most \
                   pairs of the paper's eight shared none.",
            more: "Both directions are copied at once.",
        },
        Row {
            experiment: "Allgather, best size",
            place: "section 5.1, figure 8",
            claim: "up to 28 % less time",
            ratio: Some(0.72),
            here: "`p2p` compared with two copies, two processes",
            take: Take::Best(pair("collectives", "allgather, 2 ranks", None, SET, TWO)),
            less: "Two processes on two cores that share a cache gain least by one copy.",
            more: "Both directions are copied at once.",
        },
        Row {
            experiment: "Allreduce, best size",
            place: "section 5.1, figure 8",
            claim: "up to 21 % less time",
            ratio: Some(0.79),
            here: "`p2p` compared with two copies, two processes",
            take: Take::Best(pair("collectives", "allreduce, 2 ranks", None, SET, TWO)),
            less: "Adding the numbers takes as long as moving them, and no copy saves it.",
            more: "Both directions are copied at once.",
        },
        Row {
            experiment: "IS, class B",
            place: "section 5.2, figure 9",
            claim: "17 % less time, eight processes",
            ratio: Some(0.83),
            here: "own exchange of an integer sort with 2²³ keys, two processes, `p2p` compared \
                   with two copies",
            take: Take::Pair(pair("keys", "sort of 2^23 keys", None, SET, TWO)),
            less: "Counting keys, not moving them, takes most of an iteration on this processor.",
            more: "Messages of 8 MiB are in no cache.",
        },
        Row {
            experiment: "HPL",
            place: "section 5.2",
            claim: "less than 5 % gain",
            ratio: None,
            here: "HPL of Debian's hpcc, two processes, `p2p` compared with two copies",
            take: Take::Pair(pair("hpl", "HPL", None, SET, TWO)),
            less: "HPL computes for most of its time, in which copies make no difference.",
            more: "Its panels are long messages.",
        },
        Row {
            experiment: "FT, PSTSWM",
            place: "section 5.2, figure 9",
            claim: "8 % and 14 % less time",
            ratio: None,
            here: "-",
            take: Take::Not(
                "not run: neither is in Debian; what they exchange is the Alltoall of long \
                 messages above",
            ),
            less: "",
            more: "",
        },
    ],
    charts: &[
        Curves {
            name: "hybrid-bandwidth",
            title: "one pair of cores: bandwidth of windows of 64 messages",
            run: "topology",
            what: &[("", MULTI_PAIR)],
            contenders: &[SET, ONE, TWO, "openmpi", "openmpi two-copy"],
        },
        Curves {
            name: "hybrid-skew",
            title: "time of the producer of 64 messages by the consumer's computing time",
            run: "skew",
            what: &[
                ("0 µs", "skew, consumer 0 µs"),
                ("50 µs", "skew, consumer 50 µs"),
                ("200 µs", "skew, consumer 200 µs"),
            ],
            contenders: &[TWO, ONE, "p2p one-copy, skew off"],
        },
        Curves {
            name: "hybrid-alltoall",
            title: "Alltoall of two processes of a node",
            run: "collectives",
            what: &[("", "alltoall, 2 ranks")],
            contenders: &[SET, ONE, TWO, "openmpi", "openmpi two-copy"],
        },
    ],
};
