//! Sections of the benchmarks: tables and charts from the rows.

use super::{Chart, Plot, Point, Section, machine};
use crate::plan::PROTOCOLS;
use crate::table::Style;
use crate::task::Wait;
use crate::{engines, incast, intra, plan, programs, rails, report, results};

/// Lines of a chart: legend and points.
type Lines = Vec<(String, Vec<Point>)>;

/// Collects the points of all rows, one line per name, in the order of first appearance.
fn lines<'a, R: 'a>(
    rows: impl IntoIterator<Item = &'a R>,
    name: impl Fn(&R) -> String,
    point: impl Fn(&R) -> Option<Point>,
) -> Lines {
    let mut lines = Lines::new();
    for row in rows {
        let Some(point) = point(row) else { continue };
        let name = name(row);
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => lines.push((name, vec![point])),
        }
    }
    lines
}

/// Returns the legend of a protocol: its name and the privilege it needs.
pub(super) fn label(path: &str) -> String {
    let known = PROTOCOLS.iter().find(|protocol| protocol.name() == path);
    known.map_or(path, |protocol| protocol.label()).to_owned()
}

/// Returns the point of a time, with a band up to the 99th percentile.
fn time(size: Option<usize>, p50: Option<f64>, p99: Option<f64>) -> Option<Point> {
    let p50 = p50?;
    Some(Point {
        size: size.unwrap_or(0) as f64,
        value: p50,
        band: p99.map(|p99| (p50, p99)),
    })
}

/// Returns the point of a rate in this unit, with a band from the slowest to the fastest round.
fn rate(size: Option<usize>, gbit_s: Option<f64>, rounds: &[f64], unit: f64) -> Option<Point> {
    let slowest = rounds.iter().copied().reduce(f64::min);
    let fastest = rounds.iter().copied().reduce(f64::max);
    Some(Point {
        size: size.unwrap_or(0) as f64,
        value: gbit_s? / unit,
        band: slowest.zip(fastest).map(|(a, b)| (a / unit, b / unit)),
    })
}

/// Vertical axis of times.
const TIME: &str = "µs: p50, band to p99";

/// Returns the values in the order they first appear.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

impl Section {
    /// Returns the section of a benchmark between two nodes.
    pub fn between_nodes(bench: &plan::Bench, rows: &[report::Row]) -> Section {
        let charts = match bench.about.name {
            "pingpong" => latencies(rows),
            "stream" => bandwidths(rows),
            name @ ("send" | "send-idle") => vec![send_calls(name, rows)],
            "loss" => vec![losses(rows)],
            _ => Vec::new(),
        };
        Section {
            about: bench.about,
            content: Ok((bench.rounds, report::table(rows, Style::Markdown))),
            charts,
            figures: results::between_nodes(rows, &machine::summary()),
        }
    }

    /// Returns the section of [`incast`].
    pub fn incast(bench: &incast::Bench, rows: &[incast::Row]) -> Section {
        let series: Vec<String> = rows.iter().map(|r| label(r.path)).collect();
        let bars = |name: &str, title: &str, unit, groups: &[(&str, Value<incast::Row>)]| Chart {
            name: name.into(),
            title: format!("{title}, MTU 1500"),
            unit,
            plot: Plot::Bars {
                series: series.clone(),
                groups: groups
                    .iter()
                    .map(|(group, value)| {
                        let values = rows.iter().map(|r| value(r).unwrap_or(f64::NAN));
                        ((*group).to_owned(), values.collect())
                    })
                    .collect(),
            },
        };
        Section {
            about: &incast::ABOUT,
            content: Ok((bench.rounds, incast::table(rows, Style::Markdown))),
            figures: results::incast(rows, &machine::summary()),
            charts: vec![
                bars(
                    "incast-share",
                    "incast: use of the link and fairness",
                    "1 is the best",
                    &[
                        ("payload / link rate", |r| r.of_link),
                        ("Jain's index", |r| r.jain),
                    ],
                ),
                bars(
                    "incast-stall",
                    "incast: longest time without data for some flow",
                    "ms",
                    &[
                        ("median of the rounds", |r| r.stall_ms),
                        ("worst round", |r| r.worst_stall_ms),
                    ],
                ),
            ],
        }
    }

