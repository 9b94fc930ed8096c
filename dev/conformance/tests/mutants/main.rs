//! Tests of the suite itself: for each promise a transport that breaks it, and the case that
//! detects it.

mod mutant;

use std::sync::Arc;

use btl_conformance::loopback::{self, Limits};
use btl_conformance::suite::{CASES, Harness, Job, Options, Outcome, threads};

use mutant::{Break, Mutant};

/// A fault, the case that must detect it, and words that the report must contain.
const TABLE: &[(Break, &str, &str)] = &[
    (Break::Duplicates, "order", "arrived, expected"),
    (Break::Reorders, "order", "arrived, expected"),
    (Break::Loses, "many_messages", "arrived, expected"),
    (Break::FlipsBodyBit, "order", "wrong at byte 999"),
    (Break::FlipsHeaderBit, "order", "the header of message"),
    (Break::SaysZero, "order", "progress returned 0"),
    (Break::MixesUpPeers, "order", "is wrong at byte"),
    (Break::DropsEmpty, "empty", ", expected"),
    (Break::CutsLongest, "limits", ", expected"),
    (Break::TakesTooLong, "limits", "Ok(())"),
    (Break::WrongLimit, "limits", "limit: 63"),
    (Break::SplitsAtPageEnd, "edges", ", expected"),
    (Break::LosesOnBusy, "busy", "arrived, expected"),
    (Break::SendsOnBusy, "busy", "arrived, expected"),
    (Break::BusyForEver, "busy", "time limit"),
    (Break::NeverBusy, "busy", "has no bound"),
    (Break::LosesOnBusy, "both_full", "arrived, expected"),
    (Break::LosesToItself, "self_send", "time limit"),
    (
        Break::UnboundedProgress,
        "bounded_progress",
        "one progress delivered",
    ),
    (Break::ServesFew, "many_peers", "time limit"),
    (Break::ServesFew, "all_to_one", "time limit"),
    (Break::DropsInCallbacks, "callbacks_ping_pong", "time limit"),
    (Break::LosesOnBusy, "callbacks_flood", "arrived, expected"),
    (Break::WrongFigures, "figures", "eager 65537"),
    (Break::CompletesTwice, "get_flood", "not pending"),
    (Break::CompletesTwice, "put_flood", "not pending"),
    (Break::NeverCompletes, "get_flood", "time limit"),
    (Break::DoneAndCompletes, "get_data", "wrong at byte"),
    (Break::OffByOne, "get_data", "wrong at byte"),
    (Break::OffByOne, "put_data", "wrong at byte"),
    (Break::NoBounds, "get_bounds", "of a region of"),
    (Break::NoBounds, "put_bounds", "of a region of"),
    (Break::AnyKey, "get_keys", "no key"),
    (Break::AnyKey, "put_keys", "no key"),
    (Break::PutsLate, "put_then_send", "wrong at byte"),
    (Break::PutsLate, "put_last", "wrong at byte"),
    (Break::LosesNotice, "put_last", "time limit"),
    (Break::DeregistersAll, "put_last", "region key"),
    (Break::ReadsHeldLate, "send_held", ", expected"),
    (Break::NeverCompletes, "send_held", "time limit"),
    (Break::CompletesTwice, "send_held", "not pending"),
    (Break::OffByOne, "self_get", "wrong at byte"),
    (Break::OneRegion, "many_regions", "wrong at byte"),
    (Break::NeverArmed, "wake", "was not woken"),
    (Break::AlwaysReadable, "wake_quiet", "sleep once"),
    (Break::NeverArmed, "wake_by_leaving", "was not woken"),
    (Break::NeverArmed, "wake_by_death", "was not woken"),
    (Break::NeverCompletes, "wake_by_completion", "pending"),
    (Break::AnyAddress, "garbage_addresses", "as an address"),
    (Break::PanicsOnAddress, "garbage_addresses", "panicked"),
    (Break::LosesEarly, "early_message", "arrived, expected"),
    (Break::SendsToUnadded, "never_added", "to rank 2"),
    (
        Break::SendsAfterClose,
        "use_after_close",
        "send after close",
    ),
    (Break::ClosesNothing, "use_after_close", "send after close"),
    (Break::LeftIsDied, "left", "closed gracefully: Died"),
    (
        Break::MessageAfterFailure,
        "left",
        "a message from rank 2 after its failure",
    ),
    (Break::LeftIsDied, "drop_closes", "closed gracefully: Died"),
    (
        Break::FlushLies,
        "flush_exit",
        "of 60 flushed messages arrived",
    ),
    (Break::NeverFails, "close_while_peers_send", "time limit"),
    (Break::DiedIsLeft, "death_idle", "a killed rank: Left"),
    (
        Break::FailsTwice,
        "death_idle",
        "a failure from rank 2 after",
    ),
    (
        Break::NeverFails,
        "death_before_first_message",
        "time limit",
    ),
    (
        Break::AllFail,
        "death_idle",
        "after its failure was reported",
    ),
    (Break::SendsToDead, "death_idle", "Ok(())"),
    (Break::Duplicates, "death_mid_send", "arrived, expected"),
    (Break::NeverFails, "death_mid_receive", "time limit"),
    (
        Break::FailsBeforeCompletion,
        "death_mid_get",
        "were pending",
    ),
    (
        Break::FailsBeforeCompletion,
        "death_mid_put",
        "were pending",
    ),
    (Break::ForgetsCompletion, "death_mid_get", "were pending"),
    (Break::LeftIsDied, "left_mid_get", "closed gracefully: Died"),
    (
        Break::AllFail,
        "death_of_many",
        "after its failure was reported",
    ),
    (Break::DropsNothing, "drop_peer", "time limit"),
    (
        Break::NeverQuiet,
        "drop_peer_that_is_not_there",
        "was never added",
    ),
    (Break::DropsNothing, "drop_peer_mid_get", "time limit"),
    (
        Break::DropsNothing,
        "drop_peer_mid_put",
        "written by a dropped peer",
    ),
];

