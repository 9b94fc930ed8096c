//! Runs the tests by cargo-nextest, which shows its progress itself, and reads its report afterwards.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::count::{Counts, ignored, skip_reason};
use crate::outcome::{Failure, cannot_run, failed};
use crate::process::{self, cargo, output};

/// `.config/nextest.toml` asks for the report, with the words of the tests that passed.
pub(super) fn run(
    target: &Path,
    prepared: impl Fn(&Command) -> Command,
) -> Result<Counts, Failure> {
    let list = output(&mut prepared(&cargo([
        "nextest",
        "list",
        "--workspace",
        "--message-format=json",
    ])))?;
    let Some((listed, left_out)) = serde_json::from_str(&list)
        .ok()
        .and_then(|v| count_list(&v))
    else {
        return failed("`cargo nextest list` printed something this program does not understand");
    };
    let report = target.join("nextest/default/junit.xml");
    // One of an earlier run would tell of that.
    let _ = fs::remove_file(&report);
    let passed = run_tests(&prepared)?;
    let text = match fs::read_to_string(&report) {
        Ok(text) => text,
        Err(e) => {
            return cannot_run(format!(
                "cargo nextest left no report in {}: {e}",
                report.display()
            ));
        }
    };
    let mut counts = read_report(&text);
    let reported = counts.all();
    counts.skipped.extend(left_out);
    match (passed, counts.failed) {
        (false, 0) => failed("cargo nextest failed, though no test did"),
        (true, 0) if reported != listed => failed(format!(
            "{listed} tests are listed, {reported} are in the report"
        )),
        _ => Ok(counts),
    }
}

fn run_tests(prepared: impl Fn(&Command) -> Command) -> Result<bool, Failure> {
    match process::run(&mut prepared(&cargo(["nextest", "run", "--workspace"]))) {
        Ok(()) => Ok(true),
        Err(Failure::Failed(_)) => Ok(false),
        Err(other) => Err(other),
    }
}

/// How many tests will run, and which are marked `#[ignore]`.
fn count_list(value: &Value) -> Option<(usize, Vec<String>)> {
    let (mut listed, mut left_out) = (0, Vec::new());
    for suite in value["rust-suites"].as_object()?.values() {
        for (name, test) in suite["testcases"].as_object()? {
            if test["ignored"].as_bool()? {
                left_out.extend(ignored(name))
            } else {
                listed += 1
            }
        }
    }
    Some((listed, left_out))
}

/// The report is XML in the form of JUnit; what is needed of it can be found without a parser.
fn read_report(xml: &str) -> Counts {
    let mut counts = Counts::default();
    for case in xml.split("<testcase ").skip(1) {
        let case = case.split("</testcase>").next().unwrap_or(case);
        let (head, body) = case.split_once('>').unwrap_or((case, ""));
        let body = body
            .replace("<system-err>", "\n")
            .replace("<system-out>", "\n");
        let reason = body.lines().find_map(skip_reason);
        if body.contains("<failure") || body.contains("<error") {
            counts.failed += 1;
        } else if let Some(reason) = reason {
            let reason = reason.split('<').next().unwrap_or(reason);
            let name = format!(
                "{}::{}",
                attribute(head, "classname"),
                attribute(head, "name")
            );
            counts
                .skipped
                .push(format!("{name}: {}", unescaped(reason)));
        } else {
            counts.passed += 1;
        }
    }
    counts
}

fn attribute<'a>(head: &'a str, name: &str) -> &'a str {
    let start = format!("{name}=\"");
    let found = head
        .match_indices(&start)
        .find(|(at, _)| *at == 0 || head.as_bytes().get(at - 1) == Some(&b' '));
    let value = found.and_then(|(at, _)| head.get(at + start.len()..));
    value.and_then(|v| v.split('"').next()).unwrap_or("?")
}

fn unescaped(text: &str) -> String {
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'");
    text.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1" errors="0">
    <testsuite name="netif" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="a::b" classname="netif" timestamp="x" time="0.004">
            <system-out>
running 1 test
test a::b ... ok
</system-out>
            <system-err></system-err>
        </testcase>
        <testcase name="c" classname="netif::socket" time="0.004">
            <system-err>some words
SKIPPED: needs &lt;root&gt; &amp; more
</system-err>
        </testcase>
        <testcase name="d" classname="netif">
            <failure message="x" type="test failure">SKIPPED?</failure>
        </testcase>
        <testcase name="e" classname="netif"><system-err>SKIPPED at once</system-err></testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn the_report_is_read() {
        let counts = read_report(REPORT);
        assert_eq!((counts.passed, counts.failed), (1, 1));
        assert_eq!(
            counts.skipped,
            [
                "netif::socket::c: SKIPPED: needs <root> & more",
                "netif::e: SKIPPED at once"
            ]
        );
    }

    #[test]
    fn the_list_is_read() {
        let text = r#"{"rust-suites": {"a": {"testcases": {"x": {"ignored": false}, "y": {"ignored": true}}},
            "b": {"testcases": {"z": {"ignored": false}}}}}"#;
        assert_eq!(
            count_list(&serde_json::from_str(text).expect("JSON")),
            Some((2, vec!["y: marked #[ignore]".into()]))
        );
        assert_eq!(count_list(&Value::Null), None);
    }
}
