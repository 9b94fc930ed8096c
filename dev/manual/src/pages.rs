//! Manual pages, by clap_mangen.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::config;
use crate::programs;

/// Heading of all pages.
const MANUAL: &str = "ESP manual";

/// Writes the pages of all programs, of their subcommands, and of the config file below `dir`;
/// returns the files.
pub(crate) fn write(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let all = programs::all();
    let mut others: Vec<(String, &str)> = all
        .iter()
        .map(|program| (program.name.to_owned(), program.section))
        .collect();
    others.push((config::NAME.to_owned(), "5"));
    for program in all {
        let mut command = program.command.disable_help_subcommand(true);
        command.build();
        write_program(&command, program.section, dir, &others, &mut files)?;
    }
    let (mut file, path) = create(dir, config::NAME, "5")?;
    config::page(MANUAL).to_writer(&mut file)?;
    see_also(&others, config::NAME).to_writer(&mut file)?;
    file.flush()?;
    files.push(path);
    Ok(files)
}

/// Writes the pages of a command and its subcommands, except hidden ones.
fn write_program(
    command: &Command,
    section: &str,
    dir: &Path,
    others: &[(String, &str)],
    files: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write_program(inner, section, dir, others, files)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let (mut file, path) = create(dir, name, section)?;
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone())
        .section(section)
        .source(format!("esp {version}"))
        .manual(MANUAL);
    man.render(&mut file)?;
    see_also(others, name).to_writer(&mut file)?;
    file.flush()?;
    files.push(path);
    Ok(())
}

fn create(dir: &Path, name: &str, section: &str) -> io::Result<(File, PathBuf)> {
    let folder = dir.join(format!("man{section}"));
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}.{section}"));
    Ok((File::create(&path)?, path))
}

/// Returns the section that names the other pages.
fn see_also(others: &[(String, &str)], name: &str) -> Roff {
    let names = others.iter().filter(|(other, _)| other != name);
    let names: Vec<String> = names
        .map(|(o, section)| format!("{o}({section})"))
        .collect();
    let mut roff = Roff::default();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(names.join(", "))]);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_and_subcommand_has_a_page() {
        let dir = std::env::temp_dir().join(format!("esp-pages-{}", std::process::id()));
        let files = write(&dir).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|file| file.strip_prefix(&dir).unwrap().display().to_string())
            .collect();
        for name in [
            "man1/esp.1",
            "man1/esp-dump.1",
            "man1/esping.1",
            "man1/espstat.1",
            "man1/esptop.1",
            "man1/espcat.1",
            "man1/esperf.1",
            "man1/esprun.1",
            "man1/esplab-mpirun.1",
            "man5/esp-daemon.toml.5",
            "man8/esp-daemon.8",
        ] {
            assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
        }
        // Hidden subcommands are internal.
        assert!(!names.iter().any(|n| n.contains("offload")), "{names:?}");
        for file in &files {
            let text = fs::read_to_string(file).unwrap();
            for part in [".TH ", ".SH NAME", ".SH DESCRIPTION", ".SH \"SEE ALSO\""] {
                assert!(text.contains(part), "{}: no {part}", file.display());
            }
            // man-db's index takes the line `name - summary`.
            let name = file
                .file_stem()
                .unwrap()
                .to_string_lossy()
                .replace('-', "\\-");
            let summary = text.lines().any(|l| l.starts_with(&format!("{name} \\- ")));
            assert!(summary, "{}: no line `{name} \\- …`", file.display());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
