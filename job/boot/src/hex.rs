//! Hexadecimal encoding of bytes, in an alphabet that every launcher accepts in values.

/// Encodes bytes.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes lower-case digits; `None` if they are not an even number of hexadecimal digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let digit = |c: u8| match c {
        b'A'..=b'F' => None,
        _ => char::from(c).to_digit(16),
    };
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
    pairs.iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(encode(&[0x0f, 0xa0]), "0fa0");
        for bad in ["0", "0g", "A0", "00 ", "é"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
