use super::*;

fn chart(plot: Plot) -> Result<String, Box<dyn Error>> {
    Chart {
        name: "name".into(),
        title: "MTU 1500 & more".into(),
        unit: "µs",
        plot,
    }
    .svg()
}

fn point(size: f64, value: f64) -> Point {
    Point {
        size,
        value,
        band: None,
    }
}

#[test]
fn bands_are_areas_behind_all_lines() -> Result<(), Box<dyn Error>> {
    let banded = |size, value| Point {
        band: Some((value, 3.0 * value)),
        ..point(size, value)
    };
    let drawn = |points| {
        let series = vec![("TCP".to_owned(), points)];
        chart(Plot::Lines { log: true, series })
    };
    let plain = drawn(vec![point(1.0, 10.0), point(1024.0, 20.0)])?;
    assert!(!plain.contains("<polygon"), "{plain}");
    let bands = drawn(vec![banded(1.0, 10.0), banded(1024.0, 20.0)])?;
    assert_eq!(bands.matches("<polygon").count(), 1, "{bands}");
    let area = bands.find("<polygon").zip(bands.find("<circle"));
    assert!(area.is_some_and(|(area, dot)| area < dot), "{bands}");
    // The axis reaches the upper edge.
    assert!(
        bands.contains("\n50\n") || bands.contains("\n100\n"),
        "{bands}"
    );
    let two = [2.0, 3.0].map(|factor| {
        let points = vec![banded(1.0, factor), banded(1024.0, 2.0 * factor)];
        (format!("line {factor}"), points)
    });
    let two = chart(Plot::Lines {
        log: true,
        series: two.into(),
    })?;
    let areas = two.rfind("<polygon").zip(two.find("<circle"));
    assert!(areas.is_some_and(|(last, dot)| last < dot), "{two}");
    let partly = drawn(vec![banded(1.0, 10.0), point(1024.0, 20.0)])?;
    assert!(!partly.contains("<polygon"), "{partly}");
    Ok(())
}

#[test]
fn lines_have_a_legend_and_size_labels() -> Result<(), Box<dyn Error>> {
    for log in [true, false] {
        let series = vec![
            (
                "TCP".to_owned(),
                vec![point(1.0, 10.0), point(1024.0, 20.0)],
            ),
            ("bare loop".to_owned(), vec![point(0.0, 15.0)]),
        ];
        let text = chart(Plot::Lines { log, series })?;
        for part in ["<svg", "</svg>", "TCP", "bare loop", "1 KiB", "&amp; more"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    Ok(())
}

#[test]
fn bars_have_their_values_and_labels() -> Result<(), Box<dyn Error>> {
    let text = chart(Plot::Bars {
        series: vec!["TCP".into(), "ESP, lease".into()],
        groups: vec![("p50".into(), vec![1.25, 20.0]), ("p99".into(), vec![3.5])],
    })?;
    for part in ["1.25", "20", "3.50", "p99", "ESP, lease"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    Ok(())
}

#[test]
fn the_legend_is_in_the_chart_or_beside_it() -> Result<(), Box<dyn Error>> {
    let points = vec![point(1.0, 1e4), point(2.0, 0.25)];
    let chart = Chart {
        name: String::new(),
        title: "t".into(),
        unit: "s",
        plot: Plot::Lines {
            log: true,
            series: vec![("TCP".into(), points.clone()), ("other".into(), points)],
        },
    };
    let legend: Vec<_> = chart.legend().collect();
    assert_eq!(legend[0], ("TCP", "#ff7f0e".into()));
    assert_eq!(legend[1].0, "other");
    let (with, without) = (chart.svg()?, chart.svg_alone()?);
    assert!(with.contains("other") && !without.contains("other"));
    for (_, colour) in legend {
        assert!(without.to_lowercase().contains(&colour), "{colour}");
    }
    // Labels of the axis end without zeros.
    assert!(with.contains("\n10000\n"), "{with}");
    Ok(())
}

#[test]
fn an_empty_chart_is_drawn() -> Result<(), Box<dyn Error>> {
    let lines = chart(Plot::Lines {
        log: true,
        series: Vec::new(),
    })?;
    let bars = chart(Plot::Bars {
        series: Vec::new(),
        groups: Vec::new(),
    })?;
    assert!(lines.contains("</svg>") && bars.contains("</svg>"));
    Ok(())
}
