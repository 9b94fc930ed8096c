//! Figure 6 of "An MPICH2 Channel Device Implementation over VAPI", with the whole point-to-point
//! layer: a ping-pong whose long messages travel without RDMA (copied at both ends), with RDMA, and
//! with RDMA and the registration cache. Two ranks in one process use the two given ports. The
//! three configurations alternate within each round; results are medians over all rounds.
//!
//! - `threads`: each rank has a thread bound to a processor; prints MB/s.
//! - `turns`: one thread runs both ranks, so that no rank waits. In the guest's counting mode the
//!   times are numbers of instructions.
//! - `held`, `held-turns`: likewise for short messages, copied or registered by the sender.
//! - `tune`: lengths around the thresholds; prints the length from which RDMA is faster, and held
//!   short messages, for the file that `ESP_TUNE` names.
//!
//! ```sh
//! ESP_VM_PRE='wire; ordered' tests/vm/run target/release/examples/ib-figure6 threads rxa rxb
//! ESP_VM_PRE=wire ESP_VM_COUNT=1 tests/vm/run target/release/examples/ib-figure6 turns rxa rxb
//! ```

#[path = "../../ib-btl/examples/bind/mod.rs"]
mod bind;

use std::time::{Duration, Instant};

use btl::Btl;
use ib_btl::{IbBtl, IbConfig};
use p2p::{Comm, Config, P2p, Setup, TransportAddress, Tuning};

type Outcome<T> = Result<T, String>;

const WAYS: [&str; 3] = ["copies", "RDMA", "RDMA + cache"];
const SIZES: [usize; 7] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
];
/// Lengths among which the threshold is searched.
const AROUND: [usize; 7] = [
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
];
const HELD: [&str; 3] = ["copied", "held", "held + cache"];
/// Lengths of short messages.
const SHORT: [usize; 5] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16_000];
const TAG: i32 = 1;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Starts both ranks in one configuration. `long_from`: length from which RDMA is used.
fn pair(
    configuration: usize,
    long_from: Option<usize>,
    held: bool,
    ports: &[String],
) -> Outcome<Vec<P2p>> {
    let key = format!("figure6-{}-{configuration}-{held}", std::process::id());
    let mut setups = Vec::new();
    for (rank, port) in (0..2).zip(ports) {
        let mut ib = IbConfig::new(rank, 2, key.as_bytes());
        (ib.device, ib.add_wait) = (Some(port.clone()), Duration::ZERO);
        if configuration == 1 {
            ib.cache_bytes = 0;
        }
        if held {
            (ib.held_from, ib.long_from) = ((configuration > 0).then_some(1), usize::MAX);
        } else if configuration > 0 {
            ib.long_from = long_from.unwrap_or(ib.long_from);
        }
        let transports: Vec<Box<dyn Btl>> = vec![Box::new(IbBtl::new(ib).map_err(text)?)];
        let config = Config {
            tuning: Tuning {
                put: configuration > 0,
                ..Tuning::default()
            },
            local_ranks: 2,
            ..Config::default()
        };
        setups.push(Setup {
            rank,
            size: 2,
            transports,
            config,
        });
    }
    let cards: Vec<Vec<TransportAddress>> = setups.iter().map(P2p::addresses).collect();
    let all = |peer: u32| {
        cards
            .get(peer as usize)
            .cloned()
            .ok_or_else(|| "no such rank".to_owned())
    };
    setups
        .into_iter()
        .map(|setup| P2p::start(setup, all).map_err(text))
        .collect()
}

/// Returns the number of rounds for a length, and of ping-pongs in each.
fn rounds(length: usize) -> (usize, usize) {
    match length {
        0..=65_536 => (40, 3),
        65_537..=262_144 => (20, 2),
        _ => (12, 1),
    }
}

/// Times of half a ping-pong, in nanoseconds, in the order of measurement.
#[derive(Default)]
struct Times(Vec<u128>);

impl Times {
    fn at(&self, percent: usize) -> u128 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted
            .get(sorted.len() * percent / 100)
            .copied()
            .unwrap_or(0)
    }
}

