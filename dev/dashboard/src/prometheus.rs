//! A Prometheus in the first node, and its HTTP API.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cli::out::{Context, Failure};
use serde_json::Value;
use tempfile::TempDir;

use crate::load::{Cluster, METRICS_PORT, NODES};

/// Time between two scrapes in seconds.
pub(crate) const SCRAPE: u32 = 2;
/// Address of the API, in the node's namespace.
const API: &str = "127.0.0.1:9090";
/// Time limit for Prometheus to have scraped every daemon.
const READY: Duration = Duration::from_secs(30);

/// A series: its labels, and its values over time in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    pub labels: BTreeMap<String, String>,
    pub points: Vec<(f64, f64)>,
}

/// A running Prometheus; ended when dropped.
pub(crate) struct Prometheus<'a> {
    cluster: &'a Cluster,
    child: Child,
    folder: TempDir,
}

/// The queries that a check needs; also made of fixed answers, by tests.
pub(crate) trait Api {
    /// Returns the values of a query from `start` to `end` in steps of these seconds.
    ///
    /// # Errors
    /// The query is refused.
    fn range(&self, expr: &str, range: (f64, f64), step: u32) -> Result<Vec<Series>, String>;

    /// Returns the values of a query now.
    ///
    /// # Errors
    /// The query is refused.
    fn now(&self, expr: &str) -> Result<Vec<Series>, String>;

    /// Returns the values of a label of the series of a metric.
    ///
    /// # Errors
    /// The query is refused.
    fn label_values(&self, metric: &str, label: &str) -> Result<Vec<String>, String>;

    /// Returns name, expression and, unless it is healthy, the error of each alert rule.
    ///
    /// # Errors
    /// The query is refused.
    fn alerts(&self) -> Result<Vec<(String, String, Option<String>)>, String>;
}