    /// Returns the section of [`rails`].
    pub fn rails(bench: &rails::Bench, rows: &[rails::Row]) -> Section {
        Section {
            about: &rails::ABOUT,
            content: Ok((bench.rounds, rails::table(rows, Style::Markdown))),
            charts: Vec::new(),
            figures: results::rails(rows, &machine::summary()),
        }
    }

    /// Returns the section of [`programs`].
    pub fn programs(bench: &programs::Bench, rows: &[programs::Row]) -> Section {
        Section {
            about: &programs::ABOUT,
            content: Ok((bench.rounds, programs::table(rows, Style::Markdown))),
            charts: Vec::new(),
            figures: results::programs(rows, &machine::summary()),
        }
    }

    /// Returns the section of [`engines`].
    pub fn engines(bench: &engines::Bench, rows: &[engines::Row]) -> Section {
        Section {
            about: &engines::ABOUT,
            content: Ok((bench.rounds, engines::table(rows, Style::Markdown))),
            charts: Vec::new(),
            figures: results::engines(rows, &machine::summary()),
        }
    }

    /// Returns the section of a benchmark within one node.
    pub fn within_node(bench: &intra::plan::Bench, rows: &[intra::report::Row]) -> Section {
        let mut charts = Vec::new();
        if bench.about.name == "shm" {
            let latency = rows.iter().filter(|r| r.what == "latency");
            charts.push(Chart {
                name: "shm-latency".into(),
                title: "within a node: one-way latency over size".into(),
                unit: TIME,
                plot: Plot::Lines {
                    log: true,
                    series: lines(
                        latency,
                        |r| r.path.into(),
                        |r| time(r.size, r.p50_us, r.p99_us),
                    ),
                },
            });
            let rates = || rows.iter().filter(|r| r.what == "bandwidth");
            for (place, buffers) in distinct(rates().filter_map(|r| r.buffers))
                .iter()
                .enumerate()
            {
                let rates = rates().filter(|r| r.buffers == Some(buffers));
                charts.push(Chart {
                    name: format!("shm-bandwidth-{}", place + 1),
                    title: format!("within a node: bandwidth over size, buffers: {buffers}"),
                    unit: "GB/s, band: all rounds",
                    plot: Plot::Lines {
                        log: true,
                        series: lines(
                            rates,
                            |r| r.path.into(),
                            |r| rate(r.size, r.gbit_s, &r.values, 8.0),
                        ),
                    },
                });
            }
        }
        Section {
            about: bench.about,
            content: Ok((bench.rounds, intra::report::table(rows, Style::Markdown))),
            charts,
            figures: results::within_node(rows, &machine::summary()),
        }
    }
}

/// Value of a row in a bar chart.
type Value<R> = fn(&R) -> Option<f64>;

/// Draws latency over size, one chart for each MTU and kind of waiting.
fn latencies(rows: &[report::Row]) -> Vec<Chart> {
    let kinds = distinct(rows.iter().filter_map(|r| Some((r.mtu, r.wait?))));
    let chart = |&(mtu, wait): &(u32, Wait)| {
        let rows = rows.iter().filter(|r| (r.mtu, r.wait) == (mtu, Some(wait)));
        let waiting = match wait {
            Wait::Block => "blocking",
            Wait::Poll => "polling",
        };
        Chart {
            name: format!("pingpong-{mtu}-{}", wait.name()),
            title: format!("half a round trip over size, MTU {mtu}, {waiting}"),
            unit: TIME,
            plot: Plot::Lines {
                log: true,
                series: lines(
                    rows,
                    |r| label(r.path),
                    |r| time(r.size, r.p50_us, r.p99_us),
                ),
            },
        }
    };
    kinds.iter().map(chart).collect()
}

