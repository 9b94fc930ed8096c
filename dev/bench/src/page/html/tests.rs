use super::*;
use crate::results::tests::latency;

static ABOUT: About = About {
    millis: [1000, 1000],
    name: "pingpong",
    title: "how fast <it> is",
    limits: "This & that.",
};

fn figures() -> Vec<Figure> {
    let sizes = [(1, 4.0), (4096, 20.0)];
    let lines = sizes.into_iter().flat_map(|(size, time)| {
        ["tcp", "lease"].map(|contender| Figure {
            size: Some(size),
            ..latency(contender, &[time, 1.5 * time])
        })
    });
    let rate = Figure {
        bench: "a <b> & \"c\"".into(),
        what: "<script>alert(1)</script>".into(),
        contender: "</svg></table>".into(),
        machine: "'x' href=http:".into(),
        unit: Unit::GbitS,
        p99: None,
        ..latency("tcp", &[9.0, 10.0])
    };
    lines.chain([rate]).collect()
}

fn html(figures: &[Figure]) -> String {
    let facts = [("kernel", "Linux <6>".to_owned())];
    page(&facts, &[&ABOUT], figures, "2026-01-31").expect("a page")
}

/// Returns the tags of a page, and asserts that each is closed in its order.
fn checked_tags(page: &str) -> Vec<String> {
    let rest = page.strip_prefix("<!DOCTYPE html>").expect("the type");
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for part in rest.split('<').skip(1) {
        let (tag, after) = part.split_once('>').expect("a tag ends");
        assert!(
            !after.contains('>') || open.last() == Some(&"style"),
            "{part}"
        );
        let name = tag.split([' ', '/']).find(|word| !word.is_empty());
        let name = name.expect("a name");
        all.push(name.to_owned());
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag} closes another tag");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert_eq!(open, [""; 0], "tags stay open");
    all
}

#[test]
fn the_page_is_well_formed_whatever_its_figures_say() {
    let page = html(&figures());
    let tags = checked_tags(&page);
    let count = |name: &str| tags.iter().filter(|tag| *tag == name).count();
    // Opening and closing tags: lines of latencies, bars of the rate.
    assert_eq!((count("svg"), count("section"), count("html")), (4, 4, 2));
    // Each chart with the names of its series: two of the latencies, one of the rate.
    assert_eq!((count("figcaption"), count("i")), (4, 6));
    assert_eq!(count("script"), 0);
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    checked_tags(&html(&[]));
}

#[test]
fn the_page_has_both_themes_and_needs_nothing_else() {
    let page = html(&figures()[..4]);
    assert!(
        page.contains("@media (prefers-color-scheme: dark)"),
        "{page}"
    );
    for name in ["--paper:", "--ink:", "--faint:"] {
        assert_eq!(page.matches(name).count(), 2, "{name} once for each theme");
    }
    for outside in [
        "http", "//", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!page.contains(outside), "{outside} in {page}");
    }
    // The themes replace exactly the colours that the charts use.
    for drawn in ["fill=\"#FFFFFF\"", "fill=\"#000000\"", "stroke=\"#000000\""] {
        assert!(page.contains(drawn), "{drawn}");
    }
}

#[test]
fn figures_without_sense_are_drawn_or_left_out() {
    let odd = |size, p50, rounds: &[f64]| Figure {
        size,
        p50,
        p99: None,
        ..latency("tcp", rounds)
    };
    let all = [
        odd(Some(0), 1.0, &[]),
        odd(Some(u64::MAX), 1e15, &[0.0, 1e15]),
        odd(None, 0.0, &[0.0]),
        odd(Some(1), 1e-12, &[1e-12]),
    ];
    for some in [&all[..], &all[..1], &all[..2], &all[1..], &all[2..]] {
        checked_tags(&html(some));
    }
    let crowd = (0..100).flat_map(|n| {
        [1, 2].map(|size| Figure {
            what: format!("quantity {n}"),
            ..odd(Some(size), 1.0, &[1.0])
        })
    });
    let page = html(&crowd.collect::<Vec<_>>());
    assert_eq!(page.matches("<svg").count(), MAX_CHARTS);
    assert!(page.contains("quantity 99"), "it is in the table");
}

#[test]
fn quantities_over_size_are_lines_with_bands() {
    let figures = figures();
    let charts = charts(&figures[..4].iter().collect::<Vec<_>>());
    let [Chart { plot, .. }] = charts.as_slice() else {
        panic!("{charts:?}");
    };
    let Plot::Lines { series, log: true } = plot else {
        panic!("{plot:?}");
    };
    assert_eq!(series.len(), 2);
    assert!(
        series.iter().any(|(name, _)| name == "TCP (any user)"),
        "{series:?}"
    );
    let point = series[0].1[0];
    assert_eq!((point.size, point.value), (1.0, 5.0));
    assert_eq!(point.band, Some((5.0, 10.0)));
}
