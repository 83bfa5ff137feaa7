//! Pictures of the dashboards for people who have no Grafana at hand: drawn from what their queries found in a run of
//! the scenario, on Grafana's grid, and no more like Grafana than that.

mod chart;
mod found;
mod rows;
mod tree;

use std::{error::Error, path::Path};

use plotters::{
    coord::Shift,
    drawing::{DrawingArea, IntoDrawingArea},
    element::Rectangle,
    prelude::SVGBackend,
    style::{Color, FontDesc, FontFamily, FontStyle, RGBColor, TextStyle},
};

pub use self::found::{Found, find};
use crate::{dashboards::Dashboard, otlp::Tree, scenario::Scenario};

/// Of one picture's file, so that a page with all of them opens at once; a server of pages packs them to a tenth.
pub const BYTES_MAX: u64 = 256 << 10;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error + Send + Sync>>;

const WIDTH: u32 = 1280;
/// Of one of the grid's 24 columns, and of one of its rows.
const COLUMN: u32 = WIDTH / 24;
const ROW: u32 = 26;
const GAP: u32 = 3;

const PAGE: RGBColor = RGBColor(17, 18, 23);
const PANEL: RGBColor = RGBColor(24, 27, 31);
const INK: RGBColor = RGBColor(204, 204, 220);
const FAINT: RGBColor = RGBColor(120, 124, 134);
const BAD: RGBColor = RGBColor(226, 77, 66);
const COLOURS: [RGBColor; 10] = [
    RGBColor(126, 178, 109),
    RGBColor(234, 184, 57),
    RGBColor(110, 208, 224),
    RGBColor(239, 132, 60),
    RGBColor(226, 77, 66),
    RGBColor(87, 148, 242),
    RGBColor(186, 67, 169),
    RGBColor(150, 127, 196),
    RGBColor(184, 119, 217),
    RGBColor(255, 166, 176),
];

fn colour(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

fn ink(size: i32, colour: RGBColor) -> TextStyle<'static> {
    let font = FontDesc::new(FontFamily::SansSerif, f64::from(size), FontStyle::Normal);
    TextStyle {
        color: colour.to_backend_color(),
        ..TextStyle::from(font)
    }
}

/// Draws a dashboard of a run that is over.
pub async fn dashboard(file: &Path, dashboard: &Dashboard, scenario: &Scenario) -> Drawn {
    let panels = dashboard.json["panels"].as_array();
    let panels = panels.ok_or("a dashboard without panels")?;
    let place = |panel: &serde_json::Value| {
        ["x", "y", "w", "h"].map(|side| {
            let number = panel["gridPos"][side]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok());
            number.unwrap_or_default()
        })
    };
    let mut found = Vec::new();
    for panel in dashboard.panels() {
        found.push(find(&panel, scenario).await);
    }
    let rows = panels.iter().map(place).map(|[_, y, _, height]| y + height);
    let height = rows.max().unwrap_or(1) * ROW;
    let page = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    page.fill(&PAGE)?;
    let mut found = found.into_iter();
    for panel in panels {
        let [x, y, width, height] = place(panel);
        let corner = ((x * COLUMN).cast_signed(), (y * ROW).cast_signed());
        let title = panel["title"].as_str().unwrap_or_default();
        let area = page.clone().shrink(corner, (width * COLUMN, height * ROW));
        if panel["type"] == "row" {
            area.draw_text(title, &ink(15, INK), (8, 6))?;
            continue;
        }
        let found = found.next().ok_or("a panel that nobody looked at")?;
        draw_panel(&area, title, panel, &found)?;
    }
    page.present()?;
    small_enough(file)
}

/// Told by who draws, not first by the test that reads what was committed.
fn small_enough(file: &Path) -> Drawn {
    let bytes = std::fs::metadata(file)?.len();
    if bytes > BYTES_MAX {
        return Err(format!("{}: {bytes} bytes, over {BYTES_MAX}", file.display()).into());
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, title: &str, panel: &serde_json::Value, found: &Found) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let inner = (width - 2 * GAP, height - 2 * GAP);
    let area = area
        .clone()
        .shrink((GAP.cast_signed(), GAP.cast_signed()), inner);
    area.fill(&PANEL)?;
    area.draw_text(title, &ink(13, INK), (8, 6))?;
    let body = area.shrink((8, 26), (inner.0 - 16, inner.1 - 32));
    let defaults = &panel["fieldConfig"]["defaults"];
    let unit = defaults["unit"].as_str().unwrap_or("short");
    match (panel["type"].as_str().unwrap_or_default(), found) {
        (_, Found::Nothing) => {
            body.draw_text("nothing of that in this run", &ink(12, FAINT), (4, 8))?;
            Ok(())
        }
        ("stat", Found::Lines(lines)) => chart::stat(&body, lines, unit),
        ("heatmap", Found::Lines(lines)) => chart::heatmap(&body, lines, unit),
        ("state-timeline", Found::Lines(lines)) => chart::states(&body, lines),
        (_, Found::Lines(lines)) if defaults["custom"]["stacking"]["mode"] == "normal" => {
            chart::stacked(&body, lines, unit)
        }
        (_, Found::Lines(lines)) => chart::lines(&body, lines, unit),
        (_, Found::Rows(table)) => rows::table(&body, table),
        (_, Found::Tree(spans)) => tree::waterfall(&body, spans),
        (_, Found::Edges(edges)) => rows::graph(&body, edges),
    }
}

/// Draws one trace.
pub fn trace(file: &Path, tree: &Tree) -> Drawn {
    let spans = u32::try_from(tree.spans.len())?;
    let page = SVGBackend::new(file, (WIDTH, spans * tree::LINE + 48)).into_drawing_area();
    page.fill(&PANEL)?;
    let body = page
        .clone()
        .shrink((16, 8), (WIDTH - 32, spans * tree::LINE + 32));
    tree::waterfall(&body, tree)?;
    page.present()?;
    small_enough(file)
}

/// A filled box.
fn block(area: &Area<'_>, corner: (i32, i32), size: (i32, i32), colour: RGBColor) -> Drawn {
    let far = (corner.0 + size.0.max(1), corner.1 + size.1);
    area.draw(&Rectangle::new([corner, far], colour.filled()))?;
    Ok(())
}
