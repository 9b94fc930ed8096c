//! No dependency without a use: each one a crate names occurs in its source, and each line of the version table is some
//! crate's dependency.

use std::collections::BTreeSet;
use std::fs;

use crate::outcome::{Outcome, cannot_run, verdict};
use crate::source::{Source, words};
use crate::workspace::{Dependency, Kind, Package, Workspace, root};

pub(crate) fn check(workspace: &Workspace) -> Outcome {
    let (mut problems, mut dependencies) = (Vec::new(), 0);
    for package in &workspace.packages {
        let sources = Source::read_all(&package.dir)?;
        dependencies += package.dependencies.len();
        problems.extend(unused(package, &sources));
    }
    let manifest = match fs::read_to_string(root().join("Cargo.toml")) {
        Ok(manifest) => manifest,
        Err(e) => return cannot_run(format!("reading Cargo.toml: {e}")),
    };
    let table = version_table(&manifest);
    problems.extend(unused_lines(&table, workspace));
    if dependencies == 0 || table.is_empty() {
        problems.push("no dependency was found: nothing was checked".into());
    }
    verdict(
        &problems,
        format!(
            "{dependencies} dependencies, {} lines of the version table",
            table.len()
        ),
    )
}

/// Dependencies of a crate that its source never names.
fn unused(package: &Package, sources: &[Source]) -> Vec<String> {
    let in_table = |dependency: &&Dependency| {
        !sources
            .iter()
            .any(|source| names(package, source, dependency))
    };
    let unused = package.dependencies.iter().filter(in_table);
    unused
        .map(|d| {
            format!(
                "{}: {} is not used ({:?} dependency)",
                package.name, d.package, d.kind
            )
        })
        .collect()
}

/// The source names the dependency in a place for which that kind of dependency is meant.
fn names(package: &Package, source: &Source, dependency: &Dependency) -> bool {
    let file = source
        .path
        .strip_prefix(&package.dir)
        .unwrap_or(&source.path);
    let used = |at: usize| match dependency.kind {
        Kind::Normal => file.starts_with("src") && !source.in_test(at),
        Kind::Build => file.starts_with("build.rs"),
        Kind::Dev => !file.starts_with("build.rs"),
    };
    // Examples in documentation are compiled, too.
    let text = if dependency.kind == Kind::Dev {
        &source.text
    } else {
        &source.code
    };
    words(text, &dependency.ident).any(used)
}

/// Names of the lines of `[workspace.dependencies]`.
fn version_table(manifest: &str) -> Vec<String> {
    let lines = manifest
        .lines()
        .skip_while(|line| line.trim() != "[workspace.dependencies]")
        .skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let names = lines
        .filter_map(|line| line.split('#').next()?.split_once('='))
        .map(|(name, _)| name.trim());
    names
        .map(|name| {
            name.trim_end_matches(".workspace")
                .trim_matches('"')
                .to_owned()
        })
        .collect()
}

/// Lines of the table that no crate asks for. A renamed line is known by its new name.
fn unused_lines(table: &[String], workspace: &Workspace) -> Vec<String> {
    let dependencies = workspace.packages.iter().flat_map(|p| &p.dependencies);
    let asked: BTreeSet<String> = dependencies
        .flat_map(|d| [d.package.replace('-', "_"), d.ident.clone()])
        .collect();
    let unused = table
        .iter()
        .filter(|name| !asked.contains(&name.replace('-', "_")));
    unused
        .map(|name| format!("Cargo.toml: no crate depends on {name} of [workspace.dependencies]"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused_in(kind: Kind, file: &str, text: &str) -> usize {
        let workspace = Workspace::made_of(&[("p", &[("dead-dep", kind)])]);
        let package = workspace.package("p").expect("it was made");
        unused(package, &[Source::new(format!("p/{file}"), text)]).len()
    }

    #[test]
    fn a_planted_unused_dependency_is_found() {
        assert_eq!(
            unused_in(
                Kind::Normal,
                "src/lib.rs",
                "// dead_dep\nfn f() { \"dead_dep\"; undead_dep() }"
            ),
            1
        );
        assert_eq!(unused_in(Kind::Normal, "src/lib.rs", "use dead_dep::x;"), 0);
    }

    #[test]
    fn a_use_in_tests_is_a_use_for_tests_only() {
        assert_eq!(
            unused_in(
                Kind::Normal,
                "src/lib.rs",
                "#[cfg(test)] mod t { use dead_dep::x; }"
            ),
            1
        );
        assert_eq!(unused_in(Kind::Normal, "tests/a.rs", "use dead_dep::x;"), 1);
        assert_eq!(unused_in(Kind::Dev, "tests/a.rs", "use dead_dep::x;"), 0);
        assert_eq!(
            unused_in(Kind::Dev, "src/lib.rs", "//! use dead_dep::x;"),
            0
        );
        assert_eq!(unused_in(Kind::Build, "src/lib.rs", "use dead_dep::x;"), 1);
    }

    #[test]
    fn a_planted_line_of_the_table_is_found() {
        let table = version_table(
            "[a]\nx = 1\n[workspace.dependencies]\n# y = 2\nused-dep = \"1\" # z = 3\nother = { version = \"1\" }\n\n[b]\nw = 1\n",
        );
        assert_eq!(table, ["used-dep", "other"]);
        let workspace = Workspace::made_of(&[("p", &[("used-dep", Kind::Dev)])]);
        let problems = unused_lines(&table, &workspace);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("other"), "{problems:?}");
    }
}
