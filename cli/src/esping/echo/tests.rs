use super::super::wire::fake::{self, Fake};
use super::*;
use crate::esping::report::Style;
use crate::names::Names;
use esp_client::{MacAddr, NodeAddr};

const PEER: NodeAddr = NodeAddr::Mac(MacAddr([2, 0, 0, 0, 0, 9]));

fn target() -> Target {
    Target {
        text: "peer".into(),
        addr: PEER,
        interface: None,
    }
}

fn every(millis: u64) -> Pace {
    Pace {
        interval: Duration::from_millis(millis),
        after_answer: None,
    }
}

fn echo(count: u64) -> Echo {
    Echo {
        count: Some(count),
        pace: every(10),
        size: 20,
        deadline: None,
        wait: Duration::from_millis(100),
        outstanding: false,
        verbose: false,
    }
}

fn ping(wire: &mut Fake, echo: &Echo) -> Result<(Verdict, Vec<String>), Failure> {
    ping_all(wire, &[(target(), 0)], echo, Style::default())
}

fn ping_all(
    wire: &mut Fake,
    routes: &[Route],
    echo: &Echo,
    style: Style,
) -> Result<(Verdict, Vec<String>), Failure> {
    let mut report = Report::new(style, Names::default());
    report.lines = Some(Vec::new());
    let wires = std::slice::from_mut(wire);
    let verdict = run(wires, routes, echo, &Interrupt::default(), &mut report)?;
    Ok((verdict, report.lines.unwrap_or_default()))
}

#[test]
fn all_answered() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, _, body| {
        vec![(50, fake::echo(PEER, body.unwrap_or_default()))]
    });
    let (verdict, lines) = ping(&mut wire, &echo(3))?;
    assert_eq!(verdict, Verdict::Done);
    assert_eq!(
        lines[0],
        "ESPING peer (02:00:00:00:00:09) via fake0: 20 bytes of data"
    );
    assert_eq!(
        lines[1],
        "20 bytes from peer (02:00:00:00:00:09): seq=1 time=50.0 µs"
    );
    assert_eq!(
        lines[lines.len() - 2],
        "3 packets transmitted, 3 received, 0% packet loss, time 20 ms"
    );
    assert_eq!(
        lines[lines.len() - 1],
        "rtt min/avg/max/mdev = 50.0/50.0/50.0/0.0 µs"
    );
    Ok(())
}

#[test]
fn losses_duplicates_other_senders_and_corruption_are_counted() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, number, body| {
        let good = fake::echo(PEER, body.unwrap_or_default());
        match number {
            1 => vec![],
            2 => vec![(10, good.clone()), (20, good)],
            3 => vec![(
                10,
                fake::echo(PEER, &[&body.unwrap_or_default()[..19], b"x"].concat()),
            )],
            4 => vec![
                (5, fake::echo(MacAddr([2; 6]).into(), b"")),
                (6, fake::echo(PEER, &[77; 20])),
                (90_000, good),
            ],
            _ => vec![(200_000, good)],
        }
    });
    let (verdict, lines) = ping(&mut wire, &echo(5))?;
    assert_eq!(verdict, Verdict::Partly);
    let text = lines.join("\n");
    assert!(text.contains("seq=2 time=20.0 µs (DUP!)"), "{text}");
    assert!(
        text.contains("seq=3 time=10.0 µs (CORRUPT: the bytes differ"),
        "{text}"
    );
    assert!(
        text.contains(
            "5 packets transmitted, 3 received, +1 duplicates, +1 corrupt, 40% packet loss"
        ),
        "{text}"
    );
    Ok(())
}

#[test]
fn answers_are_distinguished_beyond_any_sequence() -> Result<(), Failure> {
    for size in [0, 1, 20] {
        let mut wire = Fake::new(100, |_, _, body| {
            vec![(3, fake::echo(PEER, body.unwrap_or_default()))]
        });
        let (verdict, lines) = ping(
            &mut wire,
            &Echo {
                pace: Pace {
                    interval: Duration::from_millis(100),
                    after_answer: Some(Duration::ZERO),
                },
                size,
                ..echo(140_000)
            },
        )?;
        assert_eq!(verdict, Verdict::Done);
        let summary = &lines[lines.len() - 2];
        assert!(
            summary.starts_with("140000 packets transmitted, 140000 received, 0% packet loss"),
            "{size}: {summary}"
        );
    }
    Ok(())
}

#[test]
fn the_deadline_ends_the_run() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, _, _| vec![]);
    let (verdict, lines) = ping(
        &mut wire,
        &Echo {
            count: None,
            deadline: Some(Duration::from_millis(95)),
            ..echo(0)
        },
    )?;
    assert_eq!((verdict, wire.sent), (Verdict::Partly, 10));
    assert_eq!(
        lines[lines.len() - 3],
        "10 packets transmitted, 0 received, 100% packet loss, time 95 ms"
    );
    Ok(())
}

#[test]
fn a_size_that_does_not_fit_is_refused() {
    let mut wire = Fake::new(10, |_, _, _| vec![]);
    let text = ping(&mut wire, &echo(1))
        .map_err(|e| e.to_string())
        .expect_err("20 bytes do not fit into 10");
    assert!(text.contains("at most 10"), "{text}");
}

