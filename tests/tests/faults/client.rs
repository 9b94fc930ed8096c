//! Faults of a client program.

use esp_tests::lab_or_skip;
use esp_tests::process::{Balance, TempFile, daemon_pid};
use lab::LabOptions;

use crate::strace::{faults, is_here, recording, was_injected};
use crate::{Content, Transfer, conclude, echo, name};

fn strace(options: Vec<String>) -> Vec<String> {
    [vec!["strace".into()], options].concat()
}

/// Lets calls of espcat fail, whose streams take the daemon or, with `lease`, a lease.
fn try_all(test: &str, lease: bool) {
    if !is_here(test) {
        return;
    }
    let mut options = LabOptions::new(2);
    if lease {
        options.daemon_config = "[lease]\nallow = \"all\"\n".into();
    }
    let Some(lab) = lab_or_skip(test, &options) else {
        return;
    };
    echo(&lab);
    let content = Content::new();
    let clean = TempFile::new("");
    let first = Transfer::run(&lab, &content, &strace(recording(&clean)));
    assert_eq!(
        (first.finished.code, first.fault(&content)),
        (Some(0), None),
        "{first:?}"
    );
    let balances = [0, 1].map(|node| Balance::of(daemon_pid(&lab, node)));
    let faults = faults(&clean, name(&lab.socket(0)));
    let (mut injected, mut failures) = (0, Vec::new());
    for fault in &faults {
        let file = TempFile::new("");
        let transfer = Transfer::run(&lab, &content, &strace(fault.options(&file)));
        injected += usize::from(was_injected(&file));
        if let Some(what) = transfer.fault(&content) {
            failures.push(format!("{fault:?}: {what}: {:?}", transfer.finished));
        }
    }
    conclude(faults.len(), injected, &failures);
    balances.iter().for_each(Balance::is_kept);
}

#[test]
fn calls_of_a_program_fail() {
    try_all("calls_of_a_program_fail", false);
}

#[test]
fn calls_of_a_program_with_a_lease_fail() {
    try_all("calls_of_a_program_with_a_lease_fail", true);
}
