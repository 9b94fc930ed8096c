//! `esplab tune`: measures from which size on one copy is faster than two, and writes the file that
//! jobs read.

mod measure;

use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;

use clap::Args;
use shm_btl::Thresholds;
use shm_btl::topology::Relation;

use cli::out::{self, Failure, Verdict};
use measure::Measured;

/// Value of a threshold that means never: TOML has no larger number.
const NEVER: usize = i64::MAX as usize;

/// Measure from which size on programs of one node copy a message once instead of twice, and write
/// the file that they read
///
/// Run it while the machine has nothing else to do.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// File to write [default: $ESP_TUNE, else ~/.config/esp/tune.toml, where programs look for it]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
    /// Shorter and noisier
    #[arg(long)]
    quick: bool,
}

/// Returns the file where jobs look for thresholds.
fn default_file(env: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, Failure> {
    let named = env("ESP_TUNE").filter(|file| !file.as_os_str().is_empty());
    let absolute = |name: &str| env(name).filter(|dir| dir.is_absolute());
    let config = || absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    named
        .or_else(|| Some(config()?.join("esp/tune.toml")))
        .ok_or_else(|| Failure::new("no home directory is known: name a file with --output"))
}

pub(super) fn run(flags: &Flags) -> Result<Verdict, Failure> {
    let file = match &flags.output {
        Some(file) => file.clone(),
        None => default_file(|name| std::env::var_os(name).map(PathBuf::from))?,
    };
    let path = file.display();
    let exists = || {
        let what = format!("{path} exists already (--force overwrites it, --output names another)");
        Failure::new(what)
    };
    // Reported before seconds are spent on measuring.
    if !flags.force && file.exists() {
        return Err(exists());
    }
    let text = text(&measure::measure(flags.quick).map_err(Failure::new)?);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)
            .map_err(|e| Failure::new(format!("cannot make {}: {e}", folder.display())))?;
    }
    let mut options = OpenOptions::new();
    options
        .write(true)
        .truncate(flags.force)
        .create(flags.force);
    let opened = options.create_new(!flags.force).open(&file);
    opened
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => exists(),
            _ => Failure::new(format!("cannot write {path}: {e}")),
        })?;
    out::line(format_args!(
        "{text}written to {path}; programs read it when they join a job (ESP_TUNE)"
    ))?;
    Ok(Verdict::Done)
}

/// Returns the table `[shm]`; relations that the machine does not have keep their default.
fn text(measured: &[Measured]) -> String {
    let mut text = String::from(
        "# Written by `esplab tune`: messages of this many bytes and more are copied once, by the\n\
         # kernel (cross-memory attach), shorter ones twice, through shared memory.\n[shm]\n",
    );
    let default = Thresholds::default();
    for (name, relation, default) in [
        ("shared_cache", Relation::SharedCache, default.shared_cache),
        ("same_socket", Relation::SameSocket, default.same_socket),
        ("other_socket", Relation::OtherSocket, default.other_socket),
    ] {
        let found = measured.iter().find(|one| one.relation == relation);
        let (bytes, why) = match found {
            None => (
                default,
                "default: no two CPUs here are related like that".into(),
            ),
            Some(one) => match (&one.refused, one.threshold) {
                (Some(why), _) => (NEVER, format!("never: {}", why.replace('\n', " "))),
                (None, None) => (NEVER, "never: one copy was slower at every size".into()),
                (None, Some(bytes)) => (bytes, format!("measured on CPUs {:?}", one.cpus)),
            },
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} = {bytes}  # {why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_relation_and_the_reason() {
        let one = |relation, threshold, refused: Option<&str>| Measured {
            relation,
            cpus: (0, 1),
            threshold,
            refused: refused.map(Into::into),
        };
        let text = text(&[
            one(Relation::SharedCache, Some(65536), None),
            one(Relation::OtherSocket, None, Some("Yama")),
        ]);
        let other = Thresholds::default().same_socket;
        for part in [
            "[shm]\nshared_cache = 65536  # measured on CPUs (0, 1)\n",
            &format!("same_socket = {other}  # default"),
            "other_socket = 9223372036854775807  # never: Yama",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn thresholds_go_where_jobs_look_for_them() {
        let file = |variables: &[(&str, &str)]| {
            let env = |name: &str| {
                let found = variables.iter().find(|(n, _)| *n == name);
                found.map(|(_, v)| PathBuf::from(v))
            };
            default_file(env)
                .map(|file| file.display().to_string())
                .ok()
        };
        let home = ("HOME", "/home/me");
        let default = Some("/home/me/.config/esp/tune.toml");
        assert_eq!(file(&[home]).as_deref(), default);
        let xdg = file(&[home, ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(xdg.as_deref(), Some("/c/esp/tune.toml"));
        assert_eq!(
            file(&[home, ("ESP_TUNE", "t.toml")]).as_deref(),
            Some("t.toml")
        );
        assert_eq!(file(&[home, ("ESP_TUNE", "")]).as_deref(), default);
        assert_eq!(file(&[("HOME", "relative")]), None);
    }
}
