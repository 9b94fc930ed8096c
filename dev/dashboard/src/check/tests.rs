use super::*;
use crate::file::{Grid, Kind, Variable};

/// Answers every query with these series, unless the query has the word `refused`.
#[derive(Default)]
struct Fixed {
    series: Vec<Series>,
    /// Answer to `x{a}`, the query of one node; `None`: that of all nodes.
    few: Option<Vec<Series>>,
    alerts: Vec<(String, String, Option<String>)>,
}

impl Api for Fixed {
    fn range(&self, expr: &str, _: (f64, f64), _: u32) -> Result<Vec<Series>, String> {
        self.now(expr)
    }

    fn now(&self, expr: &str) -> Result<Vec<Series>, String> {
        match &self.few {
            _ if expr.contains("refused") => Err("parse error".into()),
            Some(few) if expr == "x{a}" => Ok(few.clone()),
            _ => Ok(self.series.clone()),
        }
    }

    fn label_values(&self, _: &str, label: &str) -> Result<Vec<String>, String> {
        let values = self.series.iter().filter_map(|s| s.labels.get(label));
        Ok(values.cloned().collect())
    }

    fn alerts(&self) -> Result<Vec<(String, String, Option<String>)>, String> {
        Ok(self.alerts.clone())
    }
}

fn series(instance: &str, values: &[f64]) -> Series {
    let points = values.iter().enumerate().map(|(at, v)| (at as f64, *v));
    Series {
        labels: [("instance".to_owned(), instance.to_owned())].into(),
        points: points.collect(),
    }
}

/// Returns a dashboard with one panel of this query, and a panel for each exception.
fn dashboard(expr: &str, legend: &str) -> Dashboard {
    let panel = |title: &str, name: &str, expr: &str, legend: &str| Panel {
        kind: Kind::Lines,
        title: title.into(),
        unit: "none".into(),
        grid: Grid {
            x: 0,
            y: 0,
            w: 1,
            h: 1,
        },
        queries: vec![Query {
            name: name.into(),
            expr: expr.into(),
            legend: legend.into(),
        }],
    };
    let rare = RARE.map(|(title, name, _)| panel(title, name, "x", "{{instance}}"));
    Dashboard {
        title: "title".into(),
        variables: vec![Variable {
            name: "instance".into(),
            metric: "m".into(),
            label: "instance".into(),
            all: ".*".into(),
        }],
        panels: [panel("panel", "A", expr, legend)]
            .into_iter()
            .chain(rare)
            .collect(),
    }
}

fn faults(api: &Fixed, dashboard: &Dashboard) -> String {
    let mut faults = Vec::new();
    let values = variables(api, dashboard, &mut faults);
    panels(api, dashboard, &values, (0.0, 2.0), &mut faults);
    faults.join("\n")
}

fn of(series: Vec<Series>) -> Fixed {
    Fixed {
        series,
        ..Fixed::default()
    }
}

#[test]
fn panels_with_values_pass() {
    let api = of(vec![series("a", &[f64::NAN, 1.0])]);
    let good = dashboard("rate(x[$__rate_interval]) + $__interval", "{{instance}}");
    assert_eq!(faults(&api, &good), "");
    let mut none = Vec::new();
    let values = variables(&api, &good, &mut none);
    let panels = panels(&api, &good, &values, (0.0, 2.0), &mut none);
    assert_eq!(panels[0].lines[0].name, "a");
    assert_eq!(panels[0].lines[0].points.len(), 2);
}

