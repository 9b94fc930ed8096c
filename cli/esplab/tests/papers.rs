//! Tests of `esplab papers`: short runs have figures, a report has five tables, and missing
//! programs are named. No time is asserted.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::{TestResult, programs, skip, unique};
use serde_json::Value;

/// Folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Result<Folder, std::io::Error> {
        let path = std::env::temp_dir().join(unique(what));
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures one run in one round, with a report in the folder.
fn report(folder: &Folder, run: &str, path: Option<&str>) -> Result<Output, std::io::Error> {
    let mut command = Command::new(programs().join("esplab"));
    command.args(["papers", "--quick", "--rounds", "1", "--only", run]);
    command.arg("--report").arg(&folder.0);
    command.env_remove("ESPLAB").env_remove("ESPLAB_STATE");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.stdin(Stdio::null()).output()
}

/// Returns the record of a run.
fn record(folder: &Folder, run: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(folder.0.join("papers.json"))?;
    let results: Value = serde_json::from_str(&text)?;
    let runs = results["runs"].as_array().ok_or("no runs")?;
    let found = runs.iter().find(|record| record["run"] == run);
    Ok(found.ok_or("the run has no record")?.clone())
}

fn contenders(record: &Value) -> Vec<&str> {
    let figures = record["figures"].as_array().map(Vec::as_slice);
    let figures = figures.unwrap_or_default().iter();
    figures
        .filter(|figure| figure["p50"].as_f64() > Some(0.0))
        .filter_map(|figure| figure["contender"].as_str())
        .collect()
}

#[test]
fn a_run_in_a_lab_fills_its_rows_of_the_page() -> TestResult {
    let folder = Folder::new("papers")?;
    let output = report(&folder, "send", None)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("network namespace") {
        skip(&errors);
        return Ok(());
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let record = record(&folder, "send")?;
    assert_eq!(
        (&record["rounds"], &record["quick"]),
        (&1.into(), &true.into())
    );
    let found = contenders(&record);
    assert!(
        found.contains(&"tcp") && found.contains(&"lease"),
        "{found:?}"
    );
    let page = fs::read_to_string(folder.0.join("papers.md"))?;
    assert_eq!(page.matches("| experiment | paper |").count(), 5);
    let row = page
        .lines()
        .find(|line| line.starts_with("| time of a send call"));
    let row = row.ok_or("no row")?;
    assert!(row.contains("lease ") && row.contains("tcp "), "{row}");
    let other = page.lines().find(|line| line.starts_with("| Alltoall |"));
    assert!(
        other.is_some_and(|row| row.contains("not run")),
        "{other:?}"
    );
    Ok(())
}

/// A contender that is not installed is named; this project's contenders are measured, and the exit
/// code is 1.
#[test]
fn what_is_not_installed_is_named_with_its_package() -> TestResult {
    let folder = Folder::new("papers")?;
    let output = report(&folder, "hpl", Some("/nonexistent"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("apt install hpcc"), "{errors}");
    let page = fs::read_to_string(folder.0.join("papers.md"))?;
    let row = page.lines().find(|line| line.starts_with("| HPL |"));
    let row = row.ok_or("no row")?;
    assert!(row.contains("not run: no hpcc: apt install hpcc"), "{row}");

    let output = report(&folder, "keys", Some("/nonexistent"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("openmpi-bin"), "{errors}");
    let record = record(&folder, "keys")?;
    let found = contenders(&record);
    assert!(found.contains(&"p2p one-copy"), "{found:?}");
    assert!(found.contains(&"p2p two-copy"), "{found:?}");
    Ok(())
}

#[test]
fn a_report_of_another_program_is_not_overwritten() -> TestResult {
    let folder = Folder::new("papers")?;
    let file = folder.0.join("papers.json");
    fs::write(&file, "{}")?;
    let output = report(&folder, "send", None)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("is not a report"), "{errors}");
    assert_eq!(fs::read_to_string(&file)?, "{}");
    Ok(())
}
