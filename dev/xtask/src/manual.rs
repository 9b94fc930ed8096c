//! Manual pages and shell completions of the programs, which the crate `manual` writes.

use std::path::Path;

use crate::outcome::{Failure, cannot_run};
use crate::process::{cargo, output};
use crate::workspace::root;

/// Runs `cargo xtask man DIR` or `cargo xtask completions DIR`; `what` is the command.
pub(crate) fn manual(what: &str, args: &[String]) -> Result<(), Failure> {
    let [dir] = args else {
        return cannot_run(format!("{what} DIR: the folder to write to"));
    };
    let files = write(what, Path::new(dir))?;
    println!("wrote {files} files to {dir}");
    Ok(())
}

/// Writes pages (`man`) or `completions` to `dir`; returns the number of files.
pub(crate) fn write(what: &str, dir: &Path) -> Result<usize, Failure> {
    let dir = std::path::absolute(dir)
        .map_err(|e| Failure::CannotRun(format!("{}: {e}", dir.display())))?;
    let run = ["run", "--locked", "--quiet", "-p", "manual", "--", what];
    let listed = output(cargo(run).arg(dir).current_dir(root()))?;
    Ok(listed.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_to_be_named() {
        assert!(manual("man", &[]).is_err());
        assert!(manual("man", &["a".to_owned(), "b".to_owned()]).is_err());
    }
}
