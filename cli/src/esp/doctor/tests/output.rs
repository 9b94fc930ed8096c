//! Tests of output, exit codes, paths, and the documentation.

use super::*;

#[test]
fn the_exit_code_is_that_of_the_worst_finding() {
    let code = |fault: fn(&mut Facts)| {
        let mut facts = healthy();
        fault(&mut facts);
        verdict(&check(&facts))
    };
    assert_eq!(code(|facts| facts.host.load = 9.0), Verdict::Done);
    assert_eq!(code(|facts| link(facts).speed = Some(10)), Verdict::Partly);
    assert_eq!(code(|facts| link(facts).enabled = false), Verdict::Code(2));
}

#[test]
fn each_check_is_documented() {
    let page = include_str!("../../../../../docs/doctor.md");
    let sources = [
        include_str!("../daemon.rs"),
        include_str!("../link.rs"),
        include_str!("../host.rs"),
        include_str!("../mpi.rs"),
        include_str!("../peer.rs"),
    ];
    let quoted = |text: &'static str| text.split('"').filter(|word| is_check(word));
    let checks: BTreeSet<_> = sources.into_iter().flat_map(quoted).collect();
    assert!(checks.len() > 40, "{checks:?}");
    for check in checks {
        assert!(page.contains(&format!("`{check}`")), "{check}");
    }
}

fn is_check(word: &str) -> bool {
    let groups = ["daemon", "link", "host", "mpi", "peer", "segment"];
    word.split_once('.').is_some_and(|(group, check)| {
        groups.contains(&group) && check.chars().all(|c| c.is_ascii_lowercase())
    })
}

#[test]
fn the_text_is_grouped_and_fits_80_columns() {
    let mut facts = healthy();
    facts.daemon.lease = Lease::Forbidden;
    link(&mut facts).enabled = false;
    let findings = check(&facts);
    let choices = paths::choices(&facts);
    let text = report::text(&facts, &findings, &choices, false, false);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
    let heading = |line: &&str| !line.starts_with(' ') && !line.contains(',');
    let headings: Vec<_> = text.lines().filter(heading).collect();
    let groups = ["daemon", "link eth0", "host", "mpi", "peer node1", "paths"];
    assert_eq!(headings[..6], groups, "{text}");
    assert!(
        text.contains("  error    the interface is disabled\n"),
        "{text}"
    );
    assert!(
        text.contains("           → ip link set eth0 up\n"),
        "{text}"
    );
    assert!(text.ends_with("1 error, 0 warnings, 1 note"), "{text}");
    let quiet = report::text(&facts, &findings, &choices, true, true);
    assert!(
        !quiet.contains("paths") && !quiet.contains("lease"),
        "{quiet}"
    );
    assert!(quiet.contains('\x1b'), "{quiet:?}");
}

#[test]
fn the_matrix_has_a_row_for_each_node_and_a_column_for_each_way() {
    let mut facts = healthy();
    let mut second = peer(&mut facts).clone();
    second.name = "node2".into();
    second.routes[1] = Route::untried(udp_addr());
    network(&mut facts).peers.push(second);
    let text = report::text(&facts, &[], &[], false, false);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1], ["node", "eth0", "udp"]);
    assert_eq!(rows[2], ["node1", "12.3/1489", "12.3/1489"]);
    assert_eq!(rows[3], ["node2", "12.3/1489", "no", "answer"]);
}

#[test]
fn json_has_a_line_for_each_finding_and_way() -> Result<(), serde_json::Error> {
    let facts = healthy();
    let (findings, choices) = (check(&facts), paths::choices(&facts));
    let text = report::json(&facts, &findings, &choices, false)?;
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let of_type = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!(
        (of_type("finding"), of_type("route"), of_type("path")),
        (findings.len(), 2, 3)
    );
    let summary = lines.last().expect("a summary");
    assert_eq!(summary["type"], "summary");
    assert_eq!(
        (&summary["errors"], &summary["warnings"]),
        (&0.into(), &0.into())
    );
    Ok(())
}

#[test]
fn choices_follow_what_answers() {
    let choices = |fault: fn(&mut Facts)| {
        let mut facts = healthy();
        fault(&mut facts);
        let choices = paths::choices(&facts);
        choices.iter().map(|c| c.path).collect::<Vec<_>>()
    };
    assert_eq!(choices(|_| ()), ["lease", "lease", "udp"]);
    let without_lease = choices(|facts| facts.daemon.lease = Lease::Forbidden);
    assert_eq!(without_lease, ["daemon", "udp", "udp"]);
    let without_udp = choices(|facts| peer(facts).routes.truncate(1));
    assert_eq!(without_udp, ["lease"; 3]);
    let udp_only = choices(|facts| peer(facts).esp = Some(false));
    assert_eq!(udp_only, ["udp"; 3]);
    assert!(choices(|facts| peer(facts).routes.clear()).is_empty());
}
