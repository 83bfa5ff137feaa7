//! Panels of Prometheus: lines, areas, heatmaps, states, numbers.

use std::collections::BTreeMap;

use plotters::{
    chart::ChartBuilder,
    element::{Polygon, Rectangle},
    series::LineSeries,
    style::{Color, RGBColor},
};

use super::{Area, Drawn, FAINT, INK, PANEL, block, colour, found::Line, ink};

/// A character of the small font, in pixels, more or less.
const CHARACTER: i32 = 6;
const LEGEND: i32 = 15;

pub(super) fn shown(value: f64, unit: &str) -> String {
    let short = |value: f64, unit: &str| {
        let text = match value.abs() {
            v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
            v if v >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        };
        format!("{text}{unit}")
    };
    match unit {
        "s" if value != 0.0 && value.abs() < 1.0 => short(value * 1e3, " ms"),
        "s" => short(value, " s"),
        "percentunit" => short(value * 100.0, " %"),
        "bytes" | "binBps" if value >= 1e6 => short(value / 1e6, " MB"),
        "bytes" | "binBps" => short(value / 1e3, " kB"),
        "reqps" => short(value, "/s"),
        _ => short(value, ""),
    }
}

fn bounds(lines: &[Line]) -> (f64, f64) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let x_max = points().map(|point| point.0).fold(1.0, f64::max);
    let y_max = points().map(|point| point.1).fold(0.0, f64::max);
    (x_max, if y_max > 0.0 { y_max * 1.1 } else { 1.0 })
}

/// Names of lines below a chart, as many as there is room for.
fn legend(
    area: &Area<'_>,
    lines: &[Line],
) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width.cast_signed(), height.cast_signed());
    let (mut x, mut y) = (0, height - LEGEND);
    let mut used = LEGEND;
    for (place, line) in lines.iter().enumerate() {
        let size = i32::try_from(line.legend.chars().count())? * CHARACTER + 22;
        if x > 0 && x + size > width {
            if used >= 2 * LEGEND {
                area.draw_text("…", &ink(11, FAINT), (width - 12, y))?;
                break;
            }
            (x, y, used) = (0, y - LEGEND, used + LEGEND);
        }
        block(area, (x, y + 5), (10, 3), colour(place))?;
        area.draw_text(&line.legend, &ink(11, FAINT), (x + 14, y))?;
        x += size;
    }
    Ok(used.cast_unsigned() + 4)
}

pub(super) fn lines(area: &Area<'_>, lines: &[Line], unit: &str) -> Drawn {
    drawn(area, lines, unit, false)
}

/// Each on top of the one before it.
pub(super) fn stacked(area: &Area<'_>, lines: &[Line], unit: &str) -> Drawn {
    let mut below: BTreeMap<i64, f64> = BTreeMap::new();
    let mut sums = Vec::new();
    for line in lines {
        let points = line.points.iter().map(|(x, y)| {
            let sum = below.entry(x.round() as i64).or_default();
            *sum += y;
            (*x, *sum)
        });
        sums.push(Line {
            legend: line.legend.clone(),
            points: points.collect(),
        });
    }
    drawn(area, &sums, unit, true)
}

fn drawn(area: &Area<'_>, lines: &[Line], unit: &str, filled: bool) -> Drawn {
    let below = legend(area, lines)?;
    let (x_max, y_max) = bounds(lines);
    let mut chart = ChartBuilder::on(area)
        .margin_top(4)
        .margin_right(6)
        .margin_bottom(below)
        .x_label_area_size(16)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(6)
        .y_labels(4)
        .axis_style(FAINT.mix(0.4))
        .bold_line_style(FAINT.mix(0.2))
        .light_line_style(PANEL)
        .label_style(ink(11, FAINT))
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| shown(*y, unit))
        .draw()?;
    // The highest first, so that what is below is drawn over it.
    for (place, line) in lines.iter().enumerate().rev() {
        let points = line.points.iter().copied();
        if filled && line.points.len() > 1 {
            let ends = [line.points[line.points.len() - 1].0, line.points[0].0];
            let outline: Vec<_> = points.clone().chain(ends.map(|x| (x, 0.0))).collect();
            chart.draw_series([Polygon::new(outline, dim(colour(place)))])?;
        }
        let style = colour(place).stroke_width(1);
        chart.draw_series(LineSeries::new(points, style))?;
    }
    Ok(())
}

/// Over the panel, without letting what is below shine through.
fn dim(colour: RGBColor) -> RGBColor {
    let mix = |own: u8, ground: u8| u8::try_from((u16::from(own) + u16::from(ground)) / 2);
    let of = |own, ground| mix(own, ground).unwrap_or(u8::MAX);
    RGBColor(
        of(colour.0, PANEL.0),
        of(colour.1, PANEL.1),
        of(colour.2, PANEL.2),
    )
}

