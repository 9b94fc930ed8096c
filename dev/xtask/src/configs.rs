//! Every shipped configuration file is accepted by the program it is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{Failure, Outcome, cannot_run, verdict};
use crate::process::{cargo, find_program, quietly, run};
use crate::workspace::{Workspace, files, root, shown};

const DAEMON: &str = "esp-daemon";

/// Checks examples of the daemon's configuration, and its systemd units.
pub(crate) fn check(workspace: &Workspace) -> Outcome {
    // With tests and their features, as for the tests, so that nothing is built twice.
    run(cargo(["build", "--quiet", "--workspace", "--all-targets"]).current_dir(root()))?;
    let daemon = workspace.target.join("debug").join(DAEMON);
    let scratch = workspace.target.join("xtask/configs");
    if let Err(e) = fs::create_dir_all(&scratch) {
        return cannot_run(format!("making {}: {e}", scratch.display()));
    }

    let mut problems = Vec::new();
    let configs = files(&root(), &is_config);
    for config in &configs {
        let (status, text) = quietly(Command::new(&daemon).arg("--check-config").arg(config))?;
        if !status.success() {
            problems.push(format!(
                "{}: refused by {DAEMON}: {}",
                shown(config),
                text.trim()
            ));
        }
    }
    if configs.is_empty() {
        problems.push("no configuration file was found: nothing was checked".into());
    }
    problems.extend(planted(&daemon, &scratch)?);

    let units = files(&root(), &is_unit);
    if units.is_empty() {
        problems.push("no systemd unit was found: nothing was checked".into());
    }
    let verified = match find_program("systemd-analyze") {
        None => "NOT verified (this machine has no systemd-analyze)".to_owned(),
        Some(analyze) => {
            for unit in &units {
                problems.extend(check_unit(&analyze, unit, &daemon, &scratch)?);
            }
            problems.extend(planted_unit(&analyze, &daemon, &scratch)?);
            "verified".to_owned()
        }
    };
    verdict(
        &problems,
        format!(
            "{} configuration files, {} units {verified}",
            configs.len(),
            units.len()
        ),
    )
}

fn is_config(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    // Files like esp-daemon.toml and esp-daemon.toml.example, wherever they are.
    name.ends_with(".toml.example") || (name.starts_with(DAEMON) && name.ends_with(".toml"))
}

fn is_unit(path: &Path) -> bool {
    path.extension()
        .is_some_and(|e| e == "service" || e == "socket")
}

/// The daemon has to refuse an unknown key; otherwise it means nothing that it accepts our files.
fn planted(daemon: &Path, scratch: &Path) -> Result<Option<String>, Failure> {
    let file = scratch.join("planted.toml");
    if let Err(e) = fs::write(&file, "no_such_key_at_all = 1\n") {
        return cannot_run(format!("writing {}: {e}", file.display()));
    }
    let (status, _) = quietly(Command::new(daemon).arg("--check-config").arg(&file))?;
    let text = format!("self-test: {DAEMON} --check-config accepts a file with an unknown key");
    Ok(status.success().then_some(text))
}

/// As [`planted`], for systemd-analyze, which only warns of an unknown setting.
fn planted_unit(analyze: &Path, daemon: &Path, scratch: &Path) -> Result<Option<String>, Failure> {
    let file = scratch.join("planted.service");
    let text = format!(
        "[Service]\nExecStart={}\nNoSuchSettingAtAll=1\n",
        daemon.display()
    );
    if let Err(e) = fs::write(&file, text) {
        return cannot_run(format!("writing {}: {e}", file.display()));
    }
    let found = check_unit(analyze, &file, daemon, scratch)?;
    Ok(found
        .is_none()
        .then(|| "self-test: a unit with an unknown setting was not found".to_owned()))
}

/// Checks a copy of the unit that starts the daemon just built, because systemd requires the
/// program to exist.
fn check_unit(
    analyze: &Path,
    unit: &Path,
    daemon: &Path,
    scratch: &Path,
) -> Result<Option<String>, Failure> {
    let copy: PathBuf = scratch.join(unit.file_name().unwrap_or_default());
    let text = fs::read_to_string(unit).unwrap_or_default();
    let replaced = with_program(&text, DAEMON, daemon);
    if let Err(e) = fs::write(&copy, &replaced) {
        return cannot_run(format!("writing {}: {e}", copy.display()));
    }
    let (status, said) = quietly(
        Command::new(analyze)
            .args(["verify", "--man=no"])
            .arg(&copy),
    )?;
    // An unknown setting is a warning, not a failure.
    let about_it: Vec<&str> = said
        .lines()
        .filter(|l| l.contains(&*copy.to_string_lossy()))
        .collect();
    if status.success() && about_it.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!("{}: {}", shown(unit), said.trim())))
}

/// `ExecStart=/usr/…/name`, or `ExecStart=name`, with the path of another file.
fn with_program(unit: &str, name: &str, program: &Path) -> String {
    let replace = |line: &str| {
        let is_exec = line.starts_with("Exec");
        let parts = line.split_inclusive([' ', '=']).map(|part| {
            let word = part.trim_end_matches([' ', '=']);
            let is_it = is_exec && (word == name || word.ends_with(&format!("/{name}")));
            if is_it {
                part.replace(word, &program.display().to_string())
            } else {
                part.to_owned()
            }
        });
        parts.collect::<String>()
    };
    unit.lines().map(replace).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_files_are_known_by_their_names() {
        assert!(
            is_config(Path::new("a/esp-daemon.toml.example"))
                && is_config(Path::new("esp-daemon.toml"))
        );
        assert!(!is_config(Path::new("esp-daemon/Cargo.toml")));
        assert!(
            is_unit(Path::new("x/esp-daemon.service")) && !is_unit(Path::new("x/esp-daemon.rs"))
        );
    }

    #[test]
    fn the_program_of_a_unit_is_replaced() {
        let unit = "[Service]\nExecStart=/usr/sbin/esp-daemon -c /etc/x.toml\nDescription=/x/esp-daemon\nExecStart=esp-daemon";
        assert_eq!(
            with_program(unit, "esp-daemon", Path::new("/t/d")),
            "[Service]\nExecStart=/t/d -c /etc/x.toml\nDescription=/x/esp-daemon\nExecStart=/t/d\n"
        );
    }
}
