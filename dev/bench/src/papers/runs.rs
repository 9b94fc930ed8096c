//! All runs, in the order of `papers.json`.

use super::experiment::Run;
use super::results::Outcome;
use super::{Context, abinit, between, guest, hpl, kernels, within};
use cli::out::Failure;

/// All runs, in the order they are measured.
pub static RUNS: [Run; 13] = [
    Run {
        name: "sockets",
        title: "half a round trip between two nodes over size",
        seconds: [30, 5],
        rounds: [3, 3],
    },
    Run {
        name: "send",
        title: "send calls of 1 byte between two nodes",
        seconds: [5, 3],
        rounds: [5, 3],
    },
    Run {
        name: "mpi",
        title: "MPI ping-pong and collective operations over two and four nodes",
        seconds: [15, 8],
        rounds: [5, 3],
    },
    Run {
        name: "lu-sp",
        title: "LU-like wavefronts and SP-like sweeps over two and four nodes",
        seconds: [15, 5],
        rounds: [5, 3],
    },
    Run {
        name: "abinit",
        title: "Abinit, SiN, over two nodes",
        seconds: [50, 15],
        rounds: [3, 1],
    },
    Run {
        name: "copies",
        title: "one copy and two within a node: latency and bandwidth",
        seconds: [35, 3],
        rounds: [5, 3],
    },
    Run {
        name: "collectives",
        title: "collective operations within a node, one copy and two",
        seconds: [5, 3],
        rounds: [3, 2],
    },
    Run {
        name: "keys",
        title: "exchange of an integer sort within a node, one copy and two",
        seconds: [10, 3],
        rounds: [5, 3],
    },
    Run {
        name: "hpl",
        title: "HPL within a node, one copy and two",
        seconds: [50, 8],
        rounds: [3, 1],
    },
    Run {
        name: "topology",
        title: "bandwidth of one and two pairs of processes of a node",
        seconds: [25, 3],
        rounds: [5, 3],
    },
    Run {
        name: "reuse",
        title: "bandwidth with buffers that are used again, and with others",
        seconds: [15, 3],
        rounds: [5, 3],
    },
    Run {
        name: "skew",
        title: "a producer of messages whose consumer is late",
        seconds: [25, 3],
        rounds: [5, 3],
    },
    Run {
        name: "guest",
        title: "RDMA over soft-RoCE in the guest of tests/vm, which has to be set up before",
        seconds: [110, 0],
        rounds: [5, 1],
    },
];

/// Measures a run.
pub(super) fn measure(context: &Context<'_>) -> Result<Outcome, Failure> {
    match context.run.name {
        name @ ("sockets" | "send") => between::measure(context, name),
        name @ ("mpi" | "lu-sp") => kernels::measure(context, name),
        "abinit" => abinit::measure(context),
        "hpl" => hpl::measure(context),
        "guest" => guest::measure(context),
        name => within::measure(context, name),
    }
}
