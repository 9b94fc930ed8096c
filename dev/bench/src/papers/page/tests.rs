use super::*;
use crate::papers::experiment::pair;
use crate::papers::results::Measured;
use crate::papers::results::tests::{figure, measured};

const ONE: &str = "p2p one-copy";
const TWO: &str = "p2p two-copy";

fn row(ratio: Option<f64>, take: Take) -> Row {
    Row {
        experiment: "latency",
        place: "figure 1",
        claim: "less",
        ratio,
        here: "it",
        take,
        less: "Less.",
        more: "More.",
    }
}

fn results(ours: &[f64], reference: &[f64]) -> Results {
    let mut results = Results::default();
    results.put(measured(
        "copies",
        vec![
            figure("latency", ONE, ours),
            figure("latency", TWO, reference),
        ],
    ));
    results
}

fn latency() -> Take {
    Take::Pair(pair("copies", "latency", Some(65_536), ONE, TWO))
}

#[test]
fn the_difference_depends_on_both_ratios() {
    let half = results(&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0]);
    for (paper, expected) in [
        (Some(0.5), "Agrees within 10 %."),
        (Some(0.25), "Less."),
        (Some(0.9), "More."),
        (None, "More."),
    ] {
        let cells = cells(&row(paper, latency()), &half);
        assert_eq!(cells[6], "0.50 (0.50–0.50)");
        assert_eq!(cells[8], expected, "{paper:?}");
    }
}

#[test]
fn rounds_on_both_sides_of_one_are_no_difference() {
    let mixed = results(&[1.0, 2.0, 1.0], &[2.0, 1.0, 2.0]);
    let difference = |paper| cells(&row(paper, latency()), &mixed)[8].clone();
    assert_eq!(difference(None), "None beyond the range of the rounds.");
    assert_eq!(difference(Some(0.9)), "More.");
}

#[test]
fn rows_show_both_figures_with_percentiles() {
    let results = results(&[12.0, 12.5, 13.0], &[25.0, 26.0, 25.0]);
    let cells = cells(&row(Some(0.29), latency()), &results);
    assert_eq!(cells[4], "p2p one-copy 12.5 µs (p99 10.0)");
    assert_eq!(cells[5], "p2p two-copy 25.0 µs (p99 10.0)");
    assert_eq!((cells[2].as_str(), cells[7].as_str()), ("0.29", "1.00"));
}

#[test]
fn long_times_are_in_milliseconds() {
    let long = Figure {
        p99: Some(30_000.0),
        ..figure("latency", ONE, &[12_000.0])
    };
    assert_eq!(value(&long), "p2p one-copy 12.0 ms (p99 30.0)");
}

#[test]
fn what_was_not_run_has_a_reason_and_no_figure() {
    let mut results = Results::default();
    let not_run = |results: &Results| cells(&row(Some(0.5), latency()), results);
    assert!(not_run(&results)[8].starts_with("not run: `esplab papers"));
    results.put(Measured {
        note: Some("not run: not installed: hpcc: apt install hpcc".into()),
        ..measured("copies", Vec::new())
    });
    let cells = not_run(&results);
    assert_eq!(cells[8], "not run: not installed: hpcc: apt install hpcc");
    assert_eq!(cells[4..8], ["-", "-", "-", "-"]);
}

#[test]
fn thresholds_are_where_the_first_stays_better() {
    let found = |gains: &[f64]| {
        let mut figures = Vec::new();
        for (power, gain) in (12..).zip(gains) {
            for (name, value) in [(ONE, 1.0), (TWO, *gain)] {
                figures.push(Figure {
                    size: Some(1 << power),
                    ..figure("latency", name, &[value])
                });
            }
        }
        let mut results = Results::default();
        results.put(measured("copies", figures));
        let take = Take::Threshold(pair("copies", "latency", None, ONE, TWO), 32_768);
        cells(&row(None, take), &results)[4].clone()
    };
    assert_eq!(found(&[0.5, 1.5, 2.0]), "8 KiB");
    assert_eq!(found(&[1.5, 1.5, 2.0]), "4 KiB or less");
    assert_eq!(found(&[1.5, 1.5, 0.9]), "above 16 KiB");
}

#[test]
fn the_best_size_is_named() {
    let sized = |size, name, value| Figure {
        size: Some(size),
        ..figure("latency", name, &[value])
    };
    let mut results = Results::default();
    results.put(measured(
        "copies",
        vec![
            sized(1024, ONE, 3.0),
            sized(1024, TWO, 2.0),
            sized(65_536, ONE, 2.0),
            sized(65_536, TWO, 8.0),
        ],
    ));
    let take = Take::Best(pair("copies", "latency", None, ONE, TWO));
    let cells = cells(&row(Some(0.4), take), &results);
    assert!(
        cells[4].starts_with("64 KiB: p2p one-copy 2.00"),
        "{cells:?}"
    );
    assert_eq!(cells[6], "0.25 (0.25–0.25)");
}

#[test]
fn a_report_has_five_tables_and_removes_old_charts() -> Result<(), Failure> {
    let scratch = crate::scratch::Scratch::new()?;
    let folder = scratch.path().join(CHARTS);
    fs::create_dir_all(&folder).doing("charts")?;
    fs::write(folder.join("old.svg"), "old").doing("chart")?;
    let mut results = Results::default();
    let what = "copies: latency";
    let mut figures = Vec::new();
    for size in [1024, 65_536] {
        for name in [ONE, TWO] {
            figures.push(Figure {
                size: Some(size),
                ..figure(what, name, &[2.0])
            });
        }
    }
    results.put(measured("copies", figures));
    let page = write(scratch.path(), &results)?;
    let page = fs::read_to_string(page).doing("page")?;
    let tables = page.matches("| experiment | paper |").count();
    assert_eq!(tables, PAPERS.len());
    assert!(page.contains("![within a node: one-way latency over size](papers/limic-latency.svg)"));
    let chart = fs::read_to_string(folder.join("limic-latency.svg")).doing("chart")?;
    assert!(chart.starts_with("<svg"), "{chart}");
    assert!(!folder.join("old.svg").exists());
    assert!(!page.contains("limic-bandwidth.svg"), "it has no figures");
    Ok(())
}

/// `docs/papers.md` and its charts match `docs/papers.json`. With `ESP_BLESS` they are written from
/// it.
#[test]
fn the_page_in_the_repository_is_made_from_its_figures() -> Result<(), Failure> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let results = Results::read(&docs)?;
    assert!(!results.runs.is_empty(), "docs/papers.json has no runs");
    if std::env::var_os("ESP_BLESS").is_some() {
        write(&docs, &results)?;
    }
    let page = fs::read_to_string(docs.join(PAGE)).doing("docs/papers.md")?;
    let again = "ESP_BLESS=1 cargo test -p bench papers";
    assert_eq!(page, markdown(&results), "write it anew: {again}");
    let folder = docs.join(CHARTS);
    let drawn = charts(&results)?;
    for (name, text) in &drawn {
        let there = fs::read_to_string(folder.join(name)).doing(name)?;
        assert!(there == *text, "{name} is not what its figures give");
    }
    let files = fs::read_dir(&folder).doing("docs/papers")?.count();
    assert_eq!(files, drawn.len(), "charts of docs/papers");
    Ok(())
}
