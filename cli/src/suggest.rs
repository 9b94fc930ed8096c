//! Suggestions for misspelt words: "did you mean".

/// Maximum length of words that are compared, in bytes: the cost is the product of the lengths.
const MAX_WORD: usize = 255;

/// Returns the known word that is closest to the given one, if a typing error is plausible: at most
/// a third of the letters may differ. Of equally close words, returns the first in alphabetical
/// order.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let most = (word.chars().count() / 3).max(1);
    let known = known.into_iter();
    let known = known.filter(|other| word.len().max(other.len()) <= MAX_WORD);
    let near = known.filter_map(|candidate| {
        let changes = strsim::osa_distance(&lower, &candidate.to_lowercase());
        (changes <= most).then_some((changes, candidate))
    });
    near.min().map(|(_, word)| word)
}

/// Formats `: did you mean …?` for the closest known word; an empty text if there is none.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    closest(word, known).map_or_else(String::new, |known| format!(": did you mean `{known}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_have_a_suggestion_and_other_words_have_none() {
        let known = ["node2", "node1", "node12", "storage"];
        for (word, wanted) in [
            ("nod1", Some("node1")),
            ("ndoe1", Some("node1")),
            ("NODE12", Some("node12")),
            ("stroage", Some("storage")),
            ("node7", Some("node1")),
            ("login", None),
            ("", None),
            (&"node1".repeat(1000), None),
        ] {
            assert_eq!(closest(word, known), wanted, "{word}");
        }
        assert_eq!(did_you_mean("nod1", known), ": did you mean `node1`?");
        assert_eq!(did_you_mean("login", known), "");
    }
}
