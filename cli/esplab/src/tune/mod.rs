//! `esplab tune`: measures what depends on this machine, and writes it as configurations.

mod copies;
mod idle;
mod measure;

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use cli::out::{self, Failure, Verdict};

/// Measure this machine and write two files: the daemon's idle settings (spin and yield times), and from which size on
/// programs of one node copy a message once instead of twice
///
/// Run it while the machine has nothing else to do.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// File for the table `idle`, which belongs into the daemon's configuration
    #[arg(long, value_name = "FILE", default_value = "esp-tune.toml")]
    output: PathBuf,
    /// File for the table `shm`, which programs read [default: $ESP_TUNE, else ~/.config/esp/tune.toml, where they look for it]
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,
    /// Overwrite the files
    #[arg(long)]
    force: bool,
    /// Shorter and noisier
    #[arg(long)]
    quick: bool,
}

/// Where jobs look for thresholds.
fn thresholds_file(env: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, Failure> {
    let named = env("ESP_TUNE").filter(|file| !file.as_os_str().is_empty());
    let absolute = |name: &str| env(name).filter(|dir| dir.is_absolute());
    let config = || absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    named
        .or_else(|| Some(config()?.join("esp/tune.toml")))
        .ok_or_else(|| Failure::new("no home directory is known: --thresholds must name a file"))
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let thresholds = match &flags.thresholds {
        Some(file) => file.clone(),
        None => thresholds_file(|name| std::env::var_os(name).map(PathBuf::from))?,
    };
    // Said before seconds are spent on measuring.
    for (file, option) in [(&flags.output, "--output"), (&thresholds, "--thresholds")] {
        if !flags.force && file.exists() {
            return Err(exists(file, option));
        }
    }
    let idle = idle::tune();
    write(&flags.output, "--output", &idle, flags.force)?;
    let path = flags.output.display();
    out::line(format_args!(
        "{idle}written to {path}; `esp-daemon --config {path} --interface …` reads it\n"
    ))?;
    match copies::tune(flags.quick) {
        Ok(copies) => {
            if let Some(folder) = thresholds.parent() {
                fs::create_dir_all(folder)
                    .map_err(|e| Failure::new(format!("cannot make {}: {e}", folder.display())))?;
            }
            write(&thresholds, "--thresholds", &copies, flags.force)?;
            let path = thresholds.display();
            out::line(format_args!(
                "{copies}written to {path}; programs read it when they join a job (ESP_TUNE)"
            ))?;
            Ok(Verdict::Done)
        }
        Err(why) => {
            out::note(format_args!(
                "esplab tune: shared memory was not measured: {why}"
            ));
            Ok(Verdict::Partly)
        }
    }
}

fn exists(file: &Path, option: &str) -> Failure {
    let file = file.display();
    Failure::new(format!(
        "{file} exists already (--force overwrites it, {option} names another)"
    ))
}

fn write(file: &Path, option: &str, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    options
        .open(file)
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => exists(file, option),
            _ => Failure::new(format!("cannot write {}: {e}", file.display())),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_go_where_jobs_look_for_them() {
        let file = |variables: &[(&str, &str)]| {
            thresholds_file(|name| {
                variables
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| PathBuf::from(v))
            })
            .map(|file| file.display().to_string())
            .ok()
        };
        let home = ("HOME", "/home/me");
        assert_eq!(
            file(&[home]).as_deref(),
            Some("/home/me/.config/esp/tune.toml")
        );
        assert_eq!(
            file(&[home, ("XDG_CONFIG_HOME", "/c")]).as_deref(),
            Some("/c/esp/tune.toml")
        );
        assert_eq!(
            file(&[home, ("ESP_TUNE", "t.toml")]).as_deref(),
            Some("t.toml")
        );
        assert_eq!(
            file(&[home, ("ESP_TUNE", "")]).as_deref(),
            Some("/home/me/.config/esp/tune.toml")
        );
        assert_eq!(file(&[("HOME", "relative")]), None);
    }
}
