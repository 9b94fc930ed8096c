//! The metrics endpoint of the real program: format, names, token, hostile requests; and that the
//! dashboard and the alert rules name metrics that exist.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use netns::{Node, TwoNodes};
use support::{PATIENCE, TempDir, eventually};

/// A running daemon; ended on drop.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon with this table `[metrics]`, and waits until it runs.
fn start(node: &Node, dir: &Path, metrics: &str) -> Daemon {
    let (config, socket) = (dir.join("a.toml"), dir.join("a.sock"));
    std::fs::write(&config, format!("[metrics]\n{metrics}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_esp-daemon"));
    command.args(["--interface", node.name(), "--config"]);
    command.arg(&config).arg("--socket").arg(&socket);
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    let daemon = Daemon(node.namespace().start(&mut command).unwrap());
    eventually("the daemon listens", || {
        UnixStream::connect(&socket).is_ok()
    });
    daemon
}

/// Sends a request and returns the bytes received until the end of the stream or an error.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the metrics.
fn scrape(path: &Path) -> String {
    let answer = ask(unix(path), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let format = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(head.contains(format), "{head}");
    text.to_owned()
}

/// A metric with its labels as written.
#[derive(Default)]
struct Family {
    kind: String,
    samples: BTreeSet<String>,
}

/// Parses the text format strictly: help, type and samples of a metric are adjacent, and no sample
/// occurs twice.
fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut helped = String::new();
    assert!(text.ends_with('\n'), "the last line has no end");
    for line in text.lines().filter(|line| !line.is_empty()) {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or_default();
            if help.trim().is_empty() {
                return wrong("no help");
            }
            helped = name.to_owned();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap_or_default();
            if name != helped || !["counter", "gauge"].contains(&kind) {
                return wrong("no help before it, or no known type");
            }
            let family = Family {
                kind: kind.to_owned(),
                ..Family::default()
            };
            if families.insert(name.to_owned(), family).is_some() {
                return wrong("a second type");
            }
            current = name.to_owned();
        } else {
            let Some((series, value)) = line.rsplit_once(' ') else {
                return wrong("no value");
            };
            let name = series.split('{').next().unwrap_or_default();
            let labels = series.strip_prefix(name).unwrap_or_default();
            let labels_fit = labels.is_empty()
                || labels.starts_with('{') && labels.ends_with("\"}") && !labels.contains("=\"\"");
            if name != current || !labels_fit || value.parse::<f64>().is_err() {
                return wrong("no sample of the metric above");
            }
            let family = families.entry(current.clone()).or_default();
            if !family.samples.insert(series.to_owned()) {
                return wrong("a second sample");
            }
        }
    }
    Ok(families)
}

#[test]
fn text_that_breaks_the_format_is_found() {
    let good = "# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\"} 1\na_total 2\n";
    assert_eq!(parse(good).unwrap()["a_total"].samples.len(), 2);
    for bad in [
        "a 1\n",
        "# TYPE a counter\na 1\n",
        "# HELP a \n# TYPE a counter\na 1\n",
        "# HELP a x\n# TYPE a histogram\na 1\n",
        "# HELP a x\n# TYPE a counter\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\na 2\n",
        "# HELP a x\n# TYPE a counter\na one\n",
        "# HELP a x\n# TYPE a counter\na{b=c} 1\n",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

/// Words of a file that look like metrics.
fn named(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("esp_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn names_keep_the_conventions_and_charts_and_alerts_use_them() {
    let name = "names_keep_the_conventions_and_charts_and_alerts_use_them";
    let Some(nodes) = TwoNodes::new_or_skip(name) else {
        return;
    };
    let dir = TempDir::new();
    let path = dir.path().join("metrics.sock");
    let _daemon = start(&nodes.a, dir.path(), &format!("listen = {path:?}\n"));
    eventually("metrics are served", || UnixStream::connect(&path).is_ok());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "the mode of the control socket");
    let text = scrape(&path);
    let families = parse(&text).unwrap();
    assert!(families.len() > 80, "{}", families.len());
    for (name, family) in &families {
        let counts = name.ends_with("_total");
        assert_eq!(counts, family.kind == "counter", "{name}: {}", family.kind);
        assert!(name.starts_with("esp_"), "{name}");
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(plain), "{name}");
        for unit in [
            "_ms", "_us", "_ns", "_kb", "_mb", "_percent", "_count", "_sum", "_bucket",
        ] {
            let bare = name.trim_end_matches("_total");
            assert!(!bare.ends_with(unit), "{name}: not a base unit");
        }
        assert!(!family.samples.is_empty(), "{name}");
    }
    let reason = "esp_rx_dropped_frames_total{interface=\"wire0\",reason=\"runt\"}";
    let dropped = &families["esp_rx_dropped_frames_total"].samples;
    assert!(dropped.contains(reason), "{dropped:?}");
    assert!(!text.contains("esp_rx_drop_"), "{text}");

    let packaging = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging"));
    let dashboard = packaging.join("grafana/esp.json");
    let json = std::fs::read_to_string(&dashboard).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let panels = json["panels"].as_array().unwrap();
    assert!(panels.len() > 10);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", panel["title"]);
        assert!(
            targets
                .iter()
                .all(|t| t["expr"].as_str().is_some_and(|e| e.contains("esp_")))
        );
    }
    for file in [dashboard, packaging.join("prometheus/esp-alerts.yaml")] {
        let names = named(&file);
        assert!(names.len() > 8, "{}: {names:?}", file.display());
        for name in names {
            assert!(
                families.contains_key(&name),
                "{}: no {name}",
                file.display()
            );
        }
    }
}