#[test]
fn each_fault_of_a_panel_is_found() {
    let one = || vec![series("a", &[1.0])];
    let named = |expr: &str| dashboard(expr, "{{instance}}");
    for (series, dashboard, fault) in [
        (vec![], named("x"), "no values"),
        (vec![series("a", &[f64::NAN])], named("x"), "no values"),
        (
            vec![series("a", &[0.0])],
            named("x"),
            "`panel`, A: only zeros",
        ),
        (one(), named("refused"), "parse error"),
        (one(), named("x[$interval]"), "unknown variable"),
        (one(), dashboard("x", "{{node}}"), "no label `node`"),
        (
            vec![series("a", &[1.0]), series("b", &[1.0])],
            dashboard("x", "all"),
            "two lines",
        ),
        (
            vec![series("a", &[1.0]), series("b", &[1.0])],
            named("x"),
            "with instance a chosen, there are series of {\"a\", \"b\"}, not of {\"a\"}",
        ),
    ] {
        let found = faults(&of(series), &dashboard);
        assert!(found.contains(fault), "{fault}: {found}");
    }
}

#[test]
fn one_node_has_its_own_values_and_no_others() {
    let api = |few: Vec<Series>| Fixed {
        few: Some(few),
        ..of(vec![series("a", &[1.0]), series("b", &[1.0])])
    };
    // The panels of the exceptions are not restricted.
    let mut dashboard = dashboard("x{$instance}", "{{instance}}");
    dashboard.panels.truncate(1);
    let found = |api: &Fixed| {
        let found = faults(api, &dashboard);
        let lines = found.lines().filter(|line| !line.starts_with("exception"));
        lines.collect::<String>()
    };
    assert_eq!(found(&api(vec![series("a", &[1.0])])), "");
    let none = found(&api(vec![]));
    assert!(none.contains("series of {}, not of {\"a\"}"), "{none}");
    let sum = Series {
        labels: [("reason".to_owned(), "b".to_owned())].into(),
        ..series("", &[1.0])
    };
    let mut summed = Fixed {
        few: Some(vec![]),
        ..of(vec![sum.clone()])
    };
    let values = vec![("instance".to_owned(), vec!["a".to_owned()])];
    let mut wrong = Vec::new();
    dashboard.panels[0].queries[0].legend = "{{reason}}".into();
    panels(&summed, &dashboard, &values, (0.0, 2.0), &mut wrong);
    assert!(
        wrong[0].contains("with instance a chosen, no values"),
        "{wrong:?}"
    );
    summed.few = Some(vec![sum]);
    wrong.clear();
    panels(&summed, &dashboard, &values, (0.0, 2.0), &mut wrong);
    assert!(!wrong[0].contains("chosen"), "{wrong:?}");
}

#[test]
fn exceptions_are_for_zeros_and_for_panels_that_exist() {
    let api = of(vec![series("a", &[0.0])]);
    let mut less = dashboard("x", "{{instance}}");
    less.panels.truncate(2);
    let found = faults(&api, &less);
    assert!(
        !found.contains(&format!("`{}`, A: only", RARE[0].0)),
        "{found}"
    );
    assert_eq!(
        found.matches("exception for no query").count(),
        RARE.len() - 1
    );
}

#[test]
fn alerts_have_something_to_compare() {
    let alert = |expr: &str, error: Option<&str>| {
        let alerts = vec![("A".to_owned(), expr.to_owned(), error.map(str::to_owned))];
        let api = Fixed {
            alerts,
            ..of(vec![series("a", &[0.0])])
        };
        let mut faults = Vec::new();
        super::alerts(&api, &mut faults);
        faults.join("\n")
    };
    assert_eq!(alert("x > 1", None), "");
    assert!(alert("x > 1", Some("many-to-many")).contains("many-to-many"));
    assert!(alert("refused", None).contains("parse error"));
    let mut faults = Vec::new();
    assert_eq!(super::alerts(&Fixed::default(), &mut faults), 0);
    assert_eq!(faults, ["there are no alerts"]);
}

#[test]
fn comparisons_yield_numbers() {
    for (expr, expected) in [
        ("up == 0", "up == bool 0"),
        ("a{b!=\"c>{d\"} >= 1", "a{b!=\"c>{d\"} >= bool 1"),
        ("a / (b > 2) < 3", "a / (b > bool 2) < bool 3"),
        ("a", "a"),
    ] {
        assert_eq!(compared(expr), expected);
    }
}
