//! Every MUST of docs/wire-format.md is cited next to the code that keeps it and by a test that
//! breaks it, and every citation names a rule that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::outcome::{Outcome, cannot_run, verdict};
use crate::workspace::{Workspace, files, root, shown};

const SPEC: &str = "docs/wire-format.md";
/// The crates that keep the rules.
const KEEPERS: &[&str] = &["esp-proto/src", "netif/src", "esp-engine/src"];

type Number = u32;

/// Reads the page and the sources.
pub(crate) fn check(_: &Workspace) -> Outcome {
    let page = match fs::read_to_string(root().join(SPEC)) {
        Ok(page) => page,
        Err(e) => return cannot_run(format!("reading {SPEC}: {e}")),
    };
    let rules = rules(&page);
    let mut cited = Cited::default();
    let mut problems = Vec::new();
    // The tests of this crate cite rules that do not exist.
    let is_text = |path: &Path| {
        let is_own = path.starts_with(root().join("dev/xtask"));
        !is_own && path.extension().is_some_and(|e| e == "rs" || e == "md")
    };
    for path in files(&root(), &is_text) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let name = shown(&path);
        cited.add(&name, &text);
        problems.extend(unknown(&rules, &name, &text));
    }
    problems.extend(uncited(&rules, &cited));
    verdict(&problems, cited.summary(&rules))
}

/// A numbered rule of the page.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    must: bool,
    text: String,
}

/// Where the numbers were found.
#[derive(Default)]
struct Cited {
    code: BTreeSet<Number>,
    tests: BTreeSet<Number>,
}

impl Cited {
    /// Test modules are files called `tests`, or stand at the end of a file.
    fn add(&mut self, path: &str, text: &str) {
        let code = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        let is_test_file = path.contains("/tests");
        for (at, number) in citations(text) {
            if is_test_file || at > code {
                self.tests.insert(number);
            } else if KEEPERS.iter().any(|keeper| path.starts_with(keeper)) {
                self.code.insert(number);
            }
        }
    }

    fn summary(&self, rules: &BTreeMap<Number, Rule>) -> String {
        let musts: Vec<Number> = rules
            .iter()
            .filter(|(_, r)| r.must)
            .map(|(n, _)| *n)
            .collect();
        let of = |set: &BTreeSet<Number>| musts.iter().filter(|n| set.contains(n)).count();
        format!(
            "{} MUSTs, {} cited in code, {} in tests",
            musts.len(),
            of(&self.code),
            of(&self.tests)
        )
    }
}

/// The items `- **W-nn** text` of the page; an item ends at the next one or at an empty line.
fn rules(page: &str) -> BTreeMap<Number, Rule> {
    let mut rules: BTreeMap<Number, Rule> = BTreeMap::new();
    let mut open = None;
    for line in page.lines() {
        if let Some(item) = line.strip_prefix("- **W-") {
            let Some((number, text)) = item.split_once("**") else {
                continue;
            };
            open = number.parse::<Number>().ok();
            if let Some(number) = open {
                rules.insert(
                    number,
                    Rule {
                        must: false,
                        text: text.trim().to_owned(),
                    },
                );
            }
        } else if line.trim().is_empty() {
            open = None;
        } else if let Some(rule) = open.and_then(|number| rules.get_mut(&number)) {
            rule.text.push(' ');
            rule.text.push_str(line.trim());
        }
    }
    for rule in rules.values_mut() {
        rule.must = rule
            .text
            .split(|c: char| !c.is_alphanumeric())
            .any(|w| w == "MUST");
    }
    rules
}

/// Numbers cited as `W-nn`, with their positions.
fn citations(text: &str) -> impl Iterator<Item = (usize, Number)> {
    text.match_indices("W-").filter_map(move |(at, _)| {
        let before = text.get(..at)?.chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            return None;
        }
        let digits: String = text
            .get(at + 2..)?
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        Some((at, digits.parse().ok()?))
    })
}