impl Prometheus<'_> {
    /// Starts the program with these rules.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start<'a>(
        cluster: &'a Cluster,
        program: &Path,
        rules: &Path,
    ) -> Result<Prometheus<'a>, Failure> {
        let folder = TempDir::new().doing("a folder for Prometheus")?;
        let config = folder.path().join("prometheus.yml");
        let targets: Vec<_> = (0..NODES)
            .map(|node| format!("\"node{node}:{METRICS_PORT}\""))
            .collect();
        let text = format!(
            "global: {{ scrape_interval: {SCRAPE}s, scrape_timeout: {SCRAPE}s, \
             evaluation_interval: {SCRAPE}s }}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: esp\n    \
             authorization: {{ credentials_file: {:?} }}\n    \
             static_configs: [{{ targets: [{}] }}]\n",
            cluster.token(),
            targets.join(", ")
        );
        fs::write(&config, text).doing(config.display())?;
        let log = folder.path().join("log");
        let log = File::create(&log).doing(log.display())?;
        let mut command = cluster.lab.command(0, program)?;
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().display()))
            .arg(format!("--web.listen-address={API}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().doing(program.display())?;
        Ok(Prometheus {
            cluster,
            child,
            folder,
        })
    }

    /// Waits until this number of daemons has been scraped, and the rules have been evaluated.
    ///
    /// # Errors
    /// Prometheus ended, or it takes too long.
    pub(crate) fn await_targets(&mut self, number: usize) -> Result<(), Failure> {
        let end = Instant::now() + READY;
        loop {
            let targets = self.get("targets", &[]);
            let up = targets.as_ref().map_or(0, |data| {
                let targets = data["activeTargets"].as_array();
                let up = targets.into_iter().flatten();
                up.filter(|target| target["health"] == "up").count()
            });
            let rules = self.alerts().is_ok_and(|all| !all.is_empty());
            if up == number && rules {
                return Ok(());
            }
            let ended = self.child.try_wait().doing("Prometheus")?;
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                let how = ended.map_or_else(
                    || format!("scraped {up} of {number} daemons in {} s", READY.as_secs()),
                    |status| format!("ended ({status})"),
                );
                return Err(Failure::new(format_args!(
                    "Prometheus {how}: {}",
                    log.trim()
                )));
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Returns the data of an answer.
    fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let mut arguments = ["--silent", "--show-error", "--max-time", "10", "--get"]
            .map(str::to_owned)
            .to_vec();
        for (name, value) in parameters {
            arguments.extend(["--data-urlencode".to_owned(), format!("{name}={value}")]);
        }
        arguments.push(format!("http://{API}/api/v1/{path}"));
        let output = self.cluster.lab.run(0, "curl", arguments);
        let output = output.map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        data(&output.stdout)
    }
}

impl Api for Prometheus<'_> {
    fn range(&self, expr: &str, range: (f64, f64), step: u32) -> Result<Vec<Series>, String> {
        let [start, end] = [range.0, range.1].map(|time| time.to_string());
        let parameters = [
            ("query", expr),
            ("start", &start),
            ("end", &end),
            ("step", &step.to_string()),
        ];
        series(&self.get("query_range", &parameters)?)
    }

    fn now(&self, expr: &str) -> Result<Vec<Series>, String> {
        series(&self.get("query", &[("query", expr)])?)
    }

    fn label_values(&self, metric: &str, label: &str) -> Result<Vec<String>, String> {
        let data = self.get(&format!("label/{label}/values"), &[("match[]", metric)])?;
        let values = data.as_array().ok_or("no list of values")?;
        let values = values.iter().filter_map(Value::as_str);
        Ok(values.map(str::to_owned).collect())
    }

    fn alerts(&self) -> Result<Vec<(String, String, Option<String>)>, String> {
        let data = self.get("rules", &[("type", "alert")])?;
        let groups = data["groups"].as_array().ok_or("no groups of rules")?;
        let rules = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().into_iter().flatten());
        rules
            .map(|rule| {
                let text = |key: &str| rule[key].as_str().map(str::to_owned);
                let error = (rule["health"] != "ok").then(|| {
                    text("lastError").unwrap_or_else(|| format!("health {}", rule["health"]))
                });
                let named = text("name")
                    .zip(text("query"))
                    .ok_or("a rule without a name")?;
                Ok((named.0, named.1, error))
            })
            .collect()
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the data of an answer, or its error.
fn data(answer: &[u8]) -> Result<Value, String> {
    let mut answer: Value = serde_json::from_slice(answer).map_err(|e| e.to_string())?;
    if answer["status"] == "success" {
        Ok(answer["data"].take())
    } else {
        let error = answer["error"]
            .as_str()
            .unwrap_or("an answer without a status");
        Err(error.to_owned())
    }
}

/// Parses the series of a range or of an instant, or a scalar.
fn series(data: &Value) -> Result<Vec<Series>, String> {
    let one = |value: &Value| {
        let time = value[0].as_f64()?;
        // "NaN" and "+Inf" are numbers for Rust, too.
        Some((time, value[1].as_str()?.parse().ok()?))
    };
    let result = &data["result"];
    if data["resultType"] == "scalar" {
        let points = one(result).into_iter().collect();
        let labels = BTreeMap::new();
        return Ok(vec![Series { labels, points }]);
    }
    let all = result.as_array().ok_or("no list of series")?;
    let parsed = all.iter().map(|of| {
        let labels = of["metric"].as_object().into_iter().flatten();
        let labels = labels.filter_map(|(name, v)| Some((name.clone(), v.as_str()?.to_owned())));
        let values = of["values"].as_array().into_iter().flatten();
        let points = match of.get("value") {
            Some(value) => one(value).into_iter().collect(),
            None => values.filter_map(one).collect(),
        };
        Series {
            labels: labels.collect(),
            points,
        }
    });
    Ok(parsed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(answer: &str) -> Result<Vec<Series>, String> {
        series(&data(answer.as_bytes())?)
    }

    #[test]
    fn answers_are_parsed_or_are_errors() {
        let of = |kind: &str, result: &str| {
            format!(
                "{{\"status\":\"success\",\"data\":{{\"resultType\":\"{kind}\",\"result\":{result}}}}}"
            )
        };
        let range = of(
            "matrix",
            r#"[{"metric":{"a":"b"},"values":[[1.5,"2"],[2.5,"NaN"]]}]"#,
        );
        let range = parsed(&range).expect("a range");
        assert_eq!(range[0].labels["a"], "b");
        assert_eq!(range[0].points[0], (1.5, 2.0));
        assert!(range[0].points[1].1.is_nan());
        let now = parsed(&of("vector", r#"[{"metric":{},"value":[1,"+Inf"]}]"#));
        assert_eq!(now.expect("an instant")[0].points, [(1.0, f64::INFINITY)]);
        let scalar = parsed(&of("scalar", r#"[1,"3"]"#)).expect("a scalar");
        assert_eq!(scalar[0].points, [(1.0, 3.0)]);
        let error = parsed(r#"{"status":"error","error":"parse error"}"#);
        assert_eq!(error, Err("parse error".into()));
        for bad in ["", "{}", "[1]", &of("matrix", "7")] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
