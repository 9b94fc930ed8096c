//! From which size on one copy is better than two, as a program's job reads it.

use std::fmt::Write;
use std::time::Duration;

use shm_btl::Thresholds;
use shm_btl::tune::{Measured, Plan, measure, thresholds};

/// TOML has no larger number; it means never.
const NEVER: usize = i64::MAX as usize;

/// Measures, and gives the table `shm` of `tune.toml`.
pub(super) fn tune(quick: bool) -> Result<String, String> {
    let mut plan = Plan::default();
    if quick {
        (plan.rounds, plan.slice) = (2, Duration::from_millis(1));
    }
    Ok(text(&measure(&plan)?))
}

/// The table, with what was measured and why it came out like this.
fn text(measured: &[Measured]) -> String {
    let mut text = String::from(
        "# Written by `esplab tune`: messages of fewer bytes are sent at once and copied twice, through shared memory; from\n\
         # so many bytes on they are announced and copied once, by the kernel (cross-memory attach).\n",
    );
    // Writing to a string cannot fail.
    for one in measured {
        let (a, b) = one.cpus;
        let _ = writeln!(
            text,
            "#\n# {}, CPUs {a} and {b}; microseconds until the receiver has it:",
            one.relation
        );
        let _ = writeln!(text, "# {:>9}  {:>10}  {:>8}", "bytes", "two copies", "one copy");
        for point in &one.points {
            let copy = point.one_copy.map_or_else(|| "refused".into(), |ns| format!("{:.2}", ns / 1e3));
            let _ = writeln!(text, "# {:>9}  {:>10.2}  {copy:>8}", point.size, point.two_copies / 1e3);
        }
        let chosen = match one.switch_over {
            Some(size) => {
                format!("chosen: {size}, the size from which on one copy was faster at every size measured")
            }
            None if one.points.iter().all(|point| point.one_copy.is_none()) => {
                "chosen: never, since the system refuses one copy".into()
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
        let found = measured.iter().any(|one| one.relation.to_string().replace(' ', "_") == name);
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
    use super::*;
    use shm_btl::topology::Relation;
    use shm_btl::tune::Point;

    fn measured(relation: Relation, switch_over: Option<usize>) -> Measured {
        let points = vec![
            Point { size: 1024, two_copies: 300.0, one_copy: Some(2000.0) },
            Point { size: 65536, two_copies: 9000.0, one_copy: switch_over.map(|_| 8000.0) },
        ];
        Measured { relation, cpus: (0, 1), points, switch_over }
    }

    #[test]
    fn the_text_says_what_and_why() {
        let text =
            text(&[measured(Relation::SharedCache, Some(65536)), measured(Relation::OtherSocket, None)]);
        for part in [
            "shared cache, CPUs 0 and 1",
            "0.30      2.00",
            "chosen: 65536",
            &format!(
                "[shm]\nshared_cache = 65536\nsame_socket = {}  # the default",
                Thresholds::default().same_socket
            ),
            "other_socket = 9223372036854775807  # never",
            "chosen: never",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.lines().all(|line| line.starts_with('#') || line.starts_with('[') || line.contains(" = "))
        );
    }

    #[test]
    fn a_refusal_is_told() {
        let mut one = measured(Relation::SharedCache, None);
        one.points.iter_mut().for_each(|point| point.one_copy = None);
        let text = text(&[one]);
        assert!(text.contains("refused") && text.contains("the system refuses one copy"), "{text}");
    }
}
