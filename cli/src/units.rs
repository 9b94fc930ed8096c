//! Numbers with units as people type them: `10mbit`, `64m`, `1 %`.

use std::time::Duration;

/// Splits `"10mbit"` into 10.0 and `"mbit"`.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` does not begin with a number"))?;
    Ok((number, unit.trim()))
}

/// A whole number of at most `max`, made from a checked float.
fn whole(value: f64, max: f64, text: &str) -> Result<u64, String> {
    if !(value.is_finite() && (0.0..=max).contains(&value)) {
        return Err(format!("`{text}` is out of range"));
    }
    // The value is within 0..=2^53, so the cast is exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(value.round() as u64)
}

/// Bits per second from `10mbit`, `1gbit`, `500kbit`, `1000000` or `1.5g`. At least 8 kbit/s, at
/// most 1 Tbit/s.
pub fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit
        .to_ascii_lowercase()
        .trim_end_matches("/s")
        .trim_end_matches("it")
        .trim_end_matches('b')
    {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        _ => return Err(format!("`{unit}` is no unit of rate (kbit, mbit, gbit)")),
    };
    let bits = whole(number * factor, 1e12, text)?;
    if bits < 8_000 {
        Err(format!("`{text}` is below 8kbit"))
    } else {
        Ok(bits)
    }
}

/// Parses a number of bytes, such as `4096`, `64k`, `64MiB` or `1g` (powers of 1024), at most 2^50.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let lower = unit.to_ascii_lowercase();
    let factor = match lower.trim_end_matches('b').trim_end_matches('i') {
        "" => 1.0,
        "k" => 1024.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("`{unit}` is no unit of size (k, m, g)")),
    };
    whole(number * factor, (1u64 << 50) as f64, text)
}

/// Parts per million from a share: `0.01` and `1%` are 10000. At most 1.
pub fn share(text: &str) -> Result<u32, String> {
    let (number, unit) = split(text)?;
    let share = match unit {
        "" => number,
        "%" => number / 100.0,
        _ => return Err(format!("`{unit}` is no unit of a share (0.01 or 1%)")),
    };
    if !(0.0..=1.0).contains(&share) {
        return Err(format!("`{text}` is not between 0 and 1 (0.01 is 1 %)"));
    }
    let ppm = whole(share * 1e6, 1e6, text)?;
    u32::try_from(ppm).map_err(|_| format!("`{text}` is out of range"))
}

/// A time from seconds (`0.2`), or with a unit: `200ms`, `50us`, `1s`. At most a day.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        _ => return Err(format!("`{unit}` is no unit of time (s, ms, us)")),
    };
    let value = number * factor;
    if !(0.0..=86_400.0).contains(&value) {
        return Err(format!("`{text}` is out of range (at most a day)"));
    }
    Ok(Duration::from_secs_f64(value))
}

/// `1500000000` as `1.5gbit`.
pub fn show_rate(bits: u64) -> String {
    let value = bits as f64;
    for (limit, unit) in [(1e9, "gbit"), (1e6, "mbit"), (1e3, "kbit")] {
        if value >= limit {
            return format!("{}{unit}", trimmed(value / limit));
        }
    }
    format!("{bits}bit")
}

/// `67108864` as `64 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    let value = bytes as f64;
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let limit = (1u64 << shift) as f64;
        if value >= limit {
            return format!("{} {unit}", trimmed(value / limit));
        }
    }
    format!("{bytes} B")
}

/// Up to two digits behind the point, none when they are zero.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, bits) in [
            ("10mbit", 10_000_000),
            ("1gbit", 1_000_000_000),
            ("1.5g", 1_500_000_000),
            ("64000", 64_000),
            ("500Kbit/s", 500_000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for bad in [
            "", "mbit", "10parsec", "1", "-5mbit", "1e9", "2000gbit", "1.2.3m",
        ] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
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
    fn shares() {
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
    fn times() {
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        assert_eq!(seconds("50us"), Ok(Duration::from_micros(50)));
        for bad in ["", "-1", "1h", "1000000"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show_rate(10_000_000), "10mbit");
        assert_eq!(show_rate(1_500_000_000), "1.5gbit");
        assert_eq!(show_bytes(64 << 20), "64 MiB");
        assert_eq!(show_bytes(100), "100 B");
    }
}
