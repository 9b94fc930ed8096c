//! The conformance suite over the loopback transport, ranks as threads.

use std::sync::Arc;

use btl_conformance::loopback::{self, Limits};
use btl_conformance::suite::{Harness, Job, Options, threads};

struct Loopback(&'static str, Limits);

impl Harness for Loopback {
    fn name(&self) -> String {
        self.0.into()
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        let ranks = loopback::job(size, self.1);
        let killer = ranks[0].killer();
        let mut job = Job::new(ranks);
        job.kill = Some(Arc::new(move |rank| killer.kill(rank)));
        Ok(job)
    }

    fn options(&self) -> Options {
        // The long case runs once; the other transports run it shorter.
        let messages = if self.0 == "loopback" {
            100_000
        } else {
            20_000
        };
        Options {
            messages,
            ..Options::default()
        }
    }
}

#[test]
fn with_room() {
    threads(&Loopback(
        "loopback",
        Limits {
            held_from: Some(1000),
            ..Limits::default()
        },
    ))
    .verdict()
    .unwrap();
}

#[test]
fn tight() {
    threads(&Loopback(
        "loopback, tight",
        Limits {
            held_from: Some(100),
            ..Limits::tight()
        },
    ))
    .verdict()
    .unwrap();
}

#[test]
fn at_once() {
    threads(&Loopback(
        "loopback, one-sided at once",
        Limits {
            pending: false,
            held_from: Some(0),
            ..Limits::default()
        },
    ))
    .verdict()
    .unwrap();
}

#[test]
fn messages_only() {
    threads(&Loopback(
        "loopback, messages only",
        Limits::default().plain(),
    ))
    .verdict()
    .unwrap();
}