/// Citations of rules that the page does not have.
fn unknown(rules: &BTreeMap<Number, Rule>, path: &str, text: &str) -> Vec<String> {
    let wrong = citations(text).filter(|(_, number)| !rules.contains_key(number));
    let place = |at| text.get(..at).map_or(0, |t| t.matches('\n').count()) + 1;
    wrong
        .map(|(at, n)| {
            format!(
                "{path}:{}: cites W-{n:02}, which {SPEC} does not have",
                place(at)
            )
        })
        .collect()
}

fn uncited(rules: &BTreeMap<Number, Rule>, cited: &Cited) -> Vec<String> {
    let musts = rules.iter().filter(|(_, rule)| rule.must);
    if musts.clone().next().is_none() {
        return vec![format!(
            "{} has no numbered MUST: nothing was checked",
            shown(&root().join(SPEC))
        )];
    }
    let places = [
        (&cited.code, "the code that keeps it"),
        (&cited.tests, "a test that fails without it"),
    ];
    let missing = musts.flat_map(|(number, rule)| {
        let of_rule = places.iter().filter(|(set, _)| !set.contains(number));
        of_rule
            .map(move |(_, place)| format!("W-{number:02} is not cited by {place}: {}", rule.text))
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\nW-09 in text.\n\n- **W-01** A MUST b\n  more.\n- **W-02** SHOULD only.\n\nMUST\n- **W-103** MUST NOT c.\n";

    fn cited(text: &str) -> Cited {
        let mut cited = Cited::default();
        cited.add("esp-proto/src/x.rs", text);
        cited
    }

    #[test]
    fn the_page_is_read() {
        let rules = rules(PAGE);
        assert_eq!(rules.keys().copied().collect::<Vec<_>>(), [1, 2, 103]);
        assert_eq!(
            rules[&1],
            Rule {
                must: true,
                text: "A MUST b more.".into()
            }
        );
        assert!(!rules[&2].must && rules[&103].must);
    }

    #[test]
    fn the_real_page_has_rules() {
        let page = fs::read_to_string(root().join(SPEC)).expect("the page is there");
        let rules = rules(&page);
        assert!(rules.len() > 60 && rules.values().filter(|r| r.must).count() > 30);
        // Every number that stands in bold at the start of a line was understood.
        assert_eq!(
            rules.len(),
            page.lines().filter(|l| l.starts_with("- **W-")).count()
        );
    }

    #[test]
    fn an_uncited_must_is_found() {
        let rules = rules(PAGE);
        let all = "// W-01, W-103.";
        let some = "// W-01 XW-103 NEW-103 W-x W-";
        let of = |code: &str, test: &str| {
            let mut cited = cited(code);
            cited.add("esp-proto/tests/x.rs", test);
            uncited(&rules, &cited)
        };
        assert_eq!(of(all, all), [""; 0]);
        assert_eq!(
            of(some, all),
            ["W-103 is not cited by the code that keeps it: MUST NOT c."]
        );
        assert_eq!(
            of(all, some),
            ["W-103 is not cited by a test that fails without it: MUST NOT c."]
        );
        assert_eq!(of("", "").len(), 4);
    }

    #[test]
    fn a_citation_in_a_test_is_not_the_code_that_keeps_it() {
        let cited = cited("// W-103\n#[cfg(test)]\nmod tests {\n // W-01\n}\n");
        assert_eq!((cited.code.len(), cited.tests.len()), (1, 1));
        assert_eq!(
            cited.summary(&rules(PAGE)),
            "2 MUSTs, 1 cited in code, 1 in tests"
        );
    }

    #[test]
    fn a_citation_of_nothing_is_found() {
        let problems = unknown(&rules(PAGE), "x.rs", "\n// W-01 W-77");
        assert_eq!(
            problems,
            ["x.rs:2: cites W-77, which docs/wire-format.md does not have"]
        );
    }

    #[test]
    fn a_page_without_rules_is_no_pass() {
        assert_eq!(uncited(&rules("nothing"), &Cited::default()).len(), 1);
    }
}
