//! The suite can fail: for each promise a transport that breaks it, and the case that notices.

mod mutant;

use std::sync::Arc;

use btl_conformance::loopback::{self, Limits};
use btl_conformance::suite::{CASES, Harness, Job, Options, Outcome, threads};

use mutant::{Break, Mutant};

/// A fault, the case that must notice it, and words that its report must contain.
const TABLE: &[(Break, &str, &str)] = &[
    (Break::Duplicates, "order", "was next"),
    (Break::Reorders, "order", "was next"),
    (Break::Loses, "many_messages", "was next"),
    (Break::FlipsBodyBit, "order", "wrong at byte 999"),
    (Break::FlipsHeaderBit, "order", "the header of message"),
    (Break::SaysZero, "order", "progress said 0"),
    (Break::MixesUpPeers, "order", "is wrong at byte"),
    (Break::DropsEmpty, "empty", "were due"),
    (Break::CutsLongest, "limits", "were due"),
    (Break::TakesTooLong, "limits", "Ok(())"),
    (Break::WrongLimit, "limits", "limit: 63"),
    (Break::SplitsAtPageEnd, "edges", "were due"),
    (Break::LosesOnBusy, "busy", "was next"),
    (Break::SendsOnBusy, "busy", "was next"),
    (Break::BusyForEver, "busy", "in vain"),
    (Break::NeverBusy, "busy", "where is the bound"),
    (Break::LosesOnBusy, "both_full", "was next"),
    (Break::LosesToItself, "self_send", "in vain"),
    (Break::GoesOn, "bounded_progress", "one progress delivered"),
    (Break::ServesFew, "many_peers", "in vain"),
    (Break::ServesFew, "all_to_one", "in vain"),
    (Break::DeafInCallbacks, "callbacks_ping_pong", "in vain"),
    (Break::LosesOnBusy, "callbacks_flood", "was next"),
    (Break::WrongFigures, "figures", "eager 65537"),
    (Break::CompletesTwice, "get_flood", "not pending"),
    (Break::CompletesTwice, "put_flood", "not pending"),
    (Break::NeverCompletes, "get_flood", "in vain"),
    (Break::DoneAndCompletes, "get_data", "wrong at byte"),
    (Break::OffByOne, "get_data", "wrong at byte"),
    (Break::OffByOne, "put_data", "wrong at byte"),
    (Break::NoBounds, "get_bounds", "of a region of"),
    (Break::NoBounds, "put_bounds", "of a region of"),
    (Break::AnyKey, "get_keys", "no key"),
    (Break::AnyKey, "put_keys", "no key"),
    (Break::PutsLate, "put_then_send", "wrong at byte"),
    (Break::PutsLate, "put_last", "wrong at byte"),
    (Break::TellsNobody, "put_last", "in vain"),
    (Break::DeregistersAll, "put_last", "region key"),
    (Break::ReadsHeldLate, "send_held", "were due"),
    (Break::NeverCompletes, "send_held", "in vain"),
    (Break::CompletesTwice, "send_held", "not pending"),
    (Break::OffByOne, "self_get", "wrong at byte"),
    (Break::OneRegion, "many_regions", "wrong at byte"),
    (Break::TakesYoungest, "matched_oldest", "was due"),
    (Break::ToldTwice, "matched_oldest", "not posted"),
    (Break::AnySource, "matched_sources", "does not want it"),
    (Break::NegativeIsAny, "matched_tags", "tag: -1"),
    (Break::OneContext, "matched_tags", "context: 0"),
    (
        Break::WithdrawsNothing,
        "matched_withdraw",
        "does not want it",
    ),
    (Break::TakenIsYes, "matched_withdraw", "yet Yes"),
    (Break::TellsRoom, "matched_lengths", "101 bytes into 100"),
    (Break::Overtakes, "matched_unseen", "does not want it"),
    (
        Break::SeenTooSoon,
        "matched_callback",
        "a younger message was first",
    ),
    (Break::TakenIsYes, "matched_race", "not posted"),
    (
        Break::AnySource,
        "matched_self",
        "a posted receive is filled",
    ),
    (Break::LeaksPosts, "matched_full", "room for"),
    (Break::NeverArmed, "wake", "nobody woke"),
    (Break::AlwaysReadable, "wake_quiet", "sleep once"),
    (Break::NeverArmed, "wake_by_match", "nobody woke"),
    (Break::NeverArmed, "wake_by_leaving", "nobody woke"),
    (Break::NeverArmed, "wake_by_death", "nobody woke"),
    (Break::NeverCompletes, "wake_by_completion", "pending"),
    (Break::AnyAddress, "garbage_addresses", "no address"),
    (Break::PanicsOnAddress, "garbage_addresses", "panicked"),
    (Break::LosesEarly, "early_message", "was next"),
    (Break::KnowsEverybody, "never_added", "to rank 2"),
    (
        Break::SendsAfterClose,
        "use_after_close",
        "send after close",
    ),
    (Break::ClosesNothing, "use_after_close", "send after close"),
    (Break::LeftIsDied, "left", "closed in order: Died"),
    (
        Break::MessageAfterFailure,
        "left",
        "a message from rank 2 after its failure",
    ),
    (
        Break::LeftIsDied,
        "drop_closes",
        "dropped its transport: Died",
    ),
    (
        Break::FlushLies,
        "flush_exit",
        "of 60 flushed messages came",
    ),
    (Break::NeverFails, "close_while_peers_send", "in vain"),
    (Break::DiedIsLeft, "death_idle", "a killed rank: Left"),
    (
        Break::FailsTwice,
        "death_idle",
        "a failure from rank 2 after",
    ),
    (Break::NeverFails, "death_before_first_message", "in vain"),
    (
        Break::AllFail,
        "death_idle",
        "after its failure was reported",
    ),
    (Break::SendsToDead, "death_idle", "Ok(())"),
    (Break::Duplicates, "death_mid_send", "was next"),
    (Break::NeverFails, "death_mid_receive", "in vain"),
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
    (Break::LeftIsDied, "left_mid_get", "closed in order: Died"),
    (Break::NeverFails, "death_of_poster", "in vain"),
    (Break::ForgetsReceived, "death_of_matched_sender", "in vain"),
    (
        Break::AllFail,
        "death_of_many",
        "after its failure was reported",
    ),
    (Break::DropsNothing, "drop_peer", "in vain"),
    (
        Break::NeverQuiet,
        "drop_peer_that_is_not_there",
        "was never added",
    ),
    (Break::DropsNothing, "drop_peer_mid_get", "in vain"),
    (
        Break::DropsNothing,
        "drop_peer_mid_put",
        "written by a peer",
    ),
    (Break::DropsNothing, "drop_peer_mid_matched", "in vain"),
];

