//! Every page that a comment, a message or another page refers to is there.

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::{Outcome, cannot_run, verdict};
use crate::workspace::{files, root, shown};

/// A reference found in a text.
#[derive(Debug, PartialEq, Eq)]
enum Link {
    /// `docs/…md`: from the root of the project, wherever it stands.
    Page(String),
    /// `](…)` of a Markdown page: from the folder of that page.
    Relative(String),
    /// A path between back ticks on a Markdown page, from the root of the project.
    Path(String),
}

pub(crate) fn check(_: &crate::workspace::Workspace) -> Outcome {
    let root = root();
    let texts = files(&root, &has_text);
    let (mut problems, mut links) = (Vec::new(), 0);
    for path in &texts {
        // This file's own tests refer to pages that do not exist.
        if path.ends_with("dev/xtask/src/links.rs") {
            continue;
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) => return cannot_run(format!("reading {}: {e}", path.display())),
        };
        for (line, link) in find(&text, is_markdown(path)) {
            links += 1;
            let (target, name) = target(&root, path, &link);
            // Anything may stand between back ticks; what begins with one of our folders is a path of ours.
            // (`target` is made by builds.)
            let first = name.split('/').next();
            let is_ours = first.is_some_and(|first| first != "target" && root.join(first).is_dir());
            if !target.exists() && (is_ours || !matches!(link, Link::Path(_))) {
                problems.push(format!(
                    "{}:{line}: refers to {name}, which is not there",
                    shown(path)
                ));
            }
        }
    }
    if links == 0 {
        problems.push("no reference was found: nothing was checked".into());
    }
    verdict(
        &problems,
        format!("{links} references in {} files", texts.len()),
    )
}

fn has_text(path: &Path) -> bool {
    path.extension().is_some_and(|e| {
        ["rs", "md", "toml", "example", "service", "socket"]
            .iter()
            .any(|x| e == *x)
    })
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "md")
}

fn target(root: &Path, page: &Path, link: &Link) -> (PathBuf, String) {
    match link {
        Link::Page(name) | Link::Path(name) => (root.join(name), name.clone()),
        Link::Relative(name) => (page.parent().unwrap_or(root).join(name), name.clone()),
    }
}

/// References with their line numbers, from 1.
fn find(text: &str, markdown: bool) -> Vec<(usize, Link)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let pages = line
            .match_indices("docs/")
            .filter_map(|(at, _)| page(line, at));
        found.extend(pages.map(|name| (number + 1, Link::Page(name))));
        if markdown {
            let relative = line
                .split("](")
                .skip(1)
                .filter_map(|rest| relative(rest.split(')').next()?));
            found.extend(relative.map(|name| (number + 1, Link::Relative(name))));
            let paths = line
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|span| is_path(span))
                .flat_map(expanded);
            found.extend(paths.map(|name| (number + 1, Link::Path(name))));
        }
    }
    found
}

/// The name of a page that begins here with `docs/`.
fn page(line: &str, at: usize) -> Option<String> {
    let before = line.get(..at)?;
    // Part of a longer path or address, or a link, which is looked at as such.
    let is_longer = before
        .chars()
        .next_back()
        .is_some_and(|c| c.is_alphanumeric() || "/._-".contains(c));
    if is_longer || before.ends_with("](") {
        return None;
    }
    let is_part = |c: &char| c.is_ascii_alphanumeric() || "/._-".contains(*c);
    let name: String = line.get(at..)?.chars().take_while(is_part).collect();
    let end = name.find(".md")? + 3;
    name.get(..end).map(str::to_owned)
}

/// The path of a link to a file of the project; none for another site's and for a place in the same page.
fn relative(link: &str) -> Option<String> {
    let path = link.split('#').next()?;
    let is_path = path.contains('.') || path.contains('/');
    (is_path && !path.contains("://") && !path.contains(' ') && !path.contains("::"))
        .then(|| path.to_owned())
}

/// Looks like a path to a file or folder of the project. Pages of docs/ are found anyway.
fn is_path(span: &str) -> bool {
    let first = span.split('/').next().unwrap_or_default();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
    first.len() < span.len()
        && !first.is_empty()
        && first != "docs"
        && !first.contains('.')
        && span.chars().all(is_part)
}

/// `a/{b,c}/d` as `a/b/d` and `a/c/d`.
fn expanded(path: &str) -> Vec<String> {
    let parts = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        None => vec![path.to_owned()],
        Some((before, (names, after))) => names
            .split(',')
            .flat_map(|name| expanded(&format!("{before}{name}{after}")))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_found() {
        let text = "see `docs/a-b.md`.\n[x](../y.md#z) and [u](https://e.org/docs/v.md), [w](#here), (docs/sub/c.md)";
        let page = |name: &str| Link::Page(name.into());
        let relative = |name: &str| Link::Relative(name.into());
        assert_eq!(
            find(text, true),
            [
                (1, page("docs/a-b.md")),
                (2, page("docs/sub/c.md")),
                (2, relative("../y.md"))
            ]
        );
        assert_eq!(
            find("// docs/a.md, docs/b.md: docs/.", false),
            [(1, page("docs/a.md")), (1, page("docs/b.md"))]
        );
    }

    #[test]
    fn paths_between_back_ticks_are_found() {
        let names: Vec<_> = find(
            "`a/{b,c}.rs`, `x`, `/etc/ethers`, `a b/c`, `docs/d.md`, a/e.rs `f/`",
            true,
        );
        let path = |name: &str| (1, Link::Path(name.into()));
        assert_eq!(
            names,
            [
                (1, Link::Page("docs/d.md".into())),
                path("a/b.rs"),
                path("a/c.rs"),
                path("f/")
            ]
        );
        assert_eq!(find("`a/b.rs`", false), []);
    }

    #[test]
    fn a_link_starts_where_its_page_is() {
        let (root, file) = (Path::new("/r"), Path::new("/r/docs/x.md"));
        assert_eq!(
            target(root, file, &Link::Relative("../a.md".into())).0,
            Path::new("/r/docs/../a.md")
        );
        assert_eq!(
            target(root, file, &Link::Page("docs/a.md".into())).0,
            Path::new("/r/docs/a.md")
        );
    }
}
