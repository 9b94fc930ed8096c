//! Shell completions, by clap_complete.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate_to};

use crate::programs::{self, Program};

/// Shells and their folders.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash"),
    (Shell::Zsh, "zsh"),
    (Shell::Fish, "fish"),
];

/// Writes the completions of all programs below `dir`; returns the files.
pub(crate) fn write(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (shell, folder) in SHELLS {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder)?;
        for program in programs::all() {
            let name = program.name;
            let written = generate_to(shell, &mut visible(&program), name, &folder)?;
            files.push(match shell {
                // bash-completion looks for a file with the name of the program.
                Shell::Bash => {
                    let bare = folder.join(name);
                    fs::rename(written, &bare)?;
                    bare
                }
                _ => written,
            });
        }
    }
    Ok(files)
}

/// Returns the command line without hidden subcommands, which clap_complete would offer.
fn visible(program: &Program) -> Command {
    let shown = program.command.get_subcommands();
    let shown: Vec<Command> = shown.filter(|c| !c.is_hide_set()).cloned().collect();
    let arguments: Vec<_> = program.command.get_arguments().cloned().collect();
    Command::new(program.name)
        // The version itself is not in the completions, only the option.
        .version("")
        .args(arguments)
        .subcommands(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_completions_for_every_shell() {
        let dir = std::env::temp_dir().join(format!("esp-completions-{}", std::process::id()));
        let files = write(&dir).unwrap();
        assert_eq!(files.len(), SHELLS.len() * programs::all().len());
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        assert!(read("bash/esping").contains("--discover"));
        assert!(read("zsh/_esping").starts_with("#compdef esping"));
        assert!(read("fish/esping.fish").contains("complete -c esping"));
        // Hidden subcommands are internal.
        assert!(read("bash/esplab").contains("mpirun"));
        for file in ["bash/esplab", "zsh/_esplab", "fish/esplab.fish"] {
            assert!(!read(file).contains("segmentation offload of"), "{file}");
        }
        assert!(read("bash/esp-daemon").contains("--version"));
        for file in fs::read_dir(dir.join("bash")).unwrap() {
            let file = file.unwrap().path();
            let output = std::process::Command::new("bash")
                .arg("-n")
                .arg(file)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
