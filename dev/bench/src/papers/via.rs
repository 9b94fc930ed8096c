//! "Providing a High-Performance VIA-Module for LAM/MPI".

use super::experiment::{Curves, Paper, Row, Take, pair};

const KIB: u64 = 1024;

pub(super) static PAPER: Paper = Paper {
    key: "via",
    name: "VIA-RPI",
    title: "Providing a High-Performance VIA-Module for LAM/MPI",
    by: "T. Mehlan, W. Rehm, R. Engler, T. Wenzel; TU Chemnitz",
    text: "A module for LAM/MPI 7.1 over M-VIA, which gives Ethernet cards RDMA and bypasses \
           TCP/IP: tiny messages are copied at both ends, short ones registered by the sender, \
           long ones registered at both ends, and registrations are kept. Measured on two dual \
           Athlon MP of 1.4 GHz with Intel Pro/100 S (Fast Ethernet), compared with MPICH and \
           LAM/MPI over TCP and MVICH over M-VIA. Here the network without TCP/IP is ESP between \
           two nodes of the lab; the protocols over RDMA are the transport `ib` over soft-RoCE, an \
           RDMA device in software, in an emulated guest (`tests/vm`), where only ratios mean \
           something. No InfiniBand hardware was available.",
    rows: &[
        Row {
            experiment: "latency, 1 to 256 B",
            place: "section 4, figure 4",
            claim: "the least of all four, TCP the most; a curve, no number",
            ratio: None,
            here: "half a round trip of 64 B of `p2p` over raw Ethernet, blocking, compared with \
                   TCP",
            take: Take::Pair(pair(
                "sockets",
                "half a round trip, MTU 1500, block",
                Some(64),
                "p2p",
                "tcp",
            )),
            less: "Packet sockets cross the kernel; M-VIA had its own driver.",
            more: "The receiver looks for the message before it sleeps.",
        },
        Row {
            experiment: "latency of RDMA, 8 B",
            place: "section 4, figure 6",
            claim: "MPI over M-VIA compared with M-VIA alone; a curve, no number",
            ratio: None,
            here: "guest: half a round trip of `ib` compared with `ib_write_lat` of perftest",
            take: Take::Pair(pair(
                "guest",
                "half a round trip of 8 B",
                None,
                "ib",
                "ib_write_lat",
            )),
            less: "A message carries a header, credits and a notice; perftest writes bytes.",
            more: "Emulated processors vary by this much from round to round.",
        },
        Row {
            experiment: "bandwidth, 64 KiB",
            place: "section 4, figure 5",
            claim: "TCP seems to be better up to 65 kB, which the authors call implausible; a \
                    curve, no number",
            ratio: None,
            here: "own MPI ping-pong of 64 KiB over ESP, half a round trip compared with TCP",
            take: Take::Pair(pair("mpi", "ping-pong", Some(64 * KIB), "esp", "tcp")),
            less: "TCP's segmentation offload on a link without a card costs nothing.",
            more: "ESP over UDP uses offload, too.",
        },
        Row {
            experiment: "bandwidth, 512 KiB",
            place: "section 4, figure 5",
            claim: "better than TCP at 65 kB and above; a curve, no number",
            ratio: None,
            here: "own MPI ping-pong of 512 KiB",
            take: Take::Pair(pair("mpi", "ping-pong", Some(512 * KIB), "esp", "tcp")),
            less: "TCP's segmentation offload on a link without a card costs nothing; nothing \
                   here is zero-copy as M-VIA's RDMA was.",
            more: "ESP over UDP uses offload, too.",
        },
        Row {
            experiment: "tiny: copied or registered",
            place: "section 3.1",
            claim: "a copy takes about 2 µs less than a registration below 16 kB",
            ratio: None,
            here: "guest: rate of messages of 4 KiB registered by the sender for one use, compared \
                   with copied ones",
            take: Take::Pair(pair("guest", "held", Some(4 * KIB), "held", "copied")),
            less: "As in the paper: below 16 KiB registering costs more than copying.",
            more: "Emulation makes copies dearer than system calls.",
        },
        Row {
            experiment: "short: registered by the sender, 16 to 32 kB, registrations kept",
            place: "section 3.1",
            claim: "default protocol of these lengths; no number",
            ratio: None,
            here: "guest: messages of 16 000 B registered by the sender and kept, compared with \
                   copied ones",
            take: Take::Pair(pair(
                "guest",
                "held",
                Some(16_000),
                "held + cache",
                "copied",
            )),
            less: "The sender has to wait until the interface has sent its buffer, which costs \
                   more than the copy; so the default is to copy.",
            more: "The copy at the sender is saved.",
        },
        Row {
            experiment: "long: registered at both ends, registrations kept",
            place: "section 3.1",
            claim: "default at 32 kB and above; no number",
            ratio: None,
            here: "guest: ping-pong of 64 KiB by RDMA with kept registrations, compared with \
                   copies",
            take: Take::Pair(pair(
                "guest",
                "ping-pong",
                Some(64 * KIB),
                "RDMA + cache",
                "copies",
            )),
            less: "A handshake more, and in software the interface copies as the processor does.",
            more: "Both copies of the processor are saved.",
        },
    ],
    charts: &[
        Curves {
            name: "via-pingpong",
            title: "MPI ping-pong between two nodes: half a round trip",
            run: "mpi",
            what: &[("", "ping-pong")],
            contenders: &["tcp", "esp"],
        },
        Curves {
            name: "via-held",
            title: "guest: short messages, copied or registered by the sender",
            run: "guest",
            what: &[("", "held")],
            contenders: &["copied", "held", "held + cache"],
        },
    ],
};
