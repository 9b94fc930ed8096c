//! Comments of Rust files and lines of Markdown have at most 100 columns.
//!
//! rustfmt keeps code within that width, but leaves comments as they are. What cannot be broken is
//! exempt: tables, fenced blocks, link targets and URLs.

use std::fs;
use std::path::Path;

use crate::outcome::{Outcome, cannot_run, verdict};
use crate::workspace::{Workspace, files, root, shown};

const WIDTH: usize = 100;

/// Reads every Rust file and every page.
pub(crate) fn check(_: &Workspace) -> Outcome {
    let is_text = |path: &Path| path.extension().is_some_and(|e| e == "rs" || e == "md");
    let texts = files(&root(), &is_text);
    let mut problems = Vec::new();
    for path in &texts {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) => return cannot_run(format!("reading {}: {e}", path.display())),
        };
        let wide = if path.extension().is_some_and(|e| e == "md") {
            wide_markdown(&text)
        } else {
            wide_comments(&text)
        };
        for (line, columns) in wide {
            problems.push(format!("{}:{line}: {columns} columns", shown(path)));
        }
    }
    if texts.is_empty() {
        problems.push("no file was found: nothing was checked".into());
    }
    verdict(&problems, format!("{} files", texts.len()))
}

/// Line numbers, from 1, and widths of comments that are too wide.
fn wide_comments(text: &str) -> Vec<(usize, usize)> {
    let mut fenced = false;
    let lines = text.lines().map(|line| {
        let start = line.trim_start();
        let comment = start.trim_start_matches(['/', '!', ' ']);
        if !start.starts_with("//") {
            fenced = false;
            // A comment after code: not inside a string, judging by the quotes.
            let at = line.rfind(" // ")?;
            let in_string = !line[..at].matches('"').count().is_multiple_of(2);
            return (!in_string).then_some(line);
        }
        let is_fence = comment.starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence && !comment.starts_with('|')).then_some(line)
    });
    too_wide(lines)
}

/// Line numbers and widths of the lines of Markdown that could be broken.
fn wide_markdown(text: &str) -> Vec<(usize, usize)> {
    let mut fenced = false;
    let lines = text.lines().map(|line| {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence && !start.starts_with('|')).then_some(line)
    });
    too_wide(lines)
}

fn too_wide<'a>(lines: impl Iterator<Item = Option<&'a str>>) -> Vec<(usize, usize)> {
    let columns = lines.map(|line| line.map_or(0, columns));
    (1..).zip(columns).filter(|&(_, c)| c > WIDTH).collect()
}

/// Columns of a line without the targets of its links and without URLs.
fn columns(line: &str) -> usize {
    if line.chars().count() <= WIDTH {
        return 0;
    }
    let mut parts = line.split("](");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str("](");
        shown.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    let words = shown.split(' ').filter(|word| !word.contains("://"));
    words
        .map(|word| word.chars().count() + 1)
        .sum::<usize>()
        .saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_wide_lines_are_found() {
        let wide = "word ".repeat(30);
        let lines = [
            "// short".to_owned(),
            format!("    /// {wide}"),
            format!("f(\"{wide}\"); // end"),
            format!("let x = \"a // {wide}\";"),
            format!("/// | {wide} |"),
        ];
        let rust = lines.join("\n");
        let found: Vec<usize> = wide_comments(&rust).iter().map(|(line, _)| *line).collect();
        assert_eq!(found, [2, 3]);
        let page = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n{wide}\n");
        let found: Vec<usize> = wide_markdown(&page).iter().map(|(line, _)| *line).collect();
        assert_eq!(found, [1, 6]);
    }

    #[test]
    fn what_cannot_be_broken_is_exempt() {
        let target = "x/".repeat(60);
        assert_eq!(columns(&format!("see [here]({target}) and there")), 21);
        assert_eq!(columns(&format!("/// see https://{target}")), 7);
        assert_eq!(columns(&"ä".repeat(101)), 101);
        assert_eq!(columns(&"ä".repeat(100)), 0);
    }
}
