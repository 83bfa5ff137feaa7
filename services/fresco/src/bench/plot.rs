//! Throughput over the number of sizes, as SVG.

use std::{collections::BTreeMap, path::Path};

use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    drawing::IntoDrawingArea,
    element::{Circle, PathElement},
    prelude::SVGBackend,
    series::LineSeries,
    style::{BLACK, Color, Palette, Palette99, ShapeStyle, WHITE},
};
use service::exit::Failure;

use super::{Outcome, report::arrivals};

const SIZE: (u32, u32) = (760, 440);

/// A line's points: number of sizes → images a second.
type Line = BTreeMap<usize, f64>;

/// Draws a line for each closed load and admission, and one for each load's bound.
pub(super) fn draw(file: &Path, outcomes: &[&Outcome]) -> Result<(), Failure> {
    drawn(file, &lines(outcomes))
        .map_err(|error| Failure::Failed(format!("cannot draw {}: {error}", file.display())))
}

fn lines(outcomes: &[&Outcome]) -> BTreeMap<String, Line> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    // At a rate that comes whatever happens there is nothing to see: it goes through.
    let closed = |outcome: &&&Outcome| outcome.load.at_once() > 0;
    for outcome in outcomes.iter().filter(closed) {
        let sizes = outcome.load.sizes.len();
        let load = format!("{}, {} AR slots", arrivals(&outcome.load), outcome.ar_slots);
        let mut point = |name: String, value: f64| {
            lines.entry(name).or_default().insert(sizes, value);
        };
        point(
            format!("{load}: {}", outcome.admission),
            outcome.measured.images_per_s,
        );
        if let Some(bound) = outcome.measured.bound_images_per_s {
            point(format!("{load}: bound"), bound);
        }
    }
    lines
}

fn drawn(file: &Path, lines: &BTreeMap<String, Line>) -> Result<(), Box<dyn std::error::Error>> {
    let values = || lines.values().flatten();
    let sizes_max = values().map(|(sizes, _)| *sizes).max().unwrap_or(1);
    let value_max = values().map(|(_, value)| *value).fold(0.0, f64::max);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..sizes_max as f64 + 0.5, 0.0..value_max * 1.5)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(sizes_max)
        .x_label_formatter(&|sizes| format!("{sizes:.0}"))
        .x_desc("sizes in the mix")
        .y_desc("images a second")
        .draw()?;
    for (place, (name, line)) in lines.iter().enumerate() {
        let style = match name.ends_with("bound") {
            true => BLACK.mix(0.4).stroke_width(1),
            false => ShapeStyle::from(&Palette99::pick(place)).stroke_width(2),
        };
        let points = line.iter().map(|(sizes, value)| (*sizes as f64, *value));
        chart
            .draw_series(LineSeries::new(points.clone(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        chart.draw_series(points.map(|point| Circle::new(point, 3, style.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}