/// Returns the median ratio of the two within a round, and the percentage of rounds in which the
/// first was faster.
fn compare(one: &Times, other: &Times, each: usize) -> (f64, usize) {
    let of = |times: &[u128]| times.iter().sum::<u128>() as f64;
    let pairs = one.0.chunks(each).zip(other.0.chunks(each));
    let mut ratios: Vec<f64> = pairs
        .map(|(one, other)| of(one) / of(other).max(1.0))
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let won = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    (
        ratios.get(ratios.len() / 2).copied().unwrap_or(1.0),
        100 * won / ratios.len().max(1),
    )
}

/// Runs all ping-pongs, by size and configuration. Rank 0 measures.
fn run(
    sizes: &[usize],
    mut ping_pong: impl FnMut(usize, usize) -> Outcome<()>,
) -> Outcome<Vec<[Times; 3]>> {
    let mut all = Vec::new();
    for &length in sizes {
        let mut times = <[Times; 3]>::default();
        let (turns, each) = rounds(length);
        for turn in 0..=turns {
            for (configuration, times) in times.iter_mut().enumerate() {
                for _ in 0..each {
                    let begin = Instant::now();
                    ping_pong(configuration, length)?;
                    if turn > 0 {
                        times.0.push(begin.elapsed().as_nanos() / 2);
                    }
                }
            }
        }
        all.push(times);
    }
    Ok(all)
}

/// Runs one rank in a separate thread.
fn one_end(
    sizes: &[usize],
    worlds: &[Comm],
    mut buffers: [Vec<u8>; 2],
) -> Outcome<Vec<[Times; 3]>> {
    run(sizes, |configuration, length| {
        let world = worlds.get(configuration).ok_or("no such configuration")?;
        let [mine, theirs] = &mut buffers;
        let (mine, theirs) = (&mine[..length], &mut theirs[..length]);
        let other = 1 - world.rank();
        if world.rank() == 0 {
            world
                .send(mine, other, TAG)
                .and_then(|()| world.recv(theirs, other, TAG))
                .map_err(text)?;
        } else {
            world
                .recv(theirs, other, TAG)
                .and_then(|_| world.send(mine, other, TAG))
                .map_err(text)?;
            return Ok(());
        }
        Ok(())
    })
}

/// Transfers one message, with one thread for both ends; the receive is posted first.
fn one_way(from: &P2p, to: &P2p, mine: &[u8], theirs: &mut [u8]) -> Outcome<()> {
    let (sender, receiver) = (from.world(), to.world());
    let message = receiver.scope(|r| {
        let receive = r.irecv(theirs, sender.rank(), TAG)?;
        sender.scope(|s| {
            let send = s.isend(mine, receiver.rank(), TAG)?;
            let (mut came, mut went) = (false, false);
            while !(came && went) {
                came = came || receive.test()?.is_some();
                went = went || send.test()?.is_some();
                if to.progress() + from.progress() == 0 {
                    // The kernel's thread may have to do the rest.
                    std::thread::yield_now();
                }
            }
            Ok(())
        })
    });
    message.map_err(text)
}

fn buffers(fill: u8) -> [Vec<u8>; 2] {
    let most = SIZES.into_iter().max().unwrap_or(0);
    [vec![fill; most], vec![0; most]]
}

fn finalize(layers: Vec<P2p>) -> Outcome<()> {
    layers
        .into_iter()
        .try_for_each(|layer| layer.finalize().map_err(text))
}

fn threads(sizes: &[usize], pairs: Vec<Vec<P2p>>) -> Outcome<Vec<[Times; 3]>> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for pair in pairs {
        let mut pair = pair.into_iter();
        ones.extend(pair.next());
        others.extend(pair.next());
    }
    let end = |layers: Vec<P2p>, fill: u8| {
        let worlds: Vec<Comm> = layers.iter().map(P2p::world).collect();
        let times = one_end(sizes, &worlds, buffers(fill))?;
        finalize(layers)?;
        Ok::<_, String>(times)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            bind::bind(1);
            end(others, 2)
        });
        bind::bind(0);
        let times = end(ones, 1)?;
        other.join().map_err(|_| "the other end panicked")??;
        Ok(times)
    })
}

