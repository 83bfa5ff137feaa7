//! Tables, log lines, and the service graph.

use std::collections::BTreeMap;

use plotters::{
    element::{Circle, PathElement},
    style::Color,
};

use super::{Area, Drawn, FAINT, INK, colour, ink};

const LINE: i32 = 18;
/// A character of the font, in pixels, more or less.
const CHARACTER: i32 = 7;

/// The first row is its head.
pub(super) fn table(area: &Area<'_>, rows: &[Vec<String>]) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let longest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut starts = vec![0_i32];
    for column in 0..columns {
        let size = i32::try_from(longest(column))? * CHARACTER + 14;
        starts.push(starts[column] + size);
    }
    for (line, row) in rows.iter().enumerate() {
        let y = i32::try_from(line)? * LINE + 2;
        if y + LINE > height.cast_signed() {
            break;
        }
        for (cell, x) in row.iter().zip(&starts) {
            let colour = if line == 0 { FAINT } else { INK };
            let room = (width.cast_signed() - x) / CHARACTER;
            let text: String = cell.chars().take(usize::try_from(room.max(0))?).collect();
            area.draw_text(&text, &ink(12, colour), (*x, y))?;
        }
    }
    Ok(())
}

/// Services in a row, in the order in which work goes through them.
pub(super) fn graph(area: &Area<'_>, edges: &[[String; 3]]) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let mut depth: BTreeMap<&str, i32> = BTreeMap::new();
    // Longest way from who is asked by nobody; the graph has no circle, and is small.
    for _ in edges {
        for [client, server, _] in edges {
            let from = *depth.entry(client).or_default();
            let to = depth.entry(server).or_default();
            *to = (*to).max(from + 1).min(8);
        }
    }
    let deepest = depth.values().max().copied().unwrap_or(0) + 1;
    let step = width.cast_signed() / deepest;
    let place = |name: &str| {
        let at = depth.get(name).copied().unwrap_or(0);
        (at * step + step / 2, height.cast_signed() / 2)
    };
    for [client, server, kind] in edges {
        let (from, to) = (place(client), place(server));
        let ends = vec![(from.0 + 24, from.1), (to.0 - 24, to.1)];
        area.draw(&PathElement::new(ends, FAINT.stroke_width(2)))?;
        let head = vec![
            (to.0 - 32, to.1 - 5),
            (to.0 - 24, to.1),
            (to.0 - 32, to.1 + 5),
        ];
        area.draw(&PathElement::new(head, FAINT.stroke_width(2)))?;
        let middle = i32::midpoint(from.0, to.0) - 3 * i32::try_from(kind.len())?;
        area.draw_text(
            &kind.replace('_', " "),
            &ink(10, FAINT),
            (middle, from.1 - 18),
        )?;
    }
    for (number, name) in depth.keys().enumerate() {
        let (x, y) = place(name);
        area.draw(&Circle::new((x, y), 20, colour(number).stroke_width(3)))?;
        let left = x - 3 * i32::try_from(name.len())?;
        area.draw_text(name, &ink(12, INK), (left, y + 28))?;
    }
    Ok(())
}
