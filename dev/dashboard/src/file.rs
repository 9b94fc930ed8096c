//! The parts of the dashboard's file that queries and the picture need.

use serde_json::Value;

/// A dashboard.
#[derive(Debug)]
pub(crate) struct Dashboard {
    /// Heading.
    pub title: String,
    /// Variables whose values are those of a label.
    pub variables: Vec<Variable>,
    /// Panels, in the order of the file.
    pub panels: Vec<Panel>,
}

/// A variable that Grafana fills by the query `label_values(METRIC, LABEL)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Variable {
    pub name: String,
    pub metric: String,
    pub label: String,
    /// Replacement if all values are chosen.
    pub all: String,
}

/// A panel.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub kind: Kind,
    pub title: String,
    /// Unit, by its name in Grafana.
    pub unit: String,
    pub grid: Grid,
    pub queries: Vec<Query>,
}

/// Type of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The last value.
    Stat,
    /// Lines over time.
    Lines,
}

/// Place in the grid, in its columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub x: u32,
    pub y: u32,
    pub w: u32,
    pub h: u32,
}

/// A query of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// Name within the panel: A, B, …
    pub name: String,
    pub expr: String,
    /// Names of series, with `{{label}}` for values of labels.
    pub legend: String,
}

impl Dashboard {
    /// Parses the file's text.
    ///
    /// # Errors
    /// It is not JSON, or something that is needed is missing or unknown.
    pub(crate) fn parse(text: &str) -> Result<Dashboard, String> {
        let json: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let variables = items(&json["templating"], "list")?
            .iter()
            .filter(|variable| variable["type"] != "datasource")
            .map(variable)
            .collect::<Result<_, _>>()?;
        let panels = items(&json, "panels")?.iter().map(panel);
        Ok(Dashboard {
            title: string(&json, "title")?,
            variables,
            panels: panels.collect::<Result<_, _>>()?,
        })
    }
}

fn items<'a>(of: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    of[key].as_array().ok_or_else(|| format!("no list `{key}`"))
}

fn string(of: &Value, key: &str) -> Result<String, String> {
    let text = of[key].as_str().map(str::to_owned);
    text.ok_or_else(|| format!("no text `{key}`"))
}

fn variable(of: &Value) -> Result<Variable, String> {
    let name = string(of, "name")?;
    let query = string(&of["query"], "query")?;
    let inner = query.strip_prefix("label_values(");
    let inner = inner.and_then(|rest| rest.strip_suffix(')'));
    let (metric, label) = inner
        .and_then(|inner| inner.rsplit_once(','))
        .ok_or_else(|| format!("variable `{name}`: not label_values(METRIC, LABEL): {query}"))?;
    Ok(Variable {
        all: string(of, "allValue").map_err(|e| format!("variable `{name}`: {e}"))?,
        name,
        metric: metric.trim().to_owned(),
        label: label.trim().to_owned(),
    })
}

fn panel(of: &Value) -> Result<Panel, String> {
    let title = string(of, "title")?;
    let wrong = |e: String| format!("panel `{title}`: {e}");
    let kind = match of["type"].as_str() {
        Some("stat") => Kind::Stat,
        Some("timeseries") => Kind::Lines,
        other => return Err(wrong(format!("unknown type {other:?}"))),
    };
    let cells = |key: &str| {
        let number = of["gridPos"][key].as_u64();
        let number = number.and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| wrong(format!("no gridPos.{key}")))
    };
    let grid = Grid {
        x: cells("x")?,
        y: cells("y")?,
        w: cells("w")?,
        h: cells("h")?,
    };
    let query = |of: &Value| {
        Ok(Query {
            name: string(of, "refId")?,
            expr: string(of, "expr")?,
            legend: string(of, "legendFormat")?,
        })
    };
    let queries = items(of, "targets").map_err(wrong)?.iter().map(query);
    Ok(Panel {
        kind,
        grid,
        queries: queries.collect::<Result<_, _>>().map_err(wrong)?,
        unit: string(&of["fieldConfig"]["defaults"], "unit").map_err(wrong)?,
        title,
    })
}

