//! The manual page of the daemon's config file, made from the example that documents every key.

use clap_mangen::roff::{Roff, bold, roman};

/// Name of the page.
pub(crate) const NAME: &str = "esp-daemon.toml";

/// The example: a comment stands before the keys that it describes, or before a table.
const EXAMPLE: &str = include_str!("../../../esp-daemon/esp-daemon.toml.example");

/// One part of the example.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Text about what follows.
    Text(Vec<String>),
    /// `[table]`, including one that is commented out.
    Table(String),
    /// `key = value`, with a `#` before it if it is not set by default.
    Key(String),
}

/// Returns the page.
pub(crate) fn page(manual: &str) -> Roff {
    let mut roff = Roff::default();
    let source = concat!("esp ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [NAME, "5", "", source, manual]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{NAME} - configuration of esp-daemon"))]);
    roff.control("SH", ["DESCRIPTION"]);
    let mut parts = parts(EXAMPLE).into_iter().peekable();
    if let Some(Part::Text(lines)) = parts.next_if(|part| matches!(part, Part::Text(_))) {
        paragraphs(&mut roff, &lines);
    }
    roff.control("SH", ["OPTIONS"]);
    let mut about: Option<Vec<String>> = None;
    let mut previous_was_key = false;
    for part in parts {
        let is_key = matches!(part, Part::Key(_));
        if previous_was_key && !is_key {
            describe(&mut roff, about.take());
        }
        match part {
            Part::Text(lines) => {
                // Text that no key follows.
                if let Some(lines) = about.replace(lines) {
                    paragraphs(&mut roff, &lines);
                }
            }
            Part::Table(name) => {
                roff.control("SS", [format!("[{name}]").as_str()]);
                if let Some(lines) = about.take() {
                    paragraphs(&mut roff, &lines);
                }
            }
            Part::Key(line) => {
                // Further keys of one description stand above each other.
                roff.control(if previous_was_key { "TQ" } else { "TP" }, []);
                roff.text([bold(line)]);
            }
        }
        previous_was_key = is_key;
    }
    if let Some(lines) = about {
        if previous_was_key {
            describe(&mut roff, Some(lines));
        } else {
            paragraphs(&mut roff, &lines);
        }
    }
    roff.control("SH", ["FILES"]);
    roff.text([roman(esp_daemon::config::DEFAULT_FILE)]);
    roff
}

/// Writes the text below a key's line.
fn describe(roff: &mut Roff, lines: Option<Vec<String>>) {
    for line in lines.unwrap_or_default() {
        roff.text([roman(line)]);
    }
}

fn paragraphs(roff: &mut Roff, lines: &[String]) {
    for line in lines {
        if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]);
        }
    }
}

/// Splits the example.
fn parts(example: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut text: Vec<String> = Vec::new();
    for line in example.lines() {
        // Text has a space after `#`, a key or table that is commented out has none.
        if let Some(words) = line.strip_prefix("# ") {
            text.push(words.to_owned());
            continue;
        }
        if line == "#" {
            text.push(String::new());
            continue;
        }
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        let entry = line.strip_prefix('#').unwrap_or(line);
        let table = entry.strip_prefix('[').and_then(|e| e.strip_suffix(']'));
        if let Some(name) = table {
            parts.push(Part::Table(name.to_owned()));
        } else if !entry.is_empty() {
            parts.push(Part::Key(line.to_owned()));
        }
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_split() {
        let text = |lines: &[&str]| Part::Text(lines.iter().map(|l| (*l).to_owned()).collect());
        let key = |line: &str| Part::Key(line.into());
        assert_eq!(
            parts("# About\n#\n# it.\n\n# One.\na = 1\n#b = 2\n\n#[t.0]\n#c = 3\n# End"),
            [
                text(&["About", "", "it."]),
                text(&["One."]),
                key("a = 1"),
                key("#b = 2"),
                Part::Table("t.0".into()),
                key("#c = 3"),
                text(&["End"]),
            ]
        );
    }

    #[test]
    fn every_key_has_a_line_and_every_table_a_heading() {
        let page = page("").to_roff();
        let uncommented: String = EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(entry) if !entry.starts_with(' ') => format!("{entry}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let table: toml::Table = uncommented.parse().unwrap();
        let mut keys = 0;
        check("", &table, &page, &mut keys);
        assert!(keys > 30, "{keys}");
    }

    fn check(name: &str, table: &toml::Table, page: &str, keys: &mut usize) {
        let own = table.values().any(|value| !value.is_table());
        if !name.is_empty() && own {
            assert!(page.contains(&format!(".SS [{name}]")), "{name}");
        }
        for (key, value) in table {
            match value.as_table() {
                Some(inner) if name.is_empty() => check(key, inner, page, keys),
                Some(inner) => check(&format!("{name}.{key}"), inner, page, keys),
                None => {
                    *keys += 1;
                    let lines = [format!("\\fB{key} = "), format!("\\fB#{key} = ")];
                    let found = lines.iter().any(|line| page.contains(line));
                    assert!(found, "{name}.{key}");
                }
            }
        }
    }

    #[test]
    fn descriptions_follow_their_keys() {
        let page = page("").to_roff();
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
        assert!(at("udp_port = 2805") < at("UDP port of this and the other nodes."));
        assert!(at("UDP port of this and the other nodes.") < at("node_name = "));
        assert!(at("Limits of each user, for all") < at("ring_bytes = \"25%\""));
    }
}
