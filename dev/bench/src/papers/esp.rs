//! "Low Overhead Ethernet Communication for Open MPI on Linux Clusters".

use super::experiment::{Curves, Paper, Row, Take, pair};

const LATENCY: &str = "half a round trip, MTU 1500, block";
const KIB: u64 = 1024;

pub(super) static PAPER: Paper = Paper {
    key: "esp",
    name: "ESP",
    title: "Low Overhead Ethernet Communication for Open MPI on Linux Clusters",
    by: "T. Hoefler, M. Reinhardt, T. Mehlan, F. Mietke, W. Rehm; TU Chemnitz, CSR-06-06, 2006",
    text: "A kernel module with two protocols over Ethernet, EDP (datagrams) and ESP (reliable \
           streams), a header of 13 bytes in place of TCP/IP's 40, and a component `eth` for Open \
           MPI. Measured on four dual Athlon MP of 1.4 GHz with SysKonnect cards and on four dual \
           Xeon of 2.4 GHz with Intel 82544GC cards, both Gigabit Ethernet, compared with TCP. \
           Here ESP is a library and a daemon in user space, the component is `esp` for Open MPI \
           4, and TCP has segmentation offload, which the virtual link passes on without ever \
           cutting a segment. `lease` is ESP over raw Ethernet by an engine in the program, `udp` \
           ESP in UDP. Kernels and collective operations run on two nodes, a core each, and on \
           four, which share the cores.",
    rows: &[
        Row {
            experiment: "latency of a socket, short messages",
            place: "section 2.1, figure 3 left",
            claim: "nearly 25 % less than TCP on both clusters",
            ratio: Some(0.75),
            here: "half a round trip of 1 B between two programs that block",
            take: Take::Pair(pair("sockets", LATENCY, Some(1), "lease", "tcp")),
            less: "An engine in user space needs system calls that the paper's module in the \
                   kernel did not, and no card adds its own time to both sides.",
            more: "The engine looks for the answer before it sleeps, so that no core has to be \
                   woken; the paper's socket blocked in the kernel.",
        },
        Row {
            experiment: "latency of a socket, long messages",
            place: "section 5",
            claim: "a slight degradation for larger messages, without flow control; no number",
            ratio: None,
            here: "half a round trip of 64 KiB, over UDP as the component sends long messages",
            take: Take::Pair(pair("sockets", LATENCY, Some(64 * KIB), "udp", "tcp")),
            less: "TCP passes 64 KiB through its stack at once, and on a virtual link no card has \
                   to cut it; ESP pays for a copy and for acknowledgements in user space.",
            more: "ESP over UDP uses the segmentation offload that TCP uses, and has the flow \
                   control that the paper's protocol lacked.",
        },
        Row {
            experiment: "time of a send call",
            place: "section 2.1, figure 3 right",
            claim: "up to 50 % less than TCP",
            ratio: Some(0.5),
            here: "send calls of 1 B in bursts of 32",
            take: Take::Pair(pair(
                "send",
                "send call, MTU 1500, block",
                Some(1),
                "lease",
                "tcp",
            )),
            less: "On a virtual link the call carries the frame up to the receiver's socket.",
            more: "The call is a copy into shared memory, and several share a system call; the \
                   paper's needed one each.",
        },
        Row {
            experiment: "MPI ping-pong, short",
            place: "sections 4.1 and 5, figure 5",
            claim: "point-to-point performance significantly enhanced; a curve, no number",
            ratio: None,
            here: "own ping-pong of 64 B over the component on two nodes",
            take: Take::Pair(pair("mpi", "ping-pong", Some(64), "esp", "tcp")),
            less: "Ranks that poll never sleep, so only the cost of the frames remains, and that \
                   of TCP is low without a card.",
            more: "Short messages take raw Ethernet without the IP stack of either node.",
        },
        Row {
            experiment: "MPI ping-pong, long",
            place: "sections 4.1 and 5, figure 5",
            claim: "slight degradation for larger messages; no number",
            ratio: None,
            here: "own ping-pong of 256 KiB",
            take: Take::Pair(pair("mpi", "ping-pong", Some(256 * KIB), "esp", "tcp")),
            less: "TCP's segmentation offload costs nothing on a link without a card; \
                   acknowledgements and congestion control of ESP run in user space.",
            more: "ESP has flow and congestion control, and offload over UDP.",
        },
        Row {
            experiment: "Alltoall",
            place: "sections 4.1 and 5, figure 5",
            claim: "collective performance significantly enhanced; a curve, no number",
            ratio: None,
            here: "own loop over MPI_Alltoall, 1 KiB, two nodes",
            take: Take::Pair(pair("mpi", "alltoall, 2 nodes", Some(KIB), "esp", "tcp")),
            less: "Both ranks send at once, which costs TCP no more than one way.",
            more: "It is one short message in each direction, whose path is shorter.",
        },
        Row {
            experiment: "Alltoall, four nodes",
            place: "sections 4.1 and 5, figure 5",
            claim: "as above",
            ratio: None,
            here: "the same with four nodes on these cores",
            take: Take::Pair(pair("mpi", "alltoall, 4 nodes", Some(KIB), "esp", "tcp")),
            less: "With more ranks than cores a message waits for a core, whichever way it takes.",
            more: "A rank that waits gives up its core after fewer system calls.",
        },
        Row {
            experiment: "Allgather",
            place: "sections 4.1 and 5, figure 5",
            claim: "collective performance significantly enhanced; a curve, no number",
            ratio: None,
            here: "own loop over MPI_Allgather, 1 KiB, two nodes",
            take: Take::Pair(pair("mpi", "allgather, 2 nodes", Some(KIB), "esp", "tcp")),
            less: "Both ranks send at once, which costs TCP no more than one way.",
            more: "It is one short message in each direction, whose path is shorter.",
        },
        Row {
            experiment: "Allreduce",
            place: "sections 4.1 and 4.3, figure 5",
            claim: "significantly enhanced, 16 B in Abinit; a curve, no number",
            ratio: None,
            here: "own loop over MPI_Allreduce, 16 B, two nodes",
            take: Take::Pair(pair("mpi", "allreduce, 2 nodes", Some(16), "esp", "tcp")),
            less: "Ranks that poll never sleep, so only the cost of the frames remains.",
            more: "It is one short message in each direction, whose path is shorter.",
        },
        Row {
            experiment: "Allreduce, four nodes",
            place: "sections 4.1 and 4.3, figure 5",
            claim: "as above",
            ratio: None,
            here: "the same with four nodes on these cores",
            take: Take::Pair(pair("mpi", "allreduce, 4 nodes", Some(16), "esp", "tcp")),
            less: "With more ranks than cores a message waits for a core, whichever way it takes.",
            more: "A rank that waits gives up its core after fewer system calls.",
        },
        Row {
            experiment: "LU, four nodes",
            place: "section 4.2",
            claim: "1432.46 Mop/s, TCP 1312.24",
            ratio: Some(1.09),
            here: "own wavefronts of short messages in a cube of 32 points, two nodes: steps per \
                   second",
            take: Take::Pair(pair("lu-sp", "lu, 2 nodes", None, "esp", "tcp")),
            less: "The kernel computes for most of its time, in which no transport differs.",
            more: "The cube is small, so that messages are a larger part of the time than in the \
                   paper.",
        },
        Row {
            experiment: "LU, four nodes of these cores",
            place: "section 4.2",
            claim: "as above",
            ratio: Some(1.09),
            here: "the same on four nodes",
            take: Take::Pair(pair("lu-sp", "lu, 4 nodes", None, "esp", "tcp")),
            less: "A wavefront waits for the slowest rank, and here each waits for a core.",
            more: "Ranks that wait for a plane leave the core to others sooner.",
        },
        Row {
            experiment: "SP, four nodes",
            place: "section 4.2",
            claim: "723.88 Mop/s, TCP 606.45",
            ratio: Some(1.19),
            here: "own sweeps in three directions with faces of 45 and 20 KiB, two nodes: steps \
                   per second",
            take: Take::Pair(pair("lu-sp", "sp, 2 nodes", None, "esp", "tcp")),
            less: "Its messages are long, and for these the virtual link gives TCP an offload that \
                   Gigabit cards of 2006 lacked.",
            more: "Faces of both directions travel at once.",
        },
        Row {
            experiment: "SP, four nodes of these cores",
            place: "section 4.2",
            claim: "as above",
            ratio: Some(1.19),
            here: "the same on four nodes",
            take: Take::Pair(pair("lu-sp", "sp, 4 nodes", None, "esp", "tcp")),
            less: "Its messages are long, and two ranks share a core.",
            more: "Ranks that wait for a face leave the core to others sooner.",
        },
        Row {
            experiment: "Abinit, SiN",
            place: "section 4.3, figure 6",
            claim: "run time on four nodes nearly halved, 14 atoms",
            ratio: Some(0.5),
            here: "Debian's Abinit 9, SiN with two atoms, two nodes: seconds of wall time",
            take: Take::Pair(pair("abinit", "SiN", None, "esp", "tcp")),
            less: "Abinit 9 parallelizes over k points and computes almost all of the time; the \
                   paper's version exchanged a FFT for each band.",
            more: "Its reductions of 16 B are short messages.",
        },
    ],
    charts: &[
        Curves {
            name: "esp-latency",
            title: "streams between two nodes: half a round trip, blocking",
            run: "sockets",
            what: &[("", LATENCY)],
            contenders: &["tcp", "lease", "udp"],
        },
        Curves {
            name: "esp-pingpong",
            title: "MPI ping-pong between two nodes: half a round trip",
            run: "mpi",
            what: &[("", "ping-pong")],
            contenders: &["tcp", "esp"],
        },
        Curves {
            name: "esp-alltoall",
            title: "MPI_Alltoall on two nodes",
            run: "mpi",
            what: &[("", "alltoall, 2 nodes")],
            contenders: &["tcp", "esp"],
        },
    ],
};