/// The last value, large.
pub(super) fn stat(area: &Area<'_>, lines: &[Line], unit: &str) -> Drawn {
    let last = lines[0].points.iter().map(|point| point.1);
    // The run is over when the picture is drawn: its height says more.
    let highest = last.fold(0.0, f64::max);
    area.draw_text(&shown(highest, unit), &ink(30, colour(0)), (4, 6))?;
    area.draw_text("at its highest", &ink(11, FAINT), (4, 44))?;
    let (_, height) = area.dim_in_pixel();
    let rest = area
        .clone()
        .shrink((150, 0), (area.dim_in_pixel().0 - 150, height));
    let (x_max, y_max) = bounds(lines);
    let mut chart = ChartBuilder::on(&rest).build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
    let points = lines[0].points.iter().copied();
    chart.draw_series(LineSeries::new(points, colour(0).stroke_width(1)))?;
    Ok(())
}

/// Of cumulative buckets: how many fell into each.
pub(super) fn heatmap(area: &Area<'_>, lines: &[Line], unit: &str) -> Drawn {
    let bound = |line: &Line| line.legend.parse::<f64>().unwrap_or(f64::INFINITY);
    let mut buckets: Vec<&Line> = lines.iter().collect();
    buckets.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    let mut cells = Vec::new();
    for (row, pair) in buckets.windows(2).enumerate() {
        let lower: BTreeMap<i64, f64> = pair[0]
            .points
            .iter()
            .map(|(x, y)| (*x as i64, *y))
            .collect();
        for (x, y) in &pair[1].points {
            let within = y - lower.get(&(*x as i64)).copied().unwrap_or(0.0);
            if within > 1e-9 {
                cells.push((row, *x, within));
            }
        }
    }
    let most = cells.iter().map(|cell| cell.2).fold(0.0, f64::max);
    let (x_max, _) = bounds(lines);
    let used = |row: &usize| cells.iter().any(|cell| cell.0 == *row);
    let rows = (0..buckets.len()).filter(used);
    let (first, last) = (rows.clone().min().unwrap_or(0), rows.max().unwrap_or(0));
    let mut chart = ChartBuilder::on(area)
        .margin(4)
        .x_label_area_size(16)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..x_max, first as f64..(last + 1) as f64)?;
    let name = |row: f64| {
        buckets
            .get(row as usize + 1)
            .map_or(f64::INFINITY, |line| bound(line))
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_labels(6)
        .y_labels((last + 2 - first).min(6))
        .axis_style(FAINT.mix(0.4))
        .label_style(ink(11, FAINT))
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|row| match name(*row) {
            bound if bound.is_finite() => shown(bound, unit),
            _ => "more".to_owned(),
        })
        .draw()?;
    let step = x_max
        / lines
            .iter()
            .map(|line| line.points.len())
            .max()
            .unwrap_or(1) as f64;
    let boxes = cells.into_iter().map(|(row, x, within)| {
        let far = (x + step, (row + 1) as f64);
        let heat = (within / most).sqrt();
        Rectangle::new(
            [(x, row as f64), far],
            colour(3).mix(0.15 + 0.85 * heat).filled(),
        )
    });
    chart.draw_series(boxes)?;
    Ok(())
}

/// A bar for each state of each worker, while it was in it.
pub(super) fn states(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let mut of_worker: BTreeMap<&str, Vec<(&str, &Line)>> = BTreeMap::new();
    let mut names: Vec<&str> = Vec::new();
    for line in lines {
        let (worker, state) = line.legend.rsplit_once(' ').unwrap_or((&line.legend, ""));
        of_worker.entry(worker).or_default().push((state, line));
        if !names.contains(&state) {
            names.push(state);
        }
    }
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width.cast_signed(), height.cast_signed());
    let step = (height - LEGEND - 4) / i32::try_from(of_worker.len().max(1))?;
    let (x_max, _) = bounds(lines);
    let left = 150;
    let x_of = |seconds: f64| left + (f64::from(width - left) * seconds / x_max) as i32;
    for (place, (worker, states)) in of_worker.into_iter().enumerate() {
        let y = i32::try_from(place)? * step;
        area.draw_text(worker, &ink(11, INK), (0, y + step / 2 - 8))?;
        for (state, line) in states {
            let at = names.iter().position(|name| *name == state).unwrap_or(0);
            for (from, to) in intervals(&line.points, x_max / 40.0) {
                let size = (x_of(to) - x_of(from), step - 3);
                block(area, (x_of(from), y), size, dim(colour(at)))?;
            }
        }
    }
    for (place, name) in names.iter().enumerate() {
        let x = left + 90 * i32::try_from(place)?;
        block(area, (x, height - LEGEND + 3), (10, 8), dim(colour(place)))?;
        area.draw_text(name, &ink(11, FAINT), (x + 14, height - LEGEND))?;
    }
    Ok(())
}

/// Points that lie close to each other, as intervals.
fn intervals(points: &[(f64, f64)], gap: f64) -> Vec<(f64, f64)> {
    let mut found: Vec<(f64, f64)> = Vec::new();
    for (x, _) in points {
        match found.last_mut() {
            Some((_, to)) if x - *to <= gap => *to = *x,
            _ => found.push((*x, x + gap / 2.0)),
        }
    }
    found
}
