//! The client: describes a test to the server and runs it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use esp_client::{Client, EspAddr, EspStream};

use super::control::{AT_ONCE, Begin, End, Hello, Reply, Results, receive, refused, send};
use super::datagrams::Flows;
use super::flags::Flags;
use super::measure::measure;
use super::report::{Report, Side, addresses};
use super::streams;
use crate::out::{Failure, Verdict};
use crate::signal::Interrupt;

/// Runs one test.
pub(super) fn run(flags: &Flags, node: &str, interrupt: &Interrupt) -> Result<Verdict, Failure> {
    // Detects wrong values before another node is contacted.
    flags.plan(None)?;
    let (client, addr) = flags.carrier.reach(node, flags.port)?;
    let control = Arc::new(open(&client, &addr)?);
    let mut flows = if flags.datagrams {
        let interface = control.local_addr().interface.unwrap_or_default();
        let peer = control.peer_addr().addr;
        Some(Flows::bind(&client, &interface, flags.parallel, peer)?)
    } else {
        None
    };
    let plan = flags.plan(flows.as_ref().map(Flows::max_payload))?;
    let cookie = cookie();
    let hello = Hello::Test {
        cookie: cookie.clone(),
        plan,
        ports: flows.as_ref().map(Flows::ports).unwrap_or_default(),
    };
    send(&control, &hello)?;
    let streams = match agree(&control, &mut flows)? {
        Kind::Datagrams => Vec::new(),
        Kind::Streams => open_all(&client, &addr, plan.streams, &cookie)?,
    };
    let Begin = receive(&control, AT_ONCE)?;
    let side = Side {
        plan,
        sends: !plan.reverse,
        interval: flags.interval,
        json: flags.json,
    };
    let (work, connected) = match &flows {
        Some(flows) => (flows.work(&plan, side.sends, &control)?, flows.addresses()),
        None => (
            streams::work(&plan, side.sends, &client, &streams),
            addresses(&streams),
        ),
    };
    let mut report = Report::start(side, Some((node, flags.port)), &cookie, &connected)?;
    let pace = (flags.interval, interrupt);
    let own = measure(&plan, side.sends, work, pace, |interval| {
        report.interval(interval)
    })?;
    if interrupt.is_set() {
        report.end(&own, None)?;
        return Ok(Verdict::Partly);
    }
    if flows.is_some() && side.sends {
        send(&control, &End)?;
    }
    send(&control, &own)?;
    let theirs: Results = receive(&control, AT_ONCE)?;
    report.end(&own, Some(&theirs))?;
    Ok(Verdict::Done)
}

/// Kind of a test.
enum Kind {
    Streams,
    Datagrams,
}

/// Receives the server's answer, with its ports of datagrams.
fn agree(control: &EspStream, flows: &mut Option<Flows>) -> Result<Kind, Failure> {
    match (receive(control, AT_ONCE)?, flows) {
        (Reply::Ready, None) => Ok(Kind::Streams),
        (Reply::Ports(ports), Some(flows)) => {
            flows.connect(ports)?;
            Ok(Kind::Datagrams)
        }
        (Reply::Refused(why), _) => Err(refused(&why)),
        _ => Err(Failure::broken(
            "the server is not an esperf of this version: it answers another kind of test",
        )),
    }
}

/// Opens the streams of a test.
fn open_all(
    client: &Client,
    addr: &EspAddr,
    count: u16,
    cookie: &str,
) -> Result<Vec<Arc<EspStream>>, Failure> {
    let open_one = |index| {
        let stream = open(client, addr)?;
        let cookie = cookie.to_owned();
        send(&stream, &Hello::Data { cookie, index })?;
        Ok(Arc::new(stream))
    };
    (0..count).map(open_one).collect()
}

fn open(client: &Client, addr: &EspAddr) -> Result<EspStream, Failure> {
    let builder = EspStream::builder();
    builder
        .connect_at(client, addr.clone())
        .map_err(Failure::broken)
}

/// Returns a text that no other concurrent test of the server uses.
fn cookie() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |time| time.as_nanos());
    format!("{nanos:x}-{:x}", std::process::id())
}
