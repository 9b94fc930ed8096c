//! `esplab simulate` as a program.

mod common;

use std::fs;

use common::{TestResult, esplab, esplab_ends, unique};

const SMALL: [&str; 5] = ["simulate", "--nodes", "24", "--workload", "jobstart,flap"];

#[test]
fn rows_are_json_and_depend_on_the_seed_alone() -> TestResult {
    let rows = |seed| -> Result<Vec<serde_json::Value>, serde_json::Error> {
        let args = [&SMALL[..], &["--json", "--seed", seed]].concat();
        let text = esplab_ends(&args, 0);
        let mut rows: Vec<serde_json::Value> = text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        for row in &mut rows {
            let Some(row) = row.as_object_mut() else {
                panic!("{text}")
            };
            row.remove("seconds");
            row.remove("mframes_per_s");
        }
        Ok(rows)
    };
    let first = rows("7")?;
    assert_eq!(first.len(), 12);
    assert!(first.iter().all(|row| row["ratio"].as_f64() >= Some(1.0)));
    assert_eq!(first, rows("7")?);
    Ok(())
}

#[test]
fn a_report_has_a_page_and_charts() -> TestResult {
    let folder = std::env::temp_dir().join(unique("simulate"));
    let path = folder.display().to_string();
    let args = [&SMALL[..], &["--report", &path, "--transport", "esp-udp"]].concat();
    esplab_ends(&args, 0);
    let page = fs::read_to_string(folder.join("scale.md"))?;
    for workload in ["jobstart", "flap"] {
        assert!(page.contains(&format!("\n### {workload}\n")), "{page}");
        for chart in ["time", "p999"] {
            let svg = fs::read_to_string(folder.join(format!("scale/{workload}-{chart}.svg")))?;
            assert!(svg.starts_with("<svg"), "{svg}");
        }
    }
    fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn an_unknown_workload_is_refused_with_the_known_ones() {
    let output = esplab(&["simulate", "--workload", "nothing"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("write one of incast, alltoall"), "{text}");
}