#[test]
fn hostile_requests_are_refused_and_others_served() {
    let name = "hostile_requests_are_refused_and_others_served";
    let Some(nodes) = TwoNodes::new_or_skip(name) else {
        return;
    };
    let dir = TempDir::new();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let metrics = format!("listen = \"127.0.0.1:9469\"\ntoken_file = {token:?}\n");
    let _daemon = start(&nodes.a, dir.path(), &metrics);
    let address = "127.0.0.1:9469";
    eventually("metrics are served", || {
        nodes.a.run(|| TcpStream::connect(address).is_ok())
    });
    let connect = || {
        let stream = nodes.a.run(|| TcpStream::connect(address).unwrap());
        // Longer than the other connections can keep all slots.
        stream.set_read_timeout(Some(3 * PATIENCE)).unwrap();
        stream
    };
    let status = |request: &str| {
        let answer = ask(connect(), request.as_bytes());
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let bearer = "Authorization: Bearer 0123456789abcdef\r\n";
    let good = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{bearer}\r\n");
    assert_eq!(status(&good), "200");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "401");
    assert_eq!(
        status("GET /other HTTP/1.1\r\nHost: x\r\n\r\n"),
        "401",
        "nothing is revealed"
    );
    assert_eq!(status(&good.replace("cdef", "cdee")), "401");
    assert_eq!(status(&good.replace("/metrics", "/other")), "404");
    assert_eq!(status(&good.replace("GET", "DELETE")), "405");
    let post = good
        .replace("GET", "POST")
        .replace("Host: x", "Content-Length: 99999999999");
    assert_eq!(status(&post), "405", "the body is not read");
    let long = format!("X: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("{}\r\n", "X: x\r\n".repeat(1000));
    for head in ["GET /metrics HTTP/1.1\r\n", bearer] {
        for rest in [&long, &many] {
            let found = status(&format!("{head}{rest}"));
            assert!(["", "400", "431"].contains(&found.as_str()), "{found}");
        }
    }
    for garbage in [
        "\0\0\0\0",
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let found = status(garbage);
        assert!(
            ["", "400"].contains(&found.as_str()),
            "{garbage:?}: {found}"
        );
    }
    // More connections than there are slots. They send nothing, or only a part of a request.
    let idle: Vec<_> = (0..12)
        .map(|n| {
            let mut stream = connect();
            if n % 2 == 0 {
                stream.write_all(b"GET /metrics HT").unwrap();
            }
            stream
        })
        .collect();
    assert_eq!(status(&good), "200");
    drop(idle);
    let refused = ask(connect(), good.as_bytes());
    let count = "\nesp_metrics_unauthorized_total ";
    assert!(refused.contains(count), "{refused}");
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    let Some(nodes) = TwoNodes::new_or_skip("a_token_that_others_can_read_is_refused") else {
        return;
    };
    let dir = TempDir::new();
    let (token, config) = (dir.path().join("token"), dir.path().join("a.toml"));
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let text = format!("[metrics]\nlisten = \"127.0.0.1:9469\"\ntoken_file = {token:?}\n");
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_esp-daemon"));
    command
        .args(["--interface", nodes.a.name(), "--config"])
        .arg(&config);
    command.arg("--socket").arg(dir.path().join("a.sock"));
    let output = nodes.a.namespace().output(&mut command).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("metrics.token_file") && said.contains("chmod o-r"),
        "{said}"
    );
}
