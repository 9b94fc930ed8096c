//! Every collective operation with every number of ranks, compared with its definition.

use std::sync::Mutex;

use crate::common::{Random, config, run};
use btl_conformance::loopback::Limits;
use p2p::{Algorithm, Block, Collective, Comm, Config, Error, Op, Reduction, Source, Tag};

/// Lengths on both sides of every switch between algorithms, in values of 8 bytes.
const LENGTHS: [usize; 7] = [0, 1, 7, 33, 600, 5000, 20_000];

fn value(rank: usize, at: usize) -> i64 {
    (rank as i64 + 1) * 1000 + at as i64 % 977
}

fn data(rank: usize, length: usize) -> Vec<i64> {
    (0..length).map(|at| value(rank, at)).collect()
}

/// Numbers of ranks, and the nodes that they are on.
fn jobs() -> Vec<(u32, Vec<u32>)> {
    let flat = [1, 2, 3, 4, 5, 7, 8, 9].map(|size| (size, Vec::new()));
    let placed = [
        // One level: one node, and one rank on each.
        vec![4; 3],
        vec![0, 1, 2],
        // Nodes of equal and of different sizes.
        vec![0, 0, 1, 1],
        vec![3, 3, 3, 1, 2, 2, 2],
        // Ranks in turn, and in no order.
        vec![0, 1, 0, 1, 0],
        vec![2, 0, 0, 2, 1, 0, 2, 2, 1],
    ];
    let placed = placed.into_iter().map(|nodes| (nodes.len() as u32, nodes));
    flat.into_iter().chain(placed).collect()
}

/// Runs `f` in jobs of all sizes and placements, with every protocol.
fn on_all_sizes(
    what: &'static str,
    f: impl Fn(&Comm, usize, usize) + Send + Sync + Clone + 'static,
) {
    for (size, nodes) in jobs() {
        let limits = if size % 2 == 0 {
            Limits::default()
        } else {
            Limits::default().plain()
        };
        let f = f.clone();
        run(
            size,
            limits,
            &Config {
                nodes: nodes.clone(),
                ..config(size)
            },
            &format!("{what} of {size} on {nodes:?}"),
            move |_, comm| {
                let (rank, size) = (comm.rank() as usize, comm.size() as usize);
                f(&comm, rank, size);
            },
        );
    }
}