/// The fault, the case, what it must say.
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
        // What fails by never coming to its end takes all of it; any other fails early.
        let endless = self.2.contains("in vain")
            || ["pending", "a posted receive is filled"].contains(&self.2);
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

/// Report of the suite that differs from the expected one.
fn unnoticed((fault, case, says): &(Break, &'static str, &'static str)) -> Option<String> {
    let report = threads(&Broken(*fault, case, says));
    let noticed = matches!(&report.lines[..], [(_, Outcome::Failed(why))] if why.contains(says));
    (!noticed).then(|| format!("{fault:?} by {case}: {:?}", report.lines))
}

/// Most mutants wait for what never comes, so all run beside each other.
#[test]
fn mutants_are_noticed() {
    let missed: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = TABLE
            .iter()
            .map(|line| scope.spawn(|| unnoticed(line)))
            .collect();
        running
            .into_iter()
            .filter_map(|thread| thread.join().expect("the suite never panics"))
            .collect()
    });
    assert!(missed.is_empty(), "not noticed:\n{}", missed.join("\n"));
}

/// The wrapper alone breaks nothing: what the table shows comes from the faults.
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

/// Each case is failed by a mutant, and the table names no case that does not exist.
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

/// A run in which nothing ran is no success.
#[test]
fn nothing_at_all_is_a_failure() {
    assert!(
        threads(&Broken(Break::Nothing, "no such case", ""))
            .verdict()
            .is_err()
    );
}
