//! The client: describes a test to the server and runs it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use esp_client::{Client, EspAddr, EspStream};

use super::control::{AT_ONCE, Begin, Hello, Reply, Results, receive, send};
use super::flags::Flags;
use super::report::{Report, Side};
use super::streams::measure;
use crate::out::{Failure, Verdict};
use crate::signal::Interrupt;

/// Runs one test.
pub(super) fn run(flags: &Flags, node: &str, interrupt: &Interrupt) -> Result<Verdict, Failure> {
    let plan = flags.plan()?;
    let (client, addr) = flags.way.reach(node, flags.port)?;
    let control = open(&client, &addr)?;
    let cookie = cookie();
    let hello = Hello::Test {
        cookie: cookie.clone(),
        plan,
    };
    send(&control, &hello)?;
    match receive(&control, AT_ONCE)? {
        Reply::Ready => {}
        Reply::Refused(why) => return Err(Failure::Broken(format!("the server refuses: {why}"))),
    }
    let mut streams = Vec::new();
    for index in 0..plan.streams {
        let stream = open(&client, &addr)?;
        let cookie = cookie.clone();
        send(&stream, &Hello::Data { cookie, index })?;
        streams.push(Arc::new(stream));
    }
    let Begin = receive(&control, AT_ONCE)?;
    let side = Side {
        plan,
        sends: !plan.reverse,
        interval: flags.interval,
        json: flags.json,
    };
    let mut report = Report::start(side, Some((node, flags.port)), &cookie, &streams)?;
    let pace = (flags.interval, interrupt);
    let own = measure(&plan, side.sends, &client, &streams, pace, |interval| {
        report.interval(interval)
    })?;
    if interrupt.is_set() {
        report.end(&own, None)?;
        return Ok(Verdict::Partly);
    }
    send(&control, &own)?;
    let theirs: Results = receive(&control, AT_ONCE)?;
    report.end(&own, Some(&theirs))?;
    Ok(Verdict::Done)
}

fn open(client: &Client, addr: &EspAddr) -> Result<EspStream, Failure> {
    let builder = EspStream::builder();
    builder
        .connect_at(client, addr.clone())
        .map_err(Failure::broken)
}

/// Returns a text that no other test of the server has at this time.
fn cookie() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |time| time.as_nanos());
    format!("{nanos:x}-{:x}", std::process::id())
}
