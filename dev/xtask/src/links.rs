//! Every file of the project that a page, a comment or a message refers to exists.
//!
//! Checked are `docs/….md` anywhere, and in Markdown the targets of links and the paths between
//! back ticks that begin with a folder of the project. (Link checkers look at the targets only.)

use std::fs;
use std::path::{Path, PathBuf};

use crate::outcome::{Outcome, cannot_run, verdict};
use crate::workspace::{Workspace, files, root, shown};

/// Reads all texts.
pub(crate) fn check(_: &Workspace) -> Outcome {
    let root = root();
    let texts = files(&root, &has_text);
    let (mut problems, mut links) = (Vec::new(), 0);
    for path in &texts {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) => return cannot_run(format!("reading {}: {e}", path.display())),
        };
        for (number, line) in (1..).zip(text.lines()) {
            for target in targets(&root, path, line) {
                links += 1;
                if !target.exists() {
                    let (path, target) = (shown(path), shown(&target));
                    problems.push(format!(
                        "{path}:{number}: refers to {target}, which is missing"
                    ));
                }
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
    // The tests of this file refer to files that do not exist.
    let extension = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    ["rs", "md", "toml", "example", "service"].contains(&extension)
        && !path.ends_with("dev/xtask/src/links.rs")
}

/// The files that a line refers to.
fn targets(root: &Path, page: &Path, line: &str) -> Vec<PathBuf> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-{},".contains(c);
    let mut found = Vec::new();
    for name in line
        .split(|c| !is_part(c))
        .filter(|name| name.starts_with("docs/"))
    {
        let name = name.split_inclusive(".md").next().unwrap_or(name);
        // A link is relative to its page.
        if name.ends_with(".md") && !line.contains(&format!("]({name}")) {
            found.push(root.join(name));
        }
    }
    if page.extension().is_none_or(|e| e != "md") {
        return found;
    }
    let links = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let paths = links.filter_map(|link| link.split('#').next());
    let is_file = |path: &&str| {
        let is_path = path.contains(['.', '/']) && !path.contains([' ', ':', '<']);
        is_path && !path.contains("::")
    };
    let folder = page.parent().unwrap_or(root);
    found.extend(paths.filter(is_file).map(|path| folder.join(path)));

    let spans = line.split('`').skip(1).step_by(2);
    let ours = spans.filter(|span| {
        let first = span.split_once('/').map_or("", |(first, _)| first);
        let is_folder = !first.is_empty() && !["docs", "target"].contains(&first);
        is_folder && span.chars().all(is_part) && root.join(first).is_dir()
    });
    found.extend(ours.flat_map(expanded).map(|path| root.join(path)));
    found
}

/// `a/{b,c}/d` as `a/b/d` and `a/c/d`.
fn expanded(path: &str) -> Vec<String> {
    let parts = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (names, after))) = parts else {
        return vec![path.to_owned()];
    };
    let names = names
        .split(',')
        .map(|name| format!("{before}{name}{after}"));
    names.flat_map(|path| expanded(&path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, line: &str) -> Vec<String> {
        let root = root();
        let targets = targets(&root, &root.join(page), line);
        targets.iter().map(|path| shown(path)).collect()
    }

    #[test]
    fn planted_references_are_found() {
        let line = "see `docs/a-b.md`. [x](../y.md#z), [u](https://e.org/docs/v.md), [w](#here)";
        assert_eq!(found("docs/p.md", line), ["docs/a-b.md", "docs/../y.md"]);
        let line = "// docs/a.md, (docs/b.md): docs/, x/docs/c.md";
        assert_eq!(found("cli/x.rs", line), ["docs/a.md", "docs/b.md"]);
        let line = "`cli/{b,c}.rs`, `x`, `/etc/ethers`, `a b/c`, `no-such/d`, cli/e.rs `cli/f/`";
        assert_eq!(found("p.md", line), ["cli/b.rs", "cli/c.rs", "cli/f"]);
        assert_eq!(found("x.rs", line), [""; 0]);
    }
}
