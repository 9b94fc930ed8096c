use std::os::unix::fs::symlink;

use super::*;
use esp_client::NodeInfo;

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Builds the table of answers: interface, last byte of the address, incarnation, name.
fn table(answers: &[(&str, u8, u64, &str)]) -> Table {
    let mut heard = Heard::default();
    for &(interface, last, incarnation, name) in answers {
        heard.add(Node {
            interface: interface.into(),
            addr: mac(last).into(),
            info: NodeInfo {
                version: 1,
                max_payload: 1489,
                features: 0,
                incarnation,
                name: name.into(),
            },
            rtt_us: 1.0,
        });
    }
    heard.table()
}

fn line(name: &str, last: u8) -> (String, MacAddr) {
    (name.into(), mac(last))
}

#[test]
fn lines_are_in_the_order_of_the_names() {
    let found = table(&[
        ("eth0", 3, 30, "node10"),
        ("eth0", 1, 10, "node2"),
        ("eth0", 2, 20, "head"),
        ("eth1", 2, 20, "head"),
    ]);
    let lines = vec![line("head", 2), line("node2", 1), line("node10", 3)];
    assert_eq!(
        found,
        Table {
            lines,
            ..Table::default()
        }
    );
}

#[test]
fn one_name_of_two_nodes_is_a_conflict() {
    let found = table(&[
        ("eth0", 1, 10, "node1"),
        ("eth0", 2, 20, "Node1"),
        ("eth0", 3, 30, "node3"),
    ]);
    assert_eq!(found.lines, [line("node3", 3)]);
    let [problem] = found.problems.as_slice() else {
        panic!("{:?}", found.problems);
    };
    assert!(
        problem.contains("02:00:00:00:00:01 and 02:00:00:00:00:02"),
        "{problem}"
    );
}

#[test]
fn one_address_of_two_names_is_a_conflict() {
    let found = table(&[
        ("eth0", 1, 10, "node1"),
        ("eth0", 1, 20, "node2"),
        ("eth0", 3, 30, "node3"),
    ]);
    assert_eq!(found.lines, [line("node3", 3)]);
    let [problem] = found.problems.as_slice() else {
        panic!("{:?}", found.problems);
    };
    assert!(
        problem.contains("`node1` and `node2`") && problem.contains("02:00:00:00:00:01"),
        "{problem}"
    );
}

#[test]
fn a_node_with_two_interfaces_has_the_line_of_the_first() {
    let found = table(&[("eth1", 1, 10, "node1"), ("eth0", 2, 10, "node1")]);
    assert_eq!(
        (found.lines, found.problems),
        (vec![line("node1", 2)], vec![])
    );
    assert!(
        found.remarks.concat().contains("02:00:00:00:00:01"),
        "{:?}",
        found.remarks
    );
}

#[test]
fn names_that_are_no_host_names_are_left_out() {
    let long = "x".repeat(64);
    let bad = [
        "",
        "a b",
        "a\nb",
        "#",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a.",
        "ä",
        "a_b",
        "7",
        "10.1.0.7",
        "\u{1b}[2J",
        &long,
    ];
    for name in bad {
        let found = table(&[("eth0", 1, 10, name)]);
        assert_eq!(
            (found.lines.len(), found.problems.len()),
            (0, 1),
            "{name:?}"
        );
        let problem = found.problems.concat();
        assert!(!problem.contains(char::is_control), "{problem:?}");
    }
    for name in ["a", "7a", "node-1.rack.example", &"x".repeat(63)] {
        assert!(is_host_name(name), "{name}");
    }
}

fn merged(text: &[u8], lines: &[(String, MacAddr)]) -> (String, Vec<String>) {
    let merged = merge(text, lines, Path::new("/etc/ethers"));
    let text = String::from_utf8_lossy(&merged.text).into_owned();
    (text, merged.problems)
}

#[test]
fn everything_in_the_file_is_kept() {
    let old = b"# cluster\n\n02:00:00:00:00:01  Node1 # first\nrubbish\n\xff\xfe\n2:0:0:0:0:9 gate";
    let (text, problems) = merged(old, &[line("node1", 1), line("node2", 2)]);
    assert_eq!(problems, [""; 0]);
    let old = String::from_utf8_lossy(old);
    assert_eq!(text, format!("{old}\n02:00:00:00:00:02 node2\n"));
}

#[test]
fn lines_that_contradict_the_file_are_left_out() {
    let old = b"02:00:00:00:00:07 node1\n02:00:00:00:00:02 alias\nxx node3\n";
    let new = [line("node1", 1), line("node2", 2), line("node3", 3)];
    let (text, problems) = merged(old, &new);
    assert_eq!(text.as_bytes(), old);
    for (problem, what) in problems.iter().zip([
        "line 1 of /etc/ethers has `node1` at 02:00:00:00:00:07",
        "line 2 of /etc/ethers names 02:00:00:00:00:02 `alias`",
        "line 3 of /etc/ethers has `node3` without a valid address",
    ]) {
        assert!(problem.contains(what), "{problem}");
    }
    assert_eq!(problems.len(), 3);
}

#[test]
fn a_file_is_replaced_with_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("ethers"), folder.path().join("link"));
    fs::write(&file, "# mine\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    let mut found = table(&[("eth0", 1, 10, "node1")]);
    assert_eq!(update(&link, &mut found).unwrap(), (1, 0));
    assert_eq!(update(&link, &mut found).unwrap(), (0, 1));
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "# mine\n02:00:00:00:00:01 node1\n"
    );
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2, "a temporary file is left");
}

#[test]
fn files_that_cannot_be_merged_with_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut found = table(&[("eth0", 1, 10, "node1")]);
    let refused = update(folder.path(), &mut found).unwrap_err().to_string();
    assert!(refused.contains("not a regular file"), "{refused}");
    let long = folder.path().join("long");
    fs::write(&long, vec![b'\n'; (1 << 20) + 1]).unwrap();
    let refused = update(&long, &mut found).unwrap_err().to_string();
    assert!(refused.contains("longer than 1 MiB"), "{refused}");
    let nowhere = folder.path().join("no/ethers");
    let refused = update(&nowhere, &mut found).unwrap_err().to_string();
    assert!(refused.contains("cannot write"), "{refused}");
}
