//! The suite over `examples/minimal_transport.rs`.

#[allow(unreachable_pub)] // The file is also an example.
#[path = "../examples/minimal_transport.rs"]
mod minimal_transport;

use btl_conformance::suite::{Harness, Job, Options, Outcome, threads};

struct Minimal;

impl Harness for Minimal {
    fn name(&self) -> String {
        "minimal".into()
    }

    fn job(&self, size: u32) -> Result<Job, String> {
        Ok(Job::new(minimal_transport::job(size)))
    }

    fn options(&self) -> Options {
        Options {
            messages: 20_000,
            rounds: 500,
            ..Options::default()
        }
    }
}

#[test]
fn the_minimal_transport_conforms() {
    let report = threads(&Minimal);
    report.verdict().unwrap();
    let passed = |line: &&(_, Outcome)| line.1 == Outcome::Passed;
    assert!(
        report.lines.iter().filter(passed).count() >= 16,
        "{:?}",
        report.lines
    );
}
