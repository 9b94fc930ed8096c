//! Numbers with the units of the dashboard, in the way of Grafana.

/// Prefixes of powers of 1000.
const THOUSANDS: [&str; 5] = ["", "k", "M", "G", "T"];
/// Prefixes of powers of 1024.
const BINARY: [&str; 5] = ["", "Ki", "Mi", "Gi", "Ti"];

/// Formats a value with a unit by its name in Grafana; an unknown unit follows the number.
pub(crate) fn shown(value: f64, unit: &str) -> String {
    let (base, prefixes, symbol) = match unit {
        "none" => return number(value),
        "bytes" => (1024.0, BINARY, "B"),
        "Bps" => (1000.0, THOUSANDS, "B/s"),
        "pps" => (1000.0, THOUSANDS, "p/s"),
        "cps" => (1000.0, THOUSANDS, "c/s"),
        other => return format!("{} {other}", number(value)),
    };
    let mut scaled = value;
    let mut prefixes = prefixes.into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    while scaled.abs() >= base {
        let Some(next) = prefixes.next() else { break };
        prefix = next;
        scaled /= base;
    }
    format!("{} {prefix}{symbol}", number(scaled))
}

/// Formats a number with at most three digits after the point, and fewer the larger it is.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_prefixes() {
        for (value, unit, text) in [
            (0.0, "none", "0"),
            (7.0, "none", "7"),
            (1500.0, "none", "1500"),
            (512.0, "bytes", "512 B"),
            (1_572_864.0, "bytes", "1.5 MiB"),
            (4_800_000.0, "Bps", "4.8 MB/s"),
            (250.0, "pps", "250 p/s"),
            (0.25, "cps", "0.25 c/s"),
            (1e18, "pps", "1000000 Tp/s"),
            (2.0, "furlongs", "2 furlongs"),
        ] {
            assert_eq!(shown(value, unit), text);
        }
    }
}
