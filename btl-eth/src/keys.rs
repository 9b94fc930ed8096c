//! Comparison of the keys that protect the packets of two programs over UDP.

use esp_client::{KeyId, Protection};

/// Returns an error message for the user if two programs with these keys cannot exchange packets.
pub(crate) fn compare(own: &[KeyId], theirs: &[KeyId]) -> Result<(), String> {
    let is_common = own.iter().any(|key| theirs.contains(key));
    if is_common || own.is_empty() && theirs.is_empty() {
        return Ok(());
    }
    Err(format!(
        "its packets are protected by {}, those of this process by {}: set ESP_KEY_FILE, ESP_AUTH \
         and ESP_CHECKSUM to the same values on all nodes",
        name(theirs),
        match (own, theirs) {
            ([_, ..], [_, ..]) if name(own) == name(theirs) => "another key",
            _ => name(own),
        }
    ))
}

fn name(keys: &[KeyId]) -> &'static str {
    match keys {
        [] => "nothing",
        keys if keys == Protection::Checksum.key_ids() => "a checksum",
        _ => "a key",
    }
}

/// Returns how keys may explain that a program with these keys gets no answer from a peer whose
/// keys are unknown.
pub(crate) fn advice(own: &[KeyId]) -> &'static str {
    match name(own) {
        "nothing" => "or it has a key (ESP_KEY_FILE), and this process none",
        "a checksum" => "or it has no checksum (ESP_CHECKSUM), unlike this process",
        _ => "or it has no key, or not that of this process (ESP_KEY_FILE)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_in_common_is_sufficient() {
        let id = |byte: u8| KeyId([byte; 4]);
        let checksum = Protection::Checksum.key_ids();
        let (first, both) = ([id(1)], [id(2), id(1)]);
        for (own, theirs) in [
            (&first[..], &both[..]),
            (&both, &first),
            (&[], &[]),
            (&checksum, &checksum),
        ] {
            assert_eq!(compare(own, theirs), Ok(()), "{own:?} {theirs:?}");
        }
        for (own, theirs, part) in [
            (
                &[][..],
                &first[..],
                "by a key, those of this process by nothing:",
            ),
            (&first, &[], "by nothing, those of this process by a key:"),
            (
                &first,
                &[id(2)],
                "by a key, those of this process by another key:",
            ),
            (
                &first,
                &checksum,
                "by a checksum, those of this process by a key:",
            ),
            (
                &checksum,
                &[],
                "by nothing, those of this process by a checksum:",
            ),
        ] {
            let error = compare(own, theirs).unwrap_err();
            assert!(
                error.contains(part) && error.contains("ESP_KEY_FILE"),
                "{error}"
            );
        }
    }
}
