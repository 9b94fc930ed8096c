//! Numbers with units on command lines: `10mbit`, `64MiB`, `1%`, `200ms`.
//!
//! Sizes and durations have the grammar of the daemon's configuration.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// Parses bits per second, such as `10mbit`, `1.5g` or `500kbit/s` (powers of 1000), from 8 kbit/s
/// to 1 Tbit/s.
///
/// # Errors
/// The text is not a rate in that range.
pub fn rate(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let number = lower.trim_end_matches("/s");
    parse_size::parse_size(number.trim_end_matches("bit"))
        .ok()
        .filter(|bits| (8_000..=1_000_000_000_000).contains(bits))
        .ok_or_else(|| format!("invalid rate `{text}`: write 8kbit to 1000gbit, such as 10mbit"))
}

/// Parses a number of bytes, such as `4096`, `64k` or `64MiB` (powers of 1024), at most 2^50.
///
/// # Errors
/// The text is not a size in that range.
pub fn bytes(text: &str) -> Result<u64, String> {
    let config = parse_size::Config::new().with_binary();
    let bytes = config.parse_size(text).ok().filter(|b| *b <= 1 << 50);
    bytes.ok_or_else(|| {
        format!("invalid size `{text}`: write a number of bytes, or a unit, such as 16MiB")
    })
}

/// Parses a number of things, such as `10`; at least 1.
///
/// # Errors
/// The text is not such a number.
pub fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| {
        format!("invalid number `{text}`: write a whole number of at least 1, such as 10")
    })
}

/// Parses a share as parts per million: `0.01` and `1%` are 10000. At most 1.
///
/// # Errors
/// The text is not a share in that range.
pub fn share(text: &str) -> Result<u32, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().map(|number| number / whole);
    match share {
        // Within 0..=1e6, the cast is exact after rounding.
        Ok(share @ 0.0..=1.0) => Ok((share * 1e6).round() as u32),
        _ => Err(format!(
            "invalid share `{text}`: write 0 to 1, or a percentage, such as 1%"
        )),
    }
}

/// Parses a duration: a number of seconds (`0.2`), or with a unit (`200ms`). At most a day.
///
/// # Errors
/// The text is not a duration in that range.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let duration = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    duration.filter(|time| *time <= DAY).ok_or_else(|| {
        format!(
            "invalid duration `{text}`: write a number of seconds, or a number and a unit, such \
             as 5ms"
        )
    })
}

/// Parses the time between two outputs, as [`seconds`] does: at least 50 ms.
///
/// # Errors
/// The text is not a duration in that range.
pub fn pause(text: &str) -> Result<Duration, String> {
    let pause = seconds(text)?;
    if pause < Duration::from_millis(50) {
        return Err(format!(
            "invalid duration `{text}`: write at least 0.05 seconds"
        ));
    }
    Ok(pause)
}

/// Formats a count with three digits and a suffix of thousands: `999`, `1.50k`, `12.3M`.
pub fn show_count(value: f64) -> String {
    let mut value = value;
    let suffixes = ["", "k", "M", "G", "T", "P"];
    let mut suffix = "";
    for next in suffixes {
        suffix = next;
        // 999.5 is shown as 1.00k.
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
    }
    if suffix.is_empty() {
        return format!("{value:.0}");
    }
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{suffix}")
}

/// Formats `1500000000` as `1.5gbit`.
pub fn show_rate(bits: u64) -> String {
    let value = bits as f64;
    for (limit, unit) in [(1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit")] {
        if value >= limit {
            return format!("{}{unit}", trimmed(value / limit));
        }
    }
    format!("{bits}bit")
}

/// Formats a number with up to two digits after the point, without trailing zeros.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed() {
        for (text, bits) in [
            ("10mbit", 10_000_000),
            ("1gbit", 1_000_000_000),
            ("1.5g", 1_500_000_000),
            ("64000", 64_000),
            ("500Kbit/s", 500_000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for bad in ["", "mbit", "10parsec", "1", "-5mbit", "2000gbit", "1.2.3m"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_parsed() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65536),
            ("64MiB", 64 << 20),
            ("1g", 1 << 30),
            ("1.5k", 1536),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for bad in ["", "k", "1x", "-1", "9999999t"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_parsed() {
        for (text, ppm) in [
            ("0", 0),
            ("0.01", 10_000),
            ("1%", 10_000),
            ("0.1 %", 1000),
            ("1", 1_000_000),
        ] {
            assert_eq!(share(text), Ok(ppm), "{text}");
        }
        for bad in ["", "1.1", "101%", "-0.1", "1x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(seconds("50us"), Ok(Duration::from_micros(50)));
        for bad in ["", "-1", "5x", "25h", "1000000", "NaN", "inf"] {
            let error = seconds(bad).expect_err(bad);
            assert!(error.starts_with("invalid duration"), "{error}");
        }
    }

    #[test]
    fn pauses_are_not_too_short() {
        assert_eq!(pause("0.05"), Ok(Duration::from_millis(50)));
        for (bad, part) in [
            ("0", "at least 0.05"),
            ("49ms", "at least"),
            ("x", "invalid"),
        ] {
            let error = pause(bad).expect_err(bad);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn rates_and_sizes_are_formatted() {
        assert_eq!(show_rate(10_000_000), "10mbit");
        assert_eq!(show_rate(1_500_000_000), "1.5gbit");
        for (value, text) in [
            (0.0, "0"),
            (0.4, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1_234.0, "1.23k"),
            (9_996.0, "10.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_900.0, "1.00M"),
            (1.5e9, "1.50G"),
        ] {
            assert_eq!(show_count(value), text, "{value}");
        }
    }
}
