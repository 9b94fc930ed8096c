//! The suite with ranks as processes, over `sockets.rs`: processes are started, meet, die, exit
//! right after `close`, and report their errors.

mod sockets;
mod unflushed;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use btl::Btl;
use btl_conformance::suite::{self, Options, Outcome, Place, ProcessHarness};

use sockets::SocketBtl;
use unflushed::Unflushed;

struct Sockets {
    only: Option<&'static str>,
    fault: &'static str,
}

const FAULT: &str = "BTL_SOCKET_FAULT";

impl ProcessHarness for Sockets {
    fn name(&self) -> String {
        format!(
            "sockets{}{}",
            if self.fault.is_empty() {
                ""
            } else {
                ", fault "
            },
            self.fault
        )
    }

    fn command(&self, program: &Path, _: &Place) -> Result<Command, String> {
        let mut command = Command::new(program);
        command.env(FAULT, self.fault);
        Ok(command)
    }

    fn options(&self) -> Options {
        let limit = Duration::from_secs(if self.fault == "hangs" { 1 } else { 60 });
        Options {
            only: self.only,
            limit,
            messages: 20_000,
            rounds: 500,
            peers: 8,
            ..Options::default()
        }
    }
}

fn make(place: &Place) -> Result<Box<dyn Btl>, String> {
    let fault = std::env::var(FAULT).unwrap_or_default();
    match fault.as_str() {
        "is not made" if place.rank == 1 => return Err("not created".into()),
        "exits" if place.rank == 1 => std::process::exit(7),
        "hangs" if place.rank == 1 => std::thread::sleep(Duration::from_secs(3600)),
        _ => {}
    }
    let inner = SocketBtl::new(place.rank, &place.job).map_err(|error| error.to_string())?;
    Ok(match fault.as_str() {
        "loses at exit" => Box::new(Unflushed::new(inner)),
        _ => Box::new(inner),
    })
}

#[test]
fn sockets_conform() {
    if let Some(child) = suite::child() {
        child.run(make);
    }
    let report = suite::processes(
        "sockets_conform",
        &Sockets {
            only: None,
            fault: "",
        },
    );
    report.verdict().unwrap();
    // The cases that need processes ran.
    for case in [
        "flush_exit",
        "death_mid_send",
        "death_mid_receive",
        "wake_by_death",
    ] {
        assert!(
            report.lines.contains(&(case, Outcome::Passed)),
            "{case}: {:?}",
            report.lines
        );
    }
}

/// Checks that a case over a faulty transport fails with these words.
fn fails(test: &str, case: &'static str, fault: &'static str, words: &str) {
    let report = suite::processes(
        test,
        &Sockets {
            only: Some(case),
            fault,
        },
    );
    let right = matches!(&report.lines[..], [(_, Outcome::Failed(why))] if why.contains(words));
    assert!(right, "expected {words:?} in {:?}", report.lines);
}

#[test]
fn a_rank_without_a_transport_fails_the_case() {
    if let Some(child) = suite::child() {
        child.run(make);
    }
    fails(
        "a_rank_without_a_transport_fails_the_case",
        "order",
        "is not made",
        "rank 1: no transport: not created",
    );
}

#[test]
fn a_rank_that_exits_fails_the_case() {
    if let Some(child) = suite::child() {
        child.run(make);
    }
    fails(
        "a_rank_that_exits_fails_the_case",
        "order",
        "exits",
        "rank 1: ended without a result: exit status: 7",
    );
}

#[test]
fn a_rank_that_hangs_is_killed() {
    if let Some(child) = suite::child() {
        child.run(make);
    }
    fails(
        "a_rank_that_hangs_is_killed",
        "order",
        "hangs",
        "time limit reached waiting for the other ranks",
    );
}

#[test]
fn an_early_flush_is_detected_at_exit() {
    if let Some(child) = suite::child() {
        child.run(make);
    }
    fails(
        "an_early_flush_is_detected_at_exit",
        "flush_exit",
        "loses at exit",
        "of 60 flushed messages arrived",
    );
}