/// A fault, the case that detects it, and words of its report.
struct Broken(Break, &'static str, &'static str);

impl Harness for Broken {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        let ranks = loopback::job(
            size,
            Limits {
                entries: 16,
                held_from: Some(1000),
                ..Limits::default()
            },
        );
        let killer = ranks[0].killer();
        let mut job = Job::new(ranks.into_iter().map(|rank| Mutant::new(rank, self.0)));
        job.kill = Some(Arc::new(move |rank| killer.kill(rank)));
        Ok(job)
    }

    fn options(&self) -> Options {
        // Faults that make a case hang take the whole time limit; any other fails early.
        let endless = self.2.contains("time limit") || self.2 == "pending";
        let limit = std::time::Duration::from_secs(if endless { 3 } else { 30 });
        Options {
            only: Some(self.1),
            limit,
            messages: 3000,
            rounds: 300,
            ..Options::default()
        }
    }
}

/// Returns the report of a fault that was not detected as expected.
fn undetected((fault, case, words): &(Break, &'static str, &'static str)) -> Option<String> {
    let report = threads(&Broken(*fault, case, words));
    let detected = matches!(&report.lines[..], [(_, Outcome::Failed(why))] if why.contains(words));
    (!detected).then(|| format!("{fault:?} by {case}: {:?}", report.lines))
}

/// All run in parallel, because most mutants wait until the time limit.
#[test]
fn mutants_are_detected() {
    let missed: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = TABLE
            .iter()
            .map(|line| scope.spawn(|| undetected(line)))
            .collect();
        running
            .into_iter()
            .filter_map(|thread| thread.join().expect("the suite never panics"))
            .collect()
    });
    assert!(missed.is_empty(), "not detected:\n{}", missed.join("\n"));
}

/// The wrapper alone breaks nothing: the failures of the table are due to the faults.
#[test]
fn an_unbroken_mutant_conforms() {
    struct Whole;
    impl Harness for Whole {
        fn name(&self) -> String {
            "an unbroken mutant".into()
        }
        fn job(&self, size: u32) -> Result<Job, String> {
            Broken(Break::Nothing, "", "").job(size)
        }
        fn options(&self) -> Options {
            Options {
                messages: 3000,
                rounds: 300,
                ..Options::default()
            }
        }
    }
    threads(&Whole).verdict().unwrap();
}

/// Checks that a mutant fails each case, and that the table names no unknown case.
#[test]
fn every_case_can_fail() {
    let cases: Vec<&str> = CASES
        .iter()
        .flat_map(|group| group.iter())
        .map(|case| case.name)
        .collect();
    let untested: Vec<_> = cases
        .iter()
        .filter(|case| !TABLE.iter().any(|(_, by, _)| by == *case))
        .collect();
    assert!(untested.is_empty(), "no mutant for {untested:?}");
    let unknown: Vec<_> = TABLE
        .iter()
        .filter(|(_, by, _)| !cases.contains(by))
        .collect();
    assert!(unknown.is_empty(), "no such case: {unknown:?}");
}

/// A run without any case is a failure.
#[test]
fn a_run_without_cases_fails() {
    assert!(
        threads(&Broken(Break::Nothing, "no such case", ""))
            .verdict()
            .is_err()
    );
}