#[test]
fn barrier_waits_for_all_ranks() {
    static ARRIVED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    on_all_sizes("barrier", |comm, rank, size| {
        for _ in 0..10 {
            ARRIVED.lock().unwrap().push(rank);
            comm.barrier().unwrap();
            assert_eq!(
                ARRIVED.lock().unwrap().len() % size,
                0,
                "all ranks of this round, none of the next"
            );
            comm.barrier().unwrap();
        }
        comm.barrier().unwrap();
        if rank == 0 {
            ARRIVED.lock().unwrap().clear();
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn bcast() {
    on_all_sizes("bcast", |comm, rank, size| {
        for length in LENGTHS {
            for root in [0, size / 2, size - 1] {
                let mut mine = if rank == root {
                    data(root, length)
                } else {
                    vec![-1; length]
                };
                comm.bcast(&mut mine, root as u32).unwrap();
                assert!(mine == data(root, length));
            }
        }
    });
}

#[test]
fn reduce_allreduce_scan() {
    on_all_sizes("reductions", |comm, rank, size| {
        for length in LENGTHS {
            let sum = |upto: usize| -> Vec<i64> {
                (0..length)
                    .map(|at| (0..upto).map(|r| value(r, at)).sum())
                    .collect()
            };
            for root in [0, size - 1] {
                let mut mine = data(rank, length);
                comm.reduce(&mut mine, Op::Sum, root as u32).unwrap();
                assert!(
                    mine == if rank == root {
                        sum(size)
                    } else {
                        data(rank, length)
                    }
                );
            }
            let mut mine = data(rank, length);
            comm.allreduce(&mut mine, Op::Sum).unwrap();
            assert!(mine == sum(size));
            let mut mine = data(rank, length);
            comm.allreduce(&mut mine, Op::Min).unwrap();
            assert!(mine == data(0, length));
            let mut mine = data(rank, length);
            comm.scan(&mut mine, Op::Sum).unwrap();
            assert!(mine == sum(rank + 1));
        }
    });
}

/// 2 × 2 matrices over the integers modulo a prime: associative, not commutative, four values each.
fn multiply(left: &[u32], right: &mut [u32]) {
    for (a, b) in left.chunks_exact(4).zip(right.chunks_exact_mut(4)) {
        let dot = |r: usize, c: usize| {
            let product = u64::from(a[2 * r]) * u64::from(b[c])
                + u64::from(a[2 * r + 1]) * u64::from(b[2 + c]);
            (product % 65_521) as u32
        };
        let product = [dot(0, 0), dot(0, 1), dot(1, 0), dot(1, 1)];
        b.copy_from_slice(&product);
    }
}

#[test]
fn a_noncommutative_operation_is_applied_in_the_order_of_ranks() {
    on_all_sizes("matrices", |comm, rank, size| {
        for matrices in [0, 1, 3, 9000] {
            let mine = |rank: usize| -> Vec<u32> {
                let mut random = Random::new(rank as u64);
                (0..matrices * 4)
                    .map(|_| random.below(65_521) as u32)
                    .collect()
            };
            let product = |upto: usize| {
                (0..upto).map(mine).reduce(|left, mut right| {
                    multiply(&left, &mut right);
                    right
                })
            };
            let op = Reduction {
                combine: &multiply,
                commutative: false,
                unit: 4,
            };
            let mut all = mine(rank);
            comm.allreduce_with(&mut all, &op).unwrap();
            assert!(Some(all) == product(size));
            let mut one = mine(rank);
            comm.reduce_with(&mut one, &op, size as u32 / 2).unwrap();
            assert!(rank != size / 2 || Some(one) == product(size));
            let mut upto = mine(rank);
            comm.scan_with(&mut upto, &op).unwrap();
            assert!(Some(upto) == product(rank + 1));
        }
    });
}

#[test]
fn sums_of_floats_have_equal_bits_on_all_ranks_and_in_all_runs() {
    on_all_sizes("floats", |comm, rank, size| {
        for length in [3, 20_000] {
            let mut bits = Vec::new();
            for _ in 0..2 {
                let mut mine: Vec<f64> = (0..length)
                    .map(|at| 1.0 / (rank * 7 + at + 1) as f64)
                    .collect();
                comm.allreduce(&mut mine, Op::Sum).unwrap();
                bits.push(mine.iter().map(|x| x.to_bits()).collect::<Vec<u64>>());
            }
            assert!(bits[0] == bits[1]);
            let mut all = vec![0; length * size];
            comm.allgather(&bits[0], &mut all).unwrap();
            assert!(all.chunks_exact(length).all(|theirs| theirs == bits[0]));
        }
    });
}

#[test]
fn gather_scatter_allgather_alltoall() {
    on_all_sizes("equal parts", |comm, rank, size| {
        for length in [0usize, 1, 5, 40, 700, 5000] {
            let everything: Vec<i64> = (0..size).flat_map(|r| data(r, length)).collect();
            for root in [0, size / 2, size - 1] {
                let mut all = if rank == root {
                    vec![0; length * size]
                } else {
                    Vec::new()
                };
                comm.gather(&data(rank, length), &mut all, root as u32)
                    .unwrap();
                assert!(rank != root || all == everything, "gather");
                let all = if rank == root {
                    everything.clone()
                } else {
                    Vec::new()
                };
                let mut mine = vec![0; length];
                comm.scatter(&all, &mut mine, root as u32).unwrap();
                assert!(mine == data(rank, length), "scatter");
            }
            let mut all = vec![0; length * size];
            comm.allgather(&data(rank, length), &mut all).unwrap();
            assert!(all == everything, "allgather");
            let out: Vec<i64> = (0..size)
                .flat_map(|to| data(rank * 20 + to, length))
                .collect();
            comm.alltoall(&out, &mut all).unwrap();
            let expected: Vec<i64> = (0..size)
                .flat_map(|from| data(from * 20 + rank, length))
                .collect();
            assert!(all == expected, "alltoall of {length}");
        }
    });
}

#[test]
fn different_lengths_and_places() {
    on_all_sizes("places", |comm, rank, size| {
        for scale in [1usize, 900] {
            // Rank r has r parts, in reverse order, each followed by a gap of one value.
            let count = |r: usize| r * scale;
            let mut places = vec![Block::default(); size];
            let mut end = 0;
            for r in (0..size).rev() {
                places[r] = Block {
                    offset: end,
                    count: count(r),
                };
                end += count(r) + 1;
            }
            let mut everything = vec![-1; end];
            for r in 0..size {
                everything[places[r].offset..][..count(r)].copy_from_slice(&data(r, count(r)));
            }
            let root = size - 1;
            let mut all = vec![-1; end];
            comm.gatherv(&data(rank, count(rank)), &mut all, &places, root as u32)
                .unwrap();
            assert!(rank != root || all == everything);
            let mut mine = vec![0; count(rank)];
            comm.scatterv(&everything, &places, &mut mine, root as u32)
                .unwrap();
            assert!(mine == data(rank, count(rank)));
            let mut all = vec![-1; end];
            comm.allgatherv(&mine, &mut all, &places).unwrap();
            assert!(all == everything);
            // Rank a sends a × b values to rank b.
            let blocks = |fixed: usize| -> (Vec<Block>, usize) {
                let mut end = 0;
                let block = |other: usize| {
                    let block = Block {
                        offset: end,
                        count: fixed * other * scale.min(50),
                    };
                    end += block.count;
                    block
                };
                let blocks = (0..size).map(block).collect();
                (blocks, end)
            };
            let (to, length) = blocks(rank);
            let mut out = vec![0; length];
            for (other, block) in to.iter().enumerate() {
                out[block.offset..][..block.count]
                    .copy_from_slice(&data(rank * 100 + other, block.count));
            }
            let mut into = vec![0; length];
            comm.alltoallv(&out, &to, &mut into, &to).unwrap();
            for (other, block) in to.iter().enumerate() {
                assert!(
                    into[block.offset..][..block.count] == data(other * 100 + rank, block.count)
                );
            }
        }
    });
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_sent() {
    run(2, Limits::default(), &config(2), "arguments", |_, comm| {
        let invalid = |result: Result<(), Error>| {
            assert!(
                matches!(result, Err(Error::InvalidArgument(_))),
                "{result:?}"
            );
        };
        let block = |offset, count| Block { offset, count };
        invalid(comm.allgather(&[1], &mut [0; 3]));
        invalid(comm.alltoall(&[1; 3], &mut [0; 3]));
        invalid(comm.alltoall(&[1; 2], &mut [0; 4]));
        invalid(comm.allgatherv(&[1], &mut [0; 4], &[block(0, 1)]));
        invalid(comm.allgatherv(&[1, 2], &mut [0; 4], &[block(0, 2), block(1, 2)]));
        invalid(comm.allgatherv(&[1], &mut [0; 4], &[block(0, 1), block(usize::MAX, 1)]));
        invalid(comm.allreduce_with(
            &mut [1; 3],
            &Reduction {
                combine: &|_, _| {},
                commutative: true,
                unit: 2,
            },
        ));
        invalid(comm.allreduce_with(
            &mut [1; 3],
            &Reduction {
                combine: &|_, _| {},
                commutative: true,
                unit: 0,
            },
        ));
        assert_eq!(
            comm.bcast(&mut [0], 2),
            Err(Error::InvalidRank { rank: 2, size: 2 })
        );
        // The ranks disagree, which is detected where too much or too little arrives.
        let mut data = vec![0u8; 4 + comm.rank() as usize];
        let result = comm.bcast(&mut data, 0);
        assert_eq!(result.is_err(), comm.rank() == 1);
    });
}

#[test]
fn communicators_do_not_receive_each_others_messages() {
    run(
        6,
        Limits::default(),
        &config(6),
        "dup and split",
        |layer, comm| {
            let rank = comm.rank();
            let copy = comm.dup().unwrap();
            assert_ne!(copy.context(), comm.context());
            let half = comm.split(Some(rank % 2), -(rank as i32)).unwrap().unwrap();
            assert_eq!(
                (half.size(), half.rank()),
                (3, 2 - rank / 2),
                "opposite order"
            );
            assert_eq!(half.world_rank(half.rank()), Ok(rank));
            let none = comm.split((rank != 3).then_some(7), 0).unwrap();
            assert_eq!(none.as_ref().map(Comm::size), (rank != 3).then_some(5));
            let mut sum = [rank];
            half.allreduce(&mut sum, Op::Sum).unwrap();
            assert_eq!(sum, [if rank % 2 == 0 { 6 } else { 9 }]);
            // Equal envelopes in three contexts: each receive gets the message of its own.
            let (to, from) = ((rank + 1) % 6, (rank + 5) % 6);
            for (n, comm) in [&comm, &copy].into_iter().enumerate() {
                comm.send(&[n as u8], to, 1).unwrap();
            }
            half.send(&[2], (half.rank() + 1) % 3, 1).unwrap();
            let mut byte = [9];
            let status = half.recv(&mut byte, Source::Any, Tag::Any).unwrap();
            assert_eq!(
                (byte, status.source),
                ([2], (half.rank() + 2) % 3),
                "ranks of the communicator"
            );
            let status = copy.recv(&mut byte, Source::Any, Tag::Any).unwrap();
            assert_eq!((byte, status.source), ([1], from));
            comm.recv(&mut byte, from, 1).unwrap();
            assert_eq!(byte, [0]);
            // Any-source receives of the program never match messages of collectives.
            let mut buffer = [0; 4];
            comm.scope(|s| {
                let any = s.irecv(&mut buffer, Source::Any, Tag::Any)?;
                comm.barrier()?;
                let mut all = [0u32; 6];
                comm.allgather(&[rank], &mut all)?;
                assert_eq!(all, [0, 1, 2, 3, 4, 5]);
                assert_eq!(any.test()?, None);
                any.cancel()?;
                assert_eq!(any.wait(), Err(Error::Cancelled));
                Ok(())
            })
            .unwrap();
            // Many, to check that numbers stay available; a message for a freed communicator is
            // discarded.
            for _ in 0..20 {
                let one = copy.dup().unwrap();
                one.barrier().unwrap();
                one.send(&[1; 3], to, 1).unwrap();
            }
            comm.barrier().unwrap();
            layer.progress();
            assert_eq!(layer.stats().failed_peers, 0);
        },
    );
}

#[test]
fn the_algorithm_depends_on_length_and_nodes() {
    use Algorithm::*;
    let expected = |nodes: &[u32]| match nodes {
        [] => [
            Dissemination,
            Binomial,
            RecursiveDoubling,
            ScatterRing,
            Ring,
        ],
        [0, 0, 0, 1, 1] => [TwoLevels, TwoLevels, TwoLevels, ScatterRing, Ring],
        _ => [TwoLevels; 5],
    };
    for nodes in [vec![], vec![0, 0, 0, 1, 1], vec![0, 1, 0, 1, 0]] {
        let all = expected(&nodes);
        let config = Config {
            nodes: nodes.clone(),
            ..config(5)
        };
        let what = format!("algorithms on {nodes:?}");
        run(5, Limits::default(), &config, &what, move |_, comm| {
            let long = 1 << 20;
            let chosen = [
                comm.algorithm(Collective::Barrier, 0),
                comm.algorithm(Collective::Bcast, 8),
                comm.algorithm(Collective::Allreduce, 8),
                comm.algorithm(Collective::Bcast, long),
                comm.algorithm(Collective::Allreduce, long),
            ];
            assert_eq!(chosen, all);
            let alltoall = comm.algorithm(Collective::Alltoall, long);
            assert_eq!(alltoall.to_string(), "pairwise exchange");
        });
    }
}