/// Draws bandwidth over the size of a write, one chart for each MTU; bars if only one size was
/// measured. Of the bare loop's two kinds of waiting the better one is drawn.
fn bandwidths(rows: &[report::Row]) -> Vec<Chart> {
    let chart = |mtu: u32| {
        let rows: Vec<_> = rows.iter().filter(|r| r.mtu == mtu).collect();
        let sized = rows.iter().copied().filter(|r| r.size.is_some());
        let bare = rows.iter().copied().filter(|r| r.size.is_none());
        let paths = distinct(bare.clone().map(|r| r.path));
        let best = paths.into_iter().filter_map(|path| {
            let of_path = bare.clone().filter(|r| r.path == path);
            of_path.max_by(|a, b| a.gbit_s.unwrap_or(0.0).total_cmp(&b.gbit_s.unwrap_or(0.0)))
        });
        let point = |r: &report::Row| rate(r.size, r.gbit_s, &r.values, 1.0);
        let name = |r: &report::Row| label(r.path);
        let sizes = distinct(sized.clone().map(|r| r.size));
        let mut series = lines(sized, name, point);
        series.extend(lines(best, name, point));
        let (title, plot) = match sizes.as_slice() {
            [Some(size)] => {
                let value = |(_, points): &(String, Vec<Point>)| {
                    points.first().map_or(f64::NAN, |point| point.value)
                };
                let values = series.iter().map(value).collect();
                let plot = Plot::Bars {
                    groups: vec![(format!("writes of {} KiB", size / 1024), values)],
                    series: series.into_iter().map(|(name, _)| name).collect(),
                };
                ("bandwidth, one way", plot)
            }
            _ => (
                "bandwidth over size of a write, one way",
                Plot::Lines { log: false, series },
            ),
        };
        Chart {
            name: format!("stream-{mtu}"),
            title: format!("{title}, MTU {mtu}"),
            unit: "Gbit/s",
            plot,
        }
    };
    let sizes = distinct(rows.iter().map(|r| r.mtu));
    sizes.into_iter().map(chart).collect()
}

fn send_calls(name: &str, rows: &[report::Row]) -> Chart {
    let paths = distinct(rows.iter().map(|r| r.path));
    let mut groups = Vec::new();
    for mtu in distinct(rows.iter().map(|r| r.mtu)) {
        let percentiles: [(&str, Value<report::Row>); 2] =
            [("p50", |r| r.p50_us), ("p99", |r| r.p99_us)];
        for (percentile, value) in percentiles {
            let of = |path: &&str| rows.iter().find(|r| (r.mtu, r.path) == (mtu, *path));
            let values = paths
                .iter()
                .map(|path| of(path).and_then(value).unwrap_or(f64::NAN));
            groups.push((format!("{percentile}, MTU {mtu}"), values.collect()));
        }
    }
    Chart {
        name: name.into(),
        title: match name {
            "send" => "send: mean time of the send calls of a burst, 1 byte each".into(),
            _ => format!("{name}: time of a send call of 1 byte"),
        },
        unit: "µs",
        plot: Plot::Bars {
            series: paths.into_iter().map(label).collect(),
            groups,
        },
    }
}