fn turns(sizes: &[usize], pairs: Vec<Vec<P2p>>) -> Outcome<Vec<[Times; 3]>> {
    let ([mine, mut theirs], [other, mut others]) = (buffers(1), buffers(2));
    let times = run(sizes, |configuration, length| {
        let Some([one, two]) = pairs.get(configuration).map(Vec::as_slice) else {
            return Err("no such configuration".into());
        };
        one_way(one, two, &mine[..length], &mut others[..length])?;
        one_way(two, one, &other[..length], &mut theirs[..length])
    })?;
    let longest = sizes.iter().copied().max().unwrap_or(0);
    if theirs[..longest].iter().any(|byte| *byte != 2)
        || others[..longest].iter().any(|byte| *byte != 1)
    {
        return Err("wrong bytes".into());
    }
    pairs.into_iter().try_for_each(finalize)?;
    Ok(times)
}

fn all() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let ports: Vec<String> = arguments.collect();
    if ports.len() != 2
        || !["threads", "turns", "held", "held-turns", "tune"].contains(&mode.as_str())
    {
        return Err("usage: ib-figure6 threads|turns|held|held-turns|tune PORT PORT".into());
    }
    let (counts, tunes) = (mode.ends_with("turns"), mode == "tune");
    let one = |sizes: &[usize], held: bool| -> Outcome<Vec<[Times; 3]>> {
        let from = tunes.then_some(AROUND[0]);
        let pairs = (0..WAYS.len())
            .map(|configuration| pair(configuration, from, held, &ports))
            .collect::<Outcome<Vec<_>>>()?;
        let times = if counts {
            turns(sizes, pairs)
        } else {
            threads(sizes, pairs)
        }?;
        table(if held { &HELD } else { &WAYS }, sizes, &times, counts);
        Ok(times)
    };
    if !mode.starts_with("held") {
        let sizes = if tunes { AROUND } else { SIZES };
        let times = one(&sizes, false)?;
        if tunes {
            println!("{}", threshold("long_from", &sizes, &times));
        }
    }
    if tunes || mode.starts_with("held") {
        let times = one(&SHORT, true)?;
        if tunes {
            println!("{}", threshold("held_from", &SHORT, &times));
        }
    }
    Ok(())
}

fn table(names: &[&str; 3], sizes: &[usize], times: &[[Times; 3]], counts: bool) {
    let unit = if counts { "ns" } else { "MB/s" };
    println!(
        "{:>8} {:>22} {:>22} {:>22}   {unit}; middle (quarters)",
        "bytes", names[0], names[1], names[2]
    );
    for (length, ways) in sizes.iter().zip(times) {
        let mut line = format!("{length:>8}");
        for configuration in ways {
            let show = |percent| match configuration.at(percent) as f64 {
                time if counts => time,
                time => *length as f64 * 1e3 / time.max(1.0),
            };
            line += &match counts {
                true => format!(" {:>22.0}", show(50)),
                false => format!(
                    " {:>22}",
                    format!("{:.1} ({:.1}-{:.1})", show(50), show(75), show(25))
                ),
            };
        }
        let (ratio, won) = compare(&ways[2], &ways[0], rounds(*length).1);
        println!("{line}   time with cache / copies {ratio:.2}, less in {won} % of the rounds");
    }
}

/// Returns the length from which the third configuration is faster than the first, as an entry of
/// the file for `ESP_TUNE`.
fn threshold(name: &str, sizes: &[usize], times: &[[Times; 3]]) -> String {
    let quicker = |(length, ways): &(&usize, &[Times; 3])| {
        compare(&ways[2], &ways[0], rounds(**length).1).0 < 1.0
    };
    match sizes.iter().zip(times).rev().take_while(quicker).last() {
        Some((from, _)) => format!("[ib]\n{name} = {from}"),
        None => format!("not faster at any of these lengths: no {name} in [ib]"),
    }
}

fn main() {
    if let Err(why) = all() {
        eprintln!("ib-figure6: {why}");
        std::process::exit(1);
    }
}
