//! "An MPICH2 Channel Device Implementation over VAPI on InfiniBand".

use super::experiment::{Curves, Paper, Row, Take, pair};

const KIB: u64 = 1024;

pub(super) static PAPER: Paper = Paper {
    key: "vapi",
    name: "VAPI",
    title: "An MPICH2 Channel Device Implementation over VAPI on InfiniBand",
    by: "R. Grabner, F. Mietke, W. Rehm; TU Chemnitz, IPDPS 2004",
    text: "A device for MPICH2 over Mellanox' verbs: messages by send and receive with credits, \
           long ones by RDMA write with an immediate, and kept registrations (DME). Measured on \
           four dual Xeon of 2.66 GHz with InfiniHost 4X cards in PCI-X slots, compared with \
           MPICH2's own device and MVAPICH2. Here it is the transport `ib` with `p2p` over \
           soft-RoCE in an emulated guest (`tests/vm`), where only ratios mean something. No \
           InfiniBand hardware was available.",
    rows: &[
        Row {
            experiment: "latency of short packets",
            place: "section III-G",
            claim: "about 10 µs for the prototype; raw VAPI not given",
            ratio: None,
            here: "guest: half a round trip of 8 B of `ib` compared with `ib_send_lat` of perftest",
            take: Take::Pair(pair(
                "guest",
                "half a round trip of 8 B",
                None,
                "ib",
                "ib_send_lat",
            )),
            less: "A message carries a header, credits and a notice; perftest sends bytes.",
            more: "RDMA write needs fewer steps of the interface than send and receive.",
        },
        Row {
            experiment: "bandwidth of long messages",
            place: "section III-G",
            claim: "429 MB/s at 4 MB for the prototype, which copied twice; raw VAPI not given",
            ratio: None,
            here: "guest: put of 1 MiB of `ib` compared with `ib_write_bw` of perftest",
            take: Take::Pair(pair("guest", "put of 1 MiB", None, "ib", "ib_write_bw")),
            less: "Long data goes in requests of 64 KiB, each with its own cost.",
            more: "Requests of 64 KiB suit the emulated interface better than one of 1 MiB.",
        },
        Row {
            experiment: "RDMA that registers for each message",
            place: "section IV-A, figure 6",
            claim: "loses about two thirds of the bandwidth of copies",
            ratio: Some(0.33),
            here: "guest: ping-pong of 64 KiB, registered each time, compared with copies",
            take: Take::Pair(pair("guest", "ping-pong", Some(64 * KIB), "RDMA", "copies")),
            less: "Registering is emulated, too, and costs several times what it costs a card.",
            more: "In software a device needs no table of pages of its own, so registering costs \
                   less compared with a slow copy.",
        },
        Row {
            experiment: "RDMA with kept registrations, 64 KiB",
            place: "section IV-A, figure 6",
            claim: "the loss is solved; a curve, no number",
            ratio: None,
            here: "guest: ping-pong of 64 KiB, registrations kept, compared with copies",
            take: Take::Pair(pair(
                "guest",
                "ping-pong",
                Some(64 * KIB),
                "RDMA + cache",
                "copies",
            )),
            less: "A handshake more, and in software the interface copies as the processor does.",
            more: "As in the paper: both copies of the processor are saved.",
        },
        Row {
            experiment: "RDMA with kept registrations, 1 MiB",
            place: "section IV-A, figure 6",
            claim: "the loss is solved; a curve, no number",
            ratio: None,
            here: "guest: the same with 1 MiB",
            take: Take::Pair(pair(
                "guest",
                "ping-pong",
                Some(1024 * KIB),
                "RDMA + cache",
                "copies",
            )),
            less: "In software the interface copies as the processor does.",
            more: "As in the paper: both copies of the processor are saved.",
        },
        Row {
            experiment: "barrier, two nodes",
            place: "section IV-B, table",
            claim: "9.63 µs; device of MPICH2 13.57, MVAPICH2 8.02",
            ratio: Some(0.71),
            here: "MPI_Barrier of Open MPI over ESP compared with TCP, two nodes: no InfiniBand",
            take: Take::Pair(pair("mpi", "barrier, 2 nodes", Some(0), "esp", "tcp")),
            less: "It is another network and another MPI: only the algorithm is alike.",
            more: "It is another network and another MPI: only the algorithm is alike.",
        },
        Row {
            experiment: "barrier, four nodes",
            place: "section IV-B, table",
            claim: "18.96 µs; device of MPICH2 26.50, MVAPICH2 16.47",
            ratio: Some(0.72),
            here: "the same with four nodes on these cores",
            take: Take::Pair(pair("mpi", "barrier, 4 nodes", Some(0), "esp", "tcp")),
            less: "Four ranks wait for two cores, whichever way their messages take.",
            more: "A rank that waits gives up its core after fewer system calls.",
        },
        Row {
            experiment: "registered memory by credits",
            place: "section III-C",
            claim: "32 credits, twice, of 8 KiB: 512 KiB for each connection",
            ratio: None,
            here: "64 credits of 4 KiB for each peer",
            take: Take::Not(
                "not a measurement: 2 MiB and 268 KiB for each peer \
                 ([table](infiniband.md#flow-control-and-memory)), which `cargo test -p ib-btl \
                 --test memory` checks",
            ),
            less: "",
            more: "",
        },
        Row {
            experiment: "ping-pong compared with other devices",
            place: "section IV-B, figure 7",
            claim: "compared with MVAPICH2 and the device of MPICH2; curves, no number",
            ratio: None,
            here: "-",
            take: Take::Not("not run: needs an InfiniBand card and these MPIs"),
            less: "",
            more: "",
        },
    ],
    charts: &[Curves {
        name: "vapi-figure-6",
        title: "guest: ping-pong with copies, with RDMA, and with kept registrations",
        run: "guest",
        what: &[("", "ping-pong")],
        contenders: &["copies", "RDMA", "RDMA + cache"],
    }],
};
