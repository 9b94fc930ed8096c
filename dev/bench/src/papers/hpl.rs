//! HPL of Debian's hpcc within a node: Open MPI over our provider of libfabric, whose messages are
//! copied once or twice.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::Context;
use super::mpi::{Collected, Site, Value, missing};
use super::results::Outcome;
use crate::intra::contender::find;
use crate::results::Unit;
use cli::out::{Context as _, Failure};

/// Order of the matrix, in full and quick.
const ORDER: [usize; 2] = [2000, 1000];

/// Contenders, and the size of the shortest messages that are copied once; `None`: as in a job.
const WAYS: [(&str, Option<i64>); 3] = [
    ("p2p", None),
    ("p2p one-copy", Some(4096)),
    ("p2p two-copy", Some(i64::MAX)),
];

/// Measures Gflop/s.
pub(super) fn measure(context: &Context<'_>) -> Result<Outcome, Failure> {
    let program = find("hpcc", "hpcc").map_err(|_| missing("hpcc", "hpcc"))?;
    let site = Site::new(1)?;
    let folder = site.folder();
    provider(folder)?;
    let [full, quick] = ORDER;
    let input = input(if context.quick { quick } else { full });
    fs::write(folder.join("hpccinf.txt"), input).doing("hpccinf.txt")?;
    let count = context.counter(context.rounds * WAYS.len());
    let mut all = Collected::default();
    for _ in 0..context.rounds {
        for (contender, from) in WAYS {
            let output = folder.join("hpccoutf.txt");
            let _ = fs::remove_file(&output);
            site.run_within(2, &options(folder, from)?, &program)?;
            let text = fs::read_to_string(&output).doing(output.display())?;
            let rate = gflops(&text);
            let rate = rate.ok_or_else(|| {
                Failure::new("hpcc's output has no HPL_Tflops: its check failed, or it did not end")
            })?;
            let value = Value {
                what: "HPL".into(),
                size: None,
                unit: Unit::GflopS,
                value: rate,
                p99: None,
            };
            all.add(context.run.name, contender, vec![value]);
            count();
        }
    }
    Ok(Outcome {
        figures: all.figures(),
        note: None,
    })
}

/// Links the provider of this program's folder, or else the installed one, into the folder, under
/// the name that libfabric expects.
fn provider(folder: &Path) -> Result<(), Failure> {
    let exe = std::env::current_exe().doing("finding the running program")?;
    let built = exe.parent().map(|dir| dir.join("libesp_fi.so"));
    let home = std::env::home_dir().unwrap_or_default();
    let installed = home.join(".local/lib/libfabric/libesp-fi.so");
    let found: Option<PathBuf> = [built, Some(installed)]
        .into_iter()
        .flatten()
        .find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        Failure::new("not run: no provider of libfabric: cargo xtask install-libfabric")
    })?;
    symlink(found, folder.join("libesp-fi.so")).doing("linking the provider")
}

/// Returns the options that make Open MPI 4 use the provider, with this threshold.
fn options(folder: &Path, from: Option<i64>) -> Result<Vec<OsString>, Failure> {
    let mut tune = String::from("[shm]\n");
    if let Some(from) = from {
        for relation in ["shared_cache", "same_socket", "other_socket"] {
            tune += &format!("{relation} = {from}\n");
        }
    }
    let file = folder.join("tune.toml");
    fs::write(&file, tune).doing(file.display())?;
    let mut words: Vec<OsString> = Vec::new();
    for (parameter, value) in [
        ("pml", "cm"),
        ("mtl", "ofi"),
        ("mtl_ofi_provider_include", "esp"),
    ] {
        words.extend(["--mca", parameter, value].map(Into::into));
    }
    let mut path = OsString::from("FI_PROVIDER_PATH=");
    path.push(folder);
    let mut tuned = OsString::from("ESP_TUNE=");
    tuned.push(file);
    words.extend(["-x".into(), path, "-x".into(), tuned]);
    // Messages take shared memory; without a network Open MPI would not accept the provider.
    for variable in [
        "FI_PROVIDER=esp",
        "ESP_BTL=self,shm,udp",
        "OMP_NUM_THREADS=1",
    ] {
        words.extend(["-x", variable].map(Into::into));
    }
    Ok(words)
}

/// Returns the input of hpcc: one matrix on one by two processes, and no further sizes of PTRANS.
fn input(order: usize) -> String {
    let lines = [
        "HPLinpack benchmark input file",
        "esplab papers",
        "HPL.out",
        "8",
        "1",
        &order.to_string(),
        "1",
        "80",
        "0",
        "1",
        "1",
        "2",
        "16.0",
        "1",
        "2",
        "1",
        "4",
        "1",
        "2",
        "1",
        "1",
        "1",
        "1",
        "1",
        "1",
        "2",
        "64",
        "0",
        "0",
        "1",
        "8",
        "-",
        "0",
        "1000",
        "0",
        "80",
    ]
    .join("\n");
    lines + "\n"
}

/// Returns the Gflop/s of hpcc's summary, if HPL's check passed.
fn gflops(output: &str) -> Option<f64> {
    let tflops = output
        .lines()
        .find_map(|line| line.strip_prefix("HPL_Tflops="))?;
    let gflops = 1000.0 * tflops.trim().parse::<f64>().ok()?;
    (gflops > 0.0 && gflops < 1e9).then_some(gflops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_has_a_line_for_each_setting() {
        let text = input(3000);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines[5], lines[10], lines[11]), ("3000", "1", "2"));
        assert_eq!(lines.len(), 36);
    }

    #[test]
    fn the_rate_is_found() {
        assert_eq!(gflops("x\nHPL_Tflops=0.0125\n"), Some(12.5));
        for bad in ["", "HPL_Tflops=-1", "HPL_Tflops=x"] {
            assert_eq!(gflops(bad), None, "{bad}");
        }
    }
}