#[test]
fn several_targets_are_asked_in_turn_and_have_a_summary_each() -> Result<(), Failure> {
    let other = Target {
        text: "other".into(),
        addr: MacAddr([2, 0, 0, 0, 0, 8]).into(),
        interface: None,
    };
    // The other target answers only its first two requests.
    let mut wire = Fake::new(100, |dst, number, body| {
        let is_lost = dst != PEER && number > 2;
        let answer = (50, fake::echo(dst, body.unwrap_or_default()));
        if is_lost { vec![] } else { vec![answer] }
    });
    let routes = [(target(), 0), (other, 0)];
    let (verdict, lines) = ping_all(&mut wire, &routes, &echo(2), Style::default())?;
    assert_eq!((verdict, wire.sent), (Verdict::Partly, 4));
    let names: Vec<_> = lines[2..5]
        .iter()
        .filter_map(|line| line.split_whitespace().nth(3))
        .collect();
    assert_eq!(names, ["peer", "other", "peer"]);
    let summaries: Vec<_> = lines.iter().filter(|l| l.contains("transmitted")).collect();
    assert!(summaries[0].starts_with("2 packets transmitted, 2 received, 0%"));
    assert!(summaries[1].starts_with("2 packets transmitted, 1 received, 50%"));
    Ok(())
}

#[test]
fn outstanding_requests_are_reported_before_the_next() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, number, body| match number {
        1 => vec![],
        _ => vec![(50, fake::echo(PEER, body.unwrap_or_default()))],
    });
    let echo = Echo {
        outstanding: true,
        ..echo(3)
    };
    let (_, lines) = ping(&mut wire, &echo)?;
    assert_eq!(
        lines[1],
        "no answer yet from peer (02:00:00:00:00:09): seq=1"
    );
    assert!(lines[2].contains("seq=2 time="), "{lines:?}");
    let reports = lines.iter().filter(|line| line.contains("no answer yet"));
    assert_eq!(reports.count(), 1);
    Ok(())
}

#[test]
fn adaptive_requests_follow_the_answers() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, number, body| match number {
        5 => vec![],
        _ => vec![(50, fake::echo(PEER, body.unwrap_or_default()))],
    });
    let pace = Pace {
        interval: Duration::from_millis(20),
        after_answer: Some(Duration::from_millis(2)),
    };
    ping(&mut wire, &Echo { pace, ..echo(10) })?;
    // Eight pauses of 2 ms, and one of 20 ms after the lost request, whose answer is awaited at the
    // end; then 20 ms for other nodes with the address.
    let survey = 20_000_000;
    assert_eq!(wire.now, 8 * 2_000_000 + 20_000_000 + 100_000_000 + survey);
    Ok(())
}

#[test]
fn answers_to_no_request_are_shown_when_asked_for() -> Result<(), Failure> {
    let stranger = || {
        Fake::new(100, |_, _, body| {
            vec![
                (5, fake::echo(MacAddr([2; 6]).into(), b"abc")),
                (6, fake::echo(PEER, body.unwrap_or_default())),
            ]
        })
    };
    for verbose in [true, false] {
        let echo = Echo { verbose, ..echo(1) };
        let (verdict, lines) = ping(&mut stranger(), &echo)?;
        let ignored = "3 bytes from 02:02:02:02:02:02: answers no request of this run";
        assert_eq!(
            lines.iter().any(|line| line == ignored),
            verbose,
            "{lines:?}"
        );
        assert_eq!(verdict, Verdict::Done);
    }
    Ok(())
}

#[test]
fn a_flood_draws_a_dot_for_each_request_and_removes_it() -> Result<(), Failure> {
    let mut wire = Fake::new(100, |_, number, body| match number {
        2 => vec![],
        _ => vec![(50, fake::echo(PEER, body.unwrap_or_default()))],
    });
    let style = Style {
        flood: true,
        ..Style::default()
    };
    let (_, lines) = ping_all(&mut wire, &[(target(), 0)], &echo(3), style)?;
    assert_eq!(lines[1..6].concat(), ".\u{8} \u{8}..\u{8} \u{8}");
    assert!(
        lines.iter().all(|line| !line.contains("time=")),
        "{lines:?}"
    );
    Ok(())
}

#[test]
fn lines_begin_with_the_time_when_asked_for() -> Result<(), Failure> {
    for json in [false, true] {
        let mut wire = Fake::new(100, |_, _, body| {
            vec![(50, fake::echo(PEER, body.unwrap_or_default()))]
        });
        let style = Style {
            json,
            timestamps: true,
            ..Style::default()
        };
        let (_, lines) = ping_all(&mut wire, &[(target(), 0)], &echo(1), style)?;
        let reply = lines
            .iter()
            .find(|line| line.contains("seq"))
            .expect("a reply");
        let time = match reply.strip_prefix('[') {
            Some(rest) => rest.split(']').next().and_then(|time| time.parse().ok()),
            None => serde_json::from_str::<serde_json::Value>(reply)
                .ok()
                .and_then(|line| line["time"].as_f64()),
        };
        // This year is later than 2020.
        assert!(time.is_some_and(|time| time > 1.577e9), "{reply}");
    }
    Ok(())
}

#[test]
fn a_filter_of_one_ethertype_is_reported() -> Result<(), Failure> {
    let answering = || {
        Fake::new(100, |_, _, body| {
            vec![(50, fake::echo(PEER, body.unwrap_or_default()))]
        })
    };
    let silent = || Fake::new(100, |_, _, _| Vec::new());
    for (mut wire, streams, last, wanted) in [
        (answering(), Some(true), "rtt min", Verdict::Done),
        (answering(), None, "rtt min", Verdict::Done),
        (answering(), Some(false), "0x88b5", Verdict::Partly),
        (silent(), Some(true), "0x88b6", Verdict::Partly),
        (
            silent(),
            Some(false),
            "esp doctor --peer peer",
            Verdict::Partly,
        ),
    ] {
        wire.streams = streams;
        let (verdict, lines) = ping(&mut wire, &echo(2))?;
        assert_eq!(verdict, wanted, "{lines:?}");
        assert!(
            lines.last().is_some_and(|line| line.contains(last)),
            "{lines:?}"
        );
    }
    Ok(())
}
