//! Tests of the plan.

use super::*;

#[test]
fn bases_are_of_the_same_kind_and_limits_have_work() {
    for quick in [true, false] {
        for about in &BENCHES {
            let bench = bench(about.name, quick).expect("it is one of the names");
            assert!(!bench.measures.is_empty());
            for measure in &bench.measures {
                let base = measure.base.map(|base| &bench.measures[base]);
                assert!(
                    base.is_none_or(|b| b.what == measure.what && b.who == measure.who),
                    "{measure:?}"
                );
                assert!(
                    measure
                        .who
                        .iter()
                        .all(|who| measure.work_of(*who).is_some()),
                    "{measure:?}"
                );
                assert!(!measure.who.is_empty(), "{measure:?}");
            }
        }
    }
    assert!(bench("speed", true).is_none());
}

#[test]
fn measures_of_some_sizes_keep_their_bases() {
    let all = bench("papers", false).expect("shm exists");
    let mut some = all.clone();
    some.only_sizes(&[16 * KIB]);
    assert!(!some.measures.is_empty() && some.measures.len() < all.measures.len());
    let size = |work: &Work| work.size();
    assert!(
        some.measures
            .iter()
            .all(|measure| size(&measure.work) == Some(16 * KIB))
    );
    let based = some
        .measures
        .iter()
        .filter_map(|m| Some((m, &some.measures[m.base?])));
    assert!(
        based
            .clone()
            .all(|(measure, base)| measure.what == base.what && measure.who == base.who)
    );
    let before = all
        .measures
        .iter()
        .filter(|m| size(&m.work) == Some(16 * KIB) && m.base.is_some());
    assert_eq!(based.count(), before.count());
    some.only_sizes(&[]);
    assert!(!some.measures.is_empty(), "no sizes select all");
    some.only_sizes(&[7]);
    assert!(some.measures.is_empty());
}

#[test]
fn the_main_sizes_are_measured() {
    let has =
        |bench: &Bench, work: &dyn Fn(&Work) -> bool| bench.measures.iter().any(|m| work(&m.work));
    for quick in [true, false] {
        let shm = bench("shm", quick).expect("shm exists");
        for wanted in [8, 64, 1024] {
            assert!(has(
                &shm,
                &|w| matches!(w, Work::PingPong { size, .. } if *size == wanted)
            ));
        }
        for wanted in [64 * KIB, 4 * MIB] {
            assert!(has(
                &shm,
                &|w| matches!(w, Work::Window { size, .. } if *size == wanted)
            ));
        }
        let cold = shm
            .measures
            .iter()
            .filter(|m| m.buffers == Some("out of cache"));
        assert!(cold.clone().any(|m| m.work.size() == Some(4 * MIB)));
    }
}
