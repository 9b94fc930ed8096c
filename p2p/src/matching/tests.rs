//! Compares the matching with a list that is searched from its beginning, as MPI specifies.

use super::posted::Posted;
use super::unexpected::{Arrival, Unexpected};
use crate::ids::{ANY_TAG, Label, PeerId, Selector};
use crate::testing::Random;

#[derive(Default)]
struct Model {
    posted: Vec<(u32, Selector)>,
    arrived: Vec<(u64, u32, PeerId, u64)>,
}

fn peer(random: &mut Random) -> PeerId {
    PeerId::new(random.below(4), 4).unwrap()
}

fn any_tag(random: &mut Random) -> u64 {
    random.below(5u64) | random.below(2u64) << 63
}

fn any_receive(random: &mut Random) -> Selector {
    let ignore = match random.below(8) {
        0 => ANY_TAG,
        1 => random.below(16),
        2 => *random.pick(&[1, 6, 1 << 63, !3]),
        _ => 0,
    };
    Selector {
        context: random.below(3),
        source: (random.below(4) != 0).then(|| peer(random)),
        tag: any_tag(random) & !ignore,
        ignore,
    }
}

/// Posts, messages, cancels and probes in random order. Numbers of receives are reused.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let (mut posted, mut unexpected, mut model) =
        (Posted::new(), Unexpected::new(), Model::default());
    let mut free: Vec<u32> = (0..400).rev().collect();
    // Drifts, so that both long posted and long unexpected lists occur.
    let mut bias = 50;
    for step in 0..600 {
        if step % 100 == 0 {
            bias = 20 + random.below(60);
        }
        match random.below(100) {
            n if n < bias => {
                let selector = any_receive(&mut random);
                let found = unexpected.find(&selector);
                let expected = model
                    .arrived
                    .iter()
                    .position(|&(_, c, s, t)| selector.matches(c, s, t));
                assert_eq!(
                    found,
                    expected.map(|at| model.arrived[at].0),
                    "seed {seed} step {step}"
                );
                if let Some(at) = expected {
                    let (key, ..) = model.arrived.remove(at);
                    if random.below(3) == 0 {
                        unexpected.take(key);
                    }
                    assert!(unexpected.remove(key).is_some());
                } else if let Some(number) = free.pop() {
                    posted.post(number, &selector);
                    model.posted.push((number, selector));
                }
            }
            n if n < 97 => {
                let (context, source) = (random.below(3), peer(&mut random));
                let tag = any_tag(&mut random);
                let found = posted.find(context, source, tag);
                let expected = model
                    .posted
                    .iter()
                    .position(|(_, w)| w.matches(context, source, tag));
                assert_eq!(
                    found,
                    expected.map(|at| model.posted[at].0),
                    "seed {seed} step {step}"
                );
                if let Some(at) = expected {
                    let (number, selector) = model.posted.remove(at);
                    posted.remove(number, &selector);
                    free.push(number);
                } else {
                    let arrival = Arrival::Eager {
                        body: Vec::new(),
                        sync: None,
                    };
                    let key = unexpected.add(
                        source,
                        Label {
                            context,
                            tag,
                            data: None,
                        },
                        arrival,
                        0,
                    );
                    model.arrived.push((key, context, source, tag));
                }
            }
            _ if !model.posted.is_empty() => {
                let at = random.below(model.posted.len() as u32) as usize;
                let (number, selector) = model.posted.remove(at);
                posted.remove(number, &selector);
                free.push(number);
            }
            _ => {}
        }
        assert_eq!(
            (posted.len(), unexpected.len()),
            (model.posted.len(), model.arrived.len())
        );
    }
}

#[test]
fn matching_is_that_of_a_plain_list() {
    for seed in 0..2000 {
        run(seed);
    }
}