/// Substitutes variables as Grafana does: `$name` and `${name}`.
///
/// # Errors
/// A variable is unknown.
pub(crate) fn substituted(expr: &str, values: &[(String, String)]) -> Result<String, String> {
    let mut out = String::new();
    let mut parts = expr.split('$');
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, rest) = match part.strip_prefix('{').and_then(|p| p.split_once('}')) {
            Some(found) => found,
            None => part.split_at(part.find(|c| !word(c)).unwrap_or(part.len())),
        };
        let value = values.iter().find(|(known, _)| known == name);
        let (_, value) = value.ok_or_else(|| format!("unknown variable `{name}`: {expr}"))?;
        out.push_str(value);
        out.push_str(rest);
    }
    Ok(out)
}

/// Escapes a chosen value as Grafana does within the string of a regular expression.
pub(crate) fn escaped(value: &str) -> String {
    let mut out = String::new();
    for c in value.chars() {
        if r"\^$*+?.()|[]{}".contains(c) {
            out.push_str(r"\\");
        }
        out.push(c);
    }
    out
}

/// Returns the name of a series by a legend's format, and the label that it lacks, if any.
pub(crate) fn legend<'a>(
    format: &'a str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> (String, Option<&'a str>) {
    let (mut out, mut missing) = (String::new(), None);
    let mut parts = format.split("{{");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        match label(name.trim()) {
            Some(value) => out.push_str(value),
            None => missing = Some(name),
        }
        out.push_str(rest);
    }
    (out, missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packaged() -> String {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/grafana/esp.json"
        );
        std::fs::read_to_string(path).expect("the dashboard")
    }

    #[test]
    fn the_packaged_dashboard_is_read_whole() {
        let text = packaged();
        let dashboard = Dashboard::parse(&text).expect("a dashboard");
        let queries = dashboard.panels.iter().map(|p| p.queries.len());
        assert_eq!(queries.sum::<usize>(), text.matches("\"expr\"").count());
        let [variable] = dashboard.variables.as_slice() else {
            panic!("{:?}", dashboard.variables);
        };
        assert_eq!((&*variable.name, &*variable.all), ("instance", ".*"));
        assert_eq!(variable.metric, "esp_build_info");
    }

    #[test]
    fn what_is_missing_is_named() {
        let good = packaged();
        for (from, to, error) in [
            ("\"stat\"", "\"pie\"", "unknown type"),
            ("\"unit\": \"pps\"", "\"u\": 1", "no text `unit`"),
            ("\"expr\"", "\"query\"", "no text `expr`"),
            ("label_values(", "query(", "not label_values"),
            ("\"panels\"", "\"rows\"", "no list `panels`"),
        ] {
            let found = Dashboard::parse(&good.replace(from, to)).expect_err(from);
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn variables_are_replaced_by_whole_names() {
        let values = [("a", "1"), ("ab", "2"), ("__rate_interval", "4s")];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let done = |expr| substituted(expr, &values);
        assert_eq!(done("x{l=~\"$ab\"}").as_deref(), Ok("x{l=~\"2\"}"));
        assert_eq!(done("${a}b $a").as_deref(), Ok("1b 1"));
        assert_eq!(done("[$__rate_interval]").as_deref(), Ok("[4s]"));
        assert!(done("$abc").is_err_and(|e| e.contains("`abc`")));
        assert!(done("cost: $").is_err());
        assert_eq!(escaped("node0:9469 (a.b)"), r"node0:9469 \\(a\\.b\\)");
    }

    #[test]
    fn legends_name_series_and_missing_labels() {
        let label = |name: &str| (name == "instance").then_some("node0");
        let named = |format| legend(format, label);
        assert_eq!(named("{{instance}} sent"), ("node0 sent".into(), None));
        assert_eq!(named("{{ instance }}"), ("node0".into(), None));
        assert_eq!(named("{{reason}}").1, Some("reason"));
    }
}