fn losses(rows: &[report::Row]) -> Chart {
    let paths = distinct(rows.iter().map(|r| r.path));
    let groups = distinct(rows.iter().map(|r| r.loss))
        .into_iter()
        .map(|loss| {
            let of = |path: &&str| rows.iter().find(|r| (r.loss, r.path) == (loss, *path));
            let rate = |path| of(path).and_then(|r| r.gbit_s).unwrap_or(f64::NAN);
            let label = format!("{} % lost", loss.unwrap_or(0.0) * 100.0);
            (label, paths.iter().map(rate).collect())
        });
    Chart {
        name: "loss".into(),
        title: "bandwidth with lost frames, one way, MTU 1500".into(),
        unit: "Gbit/s",
        plot: Plot::Bars {
            groups: groups.collect(),
            series: paths.into_iter().map(label).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(path: &'static str, mtu: u32, size: Option<usize>, value: f64) -> report::Row {
        report::Row {
            path,
            mtu,
            size,
            wait: Some(Wait::Block),
            p50_us: Some(value),
            p99_us: Some(2.0 * value),
            gbit_s: Some(value),
            ..report::Row::default()
        }
    }

    #[test]
    fn each_mtu_has_its_chart_and_each_protocol_its_line() {
        let rows = [
            row("tcp", 1500, Some(1), 5.0),
            row("tcp", 1500, Some(64), 6.0),
            row("lease", 1500, Some(1), 2.0),
            row("tcp", 9000, Some(1), 5.0),
        ];
        let charts = latencies(&rows);
        let names: Vec<_> = charts.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["pingpong-1500-block", "pingpong-9000-block"]);
        let Plot::Lines { series, .. } = &charts[0].plot else {
            panic!("not lines: {charts:?}")
        };
        let points = |size, value: f64| Point {
            size,
            value,
            band: Some((value, 2.0 * value)),
        };
        assert_eq!(
            series[0],
            (
                "TCP (any user)".into(),
                vec![points(1.0, 5.0), points(64.0, 6.0)]
            )
        );
        assert_eq!(series[1].0, "ESP, lease (lease.allow)");
    }

    #[test]
    fn the_better_bare_loop_is_a_horizontal_line() {
        let rows = [
            row("raw", 1500, None, 5.0),
            row("raw", 1500, None, 7.0),
            row("lease", 1500, Some(1024), 2.0),
            row("lease", 1500, Some(2048), 3.0),
        ];
        let charts = bandwidths(&rows);
        let Plot::Lines { series, .. } = &charts[0].plot else {
            panic!("not lines: {charts:?}")
        };
        let [bare] = series[1].1.as_slice() else {
            panic!("not one point: {series:?}")
        };
        assert_eq!((bare.size, bare.value), (0.0, 7.0));
    }

    #[test]
    fn rates_have_the_band_of_their_rounds() {
        let mut rows = [1024, 2048].map(|size| row("udp", 1500, Some(size), 3.0));
        rows[0].values = vec![3.0, 2.5, 4.0];
        let charts = bandwidths(&rows);
        let Plot::Lines { series, .. } = &charts[0].plot else {
            panic!("not lines: {charts:?}")
        };
        let bands: Vec<_> = series[0].1.iter().map(|point| point.band).collect();
        assert_eq!(bands, [Some((2.5, 4.0)), None]);
    }

    #[test]
    fn rates_of_one_size_are_bars() {
        let rows = [
            row("raw", 1500, None, 5.0),
            row("lease", 1500, Some(262_144), 2.0),
        ];
        let Plot::Bars { groups, series } = &bandwidths(&rows)[0].plot else {
            panic!("not bars")
        };
        assert_eq!(series.len(), 2);
        assert_eq!(groups, &[("writes of 256 KiB".to_owned(), vec![2.0, 5.0])]);
    }

    #[test]
    fn send_calls_are_grouped_by_percentile_and_mtu() {
        let rows = [
            row("tcp", 1500, Some(1), 5.0),
            row("lease", 1500, Some(1), 2.0),
        ];
        let Plot::Bars { groups, series } = send_calls("send", &rows).plot else {
            panic!("not bars")
        };
        assert_eq!(series.len(), 2);
        assert_eq!(
            groups,
            [
                ("p50, MTU 1500".to_owned(), vec![5.0, 2.0]),
                ("p99, MTU 1500".to_owned(), vec![10.0, 4.0])
            ]
        );
    }
}
