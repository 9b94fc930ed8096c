//! Structure of the dashboard for Grafana and of the alert rules for Prometheus. `metrics.rs` tests
//! that the metrics they name exist.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// Units of Grafana that the panels may use: a number, bytes, and bytes, packets and events per
/// second.
const UNITS: [&str; 5] = ["none", "bytes", "Bps", "pps", "cps"];
/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

fn packaged(file: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../packaging")
        .join(file);
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Returns the faults of a dashboard.
fn faults(dashboard: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for key in ["title", "uid", "refresh"] {
        if dashboard[key].as_str().is_none_or(str::is_empty) {
            faults.push(format!("no {key}"));
        }
    }
    let version = dashboard["schemaVersion"].as_u64();
    if version.is_none_or(|version| version < 36) {
        faults.push("schemaVersion is missing or older than Grafana 9".into());
    }
    if dashboard.get("id").is_some_and(|id| !id.is_null()) {
        faults.push("an id belongs to one installation".into());
    }
    let empty = Vec::new();
    let panels = dashboard["panels"].as_array().unwrap_or(&empty);
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap_or_default();
        let mut wrong = |what: &str| faults.push(format!("panel `{title}`: {what}"));
        if title.is_empty() {
            wrong("no title");
        }
        if !panel["id"].as_u64().is_some_and(|id| ids.insert(id)) {
            wrong("no id of its own");
        }
        let unit = panel.pointer("/fieldConfig/defaults/unit");
        if !unit
            .and_then(Value::as_str)
            .is_some_and(|u| UNITS.contains(&u))
        {
            wrong("no known unit");
        }
        let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap_or_default();
        let (x, y, w, h) = (grid("x"), grid("y"), grid("w"), grid("h"));
        if w == 0 || h == 0 || x + w > COLUMNS {
            wrong("outside the grid");
        }
        let mut own = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        if !own.all(|cell| cells.insert(cell)) {
            wrong("covers another");
        }
        source(panel, &mut wrong);
        queries(panel, &mut wrong);
    }
    if panels.is_empty() {
        faults.push("no panels".into());
    }
    faults
}

/// Checks that the data source is the one that the user chooses.
fn source(of: &Value, wrong: &mut impl FnMut(&str)) {
    let source = &of["datasource"];
    if source["type"] != "prometheus" || source["uid"] != "${datasource}" {
        wrong("not the chosen data source");
    }
}

fn queries(panel: &Value, wrong: &mut impl FnMut(&str)) {
    let empty = Vec::new();
    let targets = panel["targets"].as_array().unwrap_or(&empty);
    if targets.is_empty() {
        wrong("no query");
    }
    let mut names = BTreeSet::new();
    for target in targets {
        source(target, wrong);
        let name = target["refId"].as_str().unwrap_or_default();
        if name.is_empty() || !names.insert(name) {
            wrong("a query without a name of its own");
        }
        let text = target["expr"].as_str().unwrap_or_default();
        let metrics = text.matches("esp_").count();
        // Each metric is restricted to the chosen nodes.
        if metrics == 0 || text.matches("instance=~\"$instance\"").count() != metrics {
            wrong(&format!("not restricted to the chosen nodes: {text}"));
        }
        for [open, close] in ["()", "{}", "[]"].map(|pair| [&pair[..1], &pair[1..]]) {
            if text.matches(open).count() != text.matches(close).count() {
                wrong(&format!("unequal numbers of {open} and {close}: {text}"));
            }
        }
        // A counter is useful only as a rate.
        let counters = text.matches("_total").count();
        let rates = text.matches("rate(").count() + text.matches("increase(").count();
        if counters > rates {
            wrong(&format!("a counter without a rate: {text}"));
        }
    }
}

#[test]
fn the_dashboard_is_complete() {
    let json: Value = serde_json::from_str(&packaged("grafana/esp.json")).unwrap();
    assert_eq!(faults(&json), Vec::<String>::new());
}

#[test]
fn faults_of_a_dashboard_are_found() {
    let good: Value = serde_json::from_str(&packaged("grafana/esp.json")).unwrap();
    for (path, value) in [
        ("/title", Value::Null),
        ("/schemaVersion", 1.into()),
        ("/id", 7.into()),
        ("/panels", Value::Null),
        ("/panels/0/title", "".into()),
        ("/panels/1/id", good["panels"][0]["id"].clone()),
        ("/panels/0/fieldConfig/defaults/unit", "furlongs".into()),
        ("/panels/0/gridPos/x", 23.into()),
        ("/panels/1/gridPos", good["panels"][0]["gridPos"].clone()),
        ("/panels/0/datasource/uid", "mine".into()),
        ("/panels/0/targets", Value::Null),
        ("/panels/0/targets/0/refId", "".into()),
        ("/panels/0/targets/0/expr", "esp_link_up".into()),
        (
            "/panels/0/targets/0/expr",
            "sum(esp_x{instance=~\"$instance\"}".into(),
        ),
        (
            "/panels/0/targets/0/expr",
            "esp_x_total{instance=~\"$instance\"}".into(),
        ),
    ] {
        let mut bad = good.clone();
        match bad.pointer_mut(path) {
            Some(place) => *place = value,
            None => bad["id"] = value,
        }
        assert!(!faults(&bad).is_empty(), "{path}");
    }
}

#[test]
fn alerts_say_how_bad_it_is_and_what_it_means() {
    let text = packaged("prometheus/esp-alerts.yaml");
    let mut alerts = text.split("      - alert: ").skip(1).peekable();
    assert!(alerts.peek().is_some());
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = alert.lines().next().unwrap_or_default();
        assert!(name.starts_with("Esp") && names.insert(name), "{name}");
        for key in [
            "        expr: ",
            "          severity: ",
            "          summary: ",
            "          description: ",
        ] {
            assert_eq!(alert.matches(key).count(), 1, "{name}: {key}");
        }
        let severity = alert
            .lines()
            .find_map(|l| l.trim().strip_prefix("severity: "));
        assert!(
            matches!(severity, Some("warning" | "critical")),
            "{name}: {severity:?}"
        );
    }
}
