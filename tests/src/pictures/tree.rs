//! A trace as a waterfall.

use std::collections::BTreeMap;

use super::{Area, BAD, Drawn, FAINT, INK, block, colour, ink};
use crate::otlp::{Captured, Tree};

/// Pixels of a span.
pub(super) const LINE: u32 = 17;
/// Names to the left of this, bars to the right.
const LEFT: i32 = 420;

/// Parents before children, each line a span: its service's colour, its name, its time.
pub(super) fn waterfall(area: &Area<'_>, tree: &Tree) -> Drawn {
    let (width, height) = area.dim_in_pixel();
    let (width, height) = (width.cast_signed(), height.cast_signed());
    let intervals = || tree.spans.iter().map(Captured::interval);
    let from = intervals()
        .map(|(start, _)| start)
        .fold(f64::INFINITY, f64::min);
    let to = intervals().map(|(_, end)| end).fold(from, f64::max);
    let x_of = |at: f64| LEFT + (f64::from(width - LEFT - 60) * (at - from) / (to - from)) as i32;
    let mut services = BTreeMap::new();
    for span in &tree.spans {
        let number = services.len();
        services.entry(instance(span)).or_insert(number);
    }
    for (service, number) in &services {
        let x = 300 * i32::try_from(*number)?;
        block(area, (x, 4), (10, 8), colour(*number))?;
        area.draw_text(service, &ink(11, FAINT), (x + 14, 0))?;
    }
    let mut order = Vec::new();
    for root in tree.roots() {
        descend(tree, root, &mut order);
    }
    for (line, span) in order.iter().enumerate() {
        let y = 24 + i32::try_from(line)? * LINE.cast_signed();
        if y + LINE.cast_signed() > height {
            break;
        }
        let depth = i32::try_from(tree.ancestors(span).len())?;
        let failed = span.failed();
        let text = if failed { BAD } else { INK };
        area.draw_text(span.name(), &ink(12, text), (depth * 14, y))?;
        let (start, end) = span.interval();
        let (x, size) = (x_of(start), x_of(end) - x_of(start));
        let service = colour(services[&instance(span)]);
        block(
            area,
            (x, y + 2),
            (size, 10),
            if failed { BAD } else { service },
        )?;
        let took = match end - start {
            seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
            seconds => format!("{seconds:.2} s"),
        };
        area.draw_text(&took, &ink(11, FAINT), (x + size.max(1) + 5, y))?;
    }
    Ok(())
}

fn instance(span: &Captured) -> String {
    let name = span.process("service.instance.id");
    name.unwrap_or_default().to_owned()
}

fn descend<'a>(tree: &'a Tree, span: &'a Captured, order: &mut Vec<&'a Captured>) {
    order.push(span);
    let id = &span.span.span_id;
    let children = tree
        .spans
        .iter()
        .filter(|child| &child.span.parent_span_id == id);
    for child in children {
        descend(tree, child, order);
    }
}
