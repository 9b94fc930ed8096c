//! The server: runs tests one after the other.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esp_client::{Client, EspListener, EspStream};

use super::control::{AT_ONCE, Begin, End, Hello, Reply, Results, receive, send};
use super::datagrams::Flows;
use super::flags::{Flags, Plan};
use super::measure::measure;
use super::report::{Report, Side, addresses};
use super::streams;
use crate::out::{self, Context, Failure, Verdict};
use crate::signal::Interrupt;

/// Interval between checks for signals.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait for the first line of a stream. A silent stream delays the others by this time.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// Serves tests until a signal arrives, or a single test.
pub(super) fn run(flags: &Flags, interrupt: &Interrupt) -> Result<Verdict, Failure> {
    let client = flags.carrier.serve()?;
    let mut builder = EspListener::builder();
    if let Some(interface) = &flags.carrier.interface {
        builder = builder.interface(interface);
    }
    let listener = builder.bind_at(&client, flags.port);
    let listener = listener.doing(format_args!("listening on port {}", flags.port))?;
    if !flags.json {
        out::line(format_args!("Server listening on port {}", flags.port))?;
    }
    while !interrupt.is_set() {
        let Some(control) = accept(&listener)? else {
            continue;
        };
        let control = Arc::new(control);
        let ended = match receive(&control, FIRST_LINE) {
            Ok(Hello::Test {
                cookie,
                plan,
                ports,
            }) => match plan.check() {
                Ok(()) => serve(
                    flags,
                    &plan,
                    (&cookie, ports),
                    (&client, &listener),
                    &control,
                    interrupt,
                ),
                Err(why) => send(&control, &Reply::Refused(why)),
            },
            // A stream of a test that was broken off.
            Ok(Hello::Data { .. }) => continue,
            Err(error) => Err(error),
        };
        match ended {
            Err(error @ Failure::Output(_)) => return Err(error),
            Err(error) if flags.one_off => return Err(error),
            Err(error) => out::note(format_args!("esperf: {error}")),
            Ok(()) => {}
        }
        if flags.one_off {
            break;
        }
    }
    Ok(Verdict::Done)
}

/// Returns a connection; `None` after [`POLL_INTERVAL`] without one.
fn accept(listener: &EspListener) -> Result<Option<EspStream>, Failure> {
    match listener.accept_timeout(POLL_INTERVAL) {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error).doing("accepting"),
    }
}

/// Serves one test.
fn serve(
    flags: &Flags,
    plan: &Plan,
    (cookie, ports): (&str, Vec<u16>),
    (client, listener): (&Client, &EspListener),
    control: &Arc<EspStream>,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut flows = None;
    let mut streams = Vec::new();
    if plan.datagrams.is_some() {
        match prepare(client, plan, ports, control)? {
            Ok(prepared) => flows = Some(prepared),
            Err(why) => return send(control, &Reply::Refused(why)),
        }
    } else {
        send(control, &Reply::Ready)?;
        streams = gather(listener, plan.streams, cookie)?;
    }
    let side = Side {
        plan: *plan,
        sends: plan.reverse,
        interval: flags.interval,
        json: flags.json,
    };
    let (work, connected) = match &flows {
        Some(flows) => (flows.work(plan, side.sends, control)?, flows.addresses()),
        None => (
            streams::work(plan, side.sends, client, &streams),
            addresses(&streams),
        ),
    };
    send(control, &Begin)?;
    let mut report = Report::start(side, None, cookie, &connected)?;
    let pace = (flags.interval, interrupt);
    let own = measure(plan, side.sends, work, pace, |interval| {
        report.interval(interval)
    })?;
    if interrupt.is_set() {
        return report.end(&own, None);
    }
    if flows.is_some() && side.sends {
        send(control, &End)?;
    }
    let theirs: Results = receive(control, AT_ONCE)?;
    send(control, &own)?;
    control.finish(AT_ONCE).map_err(Failure::broken)?;
    report.end(&own, Some(&theirs))
}

/// Binds the sockets of a test of datagrams, and sends their ports; or returns the reason why that
/// is impossible.
fn prepare(
    client: &Client,
    plan: &Plan,
    ports: Vec<u16>,
    control: &EspStream,
) -> Result<Result<Flows, String>, Failure> {
    let interface = control.local_addr().interface.unwrap_or_default();
    let peer = control.peer_addr().addr;
    let mut flows = match Flows::bind(client, &interface, plan.streams, peer) {
        Ok(flows) => flows,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let longest = flows.max_payload();
    if plan.length > longest as u64 {
        return Ok(Err(format!(
            "invalid length {} for -l: a datagram has at most {longest} bytes on {interface} there",
            plan.length
        )));
    }
    flows.connect(ports)?;
    send(control, &Reply::Ports(flows.ports()))?;
    Ok(Ok(flows))
}

/// Accepts the streams of a test, in the order of their numbers.
fn gather(
    listener: &EspListener,
    count: u16,
    cookie: &str,
) -> Result<Vec<Arc<EspStream>>, Failure> {
    let deadline = Instant::now() + AT_ONCE;
    let mut found: Vec<Option<Arc<EspStream>>> = (0..count).map(|_| None).collect();
    while found.iter().any(Option::is_none) {
        if Instant::now() >= deadline {
            return Err(Failure::Broken(
                "the client did not open its streams".into(),
            ));
        }
        let Some(stream) = accept(listener)? else {
            continue;
        };
        if let Ok(Hello::Data { cookie: of, index }) = receive(&stream, FIRST_LINE)
            && of == cookie
            && let Some(place) = found.get_mut(usize::from(index))
        {
            *place = Some(Arc::new(stream));
        }
    }
    Ok(found.into_iter().flatten().collect())
}
