//! From which size on one copy is better than two, as a program's job reads it.

use std::fmt::Write;

use shm_btl::Thresholds;
use shm_btl::topology::Relation;

use super::measure::{Measured, Pattern, Plan, measure};
use cli::out;

/// TOML has no larger number; it means never.
const NEVER: usize = i64::MAX as usize;

/// Measures, and gives the table `shm` of `tune.toml`.
pub(super) fn tune(quick: bool) -> Result<String, String> {
    let plan = Plan::new(quick);
    let bar = out::progress(
        plan.steps() as u64,
        "copies {bar:30} {pos}/{len}, {elapsed}",
    );
    let measured = measure(&plan, || bar.inc(1));
    bar.finish_and_clear();
    Ok(text(&measured?))
}

/// What the thresholds become; relations that the machine does not have keep theirs.
fn thresholds(measured: &[Measured], before: Thresholds) -> Thresholds {
    let mut now = before;
    for one in measured {
        let from = one.switch_over().unwrap_or(usize::MAX);
        match one.relation {
            Relation::SharedCache => now.shared_cache = from,
            Relation::SameSocket => now.same_socket = from,
            Relation::OtherSocket => now.other_socket = from,
            Relation::Unknown => {}
        }
    }
    now
}

/// The table, with what was measured and why it came out like this.
fn text(measured: &[Measured]) -> String {
    let mut text = String::from(
        "# Written by `esplab tune`: messages of fewer bytes are sent at once and copied twice, through shared memory; from\n\
         # so many bytes on they are announced and copied once, by the kernel (cross-memory attach). From 48 KiB on receivers\n\
         # compare both while a program runs, and this is only where they begin.\n",
    );
    // Writing to a string cannot fail.
    for one in measured {
        let (a, b) = one.cpus;
        let _ = writeln!(text, "#\n# {}, CPUs {a} and {b}", one.relation);
        let points = match &one.points {
            Ok(points) => points,
            Err(why) => {
                let _ = writeln!(
                    text,
                    "# chosen: never, since the system refuses one copy: {}",
                    why.replace('\n', " ")
                );
                continue;
            }
        };
        let _ = writeln!(
            text,
            "# Microseconds for a message by two copies, by one; and how many times as fast one is, all together."
        );
        let _ = write!(text, "# {:>9}", "bytes");
        for pattern in Pattern::ALL {
            let _ = write!(text, "  {:>17}", pattern.name());
        }
        let _ = writeln!(text, "  {:>6}", "times");
        for point in points {
            let _ = write!(text, "# {:>9}", point.size);
            for times in point.times {
                let _ = write!(text, "  {:>8.2} {:>8.2}", times.two / 1e3, times.one / 1e3);
            }
            let _ = writeln!(text, "  {:>6.2}", point.gain());
        }
        let chosen = match one.switch_over() {
            Some(size) => {
                format!(
                    "chosen: {size}, the size from which on one copy was faster, all patterns together, at every size"
                )
            }
            None => "chosen: never, since one copy was slower at the longest size measured".into(),
        };
        let _ = writeln!(text, "# {chosen}");
    }
    let before = Thresholds::default();
    let chosen = thresholds(measured, before);
    let _ = writeln!(text, "[shm]");
    for (name, bytes, default) in [
        ("shared_cache", chosen.shared_cache, before.shared_cache),
        ("same_socket", chosen.same_socket, before.same_socket),
        ("other_socket", chosen.other_socket, before.other_socket),
    ] {
        let found = measured
            .iter()
            .any(|one| one.relation.to_string().replace(' ', "_") == name);
        let remark = match (found, bytes > NEVER) {
            (false, _) => "  # the default: no two CPUs here are related like that",
            (true, true) => "  # never",
            (true, false) => "",
        };
        let bytes = if found { bytes.min(NEVER) } else { default };
        let _ = writeln!(text, "{name} = {bytes}{remark}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::measure::{Point, Times};
    use super::*;

    fn measured(relation: Relation, gains: [f64; 2]) -> Measured {
        let point = |(size, gain)| Point {
            size,
            times: [Times {
                two: 300.0 * gain,
                one: 300.0,
            }; 3],
        };
        Measured {
            relation,
            cpus: (0, 1),
            points: Ok([1024, 65536].into_iter().zip(gains).map(point).collect()),
        }
    }

    #[test]
    fn the_text_says_what_and_why() {
        let text = text(&[
            measured(Relation::SharedCache, [0.5, 2.0]),
            measured(Relation::OtherSocket, [2.0, 0.5]),
        ]);
        let other = Thresholds::default().same_socket;
        for part in [
            "shared cache, CPUs 0 and 1",
            "1024      0.15     0.30",
            "65536      0.60     0.30      0.60     0.30      0.60     0.30    2.00\n",
            "chosen: 65536",
            &format!("[shm]\nshared_cache = 65536\nsame_socket = {other}  # the default"),
            "other_socket = 9223372036854775807  # never",
            "chosen: never",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.lines()
                .all(|line| line.starts_with('#') || line.starts_with('[') || line.contains(" = "))
        );
    }

    #[test]
    fn a_refusal_is_told() {
        let mut one = measured(Relation::SharedCache, [1.0, 1.0]);
        one.points = Err("Yama".into());
        let text = text(&[one]);
        assert!(
            text.contains("the system refuses one copy: Yama") && text.contains("# never"),
            "{text}"
        );
    }

    #[test]
    fn only_what_was_measured_changes() {
        let before = Thresholds::default();
        let measured = [
            measured(Relation::SharedCache, [0.5, 2.0]),
            measured(Relation::OtherSocket, [0.5, 0.5]),
        ];
        let expected = Thresholds {
            shared_cache: 65536,
            other_socket: usize::MAX,
            ..before
        };
        assert_eq!(thresholds(&measured, before), expected);
    }
}
